"""Functions that stay finite and exact even if their plain formulas overflow or cancel."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus as _softplus

MIN_LOG_SCALE = -7.0
"""A learned scale stays above exp(-7) = 0.0009 units, so that a density stays bounded."""


def softplus(x: Tensor) -> Tensor:
    """log(1 + e^x), exact up to rounding in double precision too."""
    return _softplus(x, threshold=40)


def log_softplus(x: Tensor) -> Tensor:
    """Log of log(1 + e^x), which is about x where the softplus itself underflows."""
    low = x - x.clamp(max=-20).exp() / 2
    return torch.where(x < -20, low, softplus(x.clamp(min=-20)).log())


def log_scale(x: Tensor) -> Tensor:
    """A log-scale that is about x, and never below `MIN_LOG_SCALE`: m + softplus(x - m)."""
    return MIN_LOG_SCALE + softplus(x - MIN_LOG_SCALE)


def log1mexp(log_x: Tensor) -> Tensor:
    """log(1 - e^-x) for x > 0, given log x."""
    x = log_x.clamp(max=50).exp()
    small = x.clamp(max=0.01)
    series = log_x - small / 2 + small**2 / 24 - small**4 / 2880
    return torch.where(log_x < math.log(0.01), series, (-torch.expm1(-x.clamp(min=0.01))).log())


def log_beta(a: Tensor, b: Tensor) -> Tensor:
    """The log of the beta function B(a, b) for a, b >= 1, without cancellation of large terms.

    It uses Stirling's formula, with the leading terms combined by hand (Didonato & Morris 1992,
    BCORR).
    """
    rest = _stirling_rest(a) + _stirling_rest(b) - _stirling_rest(a + b)
    main = (a - 0.5) * torch.log1p(b / a) + b * torch.log1p(a / b) + 0.5 * b.log()
    return rest - main + 0.5 * math.log(2 * math.pi)


def _stirling_rest(n: Tensor) -> Tensor:
    """R(n) = log Gamma(n) - ((n - 1/2) log n - n + log(2 pi) / 2) for n >= 1."""
    inverse = 1 / n
    series = inverse / 12 - inverse**3 / 360 + inverse**5 / 1260
    n = n.clamp(max=50)
    exact = n.lgamma() - ((n - 0.5) * n.log() - n + 0.5 * math.log(2 * math.pi))
    return torch.where(inverse < 1 / 50, series, exact)
