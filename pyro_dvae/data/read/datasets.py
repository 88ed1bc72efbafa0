"""Rows of data that a Python program holds: tensors, arrays, data sets of torch."""

import sys
from collections.abc import Mapping, Sequence, Sized
from functools import partial
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from pyro_dvae.data.read.array_rows import ArrayRows
from pyro_dvae.data.read.errors import DataError, reading
from pyro_dvae.data.read.images import to_tensor
from pyro_dvae.data.read.labels import checked_labels, number_classes
from pyro_dvae.data.read.rows import Rows, TensorRows
from pyro_dvae.data.read.table_files import TableOptions, frame_rows
from pyro_dvae.data.read.table_rows import Column, TableRows
from pyro_dvae.tensors import DATA_KEYS, LABEL_KEYS, first_key

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


@runtime_checkable
class _IsFrame(Protocol):
    """A table of pandas, which is not imported to find out."""

    iloc: Any
    columns: Any


@runtime_checkable
class _IsHuggingFace(Protocol):
    """A data set of the library `datasets`, which is not imported to find out."""

    features: Mapping[str, Any]

    def to_pandas(self) -> Any: ...


class DatasetRows:
    """Rows of a map-style data set of torch, which are fetched one by one.

    Args:
        dataset: A data set with a length and with items x, (x, label, ...), or dicts of these, as
            those of Hugging Face. All x are tensors, arrays or Pillow images of one shape and
            dtype. The labels are used if that of the first item is a whole number.

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
            if isinstance(item, Mapping):
                key, own = first_key(item, DATA_KEYS), first_key(item, LABEL_KEYS)
                x = item[next(iter(item)) if key is None else key]
                label = None if own is None else _label(item[own])
            elif isinstance(item, tuple | list):
                x, label = item[0], _label(item[1]) if len(item) > 1 else None
            if _is_image(x):
                return to_tensor(np.array(x)), label
            return _checked(torch.as_tensor(x, device="cpu")), label


def as_rows(data: Any, labels: Any = None, **options: Any) -> Rows:
    """Take data that a program holds as rows.

    >>> import torch
    >>> from pyro_dvae.data import as_rows
    >>> rows = as_rows(torch.zeros(10, 28, 28), labels=[0] * 10)
    >>> len(rows), rows.event_shape
    (10, (28, 28))
    >>> rows = as_rows({"island": ["Dream", "Biscoe"], "mass": [3.5, 4.25]})
    >>> rows.columns, rows.levels["island"]
    (('island', 'mass'), ('Biscoe', 'Dream'))

    Args:
        data: A tensor (N, ...), an array or what NumPy turns into one; a table of pandas, or a dict
            of its columns; a dict of an array, and perhaps of labels, as scikit-learn's Bunch and
            the batches of Hugging Face are; a data set of Hugging Face; a map-style data set of
            torch, whose items are data, (data, label, ...) or dicts; or rows, which are returned
            as they are.
        labels: (N,) whole numbers or names, or None; for a table also the name of its column. A
            dict or a data set may have labels of its own.
        options: For a table, those of `open_source`: columns, drop, ids, nominal, dates, other and
            levels.

    Returns:
        The rows. A tensor or an array is not copied.

    Raises:
        DataError: If the data are not numbers of one shape, if no model can learn from a column of
            a table, or if there is not one label per row.
    """
    if isinstance(data, _IsRows):
        return cast(Rows, data)
    if isinstance(data, _IsHuggingFace):
        if all(_is_scalar(feature) for feature in data.features.values()):
            return as_rows(data.to_pandas(), labels, **options)
        rows, own = DatasetRows(data), first_key(data.features, LABEL_KEYS)
        if own is not None and type(data.features[own]).__name__ == "ClassLabel":
            rows.label_names = tuple(data.features[own].names)
        return rows
    if isinstance(data, Dataset):
        return DatasetRows(data)
    if isinstance(data, Mapping):
        return _dict_rows(data, labels, options)
    if isinstance(data, _IsFrame):
        return _frame(data, labels, options)
    if options:
        raise DataError(
            f"Expected {', '.join(options)} with a table; got it with {_kind(data)}. Leave it out."
        )
    with reading(_kind(data), "a tensor, an array or a data set of torch", "Convert it."):
        named = None if labels is None else number_classes(np.asarray(labels), "labels")
        if isinstance(data, Tensor):
            return TensorRows(_checked(data), *(named or ()))
        return ArrayRows(np.asarray(data), named)


def _dict_rows(data: Mapping[str, Any], labels: Any, options: dict[str, Any]) -> Rows:
    """The array of a dict with its labels, or a dict of columns as a table."""
    key = first_key(data, DATA_KEYS)
    held = None if key is None else data[key]
    if held is None or (np.ndim(held) < 2 and not isinstance(held, _IsFrame)):
        import pandas as pd  # type: ignore[import-untyped, unused-ignore]

        with reading(_kind(data), "a dict of columns, as long as one another", "Correct it."):
            return _frame(pd.DataFrame(dict(data)), labels, options)
    names = data.get("target_names")
    own = first_key(data, LABEL_KEYS)
    if labels is None and own is not None:
        found = np.asarray(data[own])
        # Whole numbers without names are what a regression predicts.
        is_class = own != "target" or (found.dtype.kind in "biu" and names is not None)
        labels = found if is_class else None
    columns = data.get("feature_names")
    if isinstance(held, _IsFrame) or columns is None:
        rows = as_rows(held, labels, **options)
    else:
        import pandas as pd

        rows = _frame(pd.DataFrame(np.asarray(held), columns=list(columns)), labels, options)
    if names is not None and rows.labels is not None and rows.label_names is None:
        return cast(Rows, _named(rows, tuple(map(str, names))))
    return rows


def _named(rows: Any, names: tuple[str, ...]) -> Any:
    if int(rows.labels.max()) < len(names):
        rows.label_names = names
    return rows


def _frame(frame: Any, labels: Any, options: dict[str, Any]) -> TableRows:
    """A table of pandas as rows, with labels that are a column of it, or beside it."""
    is_column = isinstance(labels, (str, int))
    given = {**options, **({"labels": labels} if is_column else {})}
    rows = frame_rows(frame, "the table", TableOptions(**given))
    if labels is not None and not is_column:
        numbers, names = number_classes(np.asarray(labels), "labels")
        rows.labels, rows.label_names = checked_labels(numbers, len(rows)), names
        rows.reread = partial(_frame_again, frame, labels, options)
    return rows


def _frame_again(
    frame: Any, labels: Any, options: dict[str, Any], nominal: Sequence[Column]
) -> TableRows:
    return _frame(frame, labels, {**options, "nominal": [*options.get("nominal", ()), *nominal]})


def _is_scalar(feature: Any) -> bool:
    """Whether a feature of Hugging Face is one number or one name."""
    return type(feature).__name__ in ("Value", "ClassLabel")


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
