"""A mixture of distributions over codes, and a prior that is a learned mixture."""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from pyro_dvae.checks import at_least, code_shape
from pyro_dvae.codes import code_logits, draw_codes
from pyro_dvae.displays import named
from pyro_dvae.priors.base import Prior
from pyro_dvae.sequences import SequentialCodes, conditional_logits

_IMPOSSIBLE = -1e30  # stands for log 0 in sums, where 0 * -inf and -inf + inf would be NaN


class MixtureCodes(SequentialCodes):
    """p(z) = sum_c w_c p_c(z), with event shape (D, K). The p_c are any distributions over codes.

    Each latent depends on those before it, since they tell which component c is probable. By Bayes'
    rule, exactly:

        p(z_{d+1} | z_1 ... z_d) = sum_c r_c p_c(z_{d+1} | z_1 ... z_d),
        r_c proportional to w_c p_c(z_1 ... z_d).

    Every log p_c(z) is linear in each z_d, so that relaxed codes have gradients. To draw a code, a
    component is drawn first, and then a code from it.

    Args:
        log_weights: (*batch, C) log w, up to a constant.
        components: the p_c, factorised or sequential codes, with batch shape (*batch, C) and event
            shape (D, K).
    """

    def __init__(self, log_weights: Tensor, components: Any) -> None:
        batch_shape = torch.broadcast_shapes(log_weights.shape, components.batch_shape)[:-1]
        super().__init__(batch_shape, *components.event_shape)
        self.log_weights = log_weights.log_softmax(-1)
        self.components = components
        self._logits = code_logits(components)  # None if the components are sequential

    def conditional(self, prefix: Tensor) -> Tensor:
        """Log p(z_{d+1} | z_1 ... z_d), (..., K), in nats.

        After a prefix of probability 0 it is an arbitrary distribution.

        Args:
            prefix: (..., d, K) the first d latents.
        """
        responsibility = self._log_joint(prefix).log_softmax(-1)  # (..., C)
        following = self._component_conditional(prefix)  # (..., C, K)
        return _log_of_zero((responsibility.unsqueeze(-1) + following).logsumexp(-2))

    def log_prob(self, value: Tensor) -> Tensor:
        """Log sum_c w_c p_c(z) in nats, (...), of codes (..., D, K)."""
        total = _log_of_zero(self._log_joint(value).logsumexp(-1))
        return total.expand(torch.broadcast_shapes(total.shape, self.batch_shape))

    @torch.no_grad()
    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw codes, (*sample_shape, *batch, D, K)."""
        shape = torch.Size(sample_shape) + self.batch_shape
        num_components = self.log_weights.shape[-1]
        component = draw_codes(self.log_weights.expand(*shape, num_components)).argmax(-1)
        index = component[..., None, None, None].expand(*shape, 1, *self.event_shape)
        if self._logits is not None:
            logits = self._logits.expand(*shape, num_components, *self.event_shape)
            return draw_codes(logits.gather(-3, index).squeeze(-3))
        every = self.components.expand((*self.batch_shape, num_components)).sample(sample_shape)
        return every.gather(-3, index).squeeze(-3)

    def _log_joint(self, prefix: Tensor) -> Tensor:
        """Log w_c p_c(z_1 ... z_d), (..., C)."""
        joint = self.log_weights.clamp(min=_IMPOSSIBLE)
        if not prefix.shape[-2]:
            return joint
        if self._logits is not None:  # factorised components score all latents at once
            log_p = self._logits[..., : prefix.shape[-2], :].clamp(min=_IMPOSSIBLE)
            return joint + torch.einsum("...dk,...cdk->...c", prefix, log_p)
        for latent in range(prefix.shape[-2]):
            log_p = self._component_conditional(prefix[..., :latent, :])
            joint = joint + torch.einsum("...k,...ck->...c", prefix[..., latent, :], log_p)
        return joint

    def _component_conditional(self, prefix: Tensor) -> Tensor:
        """Log p_c(z_{d+1} | z_1 ... z_d), (..., C, K)."""
        log_p = conditional_logits(self.components, prefix.unsqueeze(-3))
        shape = torch.broadcast_shapes(log_p.shape[:-1], self.log_weights.shape[-1:])
        return log_p.expand(*shape, log_p.shape[-1]).clamp(min=_IMPOSSIBLE)


def _log_of_zero(log_prob: Tensor) -> Tensor:
    return log_prob.masked_fill(log_prob < _IMPOSSIBLE / 2, -torch.inf)


class MixturePrior(Prior):
    """p(z) = sum_c w_c prod_d Cat(z_d; pi_cd), with learned w = softmax(a), pi = softmax(b).

    This is a latent class model: a code belongs to one of C classes, and its latents are
    independent given the class (Lazarsfeld & Henry 1968).

    Args:
        num_latents: D, the number of latents of a code, at least 1.
        num_categories: K, the number of categories of a latent, at least 2.
        num_components: C, the number of classes, at least 1.

    Raises:
        ValueError: D < 1, K < 2 or C < 1.
    """

    sequential = True

    def __init__(self, num_latents: int, num_categories: int, num_components: int = 20) -> None:
        super().__init__()
        code_shape(num_latents, num_categories)
        at_least("components", num_components, 1)
        self.log_weights = nn.Parameter(torch.zeros(num_components))
        # Random, because components that begin alike would stay alike.
        shape = (num_components, num_latents, num_categories)
        self.logits = nn.Parameter(torch.randn(shape).mul_(0.1))

    def extra_repr(self) -> str:
        """The arguments, for `repr`."""
        num_components, num_latents, num_categories = self.logits.shape
        return named(
            num_latents=num_latents, num_categories=num_categories, num_components=num_components
        )

    def forward(self) -> MixtureCodes:
        """Return the distribution over codes, with event shape (D, K)."""
        components = dist.OneHotCategorical(logits=self.logits).to_event(1)
        return MixtureCodes(self.log_weights, components)
