"""Labels as the classes 0 to C - 1 of a model: those that occur, and no others."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, cast

import torch

from pyro_dvae.data.read.rows import Rows, Source


def only_seen(source: Source) -> Source:
    """Number the labels of data 0 to C - 1, C the number of those that occur in training.

    Labels 1, 2 and 3 become the classes 0, 1 and 2 of the names "1", "2" and "3".

    Args:
        source: Data with labels, or without.

    Returns:
        The same data if their labels are 0 to C - 1 as they are, or negative, which are refused.
    """
    labels = source.train.labels
    if labels is None or (seen := labels.unique())[0] < 0 or len(seen) == int(seen[-1]) + 1:
        return source
    names = _texts(source.train, seen.tolist())
    test = None if source.test is None else number_by(source.test, names)
    return source._replace(train=number_by(source.train, names), test=test)


def number_by(rows: Rows, names: Sequence[str] | None) -> Rows:
    """Number labels by the names of a model's classes; those of other names come after them.

    Args:
        rows: Data with labels, or without. Labels without names are numbers of classes already,
            unless the names are numbers too.
        names: Of the classes 0, 1, ..., or None.
    """
    labels = rows.labels
    if labels is None or names is None or rows.label_names == tuple(names):
        return rows
    if rows.label_names is None and not all_numbers(names):
        return rows
    seen, place = labels.unique(return_inverse=True)
    texts = _texts(rows, seen.tolist())
    known = [*names, *(text for text in texts if text not in names)]
    number = torch.tensor([known.index(text) for text in texts])
    view: Any = copy.copy(rows)
    # A data set fetches its labels when they are asked for, and keeps them.
    kept = "_labels" if isinstance(getattr(type(rows), "labels", None), property) else "labels"
    setattr(view, kept, number[place])
    view.label_names = tuple(known)
    return cast(Rows, view)


def all_numbers(names: Sequence[str]) -> bool:
    """Whether the names are whole numbers, which stand for themselves."""
    return all(name.isdecimal() for name in names)


def _texts(rows: Rows, labels: list[int]) -> list[str]:
    names = rows.label_names
    return [names[i] if names is not None and 0 <= i < len(names) else str(i) for i in labels]
