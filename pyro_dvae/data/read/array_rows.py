"""Rows of NumPy arrays, which lie in memory or are mapped from a file."""

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_dvae.data.read.arrays import read_arrays, torch_dtype
from pyro_dvae.data.read.errors import reading
from pyro_dvae.data.read.labels import Labels, checked_labels, number_classes

_KEPT_BYTES = 16 * 2**20
"""Bytes of a mapped file that may stay in memory."""
_FAULT_BYTES = 2 * 2**20
"""Bytes that one access may bring into memory: the kernel also maps the pages around it."""
_SCATTERED = 32
"""Rows that are read at once if they do not lie one after another."""


class ArrayRows:
    """Rows of an array, which may be larger than memory.

    Rows are read in the order in which they lie in the array. They come in torch's byte order and
    memory layout. uint16 and uint32 become int32 and int64, since torch has few operations on
    them.

    Args:
        values: (N, *event_shape) numbers, N >= 1.
        labels: (N,) whole numbers and the names of the classes; None if there are no labels.
        what: What the values are, for messages: "the data in x.npy".

    Raises:
        DataError: If the array does not hold numbers, has no rows, or has not one label per row.
    """

    columns = None

    def __init__(
        self, values: NDArray[Any], labels: Labels | None = None, what: str = "the data"
    ) -> None:
        self._numpy_dtype = torch_dtype(values, what)
        # NumPy keeps the mapping of a file here, also for a part of the file.
        self._mmap = values._mmap if isinstance(values, np.memmap) else None  # type: ignore[attr-defined]
        self._values = np.asarray(values)
        self._file = _mapping(values)
        self._resident = 0
        self.event_shape = tuple(values.shape[1:])
        self.dtype = torch.from_numpy(np.empty(0, self._numpy_dtype)).dtype
        self.labels = None if labels is None else checked_labels(labels[0], len(values))
        self.label_names = None if labels is None else labels[1]

    def __getstate__(self) -> dict[str, Any]:
        """What a copy or a pickle holds; it maps the file anew, in a `DataLoader` worker say."""
        state = {**vars(self), "_mmap": None}
        return state if self._file is None else {**state, "_values": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._file is not None:
            path, start, layout = self._file
            with open(path, "rb") as file:
                self._mmap = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ, offset=start)
            self._values = np.ndarray(buffer=self._mmap, **layout)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._values)

    def read(self, index: Tensor) -> Tensor:
        """Copy some rows.

        Args:
            index: (B,) int64 row numbers, in any order.

        Returns:
            (B, *event_shape) values.
        """
        ascending, order = index.cpu().sort()  # a file is read forward
        rows, places = ascending.numpy(), order.numpy()
        out = np.empty((len(rows), *self.event_shape), self._numpy_dtype)
        if len(rows) and (np.diff(rows) == 1).all():
            out[places] = self._values[rows[0] : rows[-1] + 1]
            self._let_go(out.nbytes)
            return torch.from_numpy(out)
        step = max(1, len(rows)) if self._mmap is None else _SCATTERED
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            out[places[part]] = self._values[rows[part]]
            self._let_go(len(rows[part]) * _FAULT_BYTES)
        return torch.from_numpy(out)

    def _let_go(self, num_bytes: int) -> None:
        # Pages that were read count as memory of this process until the kernel needs them. Where
        # the memory of a process is limited, it must not appear to hold the whole file.
        self._resident += num_bytes
        if self._mmap is not None and self._resident > _KEPT_BYTES:
            self._resident = 0
            if hasattr(mmap, "MADV_DONTNEED"):
                self._mmap.madvise(mmap.MADV_DONTNEED)


def _mapping(values: NDArray[Any]) -> tuple[str, int, dict[str, Any]] | None:
    """Where the values lie in a file, so that it can be mapped anew; None if they are in memory.

    Returns:
        The file, the byte at which its mapping starts, and the arguments of `numpy.ndarray` that
        find the values in the mapping.
    """
    if not isinstance(values, np.memmap) or values.filename is None:
        return None
    start = values.offset - values.offset % mmap.ALLOCATIONGRANULARITY
    # For a part of the file, `values.offset` is that of the whole array.
    mapped = np.frombuffer(values._mmap, np.uint8)  # type: ignore[attr-defined]
    place = values.ctypes.data - mapped.ctypes.data
    layout = {"shape": values.shape, "dtype": values.dtype, "strides": values.strides}
    return str(values.filename), start, {**layout, "offset": place}


def array_file(path: Path, key: str | None = None, labels: str | Labels | None = None) -> ArrayRows:
    """Open a ``.npy`` file, which is mapped and not read, or one array of a ``.npz`` file.

    Args:
        path: The file; nothing in it is executed.
        key: Name of the array in a ``.npz``; needed if it holds several arrays besides labels.
        labels: Name of the array of labels in a ``.npz``, or the labels themselves. If left out,
            an array called ``labels``, or else ``y``, in a ``.npz`` is the labels.

    Returns:
        The rows.

    Raises:
        DataError: If the file is damaged, or the names do not tell which array to read.
    """
    with reading(path, "a whole .npy or .npz file of numbers"):
        name = labels if isinstance(labels, str) else None
        values, classes = read_arrays(path, key, name, mapped=True)
        if not isinstance(values, np.ndarray):
            raise ValueError("what it holds is no array")
        if isinstance(labels, tuple):
            return ArrayRows(values, labels, f"the data in {path}")
        numbered = None if classes is None else number_classes(np.asarray(classes), str(path))
        return ArrayRows(values, numbered, f"the data in {path}")
