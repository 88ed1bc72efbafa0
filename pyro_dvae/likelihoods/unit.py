"""Likelihoods of numbers between 0 and 1, such as grey values."""

from __future__ import annotations

import torch
from pyro.distributions import constraints
from torch import Tensor

from pyro_dvae.likelihoods.base import Likelihood
from pyro_dvae.likelihoods.linear import ExponentialFamily
from pyro_dvae.likelihoods.numerics import log_beta, log_softplus, softplus
from pyro_dvae.likelihoods.refusals import refuse_unless

# log(sinh(h) / h) = h^2 / 6 - h^4 / 180 + ..., to double precision for h < 1/4.
_SERIES = (1 / 6, -1 / 180, 1 / 2835, -1 / 37800, 1 / 467775, -691 / 3831077250, 2 / 127702575)
_SMALL = 0.25


class ContinuousBernoulli(ExponentialFamily):
    """p(x|z) = prod_p C_p g_p^x_p (1 - g_p)^(1 - x_p) on [0, 1], g = sigmoid(params).

    With the logit l, log(C g^x (1 - g)^(1 - x)) = (x - 1/2) l - log(sinh(l/2) / (l/2)), in nats
    (Loaiza-Ganem & Cunningham 2019, arXiv:1907.06845). This is a density, so it may exceed 1. It is
    computed safely for l = 0, where the textbook formula of C is 0/0, and for any |l|. Params are
    (..., *event) logits.

    If many values are exactly 0 or 1, as in grey digits, the density at these values grows with |l|
    without bound. Then the ELBO has no maximum, and its value means little. A likelihood of levels,
    such as `LogisticMixture`, has a maximum.
    """

    kind = "unit"
    param_meanings = ("l, the logit of g",)
    support = constraints.unit_interval

    def check(self, x: Tensor) -> None:
        """Refuse data outside [0, 1].

        Raises:
            ValueError: an element of x is outside [0, 1]; the message names the range found.
        """
        refuse_unless(
            (x >= 0) & (x <= 1),
            x,
            "data in [0, 1] for the continuous-bernoulli likelihood",
            "Scale it (x / 255 for grey uint8 pixels), or use normal for values without bounds.",
        )

    def cancelled(self, params: Tensor) -> Tensor:
        """sum_p |l_p| / 2, (...): the most that (x - 1/2) l and log C can have in common."""
        return (params / 2).abs().sum(-1)

    def natural(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """The logits, and log(sinh(l/2) / (l/2))."""
        return params.unsqueeze(-1), _log_sinh_ratio(params / 2)

    def statistics(self, x: Tensor) -> tuple[Tensor, None]:
        """The numbers less 1/2; h is 0."""
        return (x - 0.5).unsqueeze(-1), None

    def element_log_probs(self, params: Tensor, x: Tensor) -> Tensor:
        """Log-density of each element."""
        return (x - 0.5) * params - _log_sinh_ratio(params / 2)

    def mean(self, params: Tensor) -> Tensor:
        """E[x] = 1/2 + (coth(l/2) - 2/l) / 2."""
        h = params / 2
        small, large = h.clamp(-_SMALL, _SMALL), torch.where(h.abs() < _SMALL, _SMALL, h)
        series = sum(c * 2 * n * small ** (2 * n - 1) for n, c in enumerate(_SERIES, 1))
        return 0.5 + 0.5 * torch.where(h.abs() < _SMALL, series, 1 / large.tanh() - 1 / large)

    def draw(self, params: Tensor) -> Tensor:
        """Draws, by the inverse of the distribution function."""
        rate = params.abs().clamp(min=1e-6)
        x = (
            -torch.log1p(torch.rand_like(rate) * torch.expm1(-rate)) / rate
        )  # of a density that falls with x
        return torch.where(params > 0, 1 - x, x).clamp(0, 1)


class Beta(Likelihood):
    """p(x|z) = prod_p x_p^(a_p - 1) (1 - x_p)^(b_p - 1) / B(a_p, b_p) on the open interval (0, 1).

    a = softplus(params[..., 0]), b = softplus(params[..., 1]); params are (..., *event, 2). This is
    a density. At 0 and 1 it is infinite or zero, so data that hold 0 or 1 are refused.
    """

    kind = "open"
    num_params = 2
    param_meanings = ("a before the softplus", "b before the softplus")
    cost = 4
    support = constraints.unit_interval

    def check(self, x: Tensor) -> None:
        """Refuse data outside the open interval (0, 1).

        Raises:
            ValueError: an element of x is 0, 1 or outside; the message names the range found.
        """
        refuse_unless(
            (x > 0) & (x < 1),
            x,
            "data strictly between 0 and 1 for the beta likelihood, whose density at 0 and 1 is "
            "infinite or zero",
            "Squeeze the data ((x * 255 + 0.5) / 256 for x in [0, 1]), or use "
            "continuous-bernoulli, which takes 0 and 1.",
        )

    def filled(self, x: Tensor) -> Tensor:
        """The data, with 1/2 in place of each NaN."""
        return torch.where(x.isnan(), 0.5, x)

    def element_log_probs(self, params: Tensor, x: Tensor) -> Tensor:
        """Log-density of each element."""
        a, b = softplus(params).unbind(-1)
        log_a, log_b = log_softplus(params).unbind(-1)
        # B(a, b) is computed from B(a + 1, b + 1), since a and b may be very small.
        log_sum = torch.logaddexp(log_a, log_b)
        normalizer = log_beta(a + 1, b + 1) + log_sum + torch.log1p(a + b) - log_a - log_b
        x = _inside(x)
        return (a - 1) * x.log() + (b - 1) * torch.log1p(-x) - normalizer

    def mean(self, params: Tensor) -> Tensor:
        """E[x] = a / (a + b)."""
        log_a, log_b = log_softplus(params).unbind(-1)
        return (log_a - log_b).sigmoid()

    def draw(self, params: Tensor) -> Tensor:
        """Draws, kept away from 0 and 1 by at least one rounding step."""
        # Below this a draw is 0 or 1 up to rounding, and both of torch's gamma draws would be 0.
        concentration = softplus(params).clamp(min=1e-3)
        return _inside(torch.distributions.Dirichlet(concentration).sample()[..., 0])


def _log_sinh_ratio(h: Tensor) -> Tensor:
    """log(sinh(h) / h): 0 for h = 0, and about |h| - log(2 |h|) for large |h|."""
    h = h.abs()
    square = h.clamp(max=_SMALL) ** 2
    series = sum(c * square**n for n, c in enumerate(_SERIES, 1))
    large = h.clamp(min=_SMALL)
    return torch.where(
        h < _SMALL, series, large + (-torch.expm1(-2 * large)).log() - (2 * large).log()
    )


def _inside(x: Tensor) -> Tensor:
    """X, where rounding has made 0 or 1 of a number, moved inside of (0, 1)."""
    info = torch.finfo(x.dtype)
    return x.clamp(info.tiny, 1 - info.eps / 2)
