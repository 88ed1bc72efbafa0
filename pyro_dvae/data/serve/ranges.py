"""The stored values that stand for 0 and 1, where nobody names them."""

from __future__ import annotations

import math

import torch

from pyro_dvae.data.read.errors import DataError
from pyro_dvae.data.read.extent import Extent

_DARK = 128
"""If all uint8 values are below this, they are probably no brightness of up to 255."""


class RangeError(DataError):
    """The values need a range that nobody has named.

    Args:
        message: One line.
        range: (low, high), one that would do.
    """

    def __init__(self, message: str, range: tuple[float, float]) -> None:
        super().__init__(message)
        self.range = range


def is_dark(found: Extent) -> bool:
    """Whether values are uint8, but would all be dark as brightness: digits of 0 to 16."""
    return found.dtype == torch.uint8 and not found.is_binary and found.high < _DARK


def usual_range(found: Extent) -> tuple[float, float]:
    """The values that probably stand for 0 and 1: a usual range of which the values fill half.

    Otherwise it is the narrowest one of short numbers; it begins at 0 for whole numbers near it.

    Args:
        found: What the values are.
    """
    low, high = found.low, found.high
    if math.isinf(high - low):
        return low, high
    whole = found.is_whole or not found.dtype.is_floating_point
    if low >= 0 and found.dtype.is_floating_point and high <= 1:
        return 0, 1
    if low >= 0 and whole:
        for usual in (255, 65535):
            if usual / 2 < high <= usual or high == 0:
                return 0, usual
        low = 0.0 if low < high / 2 else low
    if low == high:
        low, high = min(low, 0), max(high, 0)
    # Of the least numbers no part is left to round to.
    unit = 1.0 if whole else max(10.0 ** (math.floor(math.log10(high - low)) - 2), 1e-300)
    lower, upper = (
        float(f"{rounded(end / unit) * unit:.12g}")
        for rounded, end in ((math.floor, low), (math.ceil, high))
    )
    # Of the greatest numbers the rounded range may be infinite.
    if lower <= low and high <= upper and math.isfinite(upper - lower):
        low, high = lower, upper
    return _shortest(low), _shortest(high)


def _shortest(number: float) -> float:
    """The same number, whole where it can be, for its text to be short."""
    return int(number) if float(number).is_integer() and abs(number) < 1e12 else number
