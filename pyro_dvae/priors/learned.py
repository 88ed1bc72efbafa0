"""A prior of independent latents with learned probabilities."""

from __future__ import annotations

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistribution
from torch import nn

from pyro_dvae.checks import code_shape
from pyro_dvae.displays import named
from pyro_dvae.priors.base import Prior


class LearnedPrior(Prior):
    """p(z) = prod_d Cat(z_d; softmax(b_d)), with learned b.

    The latents are independent, and uniform until they are trained. The best prior of this form has
    p(z_d) = E_x[q(z_d|x)], the mean of the guide over the data (Hoffman & Johnson 2016, "ELBO
    surgery").

    Args:
        num_latents: D, the number of latents of a code, at least 1.
        num_categories: K, the number of categories of a latent, at least 2.

    Raises:
        ValueError: D < 1 or K < 2.
    """

    def __init__(self, num_latents: int, num_categories: int) -> None:
        super().__init__()
        code_shape(num_latents, num_categories)
        self.logits = nn.Parameter(torch.zeros(num_latents, num_categories))

    def extra_repr(self) -> str:
        """The arguments, for `repr`."""
        num_latents, num_categories = self.logits.shape
        return named(num_latents=num_latents, num_categories=num_categories)

    def forward(self) -> TorchDistribution:
        """Return the distribution over codes, with event shape (D, K)."""
        return dist.OneHotCategorical(logits=self.logits).to_event(1)
