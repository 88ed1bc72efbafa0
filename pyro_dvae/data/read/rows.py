"""Rows: N data in the form in which they are stored, in memory or in files."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from pyro_dvae.data.read.errors import DataError
from pyro_dvae.data.read.labels import checked_labels

Levels = Mapping[str, tuple[str, ...]]
"""Name of a column -> the names of its levels 0, 1, ..."""

NO_LEVELS: Levels = {}


class Rows(Protocol):
    """N data as they are stored, with their labels. They need not fit into memory."""

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one datum: (28, 28), (3, 64, 64) with channels first, (5,) in a table."""

    @property
    def dtype(self) -> torch.dtype:
        """The stored dtype, or the nearest one that torch computes with."""

    @property
    def labels(self) -> Tensor | None:
        """(N,) int64; None if there are no labels."""

    @property
    def label_names(self) -> tuple[str, ...] | None:
        """The name of each label 0, 1, ...; None if they have no names."""

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Name of each column of a table; None where the data are no table."""

    def __len__(self) -> int:
        """Return N."""

    def read(self, index: Tensor) -> Tensor:
        """Read some rows, with their values as stored.

        Args:
            index: (B,) int64 row numbers, in any order; a number may occur twice.

        Returns:
            (B, *event_shape) values, in the order of the index.

        Raises:
            DataError: If a row cannot be read.
        """


class Source(NamedTuple):
    """Opened data, and where they came from."""

    name: str
    """The name of the data set, or of the file or folder."""
    where: str
    """Where the data lie, for people."""
    train: Rows
    test: Rows | None
    """The data that the source itself keeps apart for testing; None if there are none."""
    notice: str | None
    """A line to show people, or None."""
    arguments: Mapping[str, Any] = MappingProxyType({})
    """The arguments of `open_source` that opened the data; empty if it did not open them."""
    groups: Tensor | None = None
    """(N,) int64, the number of the group of each training row, from 0 on; None if there are no
    groups. A split keeps the rows of a group in one part."""
    times: Tensor | None = None
    """(N,) float64, the time of each training row, in any unit; None if there are no times. A split
    keeps the latest rows apart."""

    def __repr__(self) -> str:
        test = "no test data" if self.test is None else f"test {rows_of(self.test)}"
        return f"Source {self.name!r}: train {rows_of(self.train)}, {test}; {self.where}"


def rows_of(rows: Rows) -> str:
    """What rows are, for a repr: "5000 rows of shape (28, 28) uint8 in 10 classes"."""
    # Not their labels: a data set would read all of its items for them.
    classes = "" if rows.label_names is None else f" in {len(rows.label_names)} classes"
    dtype = str(rows.dtype).removeprefix("torch.")
    return f"{len(rows)} rows of shape {tuple(rows.event_shape)} {dtype}{classes}"


class TensorRows:
    """Rows in memory.

    Args:
        values: (N, *event_shape), N >= 1.
        labels: (N,) whole numbers; None if there are no labels.
        label_names: The name of each label 0, 1, ...; None if they have no names.

    Raises:
        DataError: If there are no rows, or there is not one label per row.
    """

    columns: tuple[str, ...] | None = None

    def __init__(
        self,
        values: Tensor,
        labels: Tensor | None = None,
        label_names: tuple[str, ...] | None = None,
    ) -> None:
        shape = tuple(values.shape)
        if not shape or values.numel() == 0:
            raise DataError(
                f"Expected data of shape (N, ...) with N > 0; got shape {shape}. "
                "Pass at least one datum."
            )
        self._values = values
        self.event_shape, self.dtype = shape[1:], values.dtype
        self.labels = checked_labels(labels, shape[0])
        self.label_names = label_names

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._values)

    def read(self, index: Tensor) -> Tensor:
        """Return some rows.

        Args:
            index: (B,) int64 row numbers.

        Returns:
            (B, *event_shape) values.
        """
        return self._values[index]


class SubsetRows:
    """A view of some of the rows of other data.

    Args:
        rows: The other data.
        index: (N,) int64 numbers of the rows to show, in the order to show them.
    """

    def __init__(self, rows: Rows, index: Tensor) -> None:
        self.rows, self.index = rows, index
        self.event_shape, self.dtype = rows.event_shape, rows.dtype
        self.labels = None if rows.labels is None else rows.labels[index]
        self.label_names, self.columns = rows.label_names, rows.columns
        self.levels = levels_in(rows)

    @property
    def ids(self) -> tuple[str, ...] | None:
        """The name of each row shown; None where they have none."""
        ids = ids_in(self.rows)
        return None if ids is None else tuple(ids[i] for i in self.index.tolist())

    def __len__(self) -> int:
        """Return the number of rows shown."""
        return len(self.index)

    def read(self, index: Tensor) -> Tensor:
        """Read some rows of the view.

        Args:
            index: (B,) int64 numbers, counted within the view.

        Returns:
            (B, *event_shape) values.
        """
        return self.rows.read(self.index[index])


@runtime_checkable
class _HasLevels(Protocol):
    levels: Levels


@runtime_checkable
class _HasIds(Protocol):
    ids: tuple[str, ...] | None


def levels_in(rows: Rows) -> Levels:
    """The names of the levels of each column that holds names; none where the data are no table."""
    return rows.levels if isinstance(rows, _HasLevels) else NO_LEVELS


def ids_in(rows: Rows) -> tuple[str, ...] | None:
    """The name of each row; None where they have none."""
    return rows.ids if isinstance(rows, _HasIds) else None
