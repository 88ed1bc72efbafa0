"""Rows of NumPy arrays, in memory or mapped from a file."""

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
"""Bytes of a mapped file that stay resident."""
_FAULT_BYTES = 2 * 2**20
"""What one access may make resident: the kernel maps the pages around it, 2 MiB at most."""
_SCATTERED = 32
"""Rows that lie apart read at once."""


class ArrayRows:
    """Rows of an array that may be larger than memory, read in the order in which they lie.

    Byte order and memory layout become torch's; uint16 and uint32, with which torch hardly
    computes, widen.

    Args:
        values: (N, *event_shape) numbers, N >= 1.
        labels: (N,) whole numbers and the names of the classes, or None.
        what: What the values are, for messages.

    Raises:
        DataError: If the array is not one of numbers, has no rows, or not one label for each.
    """

    def __init__(
        self, values: NDArray[Any], labels: Labels | None = None, what: str = "the data"
    ) -> None:
        self._numpy_dtype = torch_dtype(values, what)
        self._mmap = getattr(values, "_mmap", None)  # of a numpy.memmap
        self._values = np.asarray(values)
        self._file = _mapping(values)
        self._resident = 0
        self.event_shape = tuple(values.shape[1:])
        self.dtype: torch.dtype = getattr(torch, self._numpy_dtype)
        self.labels = None if labels is None else checked_labels(labels[0], len(values))
        self.label_names = None if labels is None else labels[1]

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles, those of a `DataLoader`'s workers, say: a file is mapped anew."""
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
        """Copy the rows at some indices, shape (B, *event_shape)."""
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
        # Pages that were read count as resident until the kernel needs them; a process that may
        # use little memory must not appear to hold the file.
        self._resident += num_bytes
        if self._mmap is not None and self._resident > _KEPT_BYTES:
            self._resident = 0
            if hasattr(mmap, "MADV_DONTNEED"):
                self._mmap.madvise(mmap.MADV_DONTNEED)


def _mapping(values: NDArray[Any]) -> tuple[str, int, dict[str, Any]] | None:
    """File, where its mapping starts, and where and how the values lie there; None in memory."""
    path = getattr(values, "filename", None)
    if not isinstance(values, np.memmap) or path is None:
        return None
    start = values.offset - values.offset % mmap.ALLOCATIONGRANULARITY
    # Of a part of the file NumPy knows the offset of the whole.
    mapped = np.frombuffer(values._mmap, np.uint8)  # type: ignore[attr-defined]
    place = values.ctypes.data - mapped.ctypes.data
    layout = {"shape": values.shape, "dtype": values.dtype, "strides": values.strides}
    return str(path), start, {**layout, "offset": place}


def array_file(path: Path, key: str | None = None, labels: str | Labels | None = None) -> ArrayRows:
    """Open a ``.npy`` file, which is mapped and not read, or an array in a ``.npz`` file.

    Args:
        path: The file; nothing in it is executed.
        key: Name of the array; needed where a ``.npz`` holds several besides labels.
        labels: Name of the labels in a ``.npz``, or the labels; ``labels``, else ``y`` of a
            ``.npz`` if left out.

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
