"""Levels in an order, such as ratings: small, medium, large."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pyro_dvae.displays import named
from pyro_dvae.likelihoods.levels import _Levels
from pyro_dvae.likelihoods.numerics import log1mexp, log_scale, softplus
from pyro_dvae.likelihoods.refusals import calibration_data


class Ordinal(_Levels):
    """P(x_p <= l | z) = F((c_pl - m_p) / s_p), cumulative logits: F is the logistic function.

    There m = params[..., 0] is a location, and log s = -7 + softplus(params[..., 1] + 7) a
    log-scale, which is about params[..., 1] but never below -7 (McCullagh 1980, "Regression models
    for ordinal data"). So a level has two parameters however many levels there are, and levels
    that are near one another have similar probabilities.

    The thresholds c are not trained. `calibrate` sets them to the logits of the cumulative
    frequencies of the training data, so that m = 0 and s = 1 give these frequencies; before that,
    all levels have the same frequency. Data are in {0, ..., levels - 1}. Params are (..., *event,
    2). `mean` is the expected level, `typical` the most probable one.

    Args:
        levels: L, at least 2.
        event_shape: shape of one datum, for thresholds of each element; () for the same thresholds
            for all.
    """

    name = "ordinal"
    num_params = 2
    param_meanings = ("the location m", "r, log s before its lower bound")
    cost = 4
    thresholds: Tensor

    def __init__(self, levels: int = 5, event_shape: Sequence[int] = ()) -> None:
        super().__init__(levels)
        steps = torch.arange(1, levels) / levels
        self.register_buffer(
            "thresholds", steps.logit().expand(*event_shape, levels - 1).contiguous()
        )

    def extra_repr(self) -> str:
        """The arguments, for `repr`."""
        return named(levels=self.levels, event_shape=tuple(self.thresholds.shape[:-1]))

    @torch.no_grad()
    def calibrate(self, x: Tensor) -> None:
        """Set the thresholds of each element from training data (N, *event).

        Each level counts half a datum more than it has, so that none has a frequency of 0.

        Raises:
            ValueError: the shape of a datum is not event_shape, or a value is no level.
        """
        x = calibration_data(x, self.thresholds.shape[:-1])
        self.check(x)
        below = [(x <= level).sum(0) + 0.5 * (level + 1) for level in range(self.levels - 1)]
        total = len(x) + 0.5 * self.levels
        self.thresholds.copy_((torch.stack(below, -1).double() / total).logit())

    def is_calibrated(self) -> bool:
        """Whether the thresholds are other than those of equal frequencies."""
        steps = torch.arange(1, self.levels) / self.levels
        return not torch.equal(self.thresholds.cpu(), steps.logit().expand_as(self.thresholds))

    def mean(self, params: Tensor) -> Tensor:
        """E[x] = sum_l P(x > l)."""
        location, scale = params[..., 0], log_scale(params[..., 1])
        standard = (self._flat() - location[..., None]) * (-scale).exp()[..., None]
        return (-standard).sigmoid().sum(-1)

    def typical(self, params: Tensor) -> Tensor:
        """The most probable level."""
        levels = torch.arange(self.levels, device=params.device).to(params)
        log_p = [
            self.element_log_probs(params, level.expand(params.shape[:-1])) for level in levels
        ]
        return torch.stack(log_p).argmax(0).to(params.dtype)

    def draw(self, params: Tensor) -> Tensor:
        """Levels, in the dtype of the parameters."""
        location, scale = params[..., 0], log_scale(params[..., 1])
        u = torch.rand_like(location)
        # With a scale of e^30 or more, only the lowest and the highest level are drawn.
        value = location + scale.clamp(max=30).exp() * u.logit(eps=torch.finfo(u.dtype).eps / 2)
        return (value[..., None] > self._flat()).sum(-1).to(params.dtype)

    def _flat(self) -> Tensor:
        """(P, L - 1), or (L - 1,) if all elements share them."""
        c = self.thresholds
        return c.flatten(0, -2) if c.dim() > 1 else c

    def element_log_probs(self, params: Tensor, x: Tensor) -> Tensor:
        """Log-probability of each element, (..., P).

        F(b) - F(a) = (1 - e^(a - b)) F(b) F(-a); for the lowest and the highest level only one of
        the last two factors is left.
        """
        location, scale = params[..., 0], log_scale(params[..., 1])
        c, level, inverse = self._flat(), x.long(), (-scale).exp()
        if c.dim() == 1:
            c = c.expand(x.shape[-1], -1)
        element = torch.arange(len(c), device=c.device)
        upper = c[element, level.clamp(max=self.levels - 2)].to(params.dtype)
        lower = c[element, (level - 1).clamp(min=0)].to(params.dtype)
        is_lowest, is_highest = level == 0, level == self.levels - 1
        above = torch.where(is_highest, 0, softplus((location - upper) * inverse))
        below = torch.where(is_lowest, 0, softplus((lower - location) * inverse))
        gap = torch.where(is_lowest | is_highest, 1, upper - lower)
        width = torch.where(is_lowest | is_highest, 0, log1mexp(gap.log() - scale))
        return width - above - below
