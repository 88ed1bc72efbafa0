"""Real numbers, in units that the training data give."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence

import torch
from pyro.distributions import constraints
from torch import Tensor

from pyro_dvae.displays import named
from pyro_dvae.likelihoods.base import Likelihood, refuse_unless
from pyro_dvae.likelihoods.numerics import log_scale

_FAR = 10.0
"""Root mean square of data in units of `spread` beyond which training from the start is hopeless;
below its inverse too, where the units are too large."""


class _LocationScale(Likelihood):
    """Elements with a location and a scale, both in standardised units.

    Args:
        event_shape: shape of one datum, which `calibrate` needs; () for one location and spread.
        scale: the scale in units of `spread`; None learns it.
    """

    support = constraints.real
    location: Tensor
    spread: Tensor

    def __init__(self, event_shape: Sequence[int] = (), scale: float | None = None) -> None:
        super().__init__()
        if scale is not None and not 0 < scale < math.inf:
            raise ValueError(
                f"Expected a positive, finite scale; got {scale}. Use 0.1, say, or leave it out to "
                "learn it."
            )
        self.num_params = 1 if scale is not None else 2
        self.scale = scale
        self.register_buffer("location", torch.zeros(tuple(event_shape)))
        self.register_buffer("spread", torch.ones(tuple(event_shape)))

    def extra_repr(self) -> str:
        """The arguments, for `repr`."""
        return named(event_shape=tuple(self.location.shape), scale=self.scale)

    def check(self, x: Tensor) -> None:
        """Refuse what is not a finite number.

        Raises:
            ValueError: an element of x is NaN or infinite; the message names where.
        """
        name = type(self).__name__.lower()
        refuse_unless(
            x.isfinite(),
            x,
            f"finite numbers for the {name} likelihood",
            "Fill missing values in, or leave their rows out.",
        )

    def features(self, x: Tensor) -> Tensor:
        """Standardised values, (x - location) / spread."""
        return (x - self.location) / self.spread

    @torch.no_grad()
    def calibrate(self, x: Tensor) -> None:
        """Set `location` and `spread` of every element from training data, (N, *event).

        One of each for all elements where event_shape is (). An element that never varies keeps a
        spread of 1.

        Raises:
            ValueError: x is of another shape than event_shape, or not finite.
        """
        if self.location.dim() == 0:
            x = x.flatten()
        if x.shape[1:] != self.location.shape or len(x) == 0:
            raise ValueError(
                f"Expected data of shape (N, *event) with event {tuple(self.location.shape)}; got "
                f"{tuple(x.shape)}. Build the likelihood with event_shape={tuple(x.shape[1:])}."
            )
        self.check(x)
        location, spread = self._moments(x)
        varies = (x != x[0]).any(0) & (spread.to(self.spread.dtype) > 0)
        self.location.copy_(location)
        self.spread.copy_(torch.where(varies, spread, torch.ones_like(spread)))

    @torch.no_grad()
    def before_training(self, x: Tensor) -> None:
        """Warn where nobody has called `calibrate`, and data (N, *event) are in far other units.

        Not calibrated here: the weights may have been trained in the units as they are.
        """
        if self.location.any() or (self.spread != 1).any():
            return
        size = _mean(x.flatten(), torch.square).sqrt().item()
        if size and not 1 / _FAR < size < _FAR:
            warnings.warn(
                f"Expected data near 0 with a spread near 1 for {type(self).__name__}, which was "
                f"never calibrated; got a root mean square of {size:.3g}. Call "
                "vae.likelihood.calibrate(x) with the training data before training.",
                stacklevel=2,
            )

    def _moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def _parameters_of(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """Location and log-scale in standardised units."""
        if self.scale is not None:
            return params, params.new_tensor(math.log(self.scale))
        return params[..., 0], log_scale(params[..., 1])

    def _residual(self, params: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """(x - location) / scale in standardised units, and the log-scale in the data's own."""
        location, scale = self._parameters_of(params)
        spread = self.spread.flatten()
        standard = (x - self.location.flatten()) / spread
        return (standard - location) * (-scale).exp(), scale + spread.log()

    def mean(self, params: Tensor) -> Tensor:
        """E[x], the location in the data's own units."""
        location, _ = self._parameters_of(params)
        return self.location.flatten() + self.spread.flatten() * location

    def draw(self, params: Tensor) -> Tensor:
        """Draws, in the data's own units."""
        location, scale = self._parameters_of(params)
        noise = self._noise(location)
        # Finite, though the scale be beyond all floats.
        standard = location + scale.clamp(max=50).exp() * noise
        return self.location.flatten() + self.spread.flatten() * standard

    def _noise(self, like: Tensor) -> Tensor:
        raise NotImplementedError


class Normal(_LocationScale):
    """log p(x|z) = sum_p -(x_p - m_p)^2 / (2 s_p^2) - log s_p - log(2 pi) / 2, in nats.

    m = location + spread * params[..., 0] and s = spread * exp(r), r = -7 + softplus(params[..., 1]
    + 7): about params[..., 1], but never below -7, for a density without a floor to its scale has
    no maximum. Params are (..., *event, 2), or (..., *event) where `scale` is given. The density
    is that of the data's own units.

    Args:
        event_shape: shape of one datum, which `calibrate` needs; () for one location and spread.
        scale: s / spread where it is fixed; None learns it.

    Raises:
        ValueError: scale is not positive and finite.
    """

    def log_prob(self, params: Tensor, x: Tensor) -> Tensor:
        """Log-density of a datum."""
        residual, scale = self._residual(params, x)
        return (-0.5 * residual.square() - (scale + 0.5 * math.log(2 * math.pi))).sum(-1)

    def _moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation."""
        mean = _mean(x)
        return mean, _mean(x, lambda rows: (rows - mean).square()).sqrt()

    def _noise(self, like: Tensor) -> Tensor:
        return torch.randn_like(like)


class Laplace(_LocationScale):
    """log p(x|z) = sum_p -|x_p - m_p| / b_p - log(2 b_p), in nats: robust to stray values.

    m and b from location, spread and params as in `Normal`, location being the median and spread
    the mean distance from it. Params are (..., *event, 2), or (..., *event) where `scale` is given.

    Args:
        event_shape: shape of one datum, which `calibrate` needs; () for one location and spread.
        scale: b / spread where it is fixed; None learns it.

    Raises:
        ValueError: scale is not positive and finite.
    """

    def log_prob(self, params: Tensor, x: Tensor) -> Tensor:
        """Log-density of a datum."""
        residual, scale = self._residual(params, x)
        return (-residual.abs() - (scale + math.log(2))).sum(-1)

    def _moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Median and mean distance from it."""
        median = x.median(0).values.double()
        return median, _mean(x, lambda rows: (rows - median).abs())

    def _noise(self, like: Tensor) -> Tensor:
        u = torch.rand_like(like) - 0.5
        # 1 - 2 |u| is 0 only for u = -1/2, which is drawn.
        tail = (1 - 2 * u.abs()).clamp(min=torch.finfo(u.dtype).tiny)
        return -u.sign() * tail.log()


def _mean(x: Tensor, function: Callable[[Tensor], Tensor] = lambda rows: rows) -> Tensor:
    """Mean over rows in double precision, a few rows at a time."""
    return torch.stack([function(rows.double()).sum(0) for rows in x.split(1024)]).sum(0) / len(x)
