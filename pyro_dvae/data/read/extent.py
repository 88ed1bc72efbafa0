"""The extent of values: their type, their least and greatest, and whether they are whole."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_dvae.data.read.errors import DataError
from pyro_dvae.data.read.rows import Rows

_READ_BYTES = 2**24


class Extent(NamedTuple):
    """What must be known of values to say which likelihoods can model them."""

    dtype: torch.dtype
    low: float
    high: float
    is_binary: bool
    """Whether every value is 0 or 1."""
    is_whole: bool = False
    """Whether every value is a whole number."""
    has_missing: bool = False
    """Whether some values are missing (NaN). The fields above are of the others."""

    def __str__(self) -> str:
        only = "that are all 0 or 1" if self.is_binary else f"{self.low:g} to {self.high:g}"
        return f"{self.dtype} values {only}" + ", some of them missing (NaN)" * self.has_missing


def extent(rows: Rows) -> Extent:
    """Look at every value of some rows, in blocks of bounded memory.

    Raises:
        DataError: If a value is infinite, if all are missing, or if a row cannot be read.
    """
    found = []
    for index in in_blocks(rows):
        block = extent_of(rows.read(index))
        if math.inf in (-block.low, block.high):
            raise DataError(
                f"Expected finite values; got {block.low:g} to {block.high:g} in rows {index[0]} "
                f"to {index[-1]}. Drop or replace them."
            )
        found.append(block)
    if not any(block.low <= block.high for block in found):
        raise DataError("Expected finite values; got nan alone. Leave such data out.")
    low, high = min(block.low for block in found), max(block.high for block in found)
    is_binary = all(block.is_binary for block in found)
    whole = all(block.is_whole for block in found)
    missing = any(block.has_missing for block in found)
    return Extent(rows.dtype, low, high, is_binary, whole, missing)


def extent_of(values: Tensor) -> Extent:
    """Look at every value of a tensor that holds at least one.

    Where all are missing, the least value is infinite, and the greatest minus infinite.
    """
    low, high = values.min().item(), values.max().item()
    has_missing = math.isnan(low)
    if has_missing:
        values = values[~values.isnan()]
        low, high = math.inf, -math.inf
        if len(values):
            low, high = values.min().item(), values.max().item()
    is_binary = bool(((values == 0) | (values == 1)).all())
    return Extent(values.dtype, float(low), float(high), is_binary, is_whole(values), has_missing)


def is_whole(values: Tensor) -> bool:
    """Whether all values are whole numbers."""
    return not values.is_floating_point() or bool((values == values.floor()).all())


def in_blocks(rows: Rows, size: int = _READ_BYTES) -> tuple[Tensor, ...]:
    """The numbers of all rows, in blocks that hold about `size` bytes of data each."""
    return torch.arange(len(rows), device="cpu").split(max(1, size // row_bytes(rows)))


def row_bytes(rows: Rows) -> int:
    """The number of bytes of one row as stored."""
    return max(1, math.prod(rows.event_shape) * rows.dtype.itemsize)
