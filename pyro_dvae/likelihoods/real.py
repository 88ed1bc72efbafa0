"""Likelihoods of real numbers, in units that are computed from the training data."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence

import torch
from pyro.distributions import constraints
from torch import Tensor

from pyro_dvae.displays import named
from pyro_dvae.likelihoods.base import Likelihood
from pyro_dvae.likelihoods.linear import ExponentialFamily, is_paired, product
from pyro_dvae.likelihoods.numerics import log_scale
from pyro_dvae.likelihoods.refusals import calibration_data, refuse_unless

_FAR = 10.0
"""Training fails from the start if the root mean square of the data, in units of `spread`, is above
this, or below its inverse."""
_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


class _LocationScale(Likelihood):
    """Elements with a location and a scale, both in standardised units.

    Args:
        event_shape: shape of one datum, for a location and spread of each element; () for one
            location and spread of all.
        scale: the scale in units of `spread`; None to learn it.
    """

    support = constraints.real
    name: str
    location: Tensor
    spread: Tensor

    def __init__(self, event_shape: Sequence[int] = (), scale: float | None = None) -> None:
        super().__init__()
        if scale is not None and not 0 < scale < math.inf:
            raise ValueError(
                f"Expected a positive, finite scale; got {scale}. Use 0.1, say, or leave it "
                "out to learn it."
            )
        self.num_params = 1 if scale is not None else 2
        self.scale = scale
        fixed = "" if scale is None else f"; the scale is {scale:g} spread"
        middle = f"(m - location) / spread{fixed}"
        self.param_meanings = (middle, "r before its lower bound")[: self.num_params]
        self.register_buffer("location", torch.zeros(tuple(event_shape)))
        self.register_buffer("spread", torch.ones(tuple(event_shape)))

    def extra_repr(self) -> str:
        """The arguments, for `repr`."""
        return named(event_shape=tuple(self.location.shape), scale=self.scale)

    def check(self, x: Tensor) -> None:
        """Refuse what is not a finite number.

        Raises:
            ValueError: an element of x is NaN or infinite; the message names the first column.
        """
        refuse_unless(
            x.isfinite(),
            x,
            f"finite numbers for the {self.name} likelihood",
            "Leave such rows out, or correct the values.",
        )

    def features(self, x: Tensor) -> Tensor:
        """Standardised values, (x - location) / spread."""
        return (x - self.location) / self.spread

    @torch.no_grad()
    def calibrate(self, x: Tensor) -> None:
        """Set `location` and `spread` of each element from training data (N, *event).

        If event_shape is (), all elements share one location and one spread. An element that never
        varies keeps a spread of 1.

        Raises:
            ValueError: the shape of a datum is not event_shape, or a value is not finite.
        """
        x = calibration_data(x, self.location.shape)
        self.check(x)
        location, spread = self._moments(x)
        varies = (x != x[0]).any(0) & (spread.to(self.spread.dtype) > 0)
        self.location.copy_(location)
        self.spread.copy_(torch.where(varies, spread, torch.ones_like(spread)))

    def is_calibrated(self) -> bool:
        """Whether `location` and `spread` are other than 0 and 1."""
        return bool(self.location.any() or (self.spread != 1).any())

    @torch.no_grad()
    def before_training(self, x: Tensor) -> None:
        """Warn if nobody has called `calibrate`, and data (N, *event) are far from units of 1.

        Nothing is calibrated here, since the weights may have been trained in the present units.
        """
        if self.is_calibrated():
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
        """(x - location) / scale in standardised units, and the log-scale in units of the data."""
        location, scale = self._parameters_of(params)
        spread = self.spread.flatten()
        standard = (x - self.location.flatten()) / spread
        return (standard - location) * (-scale).exp(), scale + spread.log()

    def mean(self, params: Tensor) -> Tensor:
        """E[x], which is the location, in units of the data."""
        location, _ = self._parameters_of(params)
        return self.location.flatten() + self.spread.flatten() * location

    def draw(self, params: Tensor) -> Tensor:
        """Draws, in units of the data."""
        return self.location.flatten() + self.spread.flatten() * self._standard_draw(params)

    def _standard_draw(self, params: Tensor) -> Tensor:
        """Draws in standardised units."""
        location, scale = self._parameters_of(params)
        noise = self._noise(location)
        # The clamp keeps draws finite even if the scale is larger than any float.
        return location + scale.clamp(max=50).exp() * noise

    def _noise(self, like: Tensor) -> Tensor:
        raise NotImplementedError


class _Gaussian(_LocationScale):
    """Location and scale of Gaussian numbers: `calibrate` takes mean and standard deviation."""

    def _moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation."""
        mean = _mean(x)
        return mean, _mean(x, lambda rows: (rows - mean).square()).sqrt()

    def _noise(self, like: Tensor) -> Tensor:
        return torch.randn_like(like)


class Normal(_Gaussian, ExponentialFamily):
    """log p(x|z) = sum_p -(x_p - m_p)^2 / (2 s_p^2) - log s_p - log(2 pi) / 2, in nats.

    m = location + spread * params[..., 0], s = spread * exp(r), r = -7 + softplus(params[..., 1]
    + 7). So r is about params[..., 1], but never below -7: the density of a scale without a lower
    bound has no maximum. Params are (..., *event, 2), or (..., *event) if `scale` is given. The
    density is that of x in units of the data. `calibrate` sets location and spread.

    Args:
        event_shape: shape of one datum, for a location and spread of each element; () for one
            location and spread of all.
        scale: s / spread, if it is fixed; None to learn it.

    Raises:
        ValueError: scale is not positive and finite.
    """

    name = "normal"

    def natural(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """Those of standardised data, in double precision."""
        return _natural(*self._parameters_of(params))

    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(u, u^2) of standardised data u, and -log(spread) - log(2 pi) / 2."""
        spread = self.spread.flatten().double()
        u = (x.double() - self.location.flatten().double()) / spread
        h = -(spread.log() + _HALF_LOG_TAU)
        return _powers(u), h.expand_as(u)

    def _scores_by_product(self, x: Tensor) -> bool:
        return _has_double(x) and super()._scores_by_product(x)

    def element_log_probs(self, params: Tensor, x: Tensor) -> Tensor:
        """Log-density of each element in nats."""
        return _log_density(*self._residual(params, x))


def gaussian_log_prob(u: Tensor, location: Tensor, scale: Tensor) -> Tensor:
    """sum_p -(u_p - m_p)^2 / (2 s_p^2) - log s_p - log(2 pi) / 2, in nats, (...).

    Args:
        u: (..., P) numbers.
        location: (..., P), m.
        scale: (..., P), log s.
    """
    if is_paired(u, location) or not _has_double(u):
        return _log_density((u - location) * (-scale).exp(), scale).sum(-1)
    eta, normalizer = _natural(location, scale)
    scored = product(eta.flatten(-2), _powers(u.double()).flatten(-2)) - normalizer.sum(-1)
    return (scored - u.shape[-1] * _HALF_LOG_TAU).to(location.dtype)


def _log_density(residual: Tensor, scale: Tensor) -> Tensor:
    return -0.5 * residual.square() - (scale + _HALF_LOG_TAU)


def _natural(location: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """(m / s^2, -1 / (2 s^2)), and m^2 / (2 s^2) + log s, of m and log s.

    The terms cancel where |m| is much larger than s. So they are in double precision, which still
    takes a tenth of the time of a (C, B, P) array.
    """
    location, scale = location.double(), scale.double()
    precision = (-2 * scale).exp().expand_as(location)
    eta = torch.stack([location * precision, -precision / 2], -1)
    return eta, location.square() * precision / 2 + scale


def _powers(u: Tensor) -> Tensor:
    return torch.stack([u, u.square()], -1)


def _has_double(x: Tensor) -> bool:
    """Whether the device of x has double precision: those of Apple have not."""
    return x.device.type != "mps"


class Laplace(_LocationScale):
    """log p(x|z) = sum_p -|x_p - m_p| / b_p - log(2 b_p), in nats; robust against outliers.

    m = location + spread * params[..., 0], b = spread * exp(r), r = -7 + softplus(params[..., 1]
    + 7). `calibrate` sets location to the median of the training data, and spread to the mean
    distance from it. Params are (..., *event, 2), or (..., *event) if `scale` is given. The density
    is that of x in units of the data.

    Args:
        event_shape: shape of one datum, for a location and spread of each element; () for one
            location and spread of all.
        scale: b / spread, if it is fixed; None to learn it.

    Raises:
        ValueError: scale is not positive and finite.
    """

    name = "laplace"

    def element_log_probs(self, params: Tensor, x: Tensor) -> Tensor:
        """Log-density of each element in nats."""
        residual, scale = self._residual(params, x)
        return -residual.abs() - (scale + math.log(2))

    def _moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Median, and mean distance from the median."""
        median = x.median(0).values.double()
        return median, _mean(x, lambda rows: (rows - median).abs())

    def _noise(self, like: Tensor) -> Tensor:
        u = torch.rand_like(like) - 0.5
        # 1 - 2 |u| is 0 for u = -1/2, which is drawn now and then.
        tail = (1 - 2 * u.abs()).clamp(min=torch.finfo(u.dtype).tiny)
        return -u.sign() * tail.log()


def _mean(x: Tensor, function: Callable[[Tensor], Tensor] = lambda rows: rows) -> Tensor:
    """Mean over rows in double precision, computed for 1024 rows at a time to save memory."""
    return torch.stack([function(rows.double()).sum(0) for rows in x.split(1024)]).sum(0) / len(x)
