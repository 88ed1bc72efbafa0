"""IDX files, the format of MNIST and of data sets that imitate it."""

import gzip
import math
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from pyro_dvae.data.read.errors import DataError, reason, refuse_too_large, regular_file, user_path

IDX_FILES = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}

_PIECE = 2**24
"""Bytes that are unpacked at once."""


def read_idx(path: Path | str) -> NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes, which may be gzipped, whatever its name.

    Args:
        path: The file.

    Returns:
        A writable array of the shape that the header of the file states.

    Raises:
        DataError: If the file cannot be read or is not a whole IDX file of unsigned bytes.
    """
    path = regular_file(user_path(path))
    try:
        with path.open("rb") as plain:
            is_gzip = plain.read(2) == b"\x1f\x8b"
            plain.seek(0)
            if is_gzip:
                with gzip.GzipFile(fileobj=plain) as unpacked:
                    return _read(unpacked, path, None)
            return _read(plain, path, path.stat().st_size)
    except (OSError, EOFError, ValueError, MemoryError, zlib.error) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"Expected a whole IDX file of unsigned bytes; got {path} ({reason(error)}). "
            "Replace the file."
        ) from error


def _read(file: IO[bytes] | gzip.GzipFile, path: Path, num_bytes: int | None) -> NDArray[np.uint8]:
    """Read the array of an open IDX file.

    Args:
        file: The file, at its start.
        path: Its path, for messages.
        num_bytes: The size of the file; None if it is gzipped, so that only reading tells.

    Raises:
        ValueError: If the file is not a whole IDX file of unsigned bytes.
    """
    # The magic number is two zeros, the element type (8: unsigned byte) and the number of
    # dimensions; then come the dimensions, as big-endian 32-bit integers, and the elements.
    magic = file.read(4)
    if len(magic) < 4 or magic[:3] != b"\0\0\x08":
        raise ValueError(f"its magic number is {magic!r}, not 00 00 08 and a count")
    dimensions = file.read(4 * magic[3])
    start = 4 + 4 * magic[3]
    found = [dimensions[i : i + 4] for i in range(0, len(dimensions), 4)]
    shape = tuple(int.from_bytes(dimension, "big") for dimension in found)
    size = start + math.prod(shape)
    if num_bytes not in (None, size):
        raise ValueError(f"it has {num_bytes} bytes, not {size} for its shape {shape}")
    # A small gzipped file may unpack to any size, so no more is unpacked than the header states.
    refuse_too_large(f"{path}, an array of shape {shape}", size, "Split the file.")
    values, filled = np.empty(math.prod(shape), np.uint8), 0
    while part := file.read(min(_PIECE, len(values) - filled)):
        values[filled : filled + len(part)] = np.frombuffer(part, np.uint8)
        filled += len(part)
    if filled < len(values) or len(dimensions) < start - 4:
        raise ValueError(f"it has {4 + len(dimensions) + filled} bytes, not {size} for its shape")
    if file.read(1):
        raise ValueError(f"it has more than the {size} bytes of its shape {shape}")
    return values.reshape(shape)


def find_idx(
    folder: Path, layouts: Sequence[str] = (".",), names: dict[str, str] = IDX_FILES
) -> dict[str, Path]:
    """Find the files of a data set; a plain file comes before a gzipped one.

    Args:
        folder: The folder to look in.
        layouts: The folders below it that may hold the files.
        names: What a file holds -> its name.

    Returns:
        What a file holds -> its path, for the layout that has the most files.
    """
    found = [
        {
            key: path
            for key, name in names.items()
            for path in (folder / layout / f"{name}.gz", folder / layout / name)
            if path.is_file()
        }
        for layout in layouts
    ]
    return max(found, key=len)


def read_pair(images: Path, labels: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Read a file of images and the file of their labels.

    Returns:
        Arrays of shapes (N, ...) and (N,), N >= 1.

    Raises:
        DataError: If a file is damaged, or the two do not have the same length.
    """
    x, y = read_idx(images), read_idx(labels)
    if x.size == 0 or y.ndim != 1 or x.shape[:1] != y.shape:
        raise DataError(
            f"Expected images of shape (N, ...) with N > 0 labels; got {x.shape} in {images} with "
            f"{y.shape} in {labels}. Replace them."
        )
    return x, y
