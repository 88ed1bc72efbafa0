"""The run folder: settings, metrics, the best weights, and the state to continue from."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_dvae._version import __version__
from pyro_dvae.config import Config, build_vae
from pyro_dvae.resume import TrainingState
from pyro_dvae.storage import LOCK, read_tensors, write_atomically, write_tensors
from pyro_dvae.vae import DiscreteVAE

FORMAT = 3
"""Version of the folder's format; raised when an older reader would misread it."""

CONFIG, METRICS = "config.json", "metrics.jsonl"
WEIGHTS, STATE = "weights.safetensors", "last.safetensors"
EVALUATION = "evaluation.json"


class Settings(NamedTuple):
    """What a run folder says of itself."""

    config: Config
    event_shape: tuple[int, ...]
    data: dict[str, Any]
    """Name, source and fingerprint of the data, and how many were used for what."""
    version: str
    """Of the library that made the run."""


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


def create_run(folder: Path | None, name: str, root: Path = Path("runs")) -> Path:
    """Make a new, empty run folder.

    Args:
        folder: the folder; None numbers one below `root`: `<name>-<n>`.
        name: of the numbered folder.
        root: parent of numbered folders.

    Raises:
        ValueError: the folder exists and is not empty, or cannot be made; nothing is overwritten.
    """
    try:
        if folder is None:
            root.mkdir(parents=True, exist_ok=True)
            number = 1
            while True:
                try:
                    (root / f"{name}-{number}").mkdir()
                    return root / f"{name}-{number}"
                except FileExistsError:
                    number += 1
        folder.mkdir(parents=True, exist_ok=True)
        if any(path.name != LOCK for path in folder.iterdir()):
            raise ValueError(
                f"Expected a new or empty run folder; got {folder}, which has files in it. Name "
                "another, or continue a run with --resume; runs are never overwritten."
            )
        return folder
    except OSError as error:
        raise ValueError(
            f"Expected a run folder that can be written; got {error}. Name another folder."
        ) from error


def write_config(
    folder: Path, config: Config, event_shape: tuple[int, ...], data: dict[str, Any]
) -> None:
    """Write `config.json`."""
    content = {
        "format": FORMAT,
        "pyro_dvae": __version__,
        "config": asdict(config),
        "event_shape": list(event_shape),
        "data": data,
    }
    _write_json(folder / CONFIG, content)


def read_config(folder: Path) -> Settings:
    """Read `config.json`.

    Raises:
        ValueError: no run there, one of a newer format, or a damaged file.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise ValueError(
            f"Expected a run folder with a {CONFIG}; got {folder}. Name a folder that "
            "`pdvae fit` made."
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] > FORMAT:
            raise ValueError(
                f"Expected a run of format {FORMAT} or older; got format {content['format']} in "
                f"{path}. Update pyro_dvae (the run was made by {content['pyro_dvae']})."
            )
        event_shape = tuple(int(size) for size in content["event_shape"])
        # Runs of format 1 were not annealed, and could not say so.
        config = Config(**{"annealing": 0, **content["config"]})
        data = dict(content["data"])
        return Settings(config, event_shape, data, str(content["pyro_dvae"]))
    except (KeyError, TypeError, RecursionError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(
            f"Expected a run's settings in {path}; got {type(error).__name__}: {error}. "
            "Restore the file."
        ) from error


def write_weights(folder: Path, weights: Mapping[str, Tensor], epoch: int) -> None:
    """Write the best weights, in place of those that were there."""
    write_tensors(folder / WEIGHTS, weights, {"epoch": epoch, "version": __version__})


def write_state(folder: Path, state: TrainingState) -> None:
    """Write what `Trainer.load_state_dict` continues from, in place of what was there."""
    metadata = {"progress": state.progress, "version": __version__}
    write_tensors(folder / STATE, state.tensors, metadata)


def read_state(folder: Path) -> TrainingState:
    """Read what `write_state` wrote, on the CPU.

    Raises:
        ValueError: no such file, or a damaged one.
    """
    tensors, metadata = read_tensors(folder / STATE, "the state of a training")
    return TrainingState(tensors, metadata.get("progress", {}))


def load_run(folder: Path) -> Run:
    """Read a run folder; no data set is needed, and the model is on the CPU.

    Nothing in the folder is executed, but a network that the run's settings name as
    `module:factory` is imported: look at a stranger's `config.json` before you load the run.

    Raises:
        ValueError: no run there, one of a newer format, a damaged file, or a user's own network
            that is not there, or not as it was.
    """
    config, event_shape, data, version = read_config(folder)
    own = [name for name in (config.encoder, config.decoder) if name is not None]
    try:
        # Shapes alone, whatever sizes a damaged file may claim; a user's own code may need numbers.
        with nullcontext() if own else torch.device("meta"):
            weights_of_model = build_vae(config, event_shape).state_dict()
    except (RuntimeError, OverflowError, TypeError) as error:
        raise ValueError(
            f"Expected a model that can be built in {folder / CONFIG}; got: "
            f"{str(error).splitlines()[0]}. Restore the file."
        ) from error
    shapes = {name: value.shape for name, value in weights_of_model.items()}
    what = "the run's weights" + (f" to fit {' and '.join(own)} as they are now" if own else "")
    weights, metadata = read_tensors(folder / WEIGHTS, what, shapes)
    vae = build_vae(config, event_shape)
    vae.load_state_dict(weights)
    vae.eval()
    epoch = int(metadata.get("epoch", 0))
    return Run(folder, config, event_shape, data, version, vae, epoch)


def newest_run(root: Path = Path("runs")) -> Path:
    """The run folder below `root` that was started last.

    Raises:
        ValueError: there is none.
    """
    configs = sorted(root.glob(f"*/{CONFIG}"), key=lambda path: path.stat().st_mtime_ns)
    if not configs:
        raise ValueError(
            f"Expected a run below {root}/; got none. Run `pdvae fit`, or name a run folder."
        )
    return configs[-1].parent


def append_metrics(folder: Path, record: dict[str, Any]) -> None:
    """Add one line to `metrics.jsonl`, and flush it to the disk.

    Raises:
        OSError: it cannot be written; names the path.
    """
    path = folder / METRICS
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(f"Cannot write {path}: {error}") from error


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of `metrics.jsonl` in order, without one that a killed writer left unfinished."""
    path = folder / METRICS
    lines = path.read_bytes().split(b"\n") if path.is_file() else []
    records = []
    for line in lines[:-1]:  # what follows the last newline is unfinished
        try:
            records.append(dict(json.loads(line)))
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(
                f"Expected a JSON object a line in {path}; got {line[:40]!r}. Remove the line."
            ) from error
    return records


def rewind_metrics(folder: Path, epoch: int, step: int) -> list[dict[str, Any]]:
    """Drop the lines of `metrics.jsonl` after a step of the epoch after `epoch`; the rest."""

    def is_before(record: dict[str, Any]) -> bool:
        at = record.get("epoch", 0)
        return at <= epoch or (at == epoch + 1 and 0 < record.get("step", 0) <= step)

    kept = [record for record in read_metrics(folder) if is_before(record)]
    text = "".join(json.dumps(record) + "\n" for record in kept)
    write_atomically(folder / METRICS, lambda path: path.write_text(text, encoding="utf-8"))
    return kept


def write_evaluation(folder: Path, part: str, figures: dict[str, Any]) -> None:
    """Put the figures of a part of the data ("test", ...) into `evaluation.json`."""
    _write_json(folder / EVALUATION, {**read_evaluation(folder), part: figures})


def read_evaluation(folder: Path) -> dict[str, Any]:
    """The figures by part of the data; empty where nothing was evaluated.

    Raises:
        ValueError: a damaged file.
    """
    path = folder / EVALUATION
    if not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(
            f"Expected a run's evaluation in {path}; got {error}. Remove the file, and run "
            "`pdvae evaluate` again."
        ) from error


def _write_json(path: Path, content: dict[str, Any]) -> None:
    text = json.dumps(content, indent=2) + "\n"
    write_atomically(path, lambda beside: beside.write_text(text, encoding="utf-8"))
