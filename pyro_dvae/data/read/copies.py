"""Rows that are equal to one another, found by their hashes."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_dvae.data.read.extent import in_blocks
from pyro_dvae.data.read.rows import Rows

_SAMPLE_BYTES = 2**23
"""Bytes of the rows that tell how often equal rows arise by chance, at most."""

_FEWEST = 10
"""Fewer different rows are not split by groups of copies."""


def hash_rows(values: Tensor) -> NDArray[np.uint64]:
    """The hash of each row of values, 64 bits of its BLAKE2b digest.

    Equal rows have equal hashes: 0.0 and -0.0 are equal, and so are two missing values.

    Args:
        values: (B, *event_shape), on the CPU.

    Returns:
        (B,) hashes.
    """
    data = values.reshape(len(values), -1).contiguous()
    if data.is_floating_point():
        data = torch.where(data.isnan(), torch.nan, data + 0.0)
    found = np.empty(len(data), np.uint64)
    for i, row in enumerate(data.view(torch.uint8).numpy()):
        digest = hashlib.blake2b(row.data, digest_size=8).digest()
        found[i] = int.from_bytes(digest, "little")
    return found


def row_hashes(rows: Rows, dtype: torch.dtype | None = None) -> NDArray[np.uint64]:
    """The hash of every row, (N,), which are read in blocks: 8 bytes per row are kept.

    Args:
        rows: The data as stored.
        dtype: The type that the values are converted to first; None leaves them as they are.

    Raises:
        DataError: If a row cannot be read.
    """
    blocks = (rows.read(index).cpu() for index in in_blocks(rows))
    return np.concatenate([hash_rows(x if dtype is None else x.to(dtype)) for x in blocks])


def groups_of_copies(rows: Rows) -> Tensor:
    """The number of the group of equal rows that each row belongs to, (N,) int64, from 0 on."""
    return torch.from_numpy(np.unique(row_hashes(rows), return_inverse=True)[1].reshape(-1))


def equal_by_chance(rows: Rows, groups: Tensor) -> bool:
    """Whether rows of such values are equal to one another by chance.

    Let n rows be different from one another, and p_jv the share of them in which element j has the
    value v. If the elements were independent, n (n - 1) / 2 prod_j sum_v p_jv^2 pairs of n such
    rows would be equal. The answer is whether these are at least one, as in a table of few columns
    of names. Then equal rows are other cases of the same kind; else they are copies of one case.
    It is also yes if n is below 10, for so few groups cannot be split.

    Args:
        rows: The data as stored.
        groups: (N,) int64, what `groups_of_copies` found.
    """
    first = torch.from_numpy(np.unique(groups.numpy(), return_index=True)[1]).sort().values
    num = len(first)
    if num < _FEWEST:
        return True
    most = max(_FEWEST, _SAMPLE_BYTES // max(1, 8 * math.prod(rows.event_shape)))
    chosen = torch.linspace(0, num - 1, min(num, most), device="cpu").long()
    sample = rows.read(first[chosen]).double().reshape(len(chosen), -1)
    size = len(sample)
    log_pairs = math.log(num * (num - 1) / 2)
    for column in sample.unbind(1):
        counts = column.nan_to_num(nan=math.inf).unique(return_counts=True)[1]
        equal = int((counts * (counts - 1)).sum()) / (size * (size - 1))  # of two rows
        log_pairs += math.log(equal * (1 - 1 / num) + 1 / num)
        if log_pairs < 0:
            return False
    return True


def found_among(rows: Rows, others: Rows) -> Tensor:
    """Which rows are equal to one of other rows, (N,) bool.

    Args:
        rows: N data as stored.
        others: The other data. Where the types differ, the values are compared as float64.
    """
    dtype = None if rows.dtype == others.dtype else torch.float64
    return torch.from_numpy(np.isin(row_hashes(rows, dtype), row_hashes(others, dtype)))
