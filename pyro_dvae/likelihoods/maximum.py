"""Parameters of greatest likelihood, in closed form: the M-step of mixtures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from pyro_dvae.likelihoods.base import Likelihood
from pyro_dvae.likelihoods.bernoulli import Bernoulli
from pyro_dvae.likelihoods.counts import Multinomial, NegativeBinomial, Poisson
from pyro_dvae.likelihoods.levels import Categorical, LogisticMixture
from pyro_dvae.likelihoods.masked import Masked, is_dependent
from pyro_dvae.likelihoods.mixed import Mixed
from pyro_dvae.likelihoods.numerics import MIN_LOG_SCALE
from pyro_dvae.likelihoods.ordinal import Ordinal
from pyro_dvae.likelihoods.real import Laplace, Normal
from pyro_dvae.likelihoods.unit import ContinuousBernoulli

_MOST_VALUES = 512
"""If a count exceeds this, a negative binomial gets its moments in place of its maximum."""


class Rows:
    """Data with weights, as sums over the rows.

    Args:
        x: (N, P), without gaps.
        weights: (N, C), of each row in each of C components.
        observed: (N, P) zeros and ones; None if all elements are observed.
        extra: the number of rows that each level counts more than it has.
    """

    def __init__(self, x: Tensor, weights: Tensor, observed: Tensor | None, extra: float) -> None:
        self.x, self.weights, self.observed, self.extra = x, weights, observed, extra
        ones = x.new_ones(1, 1).expand_as(x) if observed is None else observed
        self.number = (weights.T @ ones).clamp(min=torch.finfo(x.dtype).tiny)
        """(C, P): the weight of the rows in which an element is observed."""

    def sum(self, values: Tensor) -> Tensor:
        """sum_n w_nc values_np of observed elements, (C, P)."""
        return self.weights.T @ (values if self.observed is None else values * self.observed)

    def mean(self, values: Tensor) -> Tensor:
        """The weighted mean of values (N, P), (C, P)."""
        return self.sum(values) / self.number

    def counts(self, levels: int) -> Tensor:
        """The weight of the rows that have each level, (C, P, levels)."""
        if levels <= 32:
            return torch.stack(
                [self.sum((self.x == level).to(self.x)) for level in range(levels)], -1
            )
        place = torch.arange(self.x.shape[1], device=self.x.device) * levels + self.x.long()
        ones = torch.ones_like(self.x) if self.observed is None else self.observed
        size = self.x.shape[1] * levels
        each = [
            torch.bincount(place.flatten(), (ones * weight[:, None]).flatten(), size)
            for weight in self.weights.T
        ]
        return torch.stack(each).to(self.x).unflatten(-1, (-1, levels))

    def columns(self, start: int, stop: int) -> Rows:
        """The same of some of the columns."""
        observed = None if self.observed is None else self.observed[:, start:stop]
        return Rows(self.x[:, start:stop], self.weights, observed, self.extra)


def _bernoulli(likelihood: Bernoulli, rows: Rows) -> Tensor:
    p = (rows.sum(rows.x) + rows.extra) / (rows.number + 2 * rows.extra)
    return p.logit(1e-9)


def _categorical(likelihood: Categorical, rows: Rows) -> Tensor:
    return (rows.counts(likelihood.levels) + rows.extra).clamp(min=1e-30).log()


def _normal(likelihood: Normal, rows: Rows) -> Tensor:
    x = (rows.x - likelihood.location.flatten()) / likelihood.spread.flatten()
    mean = rows.mean(x)
    if likelihood.scale is not None:
        return mean
    variance = rows.mean(x.square()) - mean.square()
    scale = variance.clamp(min=1e-30).log() / 2 - MIN_LOG_SCALE
    return torch.stack([mean, _inverse_softplus(scale.clamp(min=1e-3)) + MIN_LOG_SCALE], -1)


def _laplace(likelihood: Laplace, rows: Rows) -> Tensor:
    """The weighted median, and the weighted mean of the distance from it."""
    x = (rows.x - likelihood.location.flatten()) / likelihood.spread.flatten()
    ordered, order = x.sort(0)
    medians, scales = [], []
    for weight in rows.weights.T:
        w = (
            weight[:, None].expand_as(x)
            if rows.observed is None
            else weight[:, None] * rows.observed
        )
        below = w.gather(0, order).cumsum(0)
        half = (below >= below[-1] / 2).int().argmax(0, keepdim=True)
        median = ordered.gather(0, half)
        medians.append(median[0])
        scales.append(((x - median).abs() * w).sum(0) / w.sum(0).clamp(min=1e-30))
    median, distance = torch.stack(medians), torch.stack(scales)
    if likelihood.scale is not None:
        return median
    scale = distance.clamp(min=1e-15).log() - MIN_LOG_SCALE
    return torch.stack([median, _inverse_softplus(scale.clamp(min=1e-3)) + MIN_LOG_SCALE], -1)


def _poisson(likelihood: Poisson, rows: Rows) -> Tensor:
    rate = (rows.sum(rows.x) + rows.extra) / (rows.number + rows.extra)
    return _inverse_softplus(rate.clamp(min=1e-9) / likelihood.unit.flatten())


def _negative_binomial(likelihood: NegativeBinomial, rows: Rows) -> Tensor:
    """The mean is that of the data, and log r is found by a golden-section search."""
    mean = ((rows.sum(rows.x) + rows.extra) / (rows.number + rows.extra)).clamp(min=1e-9)
    most = int(rows.x.max())
    if most <= _MOST_VALUES:
        value = torch.arange(most + 1, device=rows.x.device).to(rows.x)
        count = rows.counts(most + 1)

        def score(log_r: Tensor) -> Tensor:
            r = log_r.exp()
            ways = (r.unsqueeze(-1) + value).lgamma() - r.lgamma().unsqueeze(-1)
            odds = (mean / r).log1p()
            return (
                (count * ways).sum(-1)
                - rows.number * (r + mean) * odds
                + (rows.number * mean * (mean.log() - r.log()))
            )

        log_r = _golden(score, torch.full_like(mean, -6.0), torch.full_like(mean, 12.0))
    else:
        variance = rows.mean(rows.x.square()) - rows.mean(rows.x).square()
        log_r = (mean.square() / (variance - mean).clamp(min=0.01 * mean)).log()
    r = log_r.exp()
    total = _inverse_softplus(r / likelihood.total_unit.flatten())
    return torch.stack([total, mean.log() - log_r - likelihood.odds_unit.flatten().log()], -1)


def _multinomial(likelihood: Multinomial, rows: Rows) -> Tensor:
    return (rows.sum(rows.x) + rows.extra).clamp(min=1e-30).log()


def _continuous_bernoulli(likelihood: ContinuousBernoulli, rows: Rows) -> Tensor:
    """The logit whose mean is that of the data, by bisection."""
    mean = rows.mean(rows.x)
    low, high = torch.full_like(mean, -1e4), torch.full_like(mean, 1e4)
    for _ in range(60):
        middle = (low + high) / 2
        below = likelihood.mean(middle) < mean
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2


def _mixed(likelihood: Mixed, rows: Rows) -> Tensor:
    start, parts = 0, []
    for block, size in zip(likelihood.blocks, likelihood.sizes, strict=True):
        part = _of(cast(Likelihood, block), rows.columns(start, start + size))
        part = part if part.dim() == 3 else part.unsqueeze(-1)
        parts.append(pad(part, (0, likelihood.num_params - part.shape[-1])))
        start += size
    whole = torch.cat(parts, 1)
    return whole if likelihood.num_params > 1 else whole[..., 0]


_CLOSED: dict[type[Likelihood], Callable[[Any, Rows], Tensor]] = {
    Bernoulli: _bernoulli,
    Categorical: _categorical,
    Normal: _normal,
    Laplace: _laplace,
    Poisson: _poisson,
    NegativeBinomial: _negative_binomial,
    Multinomial: _multinomial,
    ContinuousBernoulli: _continuous_bernoulli,
    Mixed: _mixed,
}
"""Class -> its params (C, P), or (C, P, num_params). A subclass is another likelihood."""


def _of(likelihood: Likelihood, rows: Rows) -> Tensor:
    return _CLOSED[type(likelihood)](likelihood, rows)


def has_maximum(likelihood: Likelihood) -> bool:
    """Whether `maximum` knows a likelihood."""
    if isinstance(likelihood, Masked):
        return has_maximum(likelihood.likelihood)
    if type(likelihood) is Mixed:
        return all(has_maximum(cast(Likelihood, block)) for block in likelihood.blocks)
    return type(likelihood) in _CLOSED


def maximum(likelihood: Likelihood, x: Tensor, weights: Tensor, extra: float = 0.0) -> Tensor:
    """argmax_c sum_n w_nc log p(x_n; params_c) of each component c, as params (C, *event, ...).

    Args:
        likelihood: one that `has_maximum`.
        x: (N, *event), with NaN for missing elements where the likelihood takes them.
        weights: (N, C) of each datum in each component.
        extra: the number of rows that each level of an element counts more than it has, so that a
            level without data has a probability. Of counts, one such row more holds a 1.

    Returns:
        (C, *event), or (C, *event, num_params) if num_params exceeds 1.
    """
    missing = x.isnan() if isinstance(likelihood, Masked) else None
    if isinstance(likelihood, Masked):
        x, likelihood = likelihood.filled(x), likelihood.likelihood
    observed = None if missing is None else (~missing).reshape(len(x), -1).to(x)
    params = _of(likelihood, Rows(x.reshape(len(x), -1), weights, observed, extra))
    return params.reshape(len(params), *x.shape[1:], *params.shape[2:])


def of_elements(likelihood: Likelihood, event_shape: Sequence[int]) -> Likelihood | None:
    """A likelihood of the same values whose elements are independent, each with its own parameters.

    It is the likelihood itself where its elements are independent given z. But levels get their
    frequencies (`Categorical`), whatever the likelihood, and real numbers a `Normal` where the
    elements of the likelihood depend on each other.

    Args:
        likelihood: a model's.
        event_shape: the shape of a datum.

    Returns:
        The likelihood, which `calibrate` may change; None where there is none of such values.
    """
    if isinstance(likelihood, Masked):
        its = of_elements(likelihood.likelihood, event_shape)
        return None if its is None else Masked(its)
    if type(likelihood) is Mixed:
        parts = zip(likelihood.blocks, likelihood.sizes, strict=True)
        blocks = [of_elements(cast(Likelihood, block), (size,)) for block, size in parts]
        known = [block for block in blocks if block is not None]
        return Mixed(list(zip(known, likelihood.sizes, strict=True)))
    if type(likelihood) in (Ordinal, LogisticMixture):
        return Categorical(likelihood.levels)
    if not has_maximum(likelihood) and is_dependent(likelihood):
        return Normal(event_shape) if likelihood.kind == "real" else None
    return deepcopy(likelihood)


def _inverse_softplus(y: Tensor) -> Tensor:
    return torch.where(y > 40, y, y + (-torch.expm1(-y.clamp(max=40))).log())


def _golden(score: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Tensor:
    """Where a function of each element has its maximum, if it has one, between two bounds."""
    ratio = (5**0.5 - 1) / 2
    for _ in range(40):
        step = ratio * (high - low)
        left, right = high - step, low + step
        is_left = score(left) > score(right)
        low, high = torch.where(is_left, low, left), torch.where(is_left, right, high)
    return (low + high) / 2
