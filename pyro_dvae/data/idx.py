"""IDX files, the format of MNIST and of the data sets made after it."""

import gzip
import math
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pyro_dvae.data.errors import DataError, reason

IDX_FILES = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}


def read_idx(path: Path | str) -> NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes, plain or gzipped (whatever its name).

    Args:
        path: The file.

    Returns:
        A writable array of the shape that the file's header states.

    Raises:
        DataError: If the file cannot be read or is not a whole IDX file of unsigned bytes.
    """
    try:
        content = Path(path).read_bytes()
        if content.startswith(b"\x1f\x8b"):
            content = gzip.decompress(content)
        # The magic number is two zeros, the element type (8: unsigned byte) and the number of
        # dimensions; then come the dimensions, as big-endian 32-bit integers, and the elements.
        if len(content) < 4 or content[:3] != b"\0\0\x08":
            raise ValueError(f"its magic number is {content[:4]!r}, not 00 00 08 and a count")
        start = 4 + 4 * content[3]
        shape = tuple(int.from_bytes(content[i : i + 4], "big") for i in range(4, start, 4))
        size = start + math.prod(shape)
        if len(content) != size:
            raise ValueError(f"it has {len(content)} bytes, not {size} for its shape {shape}")
        return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(
            f"Expected a whole IDX file of unsigned bytes; got {path} ({reason(error)}). "
            "Replace the file."
        ) from error


def find_idx(
    folder: Path, layouts: Sequence[str] = (".",), names: dict[str, str] = IDX_FILES
) -> dict[str, Path]:
    """Find the files of a data set, plain before gzipped.

    Args:
        folder: Where to look.
        layouts: Folders below it that may hold the files.
        names: The name of each file, by what it holds.

    Returns:
        Those that the fullest layout has.
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
    """Read images and their labels.

    Returns:
        Arrays of shapes (N, ...) and (N,), N >= 1.

    Raises:
        DataError: If a file is damaged or they do not belong together.
    """
    x, y = read_idx(images), read_idx(labels)
    if x.size == 0 or y.ndim != 1 or x.shape[:1] != y.shape:
        raise DataError(
            f"Expected images of shape (N, ...) with N > 0 labels; got {x.shape} in {images} with "
            f"{y.shape} in {labels}. Replace them."
        )
    return x, y
