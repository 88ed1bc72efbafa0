"""Data to compress, as they are stored and as a likelihood takes them."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class ChangedValues(ValueError):
    """Stored values that cannot be made again of what the likelihood takes."""


class Values(Protocol):
    """N data to compress, block by block."""

    dtype: np.dtype[Any]
    """Of the stored values."""
    shape: tuple[int, ...]
    """(N, *event_shape)."""
    values: tuple[float, float]
    """The stored values that stand for 0 and 1."""

    def block(self, start: int, stop: int) -> tuple[Tensor, NDArray[Any]]:
        """What the likelihood takes, (n, *event_shape), and the same data as they are stored."""


class ArrayValues:
    """Values in memory, which the likelihood takes as they are.

    Args:
        values: (N, *event_shape).
    """

    values = (0.0, 1.0)

    def __init__(self, values: Any) -> None:
        self._array = np.asarray(values.cpu() if isinstance(values, Tensor) else values)
        self.dtype, self.shape = self._array.dtype, self._array.shape

    def block(self, start: int, stop: int) -> tuple[Tensor, NDArray[Any]]:
        """Some of the data."""
        stored = self._array[start:stop]
        return torch.from_numpy(stored.astype(np.float64)), stored


def restored(x: NDArray[Any], dtype: np.dtype[Any], values: tuple[float, float]) -> NDArray[Any]:
    """Stored values of what the likelihood takes.

    Args:
        x: whole numbers.
        dtype: of the stored values.
        values: the stored values that stand for 0 and 1.
    """
    low, high = values
    with np.errstate(all="ignore"):  # the caller compares
        return (x if (low, high) == (0, 1) else low + (high - low) * x).astype(dtype)
