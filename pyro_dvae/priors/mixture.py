"""A mixture of distributions over codes, and the prior that learns one."""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from pyro_dvae.checks import at_least, code_shape
from pyro_dvae.codes import code_logits, draw_codes
from pyro_dvae.priors.base import Prior
from pyro_dvae.sequences import SequentialCodes, conditional_logits

_IMPOSSIBLE = -1e30  # stands for log 0 in sums, where 0 * -inf and -inf + inf would be NaN


class MixtureCodes(SequentialCodes):
    """p(z) = sum_c w_c p_c(z), event (D, K); the components are any distributions over codes.

    Its latents follow one another through what they say of the component, exactly (Bayes' rule):

        p(z_{d+1} | z_1 ... z_d) = sum_c r_c p_c(z_{d+1} | z_1 ... z_d),
        r_c proportional to w_c p_c(z_1 ... z_d).

    For factorised components p_c(z) = prod_d Cat(z_d; pi_cd). Inside, log p_c(z) is linear in each
    z_d, so that relaxed codes have gradients. A draw takes a component, then a code from it.

    Args:
        log_weights: (*batch, C), normalised or not, over the components.
        components: factorised or sequential codes, batch (*batch, C), event (D, K).
    """

    def __init__(self, log_weights: Tensor, components: Any) -> None:
        batch_shape = torch.broadcast_shapes(log_weights.shape, components.batch_shape)[:-1]
        super().__init__(batch_shape, *components.event_shape)
        self.log_weights = log_weights.log_softmax(-1)
        self.components = components
        self._logits = code_logits(components)  # None where they are sequential

    def conditional(self, prefix: Tensor) -> Tensor:
        """Log p(z_{d+1} | z_1 ... z_d), (..., K); arbitrary after a prefix of probability 0."""
        responsibility = self._log_joint(prefix).log_softmax(-1)  # (..., C)
        following = self._component_conditional(prefix)  # (..., C, K)
        return _log_of_zero((responsibility.unsqueeze(-1) + following).logsumexp(-2))

    def log_prob(self, value: Tensor) -> Tensor:
        """Log sum_c w_c p_c(z), (...), of codes (..., D, K), in nats."""
        total = _log_of_zero(self._log_joint(value).logsumexp(-1))
        return total.expand(torch.broadcast_shapes(total.shape, self.batch_shape))

    @torch.no_grad()
    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw a component, then a code of it, (*sample_shape, *batch, D, K)."""
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
        if self._logits is not None:  # all latents at once
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
    """p(z) = sum_c w_c prod_d Cat(z_d; pi_cd), w = softmax(a), pi = softmax(b), learned.

    A latent class model: the latents are independent given which of C classes the code is of
    (Lazarsfeld & Henry 1968). Support: one-hot codes.

    Args:
        num_latents: D, at least 1.
        num_categories: K, at least 2.
        num_components: C, at least 1.

    Raises:
        ValueError: D < 1, K < 2 or C < 1.
    """

    sequential = True

    def __init__(self, num_latents: int, num_categories: int, num_components: int = 20) -> None:
        super().__init__()
        code_shape(num_latents, num_categories)
        at_least("components", num_components, 1)
        self.log_weights = nn.Parameter(torch.zeros(num_components))
        # Components that began alike would stay alike.
        shape = (num_components, num_latents, num_categories)
        self.logits = nn.Parameter(torch.randn(shape).mul_(0.1))

    def forward(self) -> MixtureCodes:
        """The distribution over codes, batch (), event (D, K)."""
        components = dist.OneHotCategorical(logits=self.logits).to_event(1)
        return MixtureCodes(self.log_weights, components)
