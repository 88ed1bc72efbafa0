"""The run folder: `config.json`, `metrics.jsonl` and the weights, written atomically."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from pyro_dvae.config import Config, build_vae
from pyro_dvae.vae import DiscreteVAE

FORMAT = 1
"""Version of the folder's format; raised when an older reader would misread it."""

CONFIG, METRICS, WEIGHTS = "config.json", "metrics.jsonl", "weights.safetensors"


@dataclass(frozen=True)
class Run:
    """What a run folder says of itself, and its model with the best weights."""

    folder: Path
    config: Config
    event_shape: tuple[int, ...]
    data: dict[str, Any]
    """Name and source of the data, and how many were used for what."""
    vae: DiscreteVAE


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
            for number in range(1, 1_000_000):
                folder = root / f"{name}-{number}"
                try:
                    folder.mkdir()
                except FileExistsError:
                    continue
                return folder
        assert folder is not None
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ValueError(
                f"Expected a new or empty run folder; got {folder}, which has files in it. "
                "Name another; runs are never overwritten."
            )
        return folder
    except OSError as error:
        raise ValueError(
            f"Expected a run folder that can be written; got {error}. Name another folder."
        ) from error


def write_config(
    folder: Path, config: Config, event_shape: tuple[int, ...], data: dict[str, Any], version: str
) -> None:
    """Write `config.json`."""
    content = {
        "format": FORMAT,
        "pyro_dvae": version,
        "config": asdict(config),
        "event_shape": list(event_shape),
        "data": data,
    }
    text = json.dumps(content, indent=2) + "\n"
    write_atomically(folder / CONFIG, lambda path: path.write_text(text, encoding="utf-8"))


def append_metrics(folder: Path, record: dict[str, Any]) -> None:
    """Add one line to `metrics.jsonl`."""
    with (folder / METRICS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def write_weights(folder: Path, vae: nn.Module) -> None:
    """Write the weights, in place of those that were there."""
    weights = {name: value.contiguous() for name, value in vae.state_dict().items()}
    write_atomically(folder / WEIGHTS, lambda path: save_file(weights, path))


def load_run(folder: Path) -> Run:
    """Read a run folder; no data set is needed, and the model is on the CPU.

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
        config = Config(**content["config"])
        event_shape = tuple(int(size) for size in content["event_shape"])
        vae = build_vae(config, event_shape)
        data = dict(content["data"])
    except (KeyError, TypeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(
            f"Expected a run's settings in {path}; got {type(error).__name__}: {error}. "
            "Restore the file."
        ) from error
    try:
        vae.load_state_dict(load_file(folder / WEIGHTS))
    except (OSError, SafetensorError, RuntimeError) as error:
        reason = str(error).split("\n")[0]
        raise ValueError(
            f"Expected the run's weights in {folder / WEIGHTS}; got: {reason}. Restore the file."
        ) from error
    vae.eval()
    return Run(folder, config, event_shape, data, vae)


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


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file beside `path`, flush it to the disk, and put it in its place.

    Raises:
        OSError: the file cannot be written; what was at `path` stays. The message names path and
            free space.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write(beside)
        with beside.open("rb+") as file:
            os.fsync(file.fileno())
        beside.replace(path)
    except (OSError, SafetensorError) as error:
        beside.unlink(missing_ok=True)
        free = shutil.disk_usage(path.parent).free / 2**20 if path.parent.is_dir() else 0
        raise OSError(f"Cannot write {path} ({free:.0f} MiB free): {error}") from error
