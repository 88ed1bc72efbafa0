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
) -> tuple[Tensor, Tensor, Tensor]:
    """Split indices at random into a training, a validation and a test part.

    With labels, every class has about the same share in each part, to within a row or so. For
    this, the n rows of a class are put in random order, and the i-th row gets the quantile
    (i - 1/2) / n. Then the parts take the rows of all classes in the order of their quantiles.

    Args:
        num_data: N, the number of data.
        validation: The fraction (below 1) or the number of data that go to validation; 0 for none.
        test: The fraction (below 1) or the number of data that go to testing; 0 for none.
        seed: Seed of the shuffle.
        labels: (N,) int64 labels of the data; None if there are none.

    Returns:
        Training, validation and test indices, int64, each sorted.

    Raises:
        ValueError: If an amount is neither a fraction nor a number, if no training data are left,
            or if a part that is asked for would be empty.
    """
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
    num_validation, num_test = nums
    if sum(nums) >= num_data:
        kept = f"{validation} of {num_data} data for validation"
        kept += f" and {test} for testing" if test else ""
        raise ValueError(f"Expected data in both parts; got {kept}. Keep less apart.")
    order = torch.randperm(num_data, generator=torch.Generator().manual_seed(seed), device="cpu")
    if labels is not None:
        order = _by_quantile(order, labels)
    part = torch.zeros(num_data, dtype=torch.uint8, device="cpu")
    part[order[:num_validation]] = 1
    part[order[num_validation : num_validation + num_test]] = 2
    train, held, tested = ((part == number).nonzero().flatten() for number in range(3))
    return train, held, tested


def _by_quantile(order: Tensor, labels: Tensor) -> Tensor:
    """Sort rows by their quantile in their class.

    Args:
        order: (N,) the rows in random order, which decides the quantiles and breaks ties.
        labels: (N,) the label of each row.
    """
    grouped = order[labels[order].argsort(stable=True)]
    _, counts = labels[grouped].unique_consecutive(return_counts=True)
    ends = counts.cumsum(0)
    rank = torch.arange(len(order), device="cpu") - (ends - counts).repeat_interleave(counts)
    quantile = torch.empty(len(order), dtype=torch.float64, device="cpu")
    quantile[grouped] = (rank.double() + 0.5) / counts.repeat_interleave(counts)
    return order[quantile[order].argsort(stable=True)]
