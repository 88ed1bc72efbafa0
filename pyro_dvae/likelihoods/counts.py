"""Counts: 0, 1, 2, ..."""

from __future__ import annotations

import torch
from pyro.distributions import constraints
from torch import Tensor
from torch.nn.functional import logsigmoid

from pyro_dvae.likelihoods.base import Likelihood, linear_log_prob
from pyro_dvae.likelihoods.numerics import log_beta, log_softplus, softplus
from pyro_dvae.likelihoods.refusals import is_whole, refuse_unless


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


class Poisson(_Counts):
    """log p(x|z) = sum_p x_p log r_p - r_p - log x_p!, r = softplus(params), in nats.

    The softplus grows linearly, so the rate r cannot overflow. Params are (..., *event).
    """

    cost = 0

    name = "poisson"

    def cancelled(self, params: Tensor) -> Tensor:
        """sum_p r_p max(1, |log r_p|), (...): the size of r, x log r and log x! if x is near r."""
        return (softplus(params) * log_softplus(params).abs().clamp(min=1)).sum(-1)

    def log_prob(self, params: Tensor, x: Tensor) -> Tensor:
        """Log-probability of a datum."""
        scored = linear_log_prob(x, log_softplus(params), softplus(params))
        return scored - (x + 1).lgamma().sum(-1)

    def element_log_probs(self, params: Tensor, x: Tensor) -> Tensor:
        """Log-probability of each element."""
        return x * log_softplus(params) - softplus(params) - (x + 1).lgamma()

    def mean(self, params: Tensor) -> Tensor:
        """E[x], the rate."""
        return softplus(params)

    def draw(self, params: Tensor) -> Tensor:
        """Counts."""
        return torch.poisson(softplus(params))


class NegativeBinomial(_Counts):
    """p(x|z) = prod_p Gamma(r_p + x_p) / (Gamma(r_p) x_p!) (1 - g_p)^r_p g_p^x_p, in nats.

    r = softplus(params[..., 0]), g = sigmoid(params[..., 1]). The mean is r g / (1 - g); the
    variance is larger than that of a Poisson distribution, which it becomes as r grows. Params
    are (..., *event, 2).
    """

    name = "negative-binomial"
    num_params = 2
    cost = 4

    def log_prob(self, params: Tensor, x: Tensor) -> Tensor:
        """Log-probability of a datum."""
        total, logits = softplus(params[..., 0]), params[..., 1]
        failures = linear_log_prob(x, logsigmoid(logits), -total * logsigmoid(-logits))
        return self._ways(params, total, x).sum(-1) + failures

    def element_log_probs(self, params: Tensor, x: Tensor) -> Tensor:
        """Log-probability of each element."""
        total, logits = softplus(params[..., 0]), params[..., 1]
        failures = x * logsigmoid(logits) + total * logsigmoid(-logits)
        return self._ways(params, total, x) + failures

    def _ways(self, params: Tensor, total: Tensor, x: Tensor) -> Tensor:
        """Log Gamma(r + x) - log Gamma(r) - log x!, (..., P), where r is `total`."""
        at_least_one = x.clamp(min=1)
        ways = (
            log_softplus(params[..., 0])
            - (total + at_least_one).log()
            - (total + at_least_one + 1).log()
            - log_beta(total + 1, at_least_one + 1)
        )
        return torch.where(x > 0, ways, 0)  # Gamma(r) / Gamma(r) = 1 for x = 0

    def mean(self, params: Tensor) -> Tensor:
        """E[x] = r g / (1 - g)."""
        return softplus(params[..., 0]) * _odds(params)

    def draw(self, params: Tensor) -> Tensor:
        """Counts of a Poisson distribution whose rate has a gamma distribution."""
        total = softplus(params[..., 0]).clamp(min=torch.finfo(params.dtype).tiny)
        rate = torch.distributions.Gamma(total, torch.ones_like(total)).sample() * _odds(params)
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


def _odds(params: Tensor) -> Tensor:
    """Odds g / (1 - g), clamped so that they stay finite."""
    return params[..., 1].clamp(max=60).exp()
