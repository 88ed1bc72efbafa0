"""Which rows of a source go to training, validation and testing: at random, by groups, by time."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_dvae.checks import one_of
from pyro_dvae.data.read.copies import equal_by_chance, found_among, groups_of_copies
from pyro_dvae.data.read.errors import DataError
from pyro_dvae.data.read.mnist import DATA_SETS
from pyro_dvae.data.read.rows import Rows, Source, TensorRows
from pyro_dvae.data.serve.allocate import allocate, allocate_latest, joined

SPLITS = ("random", "last")


class Division(NamedTuple):
    """The numbers of a source's training rows that go to each part, int64, ascending."""

    train: Tensor
    validation: Tensor
    """Empty where the validation data are other rows."""
    test: Tensor
    """Empty where the test data are other rows."""
    num_copies: int | None
    """As in `Splits`."""
    num_dropped: int
    """As in `Splits`."""


def divide(
    source: Source,
    validation: float | Rows | None,
    test: float | Rows | None,
    seed: int,
    *,
    split: str = "random",
    group_copies: bool | None = None,
    drop_copies: bool = False,
) -> Division:
    """Choose the rows of each part; `make_splits` explains the arguments.

    Raises:
        ValueError: If a part would be empty, or the rows cannot be divided so.
    """
    rows = source.train
    amounts = _amount(validation), _amount(test)
    num_copies = None
    if split_is_last(source, split):
        times = source.times
        times = torch.arange(len(rows), device="cpu") if times is None else times
        chosen = allocate_latest(times, *amounts)
    else:
        groups = source.groups
        copies = kept_together(rows, group_copies) if any(amounts) else None
        if copies is not None:
            num_copies = len(rows) - int(copies.max()) - 1
            groups = copies if groups is None else _joined(groups, copies)
        # MNIST's split has been published.
        labels = None if source.name in DATA_SETS else rows.labels
        chosen = allocate(len(rows), *amounts, seed, labels, groups)
    if not drop_copies:
        return Division(*chosen, num_copies, 0)
    others = [part for part in (validation, test) if not isinstance(part, float | int | None)]
    chosen, num_dropped = _without(chosen, rows, others)
    return Division(*chosen, num_copies, num_dropped)


def split_is_last(source: Source, split: str) -> bool:
    """Whether the latest rows are kept apart.

    Args:
        source: The data.
        split: ``"random"`` or ``"last"``.

    Raises:
        ValueError: If there is no such split, or the data also have groups, which no time divides.
    """
    one_of("split", split, SPLITS)
    is_last = split == "last" or source.times is not None
    if is_last and source.groups is not None:
        raise DataError(
            "Expected groups of rows, or rows in the order of their time; got both. Leave one out."
        )
    return is_last


def kept_together(rows: Rows | Tensor, wanted: bool | None = None) -> Tensor | None:
    """The groups of equal rows that are to be kept in one part.

    Args:
        rows: The data as stored, or a tensor (N, *event_shape).
        wanted: Whether to keep them in one part; None unless such rows are equal by chance.

    Returns:
        (N,) int64 numbers of the groups, from 0 on; None if copies may come into several parts.
    """
    rows = TensorRows(rows.cpu()) if isinstance(rows, Tensor) else rows
    if wanted is False:
        return None
    groups = groups_of_copies(rows)
    is_free = wanted is None and int(groups.max()) + 1 < len(rows) and equal_by_chance(rows, groups)
    return None if is_free else groups


def _joined(groups: Tensor, copies: Tensor) -> Tensor:
    """The groups that are left if copies stay in one part too."""
    found = joined(groups, copies)
    before, largest = int(groups.bincount().max()), int(found.bincount().max())
    if before < largest and largest > len(groups) / 2:
        raise DataError(
            f"Expected groups that have few rows in common; got copies that join groups of at most "
            f"{before:,} rows to one of {largest:,}. Use group_copies=False, which keeps the "
            "groups, but not the copies, in one part each."
        )
    return found


def _without(
    chosen: tuple[Tensor, Tensor, Tensor], rows: Rows, others: list[Rows]
) -> tuple[tuple[Tensor, Tensor, Tensor], int]:
    """The rows of each part that are not among other rows, and the number of those that are."""
    unwanted = torch.zeros(len(rows), dtype=torch.bool, device="cpu")
    for other in others:
        unwanted |= found_among(rows, other)
    train, held, tested = (index[~unwanted[index]] for index in chosen)
    if not len(train):
        raise DataError(
            "Expected training rows that are in no other part; got none. Use drop_copies=False."
        )
    return (train, held, tested), int(unwanted.sum())


def _amount(part: float | Rows | None) -> float:
    return part if isinstance(part, (int, float)) else 0
