"""The uniform prior, which is that of the tutorial."""

from __future__ import annotations

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor

from pyro_dvae.checks import code_shape
from pyro_dvae.displays import named
from pyro_dvae.priors.base import Prior


class UniformPrior(Prior):
    """p(z) = K^-D: D independent latents, each uniform over its K categories (Eq. 46 of [JL25]).

    >>> from pyro_dvae import UniformPrior
    >>> UniformPrior(num_latents=4, num_categories=8)().sample().shape
    torch.Size([4, 8])

    Args:
        num_latents: D, the number of latents of a code, at least 1.
        num_categories: K, the number of categories of a latent, at least 2.

    Raises:
        ValueError: D < 1 or K < 2.
    """

    logits: Tensor

    def __init__(self, num_latents: int, num_categories: int) -> None:
        super().__init__()
        code_shape(num_latents, num_categories)
        self.register_buffer("logits", torch.zeros(num_latents, num_categories), persistent=False)

    def extra_repr(self) -> str:
        """The arguments, for `repr`."""
        num_latents, num_categories = self.logits.shape
        return named(num_latents=num_latents, num_categories=num_categories)

    def forward(self) -> TorchDistribution:
        """Return the distribution over codes, with event shape (D, K)."""
        return dist.OneHotCategorical(logits=self.logits).to_event(1)
