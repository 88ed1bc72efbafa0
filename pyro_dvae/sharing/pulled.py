"""`pull_run`: a run of a shared folder, from which nothing is executed."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyro_dvae.data import PARTS
from pyro_dvae.runs import METRICS, Run, load_run
from pyro_dvae.runs.checkpoints import create_run, write_weights
from pyro_dvae.runs.config import model_code
from pyro_dvae.runs.log import (
    EVALUATION,
    append_metrics,
    read_epochs,
    stored_evaluation,
    write_evaluation,
)
from pyro_dvae.runs.settings import CONFIG, ConfigFile, config_to_json, trusted_config
from pyro_dvae.runs.start import file_stem
from pyro_dvae.runs.storage import MOST_JSON, only_writer, read_whole, write_json
from pyro_dvae.runs.weights import built, read_weights, without_numbers
from pyro_dvae.sharing.hub import Remote
from pyro_dvae.sharing.private import without_paths
from pyro_dvae.sharing.shared import CARD, FILES, MODEL, write_text
from pyro_dvae.vae import DiscreteVAE

_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
_HEADER = 2**20
"""Bytes that a file of weights may have beside twice those of the model's weights in float32."""


def pull_run(
    source: str | Path, folder: str | Path | None = None, *, trust_code: bool = False
) -> Run:
    """Make a run of a shared folder, or of one that the hub keeps.

    Nothing in it is executed: the weights are safetensors, all else is JSON and text, and only the
    files of `FILES` are read or downloaded. Links are refused, and so are files that are larger
    than the settings allow. If the settings name code as `module:factory`, the run is refused
    unless you trust that code; the code itself is never in the folder.

    Where the data lie is not known to the run: `run.data.moved_to(data_dir=...)`, and `data_dir`
    of every function that takes it, name their folder. Data sets that have a name are found.

    Args:
        source: the folder; or "OWNER/NAME" on the hub, if there is no such folder.
        folder: a new folder for the run; None for `runs/<name>-<n>`.
        trust_code: import the modules that the run names, whoever made it.

    Raises:
        ValueError: there is nothing of the kind, a file is missing, damaged, a link or too large,
            the run is of a newer format, or it names code. No folder is made then.
        MissingHub: huggingface_hub is not installed.
        OSError: the hub cannot be reached, or a file cannot be written.
    """
    if Path(source).is_dir():
        return _pulled(Path(source), folder, trust_code)
    remote = Remote.of(str(source))
    _refuse_missing(remote.sizes, str(source))
    with TemporaryDirectory() as kept:
        stage = Path(kept) / file_stem(remote.name)
        remote.download(stage, [name for name in FILES if name in remote.sizes and name != MODEL])
        _refuse_large(stage, trusted_config(stage, trust_code=trust_code), remote.sizes[MODEL])
        remote.download(stage, [MODEL])
        return _pulled(stage, folder, trust_code)


def _pulled(shared: Path, folder: str | Path | None, trust_code: bool) -> Run:
    sizes = {path.name: path.lstat().st_size for path in shared.iterdir()}
    _refuse_missing(sizes, str(shared))
    for name in FILES:
        if (shared / name).is_symlink():
            raise ValueError(
                f"Expected files in {shared}; got {name}, which is a link, and may lead to a file "
                "that is not yours to copy. Copy the folder with the files themselves."
            )
    file = trusted_config(shared, trust_code=trust_code)
    vae = _refuse_large(shared, file, sizes[MODEL])
    weights, epoch = read_weights(shared, file, vae, MODEL)
    records = read_epochs(shared)
    figures = {part: stored_evaluation(shared, part) for part in PARTS}
    card = read_whole(shared / CARD, MOST_JSON).decode(errors="replace") if CARD in sizes else ""
    path = create_run(folder, file_stem(shared.resolve().name))
    with only_writer(path):
        write_weights(path, weights, epoch)
        for record in records:
            append_metrics(path, vars(record))
        for part, stored in figures.items():
            if stored is not None:
                write_evaluation(path, part, *stored)
        if card:
            write_text(path / CARD, card)
        # Without a mark: this user has not made the run.
        data = without_paths(file.data)
        write_json(path / CONFIG, config_to_json(data, file.event_shape, file.version))
    return load_run(path, trust_code=trust_code)


def _refuse_missing(sizes: dict[str, Any], where: str) -> None:
    """Refuse a folder without settings or weights, and files of text that are too large."""
    for name in (CONFIG, MODEL):
        if name not in sizes:
            pickles = sorted(its for its in sizes if its.endswith(_PICKLES))
            got = f"only {pickles[0]}, a pickle, which could run code" if pickles else "none"
            raise ValueError(
                f"Expected {name} in {where}; got {got}. Ask for a folder that share_run wrote."
            )
    for name in (CARD, CONFIG, METRICS, EVALUATION):
        if sizes.get(name, 0) > MOST_JSON:
            raise ValueError(
                f"Expected at most {MOST_JSON:,} bytes in {name} of {where}; got "
                f"{sizes[name]:,}. Ask for a folder that share_run wrote."
            )


def _refuse_large(shared: Path, file: ConfigFile, size: int) -> DiscreteVAE:
    """The model of the settings, without its numbers; more weights than it has are refused."""
    if model_code(file.config):  # which may need numbers
        return built(shared, file)
    vae = without_numbers(shared, file, MODEL)
    most = 2 * sum(4 * value.numel() for value in vae.state_dict().values()) + _HEADER
    if size > most:
        raise ValueError(
            f"Expected at most {most:,} bytes in {MODEL} of {shared.name}, for that is what its "
            f"settings need; got {size:,}. Ask for a folder that share_run wrote."
        )
    return vae
