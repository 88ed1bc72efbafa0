"""The run folder: settings, metrics, the best weights, and the state to continue from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import torch
from torch import Tensor

from pyro_dvae._version import __version__
from pyro_dvae.runs.config import Config, build_vae
from pyro_dvae.runs.fields import check_fields
from pyro_dvae.runs.log import EVALUATION as EVALUATION
from pyro_dvae.runs.log import METRICS as METRICS
from pyro_dvae.runs.log import append_metrics as append_metrics
from pyro_dvae.runs.log import read_evaluation as read_evaluation
from pyro_dvae.runs.log import read_metrics as read_metrics
from pyro_dvae.runs.log import rewind_metrics as rewind_metrics
from pyro_dvae.runs.log import write_evaluation as write_evaluation
from pyro_dvae.runs.settings import CONFIG as CONFIG
from pyro_dvae.runs.settings import FORMAT as FORMAT
from pyro_dvae.runs.settings import Settings as Settings
from pyro_dvae.runs.settings import own_code as own_code
from pyro_dvae.runs.settings import read_config as read_config
from pyro_dvae.runs.settings import trusted_config as trusted_config
from pyro_dvae.runs.settings import write_config as write_config
from pyro_dvae.runs.storage import LOCK, PART, read_tensors, write_tensors
from pyro_dvae.training.records import EpochRecord
from pyro_dvae.training.resume import TrainingState
from pyro_dvae.vae import DiscreteVAE

WEIGHTS, STATE = "weights.safetensors", "last.safetensors"

_PROGRESS: dict[str, Any] = {
    **dict.fromkeys(("epoch", "step", "num_seen", "num_averaged"), int),
    "seconds": float,
    "best": dict[str, Any] | None,
    "device": str,
}


@dataclass(frozen=True)
class Run:
    """A run folder, read: its settings, and its model with the best weights."""

    folder: Path
    config: Config
    event_shape: tuple[int, ...]
    data: dict[str, Any]
    """Name, source and fingerprint of the data, and how many were used for what."""
    version: str
    """Of the library that made the run."""
    vae: DiscreteVAE
    epoch: int
    """Whose weights these are: the best validation epoch's."""


class Found(NamedTuple):
    """What can be told of a run without importing code that it names."""

    settings: Settings
    epoch: int
    """Whose weights these are: the best validation epoch's."""
    num_parameters: int | None
    """None where only code of the user's own could tell."""


def create_run(folder: str | Path | None, name: str, root: str | Path = "runs") -> Path:
    """Make a new run folder, or take one in which no training has begun.

    A folder without `config.json` and metrics is such: a training that was killed before it began
    may have left the first weights there.

    Args:
        folder: the folder; None numbers one below `root`: `<name>-<n>`.
        name: of the numbered folder.
        root: parent of numbered folders.

    Raises:
        ValueError: the folder exists and holds anything else, or cannot be made or written;
            nothing is overwritten, and no empty folder is left behind.
    """
    path = Path(root) / name if folder is None else Path(folder)
    try:
        str(path).encode()
    except UnicodeEncodeError:
        shown = str(path).encode(errors="backslashreplace").decode()
        raise ValueError(
            f"Expected a run folder whose name is UTF-8; got {shown}, whose weights could never be "
            "read. Name another folder."
        ) from None
    is_new = folder is None or not path.exists()
    try:
        if folder is None:
            path = _numbered(Path(root), name)
        else:
            path.mkdir(parents=True, exist_ok=True)
        ours = (LOCK, WEIGHTS, STATE)
        if any(inside.name not in ours and inside.suffix != PART for inside in path.iterdir()):
            raise ValueError(
                f"Expected a new or empty run folder; got {path}, which has files in it. Name "
                "another, or continue a run with --resume; runs are never overwritten."
            )
        try:
            (path / LOCK).touch()
        except OSError:
            if is_new:
                path.rmdir()
            raise
        return path
    except OSError as error:
        raise ValueError(
            f"Expected a run folder that can be written; got {error}. Name another folder."
        ) from error


def _numbered(root: Path, name: str) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        try:
            (root / f"{name}-{number}").mkdir()
            return root / f"{name}-{number}"
        except FileExistsError:
            number += 1


def write_weights(folder: str | Path, weights: Mapping[str, Tensor], epoch: int) -> None:
    """Write the best weights, in place of those that were there."""
    write_tensors(Path(folder) / WEIGHTS, weights, {"epoch": epoch, "version": __version__})


def write_state(folder: str | Path, state: TrainingState) -> None:
    """Write what `Trainer.load_state_dict` continues from, in place of what was there."""
    metadata = {"progress": state.progress, "version": __version__}
    write_tensors(Path(folder) / STATE, state.tensors, metadata)


def read_state(folder: str | Path) -> TrainingState:
    """Read what `write_state` wrote, on the CPU.

    Raises:
        ValueError: no such file, or a damaged one.
    """
    path = Path(folder) / STATE
    tensors, metadata = read_tensors(path, "the state of a training")
    try:
        check_fields(metadata, {"progress": dict[str, Any]})
        progress = metadata.get("progress", {})
        check_fields(progress, _PROGRESS)
        check_fields(progress.get("best") or {}, get_type_hints(EpochRecord))
    except ValueError as error:
        raise ValueError(
            f"Expected the state of a training in {path}; got: {str(error).rstrip('.')}. Restore "
            "the file."
        ) from error
    return TrainingState(tensors, progress)


def check_run(folder: str | Path) -> Found:
    """Look at a run folder as a stranger's: all of it is read, none of its code imported.

    Raises:
        ValueError: no run there, one of a newer format, or a damaged file.
    """
    folder = Path(folder)
    settings = read_config(folder)
    if own_code(settings.config):
        return Found(settings, _read_weights(folder, settings, None)[1], None)
    vae = _without_numbers(folder, settings)
    epoch = _read_weights(folder, settings, vae)[1]
    return Found(settings, epoch, sum(weight.numel() for weight in vae.parameters()))


def load_run(folder: str | Path, *, trust_code: bool = False) -> Run:
    """Read a run folder; no data set is needed, and the model is on the CPU.

    Nothing in the folder is executed, but a network that the run's settings name as
    `module:factory` is imported, which runs that module. This is done where you made the run
    yourself, on this machine, with the module that lies there now; for any other run it is refused
    unless you say that you trust the module.

    Args:
        folder: the run's.
        trust_code: import the modules that the run names, whoever made it.

    Raises:
        ValueError: no run there, one of a newer format, a damaged file, a run that names code and
            is not known to be yours, or a user's own network that is not there, or not as it was.
    """
    folder = Path(folder)
    settings = trusted_config(folder, trust_code=trust_code)
    if own_code(settings.config):  # which may need numbers
        vae = _built(folder, settings)
        weights, epoch = _read_weights(folder, settings, vae)
    else:
        weights, epoch = _read_weights(folder, settings, _without_numbers(folder, settings))
        vae = _built(folder, settings)
    vae.load_state_dict(weights)
    vae.eval()
    config, event_shape, data, version = settings
    return Run(folder, config, event_shape, data, version, vae, epoch)


def refuse_sizes_beyond(path: Path, config: Config) -> None:
    """Raise a ValueError where settings name a model that a file of tensors is too small for.

    A decoder has at least one number for each category of each latent, and a Boltzmann machine for
    each pair of latents that it couples: what a damaged file claims is not built to find out.
    """
    if own_code(config) or not path.is_file():
        return
    least = 0 if config.network.startswith("conv-grid") else config.num_latents
    if config.prior.partition(":")[0] in ("boltzmann", "rbm"):
        least = max(least, config.num_latents**2 // 4)
    size = path.stat().st_size
    if least * config.num_categories > size:
        raise ValueError(
            f"Expected the run's weights in {path}; got {size:,} bytes, too few for "
            f"{config.num_latents} latents of {config.num_categories} categories. Restore the "
            f"file, or {CONFIG}."
        )


def _without_numbers(folder: Path, settings: Settings) -> DiscreteVAE:
    """The model's shapes alone, whatever sizes a damaged file may claim."""
    refuse_sizes_beyond(folder / WEIGHTS, settings.config)
    with torch.device("meta"):
        return _built(folder, settings)


def _built(folder: Path, settings: Settings) -> DiscreteVAE:
    try:
        return build_vae(settings.config, settings.event_shape)
    except (RuntimeError, OverflowError, TypeError, MemoryError) as error:
        raise ValueError(
            f"Expected a model that can be built in {folder / CONFIG}; got: "
            f"{(str(error) or type(error).__name__).splitlines()[0]}. Restore the file."
        ) from error


def _read_weights(
    folder: Path, settings: Settings, vae: DiscreteVAE | None
) -> tuple[dict[str, Tensor], int]:
    """The weights, of the shapes of a model where one is given, and their epoch."""
    own = own_code(settings.config)
    shapes = None
    if vae is not None:
        shapes = {name: value.shape for name, value in vae.state_dict().items()}
    what = "the run's weights" + (f" to fit {' and '.join(own)} as they are now" if own else "")
    weights, metadata = read_tensors(folder / WEIGHTS, what, shapes)
    try:
        check_fields(metadata, {"epoch": int})
    except ValueError as error:
        raise ValueError(
            f"Expected {what} in {folder / WEIGHTS}; got: {str(error).rstrip('.')}. Restore the "
            "file."
        ) from error
    return weights, metadata.get("epoch", 0)


def newest_run(root: str | Path = "runs") -> Path:
    """The run folder below `root` that was started last.

    Raises:
        ValueError: there is none.
    """
    root = Path(root)
    configs = sorted(root.glob(f"*/{CONFIG}"), key=lambda path: path.stat().st_mtime_ns)
    if not configs:
        raise ValueError(
            f"Expected a run below {root}/; got none. Run `pdvae fit`, or name a run folder."
        )
    return configs[-1].parent
