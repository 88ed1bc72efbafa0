"""Rows as people know them: the names of columns and levels, and which datum each row is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_dvae.data import SubsetRows, all_numbers
from pyro_dvae.data.read.rows import ids_in
from pyro_dvae.runs.record import DataRecord
from pyro_dvae.runs.rows import PreparedRows

Beside = Mapping[str, Tensor | Sequence[str]]
"""Name of a column -> (N,) numbers or texts, which stand beside the rows of a table."""


def column_names(data: DataRecord, event_shape: Sequence[int]) -> list[str]:
    """The names of the columns of a table of data: the run's, or x0, x1, ... of other data."""
    number = math.prod(event_shape)
    columns = data.columns or ()
    return list(columns) if len(columns) == number else [f"x{i}" for i in range(number)]


def label_column(data: DataRecord) -> str:
    """The name of the column of labels in a table of data: the run's, or "label"."""
    labels = data.reading.labels
    return labels if data.columns and isinstance(labels, str) and "/" not in labels else "label"


def named_values(data: DataRecord, x: Tensor) -> list[list[float | str]]:
    """Data (B, *event_shape) as rows of cells: numbers, and the names of levels; empty for NaN.

    Args:
        data: the record of the run's data.
        x: what the likelihood takes, or something near it: the probability of a bit becomes the
            name of the more probable level.
    """
    rows: list[list[Any]] = x.flatten(1).tolist()
    if x.isnan().any():
        rows = [["" if cell != cell else cell for cell in row] for row in rows]
    for i, column in enumerate(data.columns or ()):
        levels = data.levels.get(column)
        if levels is not None:
            for row in (row for row in rows if row[i] != ""):
                row[i] = levels[min(max(round(row[i]), 0), len(levels) - 1)]
    return rows


def beside(data: DataRecord, rows: PreparedRows) -> dict[str, Tensor | Sequence[str]]:
    """What says which datum each of N rows is: the columns "row", "id" and "label" that are known.

    "row" is the number of the row in the run's data, counted from 0; there is none for the rows of
    another file, whose place in the table is their row. "id" is the name of the row, where a
    column or an index names them.

    Args:
        data: the record of the run's data.
        rows: the rows.
    """
    columns: dict[str, Tensor | Sequence[str]] = {}
    if isinstance(rows.stored, SubsetRows):
        columns["row"] = rows.stored.index
    ids = ids_in(rows.stored)
    if ids is not None:
        columns["id"] = ids
    if rows.labels is not None:
        columns["label"] = named_labels(data, rows.labels, rows.stored.label_names)
    return columns


def named_labels(
    data: DataRecord, labels: Tensor, names: Sequence[str] | None = None
) -> Tensor | list[str]:
    """(N,) the names of classes where these are no numbers, else their numbers.

    Args:
        data: the record of the run's data.
        labels: (N,) int64, negative where the class is not known.
        names: the names of the classes of a file, which may have further ones; None for the run's.
    """
    names = names or data.label_names
    if not names:
        return labels
    if all_numbers(names):
        numbers = torch.tensor([int(name) for name in names])
        inside = (labels >= 0) & (labels < len(names))
        return torch.where(inside, numbers[labels.clamp(0, len(names) - 1)], labels)
    known_names = [*names, ""]  # the last is that of -1, no label
    return [known_names[i] if -1 <= i < len(names) else str(i) for i in labels.tolist()]


def name_numbered(data: DataRecord, labels: Tensor | Sequence[str]) -> Tensor | Sequence[str]:
    """(N,) the names of classes 0, 1, ... of the run, where these are no numbers.

    Args:
        data: the record of the run's data.
        labels: (N,) as `encode` writes them, in a .npz file as the classes 0, 1, ...; or names,
            which stay as they are.
    """
    names = data.label_names
    if not isinstance(labels, Tensor) or not names or all_numbers(names):
        return labels
    return named_labels(data, labels)


def number_labels(data: DataRecord, labels: Sequence[str]) -> Tensor | None:
    """(N,) the classes 0, 1, ... that names stand for; None if one is no class of the run."""
    number = {name: i for i, name in enumerate(data.label_names or ())}
    if not set(labels) <= number.keys():
        return None
    return torch.tensor([number[label] for label in labels])
