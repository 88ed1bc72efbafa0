"""Rows of a table: numbers, and the names of the levels that some of its columns hold."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_dvae.data.read.labels import Labels
from pyro_dvae.data.read.rows import NO_LEVELS, Levels, TensorRows

Column = str | int
"""A column's name, or its number, counted from 0."""


class TableRows(TensorRows):
    """Rows of a table.

    Args:
        values: (N, C) numbers.
        columns: The names of the C columns.
        labels: (N,) whole numbers and the names of the classes; None if there are no labels.
        notice: A line on how the table was read, for people; None if there is nothing to say.
        repeated: The names that more than one column has.
        levels: The names of the levels of the columns that hold names.
        ordered: The names of the columns whose levels have an order.
        ids: (N,) the name of each row; None if they have none.
        reread: A function that reads the table again, and takes columns of numbers, given by their
            names, as levels too; None if there is none.
    """

    columns: tuple[str, ...]

    def __init__(
        self,
        values: NDArray[Any],
        columns: Sequence[str],
        labels: Labels | None = None,
        notice: str | None = None,
        repeated: Sequence[str] = (),
        levels: Levels = NO_LEVELS,
        ordered: Collection[str] = (),
        ids: tuple[str, ...] | None = None,
        reread: Callable[[Sequence[Column]], TableRows] | None = None,
    ) -> None:
        super().__init__(torch.from_numpy(values), *(labels or (None, None)))
        self.columns, self.notice, self.repeated = tuple(columns), notice, tuple(repeated)
        self.levels, self.ordered, self.ids = levels, frozenset(ordered), ids
        self.reread = reread
        self.groups: Tensor | None = None
        """(N,) int64, the number of the group of each row; None if there are no groups."""
        self.times: Tensor | None = None
        """(N,) float64, the time of each row; None if there are no times."""
