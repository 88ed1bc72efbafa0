"""Counts: 0, 1, 2, ..."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from pyro.distributions import constraints
from torch import Tensor
from torch.nn.functional import logsigmoid

from pyro_dvae.displays import named
from pyro_dvae.likelihoods.base import Likelihood
from pyro_dvae.likelihoods.linear import ExponentialFamily, linear_log_prob
from pyro_dvae.likelihoods.numerics import log_beta, log_softplus, softplus
from pyro_dvae.likelihoods.refusals import calibration_data, is_whole, refuse_unless

_UNIT = re.compile(r"likelihood\.(.*\.)?(total_|odds_)?unit")


def is_unit(name: str) -> bool:
    """Whether a tensor of a model's `state_dict` is a unit of counts, which old versions lacked."""
    return _UNIT.fullmatch(name) is not None


class _Counts(Likelihood):
    kind = "counts"
    support = constraints.nonnegative_integer

    def check(self, x: Tensor) -> None:
        """Refuse what is not a count.

        Raises:
            ValueError: an element of x is negative or not whole; the message names the range found.
        """
        refuse_unless(
            is_whole(x) & (x >= 0),
            x,
            f"counts 0, 1, 2, ... for the {self.name} likelihood",
            "Use normal or laplace for real numbers, or continuous-bernoulli for those in [0, 1].",
        )

    name: str


class _Scaled(_Counts):
    """Counts in units that are computed from the training data.

    Args:
        event_shape: shape of one datum, for units of each element; () for the same units for all.
    """

    UNITS: ClassVar[tuple[str, ...]]
    """The names of the buffers that hold units; they are 1 before `calibrate`."""

    def __init__(self, event_shape: Sequence[int] = ()) -> None:
        super().__init__()
        for name in self.UNITS:
            self.register_buffer(name, torch.ones(tuple(event_shape)))

    def extra_repr(self) -> str:
        """The arguments, for `repr`."""
        return named(event_shape=tuple(self.get_buffer(self.UNITS[0]).shape))

    @torch.no_grad()
    def calibrate(self, x: Tensor) -> None:
        """Set the units of each element from training data (N, *event).

        With params of 0, the distribution then has the mean of the data.

        Raises:
            ValueError: the shape of a datum is not event_shape, or the data are not counts.
        """
        x = calibration_data(x, self.get_buffer(self.UNITS[0]).shape)
        self.check(x)
        blocks = [rows.double() for rows in x.split(1024)]
        mean = torch.stack([rows.sum(0) for rows in blocks]).sum(0) / len(x)
        variance = torch.stack([(rows - mean).square().sum(0) for rows in blocks]).sum(0) / len(x)
        mean = mean.clamp(min=0.5 / len(x))  # where all counts are 0
        for name, unit in self._units(mean, variance).items():
            self.get_buffer(name).copy_(unit)

    def is_calibrated(self) -> bool:
        """Whether a unit is other than 1."""
        return any(bool((self.get_buffer(name) != 1).any()) for name in self.UNITS)

    def _units(self, mean: Tensor, variance: Tensor) -> dict[str, Tensor]:
        raise NotImplementedError

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *others: Any) -> None:
        # Runs of old versions have no units, which were 1.
        for name in self.UNITS:
            ones = torch.ones_like(self.get_buffer(name))
            state_dict.setdefault(f"{prefix}{name}", ones)
        super()._load_from_state_dict(state_dict, prefix, *others)


class Poisson(_Scaled, ExponentialFamily):
    """log p(x|z) = sum_p x_p log r_p - r_p - log x_p!, r = unit softplus(params), in nats.

    The softplus grows linearly, so the rate r cannot overflow. Params are (..., *event). The unit
    is 1; `calibrate` sets it to the mean of the training data, divided by log 2. `fit` calls
    `calibrate`.

    Args:
        event_shape: shape of one datum, for a unit of each element; () for one unit for all.
    """

    name = "poisson"
    param_meanings = ("r / unit before the softplus",)
    UNITS = ("unit",)
    unit: Tensor

    def _units(self, mean: Tensor, variance: Tensor) -> dict[str, Tensor]:
        return {"unit": mean / math.log(2)}

    def _rate(self, params: Tensor) -> Tensor:
        return self.unit.flatten() * softplus(params)

    def _log_rate(self, params: Tensor) -> Tensor:
        return self.unit.flatten().log() + log_softplus(params)

    def cancelled(self, params: Tensor) -> Tensor:
        """sum_p r_p max(1, |log r_p|), (...): the size of r, x log r and log x! if x is near r."""
        return (self._rate(params) * self._log_rate(params).abs().clamp(min=1)).sum(-1)

    def natural(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """The log-rate, and the rate."""
        return self._log_rate(params).unsqueeze(-1), self._rate(params)

    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The counts, and -log x!."""
        return x.unsqueeze(-1), -(x + 1).lgamma()

    def element_log_probs(self, params: Tensor, x: Tensor) -> Tensor:
        """Log-probability of each element."""
        return x * self._log_rate(params) - self._rate(params) - (x + 1).lgamma()

    def mean(self, params: Tensor) -> Tensor:
        """E[x], the rate."""
        return self._rate(params)

    def draw(self, params: Tensor) -> Tensor:
        """Counts."""
        return torch.poisson(self._rate(params))


class NegativeBinomial(_Scaled):
    """p(x|z) = prod_p Gamma(r_p + x_p) / (Gamma(r_p) x_p!) (1 - g_p)^r_p g_p^x_p, in nats.

    r = total_unit softplus(params[..., 0]), g / (1 - g) = odds_unit exp(params[..., 1]). The mean
    is r g / (1 - g); the variance is larger than that of a Poisson distribution, which it becomes
    as r grows. Params are (..., *event, 2). The units are 1; `calibrate` sets them so that params
    of 0 give the mean and, if it is above the mean, the variance of the training data. `fit` calls
    `calibrate`.

    Args:
        event_shape: shape of one datum, for units of each element; () for the same units for all.
    """

    name = "negative-binomial"
    num_params = 2
    param_meanings = ("r / total_unit before the softplus", "log(g / (1 - g) / odds_unit)")
    cost = 4
    UNITS = ("total_unit", "odds_unit")
    total_unit: Tensor
    odds_unit: Tensor

    def _units(self, mean: Tensor, variance: Tensor) -> dict[str, Tensor]:
        total = mean**2 / (variance - mean).clamp(min=0.01 * mean)
        return {"total_unit": total / math.log(2), "odds_unit": mean / total}

    def _total(self, params: Tensor) -> Tensor:
        return self.total_unit.flatten() * softplus(params[..., 0])

    def _logits(self, params: Tensor) -> Tensor:
        return params[..., 1] + self.odds_unit.flatten().log()

    def log_prob(self, params: Tensor, x: Tensor) -> Tensor:
        """Log-probability of a datum."""
        total, logits = self._total(params), self._logits(params)
        ways = self._ways(params, total, x)
        failures = linear_log_prob(x, logsigmoid(logits), -total * logsigmoid(-logits))
        return ways.sum(-1) + failures

    def element_log_probs(self, params: Tensor, x: Tensor) -> Tensor:
        """Log-probability of each element."""
        total, logits = self._total(params), self._logits(params)
        failures = x * logsigmoid(logits) + total * logsigmoid(-logits)
        return self._ways(params, total, x) + failures

    def _ways(self, params: Tensor, total: Tensor, x: Tensor) -> Tensor:
        """Log Gamma(r + x) - log Gamma(r) - log x!, (..., P), where r is `total`."""
        at_least_one = x.clamp(min=1)
        ways = (
            self.total_unit.flatten().log()
            + log_softplus(params[..., 0])
            - (total + at_least_one).log()
            - (total + at_least_one + 1).log()
            - log_beta(total + 1, at_least_one + 1)
        )
        return torch.where(x > 0, ways, 0)  # Gamma(r) / Gamma(r) = 1 for x = 0

    def mean(self, params: Tensor) -> Tensor:
        """E[x] = r g / (1 - g)."""
        return self._total(params) * self._odds(params)

    def _odds(self, params: Tensor) -> Tensor:
        """Odds g / (1 - g), clamped so that they stay finite."""
        return self.odds_unit.flatten() * params[..., 1].clamp(max=60).exp()

    def draw(self, params: Tensor) -> Tensor:
        """Counts of a Poisson distribution whose rate has a gamma distribution."""
        total = self._total(params).clamp(min=torch.finfo(params.dtype).tiny)
        rate = torch.distributions.Gamma(total, torch.ones_like(total)).sample()
        rate = rate * self._odds(params)
        return torch.poisson(rate.clamp(max=1e15))  # no float holds larger counts exactly


class Multinomial(_Counts):
    """log p(x|z) = log N! - sum_p log x_p! + sum_p x_p log softmax(params)_p, N = sum_p x_p.

    This models a bag of words: x_p counts how often word p occurs, and N is the total of the datum
    itself. So this is the log-probability of x given its total, in nats. A draw has the total
    `total_count`, which `calibrate` sets to the mean total of the training data; it is 1 before
    that. `fit` calls `calibrate`. Params are (..., *event) logits.
    """

    cost = 0

    name = "multinomial"
    param_meanings = ("the logit of the element",)
    total_count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total_count", torch.tensor(1))

    @torch.no_grad()
    def calibrate(self, x: Tensor) -> None:
        """Set `total_count` to the mean total of training data (N, *event), but at least 1.

        Raises:
            ValueError: there are no data, or the data are not counts.
        """
        if len(x) == 0:
            raise ValueError("Expected training data; got none. Pass at least one row.")
        self.check(x)
        mean = x.sum(dtype=torch.float64) / len(x)
        self.total_count.copy_(mean.round().clamp(min=1))

    def is_calibrated(self) -> bool:
        """Whether `total_count` is other than 1."""
        return bool(self.total_count != 1)

    def before_training(self, x: Tensor) -> None:
        """Calibrate if nobody has done so; only draws depend on it."""
        if not self.is_calibrated():
            self.calibrate(x)

    def log_prob(self, params: Tensor, x: Tensor) -> Tensor:
        """Log-probability of a datum given its total."""
        log_softmax = params.log_softmax(-1)
        scored = linear_log_prob(x, log_softmax, torch.zeros_like(log_softmax))
        return scored + (x.sum(-1) + 1).lgamma() - (x + 1).lgamma().sum(-1)

    def mean(self, params: Tensor) -> Tensor:
        """E[x] = total_count softmax(params)."""
        return self.total_count * params.softmax(-1)

    def draw(self, params: Tensor) -> Tensor:
        """Counts that sum to `total_count`."""
        p = params.softmax(-1).reshape(-1, params.shape[-1])
        words = p.multinomial(int(self.total_count), replacement=True)
        ones = torch.ones_like(words, dtype=p.dtype)
        return torch.zeros_like(p).scatter_add_(-1, words, ones).reshape(params.shape)
