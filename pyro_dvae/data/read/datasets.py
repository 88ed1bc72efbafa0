"""Rows of what Python programs hold data in: tensors, arrays, data sets of torch."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from pyro_dvae.data.read.array_rows import ArrayRows
from pyro_dvae.data.read.errors import DataError, reading
from pyro_dvae.data.read.images import to_tensor
from pyro_dvae.data.read.labels import number_classes
from pyro_dvae.data.read.rows import Rows, TensorRows

_DTYPES = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
_DTYPES |= {torch.float16, torch.bfloat16, torch.float32, torch.float64}


class DatasetRows:
    """Rows of a map-style data set, fetched item by item.

    Args:
        dataset: Has a length, and items x or (x, label, ...). x is a tensor, an array or an image
            of Pillow, the same shape and dtype in all; labels count if the first is a whole
            number.

    Raises:
        DataError: If it is empty or its first item is no such thing.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            raise DataError(
                f"Expected a data set with a length and items by number; got {_kind(dataset)}. "
                "Write it to a .npy file."
            )
        if len(dataset) == 0:
            raise DataError(f"Expected at least one item in {_kind(dataset)}; got none. Add data.")
        first, label = self._item(0)
        self.event_shape, self.dtype = tuple(first.shape), first.dtype
        classes = getattr(dataset, "classes", None)
        self._labels: Tensor | None = None
        self._has_labels = label is not None
        self.label_names = tuple(map(str, classes)) if classes and self._has_labels else None

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self._dataset)

    @property
    def labels(self) -> Tensor | None:
        """(N,) int64; the first use fetches every item."""
        if self._has_labels and self._labels is None:
            found = [self._item(i)[1] for i in range(len(self))]
            if None in found:
                raise DataError(
                    f"Expected a whole number as label of every item in {_kind(self._dataset)}; "
                    f"got none for item {found.index(None)}. Number the classes."
                )
            self._labels = torch.tensor(found, dtype=torch.int64, device="cpu")
        return self._labels

    def read(self, index: Tensor) -> Tensor:
        """Fetch the items at some indices, shape (B, *event_shape)."""
        rows = []
        for i in index.tolist():
            x, _ = self._item(i)
            if (tuple(x.shape), x.dtype) != (self.event_shape, self.dtype):
                raise DataError(
                    f"Expected items of shape {self.event_shape} and {self.dtype} in "
                    f"{_kind(self._dataset)}; got {tuple(x.shape)} and {x.dtype} as item {i}. "
                    "Give all one shape, with a transform say."
                )
            rows.append(x)
        return torch.stack(rows)

    def _item(self, i: int) -> tuple[Tensor, int | None]:
        what = f"a tensor, an array or an image from {_kind(self._dataset)}"
        with reading(f"item {i}", what, "Mend the item."):
            item = self._dataset[i]
            x, label = item, None
            if isinstance(item, tuple | list):
                x, label = item[0], _label(item[1]) if len(item) > 1 else None
            is_image = hasattr(x, "getbands")
            if is_image:
                return to_tensor(np.array(x)), label
            return _checked(torch.as_tensor(x, device="cpu")), label


def as_rows(data: Any, labels: Any = None) -> Rows:
    """Open data that a program holds.

    Args:
        data: (N, ...) tensor; an array, or what NumPy makes one of; a map-style data set of
            torch; or rows, which pass.
        labels: (N,) whole numbers or names; those of a data set are its own.

    Returns:
        The rows; a tensor or an array is not copied.

    Raises:
        DataError: If these are no numbers of one shape, or not one label for each.
    """
    if isinstance(data, Dataset):
        return DatasetRows(data)
    if hasattr(data, "event_shape") and hasattr(data, "read"):
        rows: Rows = data
        return rows
    with reading(_kind(data), "a tensor, an array or a data set of torch", "Convert it."):
        named = None if labels is None else number_classes(np.asarray(labels), "labels")
        if isinstance(data, Tensor):
            return TensorRows(_checked(data), *(named or ()))
        return ArrayRows(np.asarray(data), named)


def _checked(x: Tensor) -> Tensor:
    if x.dtype not in _DTYPES or x.layout != torch.strided:
        raise DataError(
            f"Expected a dense tensor of real numbers; got {x.dtype}, {x.layout}. Convert it to "
            "uint8 or float32."
        )
    return x.detach()


def _label(label: Any) -> int | None:
    try:
        number = int(label)
        return number if number == float(label) else None
    except (TypeError, ValueError, RuntimeError):
        return None


def _kind(data: object) -> str:
    return f"a {type(data).__name__}"
