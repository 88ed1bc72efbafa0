"""Rows: N data in their stored form, wherever they lie."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from pyro_dvae.data.read.errors import DataError
from pyro_dvae.data.read.labels import checked_labels


class Rows(Protocol):
    """N data as stored, that need not fit into memory, and what is known of each."""

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one datum: (28, 28), (3, 64, 64) with channels first, (5,) for a table."""

    @property
    def dtype(self) -> torch.dtype:
        """The stored dtype, or the nearest one that torch computes with."""

    @property
    def labels(self) -> Tensor | None:
        """(N,) int64, or None."""

    @property
    def label_names(self) -> tuple[str, ...] | None:
        """Name of each label 0, 1, ..., where the source has names."""

    def __len__(self) -> int:
        """Return N."""

    def read(self, index: Tensor) -> Tensor:
        """Read some rows, their values untouched.

        Args:
            index: Indices, int64, shape (B,), in any order, also repeated.

        Returns:
            (B, *event_shape) values in the order asked for.

        Raises:
            DataError: If a row cannot be read.
        """


class Source(NamedTuple):
    """A user's data, opened, and where they came from."""

    name: str
    """The name asked for, or the name of the file or folder."""
    where: str
    """Tells people where the data lie."""
    train: Rows
    test: Rows | None
    """The data that the source itself keeps apart for testing."""
    notice: str | None
    """A line to show people, or None."""
    arguments: Mapping[str, Any] = MappingProxyType({})
    """What `open_source` was given to open the data; empty where it did not open them."""


class TensorRows:
    """Rows in memory.

    Args:
        values: (N, *event_shape), N >= 1.
        labels: (N,) whole numbers, or None.
        label_names: Name of each label 0, 1, ..., or None.

    Raises:
        DataError: If there are no rows, or not one label for each.
    """

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
        """Return the rows at some indices, shape (B, *event_shape)."""
        return self._values[index]


class SubsetRows:
    """A view of some rows of others.

    Args:
        rows: The others.
        index: (N,) indices of the rows to show, int64, in the order to show them.
    """

    def __init__(self, rows: Rows, index: Tensor) -> None:
        self.rows, self.index = rows, index
        self.event_shape, self.dtype = rows.event_shape, rows.dtype
        self.labels = None if rows.labels is None else rows.labels[index]
        self.label_names = rows.label_names

    def __len__(self) -> int:
        """Return the number of rows shown."""
        return len(self.index)

    def read(self, index: Tensor) -> Tensor:
        """Return the rows at some indices of the view, shape (B, *event_shape)."""
        return self.rows.read(self.index[index])
