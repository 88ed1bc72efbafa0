"""Probabilities as integers: log-probabilities on a grid, and what the entropy coder makes of them.

The last bits of a floating point number depend on the machine, and a decoder that computes another
probability than the encoder did reads nonsense. So a log-probability is rounded to a grid of
`STEPS` steps per nat. From there on, all is made of integers and of IEEE additions, products and
quotients, which every machine computes alike. Rounding costs about 4e-8 nats per symbol.
"""

from __future__ import annotations

from decimal import Decimal, localcontext
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

STEPS = 1024
"""Steps of the grid per nat."""
_WEIGHT = 30
"""The most probable symbol has the weight 2^30, and the others less."""
LOWEST = 21_300
"""Steps below the most probable symbol at which a weight is 1, the last before 0."""


@cache
def weights() -> NDArray[np.float64]:
    """round(2^30 exp(-j / STEPS)) for j = 0, ..., LOWEST, whole numbers, and 0 after them.

    They are computed with integers, so that they are the same on every machine.
    """
    with localcontext() as context:
        context.prec = 60
        ratio = int((Decimal(-1) / STEPS).exp() * 2**128)
    found, value = [], 2 ** (_WEIGHT + 128)
    for _ in range(LOWEST + 1):
        found.append((value + 2**127) >> 128)
        value = (value * ratio) >> 128
    return np.array([*found, 0], dtype=np.float64)


@cache
def _chances() -> NDArray[np.float64]:
    """P(1) of a bit whose logit is j / STEPS, for j = -LOWEST, ..., LOWEST."""
    weight = weights()[: LOWEST + 1]
    chance = weight[0] / (weight[0] + weight)  # of the more probable value
    return np.concatenate([(weight / (weight[0] + weight))[:0:-1], chance])


def logits_on_grid(logits: Tensor) -> NDArray[np.int16]:
    """Logits of bits in steps of the grid.

    Raises:
        ValueError: a logit is NaN.
    """
    steps = (logits.double() * STEPS).round_().clamp_(-LOWEST, LOWEST)
    return _whole(steps)


def chances(grid: NDArray[np.int16]) -> NDArray[np.float64]:
    """P(1) of bits, from their logits in steps of the grid."""
    return _chances()[grid.astype(np.int32) + LOWEST]


def log_probs_on_grid(log_probs: Tensor) -> NDArray[np.int16]:
    """Log-probabilities (..., L) in steps of the grid below that of the most probable symbol.

    They need not be normalised.

    Raises:
        ValueError: a log-probability is NaN, or all of a symbol's are minus infinity.
    """
    below = log_probs.amax(-1, keepdim=True) - log_probs.double()
    return _whole((below * STEPS).round_().clamp_(max=LOWEST + 1))


def symbol_weights(grid: NDArray[np.int16]) -> NDArray[np.float64]:
    """The weights of symbols, whole numbers, from their log-probabilities in steps of the grid."""
    return weights()[grid]


def _whole(steps: Tensor) -> NDArray[np.int16]:
    if bool(steps.isnan().any()):
        raise ValueError(
            "Expected a model whose probabilities are numbers; got NaN. Look at its weights, or at "
            "the range of the data."
        )
    found: NDArray[Any] = steps.to(torch.int16).contiguous().numpy()
    return found
