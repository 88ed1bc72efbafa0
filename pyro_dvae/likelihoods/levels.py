"""A whole number of levels, such as the 256 grey values of a pixel."""

from __future__ import annotations

import math
from functools import cached_property

import torch
from pyro.distributions import constraints
from torch import Tensor
from torch.nn.functional import one_hot

from pyro_dvae.checks import at_least
from pyro_dvae.displays import named
from pyro_dvae.likelihoods.base import Likelihood
from pyro_dvae.likelihoods.linear import ExponentialFamily
from pyro_dvae.likelihoods.numerics import log1mexp, log_scale, softplus
from pyro_dvae.likelihoods.refusals import is_whole, refuse_unless

FEW_LEVELS = 32
"""The most levels for which a matrix product scores B data under C codes. With 16 levels it takes a
third of the time of looking up (C, B, P) log-probabilities; with more than 32 it takes longer."""


class _Levels(Likelihood):
    kind = "levels"
    name: str

    def __init__(self, levels: int) -> None:
        super().__init__()
        at_least("levels", levels, 2)
        self.levels = levels
        self.support = constraints.integer_interval(0, levels - 1)

    def extra_repr(self) -> str:
        """The arguments, for `repr`."""
        return named(levels=self.levels)

    def check(self, x: Tensor) -> None:
        """Refuse what is not a level.

        Raises:
            ValueError: an element of x is not among 0, ..., levels - 1; the message names the
                range found.
        """
        refuse_unless(
            is_whole(x) & (x >= 0) & (x < self.levels),
            x,
            f"whole numbers from 0 to {self.levels - 1} for the {self.name} likelihood of "
            f"{self.levels} levels",
            "Give it more levels, or use poisson for counts, continuous-bernoulli for numbers in "
            "[0, 1], normal for real ones.",
        )


class Categorical(_Levels, ExponentialFamily):
    """p(x|z) = prod_p softmax(params_p)_{x_p}: each level has a probability of its own.

    Data are in {0, ..., levels - 1}. Params are (..., *event, levels) logits. `mean` is the
    expected level.

    Args:
        levels: L, at least 2.
    """

    name = "categorical"
    cost = 1  # a product of L numbers per element, or one look-up

    def __init__(self, levels: int = 256) -> None:
        super().__init__(levels)
        self.num_params = levels

    # Not before it is asked for: more levels than memory holds are refused elsewhere.
    @cached_property
    def param_meanings(self) -> tuple[str, ...]:  # type: ignore[override]
        """What each parameter means."""
        return tuple(f"the logit of level {level}" for level in range(self.levels))

    def log_prob(self, params: Tensor, x: Tensor) -> Tensor:
        """Log-probability of a datum, without an array of (C, B, P, L) numbers."""
        if self.levels <= FEW_LEVELS:
            return super().log_prob(params, x)
        log_p, index = params.log_softmax(-1), x.long()  # (..., P, L), (..., P)
        if log_p.dim() > 2 and log_p.shape[-3] == 1 and index.dim() > 1:
            log_p = log_p.squeeze(-3)  # (C, P, L): one table per code for all data
            index = index.transpose(-1, -2)  # (P, B)
            batch = torch.broadcast_shapes(log_p.shape[:-2], index.shape[:-2])
            log_p, index = (t.expand(*batch, *t.shape[-2:]) for t in (log_p, index))
            return log_p.gather(-1, index).sum(-2)
        return self.element_log_probs(params, x).sum(-1)

    def natural(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """The log-probabilities of the levels; A is 0."""
        # A level of probability 0 is not to make 0 * inf of the data that do not have it.
        log_p = params.log_softmax(-1)
        return log_p.clamp(min=torch.finfo(log_p.dtype).min), log_p.new_zeros(log_p.shape[:-1])

    def statistics(self, x: Tensor) -> tuple[Tensor, None]:
        """The one-hot levels; h is 0."""
        return one_hot(x.long(), self.levels).to(x.dtype), None

    def observed_log_prob(self, params: Tensor, x: Tensor, observed: Tensor | None) -> Tensor:
        """Log-probability of the observed elements; -inf where one has probability 0."""
        scored = super().observed_log_prob(params, x, observed)
        return scored.masked_fill(scored <= torch.finfo(scored.dtype).min / 2, -math.inf)

    def _scores_by_product(self, x: Tensor) -> bool:
        return self.levels <= FEW_LEVELS and super()._scores_by_product(x)

    def element_log_probs(self, params: Tensor, x: Tensor) -> Tensor:
        """Log-probability of each element, from one table of (..., P, L) numbers."""
        log_p, index = params.log_softmax(-1), x.long().unsqueeze(-1)
        shape = torch.broadcast_shapes(log_p.shape[:-1], index.shape[:-1])
        index = index.expand(*shape, 1)
        return log_p.expand(*shape, self.levels).gather(-1, index).squeeze(-1)

    def mean(self, params: Tensor) -> Tensor:
        """E[x] = sum_l l softmax(params)_l."""
        return params.softmax(-1) @ torch.arange(self.levels, device=params.device).to(params)

    def typical(self, params: Tensor) -> Tensor:
        """The most probable level."""
        return params.argmax(-1).to(params.dtype)

    def draw(self, params: Tensor) -> Tensor:
        """Levels, in the dtype of the parameters."""
        noise = torch.empty_like(params).exponential_().log()
        return (params.log_softmax(-1) - noise).argmax(-1).to(params.dtype)


class LogisticMixture(_Levels):
    """p(x|z) = prod_p sum_m w_pm (F((x_p + 1/2 - m_pm) / s_pm) - F((x_p - 1/2 - m_pm) / s_pm)).

    F is the logistic function. The lowest and the highest level get the tails, so that the
    probabilities sum to 1 (Salimans et al. 2017, PixelCNN++, arXiv:1701.05517, but the colours of a
    pixel are independent here).

    The levels are spread over [-1, 1]. There w = softmax(params[..., 0, :]), m = params[..., 1, :],
    and log s = -7 + softplus(params[..., 2, :] + 7), which is about params[..., 2, :] but never
    below -7.

    Data are in {0, ..., levels - 1}. Params are (..., *event, 3 M), in the order w, m, s. `mean` is
    the expected level.

    Args:
        levels: L, at least 2.
        components: M, the number of components of the mixture.
    """

    name = "logistic-mixture"

    def __init__(self, levels: int = 256, components: int = 5) -> None:
        super().__init__(levels)
        at_least("components", components, 1)
        self.components = components
        self.num_params = 3 * components
        self.cost = 4 * components
        self.step = 2 / (levels - 1)

    @cached_property
    def param_meanings(self) -> tuple[str, ...]:  # type: ignore[override]
        """What each parameter means."""
        what = ("the logit of the weight w", "the mean m", "r, log s before its lower bound")
        return tuple(f"{each}_{m}" for each in what for m in range(self.components))

    def extra_repr(self) -> str:
        """The arguments, for `repr`."""
        return named(levels=self.levels, components=self.components)

    def element_log_probs(self, params: Tensor, x: Tensor) -> Tensor:
        """Log-probability of each element."""
        logits, mean, scale = self._split(params)  # (..., P, M)
        x = x.unsqueeze(-1)
        centre, half = x * self.step - 1, self.step / 2
        inverse = (-scale).exp()
        below = torch.where(x > 0, softplus((centre - half - mean) * inverse), 0)
        above = torch.where(x < self.levels - 1, softplus((mean - centre - half) * inverse), 0)
        width = log1mexp(math.log(self.step) - scale)
        inner = torch.where((x > 0) & (x < self.levels - 1), width, 0)
        # F(b) - F(a) = (1 - e^(a - b)) F(b) F(-a); for the lowest and highest level only one of
        # the last two factors is left.
        mass = inner - below - above
        return (logits.log_softmax(-1) + mass).logsumexp(-1)

    def mean(self, params: Tensor) -> Tensor:
        """E[x], the sum over all edges between levels of the probability to lie above the edge."""
        logits, mean, scale = self._split(params)
        edges = torch.arange(self.levels - 1, device=params.device).to(params)
        edges = (edges + 0.5) * self.step - 1
        weight, inverse = logits.softmax(-1), (-scale).exp()
        total = torch.zeros_like(weight[..., 0])
        for m in range(self.components):  # one array of (..., P, L) numbers at a time
            above = (mean[..., m, None] - edges) * inverse[..., m, None]
            total = total + weight[..., m] * above.sigmoid().sum(-1)
        return total

    def draw(self, params: Tensor) -> Tensor:
        """Levels, in the dtype of the parameters."""
        logits, mean, scale = self._split(params)
        noise = torch.empty_like(logits).exponential_().log()
        chosen = (logits.log_softmax(-1) - noise).argmax(-1, keepdim=True)
        mean, scale = mean.gather(-1, chosen)[..., 0], scale.gather(-1, chosen)[..., 0]
        u = torch.rand_like(mean)
        # With a scale of e^30 or more, only the lowest and the highest level are drawn.
        value = mean + scale.clamp(max=30).exp() * u.logit(eps=torch.finfo(u.dtype).eps / 2)
        return ((value + 1) / self.step).round().clamp(0, self.levels - 1)

    def _split(self, params: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits, mean, scale = params.unflatten(-1, (3, self.components)).unbind(-2)
        return logits, mean, log_scale(scale)
