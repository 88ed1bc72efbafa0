"""Which rows go to training, validation and testing, decided by a seed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pyro_dvae.defaults import (
    LEAST_VALIDATION,
    MOST_KEPT_BYTES,
    MOST_KEPT_ROWS,
    VALIDATION_SHARE,
)


def split(num_data: int, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Split indices at random into a training and a validation part.

    Args:
        num_data: N, the number of data.
        fraction: The fraction of them that goes to validation, between 0 and 1.
        seed: Seed of the shuffle.

    Returns:
        Training indices and validation indices, int64, each sorted.

    Raises:
        ValueError: If a part would be empty, or the fraction is not between 0 and 1.

    Example:
        >>> from pyro_dvae import split
        >>> train, validation = split(1000, 0.05, seed=0)
        >>> len(train), len(validation)
        (950, 50)
    """
    num_validation = round(num_data * fraction) if 0 < fraction < 1 else 0
    if not 0 < num_validation < num_data:
        parts = f"{fraction} of {num_data} data"
        raise ValueError(f"Expected data in both parts; got {parts}. Change the fraction.")
    return allocate(num_data, fraction, 0, seed)[:2]


def amount_kept(share: float, num_data: int, event_shape: Sequence[int]) -> float:
    """How much is kept apart for validation or testing where the user names no amount.

    Args:
        share: The share of the data that is kept, below 1.
        num_data: N, the number of data.
        event_shape: Shape of one datum.

    Returns:
        The share; or, if it is more than 10,000 rows or 64 MiB of float32, that number of rows.
    """
    most = max(1, min(MOST_KEPT_ROWS, MOST_KEPT_BYTES // (4 * math.prod(event_shape))))
    return share if round(share * num_data) <= most else most


def validation_kept(num_data: int, event_shape: Sequence[int]) -> float:
    """How much is kept apart for validation where the user names no amount.

    Args:
        num_data: N, the number of data.
        event_shape: Shape of one datum.

    Returns:
        As ``amount_kept``; but at least 200 rows, or a fifth of the data if that is less.
    """
    least = min(LEAST_VALIDATION, num_data // 5)
    if rows_in(VALIDATION_SHARE, num_data) < least:
        return least
    return amount_kept(VALIDATION_SHARE, num_data, event_shape)


def rows_in(amount: float, num_data: int) -> int:
    """The number of rows in a fraction (below 1) or a number of N data."""
    return round(num_data * amount) if 0 < amount < 1 else int(amount)


def allocate(
    num_data: int,
    validation: float,
    test: float,
    seed: int,
    labels: Tensor | None = None,
    groups: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Split indices at random into a training, a validation and a test part.

    With labels, every class has about the same share in each part, to within a row or so. For
    this, the n rows of a class are put in random order, and the i-th row gets the quantile
    (i - 1/2) / n. Then the parts take the rows of all classes in the order of their quantiles.

    With groups, the first row of each group stands for all of it in that order. A part takes a
    group if it still has room for it, so that a part may be smaller than asked for. If it has room
    for none, it takes the smallest group.

    Args:
        num_data: N, the number of data.
        validation: The fraction (below 1) or the number of data that go to validation; 0 for none.
        test: The fraction (below 1) or the number of data that go to testing; 0 for none.
        seed: Seed of the shuffle.
        labels: (N,) int64 labels of the data; None if there are none.
        groups: (N,) int64, the number of the group of each row, from 0 on, no number left out. Rows
            of one group come into one part. None if each row is a group of its own.

    Returns:
        Training, validation and test indices, int64, each sorted.

    Raises:
        ValueError: If an amount is neither a fraction nor a number, if no training data are left,
            or if a part that is asked for would be empty.
    """
    nums = _numbers(num_data, validation, test)
    order = torch.randperm(num_data, generator=torch.Generator().manual_seed(seed), device="cpu")
    if groups is not None and int(groups.max()) + 1 < num_data:
        part = _whole_groups(order, groups, labels, nums)
    else:
        order = order if labels is None else _by_quantile(order, labels)
        part = torch.zeros(num_data, dtype=torch.uint8, device="cpu")
        part[order[: nums[0]]] = 1
        part[order[nums[0] : sum(nums)]] = 2
    return _indices(part)


def allocate_latest(times: Tensor, validation: float, test: float) -> tuple[Tensor, Tensor, Tensor]:
    """Split indices by time: the latest rows are for testing, those before them for validation.

    Rows of one time stay in one part. A part begins at the change of time that makes its size
    nearest to the one that is asked for.

    Args:
        times: (N,) the time of each row, any numbers.
        validation: The fraction (below 1) or the number of data that go to validation; 0 for none.
        test: The fraction (below 1) or the number of data that go to testing; 0 for none.

    Returns:
        Training, validation and test indices, int64, each sorted.

    Raises:
        ValueError: If an amount is neither a fraction nor a number, or if there are too few
            different times for the parts.
    """
    nums = _numbers(len(times), validation, test)
    ascending, order = times.sort(stable=True)
    part = torch.zeros(len(times), dtype=torch.uint8, device="cpu")
    changes = (ascending.diff() != 0).nonzero().flatten() + 1
    stop = len(times)
    for number, num in ((2, nums[1]), (1, nums[0])):
        if num:
            # The test part leaves a change of time for the validation part.
            inside = changes[changes < stop][int(number == 2 and nums[0] > 0) :]
            if not len(inside):
                raise ValueError(
                    f"Expected a change of time where the parts begin; got {len(times)} rows of "
                    f"{len(times.unique())} times, with {num} asked for. Keep another number of "
                    "rows apart, or split at random."
                )
            first = int(inside[(inside - (stop - num)).abs().argmin()])
            part[order[first:stop]] = number
            stop = first
    return _indices(part)


def joined(groups: Tensor, others: Tensor) -> Tensor:
    """The groups of rows that share a group, or one of the others, also by way of other rows.

    Args:
        groups: (N,) int64 numbers of groups.
        others: (N,) int64 numbers of other groups.

    Returns:
        (N,) int64 numbers of the joined groups, from 0 on.
    """
    found = torch.arange(len(groups), device="cpu")
    while True:
        before = found
        for index in (groups, others):
            least = torch.full((int(index.max()) + 1,), len(groups), device="cpu")
            found = least.scatter_reduce(0, index, found, "amin")[index]
        if torch.equal(found, before):
            return found.unique(return_inverse=True)[1]


def _numbers(num_data: int, validation: float, test: float) -> tuple[int, int]:
    """The numbers of rows for validation and testing."""
    nums = []
    for name, amount in (("validation", validation), ("test", test)):
        if not 0 < amount < 1 and not (amount >= 0 and float(amount).is_integer()):
            raise ValueError(
                f"Expected a fraction between 0 and 1 or a number of data for {name}; got "
                f"{amount}. Use 0.05, say."
            )
        num = rows_in(amount, num_data)
        if amount and num == 0:
            raise ValueError(
                f"Expected data in both parts; got {amount} of {num_data} data for {name}. "
                "Change the fraction, or use 0."
            )
        nums.append(num)
    if sum(nums) >= num_data:
        kept = f"{validation} of {num_data} data for validation"
        kept += f" and {test} for testing" if test else ""
        raise ValueError(f"Expected data in both parts; got {kept}. Keep less apart.")
    return nums[0], nums[1]


def _indices(part: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The rows of the parts 0 (training), 1 (validation) and 2 (testing)."""
    train, held, tested = ((part == number).nonzero().flatten() for number in range(3))
    return train, held, tested


def _whole_groups(
    order: Tensor, groups: Tensor, labels: Tensor | None, nums: tuple[int, int]
) -> Tensor:
    """The number of the part of each row: 0 for training, 1 for validation, 2 for testing.

    Args:
        order: (N,) the rows in random order.
        groups: (N,) the number of the group of each row.
        labels: (N,) the labels, or None.
        nums: how many rows go to validation and to testing.
    """
    sizes = groups.bincount()
    wanted = (nums[0] > 0) + (nums[1] > 0)
    if len(sizes) <= wanted:
        raise ValueError(
            f"Expected at least {wanted + 1} groups of rows, for each part one; got {len(sizes)}. "
            "Keep fewer parts apart with validation=0 or test=0, or take other groups."
        )
    first = torch.full((len(sizes),), len(groups), device="cpu")
    first = first.scatter_reduce(0, groups, torch.arange(len(groups), device="cpu"), "amin")
    stands = torch.zeros(len(groups), dtype=torch.bool, device="cpu")
    stands[first] = True
    order = order[stands[order]]  # by one row per group, so that its size plays no part
    if labels is not None:
        order = _by_quantile(order, labels, sizes[groups])
    chosen = groups[order]
    part = torch.zeros(len(sizes), dtype=torch.uint8, device="cpu")
    left = list(nums)
    for group, size in zip(chosen.tolist(), sizes[chosen].tolist(), strict=True):
        if not any(left):
            break
        for number in (0, 1):
            if size <= left[number]:
                part[group], left[number] = number + 1, left[number] - size
                break
    for number in (0, 1):
        if nums[number] and left[number] == nums[number]:
            free = chosen[part[chosen] == 0]
            part[free[sizes[free].argmin()]] = number + 1
    if part.all():
        raise ValueError(
            f"Expected a group of rows to train on beside {nums[0]} rows for validation and "
            f"{nums[1]} for testing; got {len(sizes)} groups of up to {int(sizes.max())} rows. "
            "Keep less apart, or take other groups."
        )
    return part[groups]


def _by_quantile(order: Tensor, labels: Tensor, sizes: Tensor | None = None) -> Tensor:
    """Sort rows by their quantile in their class.

    Args:
        order: (M,) the rows in random order, which decides the quantiles and breaks ties.
        labels: (N,) the label of each row.
        sizes: (N,) how many rows each row stands for; None for one.
    """
    grouped = order[labels[order].argsort(stable=True)]
    weights = torch.ones(len(labels), device="cpu") if sizes is None else sizes
    weight = weights.double()[grouped]
    _, place = labels[grouped].unique_consecutive(return_inverse=True)
    totals = torch.zeros(int(place[-1]) + 1, dtype=torch.float64, device="cpu")
    totals = totals.index_add(0, place, weight)
    before = weight.cumsum(0) - weight - (totals.cumsum(0) - totals)[place]
    quantile = torch.empty(len(labels), dtype=torch.float64, device="cpu")
    quantile[grouped] = (before + 0.5 * weight) / totals[place]
    return order[quantile[order].argsort(stable=True)]
