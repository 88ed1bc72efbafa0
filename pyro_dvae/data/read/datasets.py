"""Rows of data that a Python program holds: tensors, arrays, data sets of torch."""

import sys
from collections.abc import Sequence, Sized
from typing import Any, Protocol, cast, runtime_checkable

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


@runtime_checkable
class _HasClasses(Protocol):
    """A data set that names its classes, as those of torchvision do."""

    classes: Sequence[Any]


@runtime_checkable
class _IsRows(Protocol):
    """What tells `Rows` from arrays and data sets; asking for the labels might read all data."""

    @property
    def event_shape(self) -> tuple[int, ...]: ...

    def read(self, index: Tensor) -> Tensor: ...


class DatasetRows:
    """Rows of a map-style data set of torch, which are fetched one by one.

    Args:
        dataset: A data set with a length and with items x or (x, label, ...). All x are tensors,
            arrays or Pillow images of one shape and dtype. The labels are used if that of the
            first item is a whole number.

    Raises:
        DataError: If the data set is empty, or its first item is not as described.
    """

    columns = None

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
            raise DataError(
                f"Expected a data set with a length and items by number; got {_kind(dataset)}. "
                "Write it to a .npy file."
            )
        if len(dataset) == 0:
            raise DataError(f"Expected at least one item in {_kind(dataset)}; got none. Add data.")
        first, label = self._item(0)
        self.event_shape, self.dtype = tuple(first.shape), first.dtype
        classes = dataset.classes if isinstance(dataset, _HasClasses) else None
        self._labels: Tensor | None = None
        self._has_labels = label is not None
        self.label_names = tuple(map(str, classes)) if classes and self._has_labels else None

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self._dataset)

    @property
    def labels(self) -> Tensor | None:
        """(N,) int64, or None; the first use fetches every item."""
        if self._has_labels and self._labels is None:
            found = [self._item(i)[1] for i in range(len(self))]
            if None in found:
                raise DataError(
                    f"Expected a whole number as label of every item in {_kind(self._dataset)}; "
                    f"got none for item {found.index(None)}. Number the classes."
                )
            self._labels = torch.tensor(found, dtype=torch.int64, device="cpu")
        return self._labels

    @labels.setter
    def labels(self, labels: Tensor) -> None:
        self._labels, self._has_labels = labels, True

    def read(self, index: Tensor) -> Tensor:
        """Fetch some items.

        Args:
            index: (B,) int64 item numbers, in any order.

        Returns:
            (B, *event_shape) values.
        """
        rows = []
        for i in index.tolist():
            x, _ = self._item(i)
            if (tuple(x.shape), x.dtype) != (self.event_shape, self.dtype):
                raise DataError(
                    f"Expected items of shape {self.event_shape} and {self.dtype} in "
                    f"{_kind(self._dataset)}; got {tuple(x.shape)} and {x.dtype} as item {i}. "
                    "Give all items one shape, with a transform say."
                )
            rows.append(x)
        return torch.stack(rows)

    def _item(self, i: int) -> tuple[Tensor, int | None]:
        what = f"a tensor, an array or an image from {_kind(self._dataset)}"
        with reading(f"item {i}", what, "Correct the item."):
            item = self._dataset[i]
            x, label = item, None
            if isinstance(item, tuple | list):
                x, label = item[0], _label(item[1]) if len(item) > 1 else None
            if _is_image(x):
                return to_tensor(np.array(x)), label
            return _checked(torch.as_tensor(x, device="cpu")), label


def as_rows(data: Any, labels: Any = None) -> Rows:
    """Take data that a program holds as rows.

    >>> import torch
    >>> from pyro_dvae.data import as_rows
    >>> rows = as_rows(torch.zeros(10, 28, 28), labels=[0] * 10)
    >>> len(rows), rows.event_shape
    (10, (28, 28))

    Args:
        data: A tensor (N, ...), an array or what NumPy turns into one, a map-style data set of
            torch, or rows, which are returned as they are.
        labels: (N,) whole numbers or names, or None. A data set has its own labels, which are
            used instead.

    Returns:
        The rows. A tensor or an array is not copied.

    Raises:
        DataError: If the data are not numbers of one shape, or there is not one label per row.
    """
    if isinstance(data, Dataset):
        return DatasetRows(data)
    if isinstance(data, _IsRows):
        return cast(Rows, data)
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


def _is_image(x: object) -> bool:
    """Whether x is an image of Pillow, which is not imported to find out."""
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(x, pillow.Image)


def _label(label: Any) -> int | None:
    """The label as a number; None if it is not a whole one."""
    try:
        number = int(label)
        return number if number == float(label) else None
    except (TypeError, ValueError, RuntimeError):
        return None


def _kind(data: object) -> str:
    return f"a {type(data).__name__}"
