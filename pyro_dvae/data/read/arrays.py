"""Arrays in NumPy files, ``.npy`` and ``.npz``."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.lib.format import MAGIC_PREFIX
from numpy.typing import NDArray
from torch import Tensor

from pyro_dvae.data.read.errors import DataError, reading, regular_file, user_path
from pyro_dvae.data.read.labels import checked_labels
from pyro_dvae.data.read.npy import check_npy, check_npz

SUFFIXES = (".npy", ".npz")
LABEL_KEYS = ("labels", "y")
_BESIDE = (*LABEL_KEYS, "index", "row", "id")
"""The names of arrays that say which datum a row is, and are no data."""

_DTYPES = (
    *("bool", "uint8", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64"),
)
_WIDER = {"uint16": "int32", "uint32": "int64"}  # torch has few operations on these


class Array(NamedTuple):
    """The N data of a file, and their labels if the file has any."""

    values: Tensor
    """(N, ...) finite numbers, of the file's dtype or the nearest that torch computes with."""
    labels: Tensor | None
    """(N,) int64; None if the file has no labels."""


def load_array(path: Path | str, key: str | None = None) -> Array:
    """Read the data in a ``.npy`` or ``.npz`` file; nothing in the file is executed.

    Args:
        path: The file. In a ``.npz``, an array named ``labels``, or else ``y``, is the labels.
        key: Name of the array to read; needed if a ``.npz`` holds several besides labels.

    Returns:
        Values and labels, in the order of the file.

    Raises:
        DataError: If the file cannot be read, if the key does not tell which array to read, if
            that array does not hold finite numbers, or if there are labels but not one per row.
    """
    path = user_path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(f"Expected a .npy or .npz file; got {path}. Save it with numpy.savez.")
    with reading(path, "a whole .npy or .npz file of numbers"):
        values, labels = read_arrays(path, key)
    tensor = _to_tensor(values, f"the data in {path}")
    classes = None if labels is None else _to_tensor(labels, f"the labels in {path}")
    return Array(tensor, checked_labels(classes, len(tensor), f" in {path}"))


def read_arrays(
    path: Path, key: str | None, labels: str | None = None, *, mapped: bool = False
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Read an array and its labels, without checking their values.

    Args:
        path: The file.
        key: Name of the array, if there are several.
        labels: Name of the array of labels; if left out, the first of ``LABEL_KEYS`` that is
            there.
        mapped: Whether to map a ``.npy`` file into memory instead of reading it.

    Returns:
        The array, and the labels or None.

    Raises:
        DataError: If the names do not tell which arrays to read.
        Exception: Whatever NumPy and zipfile raise if the file is damaged.
    """
    with regular_file(path).open("rb") as file:
        start = file.read(6)
        if start != MAGIC_PREFIX and start[:2] != b"PK":
            # NumPy would take the file for a pickle and advise to allow pickles.
            raise ValueError(f"it starts with {start!r}" if start else "it has 0 bytes")
        file.seek(0)
        if start == MAGIC_PREFIX:
            check_npy(file, path.stat().st_size, str(path), mapped=mapped)
            file.seek(0)
        if mapped and start == MAGIC_PREFIX:
            loaded = np.load(path, mmap_mode="r", allow_pickle=False)
        else:
            loaded = np.load(file, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            if key is None:
                return loaded, None
            raise DataError(f"Expected no key for the one array in {path}; got {key!r}. Omit it.")
        with loaded:
            names = list(loaded.files)
            if labels is not None and labels not in names:
                raise DataError(
                    f"Expected labels among the arrays in {path}: {', '.join(names)}; got "
                    f"{labels!r}. Name one of them."
                )
            name = _pick([n for n in names if n != labels or n == key], key, path)
            others = LABEL_KEYS if labels is None else (labels,)
            its_labels = next((n for n in others if n in names and n != name), None)
            for array in filter(None, (name, its_labels)):
                check_npz(loaded.zip, array, str(path))
            return loaded[name], None if its_labels is None else loaded[its_labels]


def _pick(names: list[str], key: str | None, path: Path) -> str:
    """Return the name of the array that a key, or its absence, stands for."""
    if key is None:
        data = [name for name in names if name not in _BESIDE] or names
        if len(data) == 1:
            return data[0]
    elif key in names:
        return key
    got = "no key" if key is None else f"the key {key!r}"
    arrays = ", ".join(names) or "none at all"
    raise DataError(
        f"Expected one of the arrays in {path}: {arrays}; got {got}. Name one with key=..."
    )


def torch_dtype(array: NDArray[Any], what: str) -> str:
    """Return the name of an array's dtype, or of the nearest one that torch computes with.

    Raises:
        DataError: If the array does not hold numbers, or has no rows.
    """
    dtype = _WIDER.get(array.dtype.name, array.dtype.name)
    if dtype not in _DTYPES:
        raise DataError(
            f"Expected numbers as {what}; got dtype {array.dtype}. Convert to uint8 or float32."
        )
    if array.size == 0 or array.ndim == 0:
        raise DataError(
            f"Expected at least one row as {what}; got shape {array.shape}. Save an array (N, ...)."
        )
    return dtype


def _to_tensor(array: NDArray[Any], what: str) -> Tensor:
    array = np.asarray(array)  # a member of a .npz that is no array comes as bytes
    dtype = torch_dtype(array, what)
    wrong = ~np.isfinite(array)
    if wrong.any():
        first = tuple(int(i) for i in np.unravel_index(wrong.argmax(), wrong.shape))
        raise DataError(
            f"Expected finite numbers as {what}; got {wrong.sum()} that are NaN or infinite, the "
            f"first at {first}. Drop or replace them."
        )
    return torch.from_numpy(np.ascontiguousarray(array, dtype))
