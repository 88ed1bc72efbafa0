"""Run folders are made and found here; their weights, and the state to continue from, are saved."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

from torch import Tensor

from pyro_dvae._version import __version__
from pyro_dvae.runs.fields import check_fields
from pyro_dvae.runs.settings import CONFIG
from pyro_dvae.runs.storage import LOCK, PART, read_tensors, write_tensors
from pyro_dvae.training.records import EpochRecord
from pyro_dvae.training.resume import TrainingState

WEIGHTS, STATE = "weights.safetensors", "last.safetensors"
GUIDE_STATE = "last-guide.safetensors"
"""The state within the epochs of the guide. `STATE` then stays that of the model's last epoch."""

_PROGRESS: dict[str, Any] = {
    **dict.fromkeys(("epoch", "step", "num_seen", "num_averaged"), int),
    "seconds": float,
    "best": dict[str, Any] | None,
    "device": str,
}


def create_run(folder: str | Path | None, name: str, root: str | Path = "runs") -> Path:
    """Make a new run folder, or take one in which no training has begun.

    A folder that holds weights, but neither `config.json` nor metrics, may be taken: a training
    that was killed before its first step leaves such a folder.

    Args:
        folder: the folder; None for a new one below `root`, `<name>-<n>`.
        name: the name of the numbered folder, without its number.
        root: the folder in which it is numbered.

    Raises:
        ValueError: the folder exists and holds anything else, or it cannot be made or written.
            Nothing is overwritten, and no empty folder is left behind.
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
                "another, or continue a run with resume=True; runs are never overwritten."
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
    """Write the best weights, in place of those that were there.

    Args:
        folder: the run's.
        weights: the model's `state_dict`.
        epoch: the epoch that they come from.

    Raises:
        FloatingPointError: a weight is NaN or infinite. Nothing was written.
        OSError: the file cannot be written. What was there stays.
    """
    write_tensors(Path(folder) / WEIGHTS, weights, {"epoch": epoch, "version": __version__})


def write_state(folder: str | Path, state: TrainingState, name: str = STATE) -> None:
    """Write the state that `Trainer.load_state_dict` continues from, in place of the one before.

    Args:
        folder: the run's.
        state: the state.
        name: of the file.

    Raises:
        FloatingPointError: a number of the state is NaN or infinite. Nothing was written.
        OSError: the file cannot be written. What was there stays.
    """
    metadata = {"progress": state.progress, "version": __version__}
    write_tensors(Path(folder) / name, state.tensors, metadata)


def read_state(folder: str | Path, name: str = STATE) -> TrainingState:
    """Read the state that `write_state` wrote, on the CPU.

    Args:
        folder: the run's.
        name: of the file.

    Raises:
        ValueError: there is no such file, or it is damaged.
    """
    path = Path(folder) / name
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


def newest_run(root: str | Path = "runs") -> Path:
    """The run folder below `root` that was started last.

    Raises:
        ValueError: there is none.
    """
    root = Path(root)
    configs = sorted(root.glob(f"*/{CONFIG}"), key=lambda path: path.stat().st_mtime_ns)
    if not configs:
        raise ValueError(
            f"Expected a run below {root}/; got none. Train a model first, or name a run folder."
        )
    return configs[-1].parent
