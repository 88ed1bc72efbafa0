"""Files that are whole or not there at all: atomic writes, tensors without pickle, a lock."""

from __future__ import annotations

import errno
import json
import os
import shutil
import warnings
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

_METADATA, _CHECKSUMS = "pyro_dvae", "crc32"
LOCK, PART = ".lock", ".part"

MOST_JSON = 2**24
"""The most bytes of a file of JSON: enough to name 500,000 columns. In memory they may take 20
times as much."""

_UNSUPPORTED = {
    errno.EINVAL,
    errno.ENOLCK,
    errno.ENOSYS,
    errno.ENOTSUP,
    errno.EOPNOTSUPP,
}
"""The errors of file systems that cannot flush a folder (CIFS, some FUSE) or lock a file (NFS)."""


def write_atomically(path: str | Path, write: Callable[[Path], object]) -> None:
    """Write a file beside `path`, flush it to the disk, and move it to `path`.

    A process that is killed at any moment leaves at `path` what was there before, or the new file.

    Args:
        path: where the file is to be.
        write: writes the file to the path that it is given, which lies in the same folder.

    Raises:
        OSError: the file cannot be written. What was at `path` stays. The message names the path
            and the free space.
    """
    path = Path(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}{PART}")
    try:
        write(beside)
        with beside.open("rb+") as file:
            os.fsync(file.fileno())
        beside.replace(path)
        _flush_folder(path.parent)
    except BaseException as error:  # after Ctrl-C, too, nothing half written stays
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        free = shutil.disk_usage(path.parent).free / 2**20 if path.parent.is_dir() else 0
        raise OSError(f"Cannot write {path} ({free:.0f} MiB free): {error}") from error


def _flush_folder(folder: Path) -> None:
    # Without this, a power cut may undo the move. Windows cannot open folders.
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
        finally:
            os.close(descriptor)


def read_whole(path: Path, most: int) -> bytes:
    """The bytes of a regular file. Anything else, such as a pipe, is not opened.

    Args:
        path: the file.
        most: the most bytes that it may have.

    Raises:
        OSError: there is no such file, or it cannot be read.
        ValueError: it is not a regular file, or it is longer.
    """
    regular(path)
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"more than {most:,} bytes")
    return content


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        OSError: there is no such file, or it cannot be read.
        ValueError: it holds something else.
    """
    try:
        return dict(json.loads(read_whole(path, MOST_JSON)))
    except (TypeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON object, in place of what was there.

    Raises:
        ValueError: it would be longer than `read_json` reads.
        OSError: the file cannot be written. What was there stays.
    """
    text = json.dumps(content, indent=2) + "\n"
    if len(text) > MOST_JSON:
        raise ValueError(
            f"Expected at most {MOST_JSON:,} bytes of JSON for {path}; got {len(text):,}. Use data "
            "of fewer columns, or give them shorter names."
        )
    write_atomically(path, lambda beside: beside.write_text(text, encoding="utf-8"))


def regular(path: Path) -> None:
    """Raise a ValueError if a path leads to something else than a regular file.

    To open a pipe that nobody writes into would wait for ever.
    """
    if path.exists() and not path.is_file():
        raise ValueError("something that is no regular file")


def write_tensors(
    path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]
) -> None:
    """Write tensors, and plain values as JSON, into one safetensors file with checksums.

    The checksums are CRC-32. They notice damage, which is their purpose, and not forgery. CRC-32
    notices every single flipped bit and every burst of up to 32 bits. It takes 1 ms for 1.4 MB,
    where BLAKE2b would take 8 ms each time that a training is saved.

    Args:
        path: the file.
        tensors: name -> tensor.
        metadata: the plain values.

    Raises:
        FloatingPointError: a tensor holds NaN or infinity. Nothing was written.
        OSError: the file cannot be written. What was there stays.
    """
    for name, value in tensors.items():
        if value.is_floating_point() and not value.isfinite().all():
            raise FloatingPointError(
                f"Expected finite numbers to save; got NaN or infinity in {name}. {path} stays as "
                "it was. Lower the learning rate, or look at the data's range."
            )
    contiguous = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    checksums = {"": zlib.crc32(json.dumps(metadata).encode())}
    checksums |= {name: _checksum(name, value) for name, value in contiguous.items()}
    # The metadata are one text, for safetensors writes several in an order that changes. Its
    # `save_file` would make a file that only its owner may read.
    content = save(contiguous, {_METADATA: json.dumps({**metadata, _CHECKSUMS: checksums})})
    write_atomically(path, lambda beside: beside.write_bytes(content))


def _checksum(name: str, value: Tensor) -> int:
    """The CRC-32 of a tensor's name, type, shape and bytes."""
    about = f"{name} {value.dtype} {tuple(value.shape)}".encode()
    return zlib.crc32(value.flatten().view(torch.uint8).numpy().data, zlib.crc32(about))


def read_tensors(
    path: str | Path,
    what: str,
    shapes: Mapping[str, torch.Size] | None = None,
    optional: Collection[str] = (),
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and the metadata that `write_tensors` wrote, on the CPU.

    Nothing in the file is executed. A file without checksums, which old versions wrote, is read
    too.

    Args:
        path: the file.
        what: what the file should hold, for messages.
        shapes: name -> shape that each tensor must have, which is checked before any tensor is
            read; None to take any.
        optional: names that may be left out.

    Raises:
        ValueError: there is no such file, it is damaged, it has other shapes, or a number is not
            finite.
    """
    path = Path(path)
    try:
        regular(path)
        with safe_open(path, framework="pt", device="cpu") as file:
            names = list(file.keys())
            if shapes is not None:
                for name in sorted((shapes.keys() - set(optional)) | set(names)):
                    got = tuple(file.get_slice(name).get_shape()) if name in names else "nothing"
                    wanted = tuple(shapes[name]) if name in shapes else "nothing"
                    if got != wanted:
                        raise ValueError(f"{got} at {name}, not {wanted}")
            metadata = dict(json.loads((file.metadata() or {}).get(_METADATA, "{}")))
            checksums = metadata.pop(_CHECKSUMS, None)
            tensors = {name: file.get_tensor(name) for name in names}
        found = {"": zlib.crc32(json.dumps(metadata).encode())}
        for name, value in tensors.items():
            found[name] = _checksum(name, value)
            if value.is_floating_point() and not value.isfinite().all():
                raise ValueError(f"NaN or infinity in {name}")
        for name, checksum in found.items():
            if checksums is not None and dict(checksums).get(name) != checksum:
                raise ValueError(f"{name or 'metadata'} damaged: the checksum is another")
        return tensors, metadata
    except (OSError, SafetensorError, ValueError, TypeError, RecursionError) as error:
        reason = str(error).split("\n")[0]
        raise ValueError(f"Expected {what} in {path}; got: {reason}. Restore the file.") from error


@contextmanager
def only_writer(folder: str | Path) -> Iterator[None]:
    """Hold the lock of a folder. The lock ends with this process, however that ends.

    What a killed process left half written is removed.

    Raises:
        ValueError: another process holds the lock, or it cannot be made.

    Warns:
        UserWarning: the file system has no locks, so that nothing keeps other processes out.
    """
    folder = Path(folder)
    try:
        with locked(folder / LOCK):
            for part in folder.glob(f".*{PART}"):
                part.unlink()
            yield
    except Timeout:
        raise ValueError(
            f"Expected a run folder that nobody else trains in; got {folder}, which another "
            "process holds. Wait for it, or name another folder."
        ) from None


@contextmanager
def locked(path: Path, seconds: float = 0) -> Iterator[None]:
    """Hold the lock that the file `path` stands for.

    Args:
        path: the file.
        seconds: how long to wait for another process that holds the lock.

    Raises:
        Timeout: another process still holds it.
        ValueError: the file cannot be made.
    """
    lock = FileLock(path, timeout=seconds)
    try:
        lock.acquire()
    except Timeout:
        raise
    except (OSError, NotImplementedError) as error:
        if isinstance(error, OSError) and error.errno not in _UNSUPPORTED:
            raise ValueError(
                f"Expected a folder to write the lock {path} into; got {error}. Remove what is "
                "there, free some space, or name another folder."
            ) from error
        warnings.warn(
            f"The file system of {path.parent} has no locks ({error}): going on without one. Let "
            "no other process write into the folder.",
            stacklevel=4,
        )
    try:
        yield
    finally:
        lock.release()
