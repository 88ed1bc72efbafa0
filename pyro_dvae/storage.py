"""Files that are whole or not there: atomic writes, tensors without pickle, a lock."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

_METADATA = "pyro_dvae"
LOCK, _PART = ".lock", ".part"


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file beside `path`, flush it to the disk, and put it in its place.

    Raises:
        OSError: the file cannot be written; what was at `path` stays. The message names path and
            free space.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}{_PART}")
    try:
        write(beside)
        with beside.open("rb+") as file:
            os.fsync(file.fileno())
        beside.replace(path)
        _flush_folder(path.parent)
    except BaseException as error:  # Ctrl-C too leaves nothing half written
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        free = shutil.disk_usage(path.parent).free / 2**20 if path.parent.is_dir() else 0
        raise OSError(f"Cannot write {path} ({free:.0f} MiB free): {error}") from error


def _flush_folder(folder: Path) -> None:
    # Without it a power cut may undo the replacement; Windows cannot open folders.
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Write tensors, and plain values as JSON, into one safetensors file.

    Raises:
        FloatingPointError: a tensor holds NaN or infinity; nothing was written.
        OSError: see `write_atomically`.
    """
    for name, value in tensors.items():
        if value.is_floating_point() and not value.isfinite().all():
            raise FloatingPointError(
                f"Expected finite numbers to save; got NaN or infinity in {name}. {path} stays as "
                "it was. Lower the learning rate, or look at the data's range."
            )
    contiguous = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    # Not save_file, whose file only its owner may read.
    content = save(contiguous, {_METADATA: json.dumps(metadata)})
    write_atomically(path, lambda beside: beside.write_bytes(content))


def read_tensors(
    path: Path, what: str, shapes: Mapping[str, torch.Size] | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write_tensors` wrote, on the CPU; nothing in the file is executed.

    Args:
        path: the file.
        what: it holds, for messages.
        shapes: names and shapes that it must have, looked at before any tensor is read.

    Raises:
        ValueError: no such file, a damaged one, or other shapes.
    """
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            names = list(file.keys())
            if shapes is not None:
                for name in sorted(shapes.keys() | set(names)):
                    got = tuple(file.get_slice(name).get_shape()) if name in names else "nothing"
                    wanted = tuple(shapes[name]) if name in shapes else "nothing"
                    if got != wanted:
                        raise ValueError(f"{got} at {name}, not {wanted}")
            metadata = json.loads((file.metadata() or {}).get(_METADATA, "{}"))
            return {name: file.get_tensor(name) for name in names}, dict(metadata)
    except (OSError, SafetensorError, ValueError, TypeError, RecursionError) as error:
        reason = str(error).split("\n")[0]
        raise ValueError(f"Expected {what} in {path}; got: {reason}. Restore the file.") from error


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which ends with this process however that ends.

    Also removes what a killed writer left half written.

    Raises:
        ValueError: another process holds it.
    """
    try:
        with FileLock(folder / LOCK, timeout=0):
            for part in folder.glob(f".*{_PART}"):
                part.unlink()
            yield
    except Timeout:
        raise ValueError(
            f"Expected a run folder that nobody else trains in; got {folder}, which another "
            "process holds. Wait for it, or name another folder."
        ) from None
