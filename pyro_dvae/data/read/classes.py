"""Number labels as the classes 0 to C - 1 of a model."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, cast

import torch

from pyro_dvae.data.read.rows import Rows, Source


def only_seen(source: Source) -> Source:
    """Number the labels 0 to C - 1, where C is the number of labels that occur in training.

    For example, labels 1, 2 and 3 become the classes 0, 1 and 2 with the names "1", "2" and "3".

    Args:
        source: Data with or without labels.

    Returns:
        The data with new labels. They are the same data if there are no labels, or if the labels
        are 0 to C - 1 already. A negative label, which stands for none, stays as it is.
    """
    labels = source.train.labels
    seen = torch.empty(0) if labels is None else labels[labels >= 0].unique()
    if not len(seen) or len(seen) == int(seen[-1]) + 1:
        return source
    names = _texts(source.train, seen.tolist())
    test = None if source.test is None else number_by(source.test, names)
    return source._replace(train=number_by(source.train, names), test=test)


def number_by(rows: Rows, names: Sequence[str] | None) -> Rows:
    """Number labels as a model numbers its classes; labels that the model lacks come after those.

    Args:
        rows: Data with or without labels. Labels without names are taken for the model's numbers,
            unless the names of its classes are numbers too.
        names: The names of the model's classes 0, 1, ...; None if they have no names.

    Returns:
        The data with new labels, or the same data if nothing changes.
    """
    labels = rows.labels
    if labels is None or names is None or rows.label_names == tuple(names):
        return rows
    if rows.label_names is None and not all_numbers(names):
        return rows
    seen, place = labels.unique(return_inverse=True)
    texts = _texts(rows, seen.tolist())
    some = [text for number, text in zip(seen.tolist(), texts, strict=True) if number >= 0]
    known = [*names, *(text for text in some if text not in names)]
    number = torch.tensor(
        [known.index(text) if i >= 0 else i for i, text in zip(seen.tolist(), texts, strict=True)]
    )
    view: Any = copy.copy(rows)
    view.labels = number[place]
    view.label_names = tuple(known)
    return cast(Rows, view)


def all_numbers(names: Sequence[str]) -> bool:
    """Whether all names are whole numbers."""
    return all(name.isdecimal() for name in names)


def _texts(rows: Rows, labels: list[int]) -> list[str]:
    """The name of each label; the number itself where it has no name."""
    names = rows.label_names
    return [names[i] if names is not None and 0 <= i < len(names) else str(i) for i in labels]
