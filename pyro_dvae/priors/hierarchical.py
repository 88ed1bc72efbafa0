"""A prior of two stochastic layers, of which the upper one is summed out."""

from __future__ import annotations

from collections.abc import Sequence

import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_dvae.checks import code_shape
from pyro_dvae.codes import describe_codes, enumerate_codes, num_codes
from pyro_dvae.displays import named
from pyro_dvae.networks.mlp import mlp
from pyro_dvae.priors.base import Prior
from pyro_dvae.priors.mixture import MixtureCodes

MAX_UPPER_CODES = 4096
"""The largest number of codes of the upper layer, over which every step sums."""


class HierarchicalPrior(Prior):
    """p(z) = sum_u p(u) prod_d Cat(z_d; softmax(g(u)_d)), with p(u) = K2^-D2 and g a small network.

    The upper layer u is a code of D2 one-hot variables with K2 categories each. Other deep models
    give u a guide of its own and have only a bound on log p(z) (Sønderby et al. 2016, "Ladder
    variational autoencoders"). Here all K2^D2 values of u are summed, so log p(z) is exact and no
    guide of u is needed. The bound on log p(x) is tighter by the KL that such a guide would leave.

    As a distribution, p(z) is a mixture with one component per value of u. Scoring S draws for each
    of B data costs S·B·D·K·K2^D2 operations, so thousands of upper codes need a GPU.

    Args:
        num_latents: D, the number of latents of a code, at least 1.
        num_categories: K, the number of categories of a latent, at least 2.
        upper: (D2, K2), the sizes of the upper layer.
        hidden: the sizes of the hidden layers of g, from D2·K2 inputs to D·K outputs.

    Raises:
        ValueError: D < 1 or K < 2 in either layer, or K2^D2 > `MAX_UPPER_CODES`.
    """

    sequential = True
    codes: Tensor

    def __init__(
        self,
        num_latents: int,
        num_categories: int,
        upper: tuple[int, int] = (2, 8),
        hidden: Sequence[int] = (64,),
    ) -> None:
        super().__init__()
        code_shape(num_latents, num_categories)
        code_shape(*upper)
        if num_codes(*upper) > MAX_UPPER_CODES:
            raise ValueError(
                f"Expected at most {MAX_UPPER_CODES} codes in the upper layer; got K^D = "
                f"{describe_codes(*upper)}. Choose fewer latents or categories there, 4x8 say."
            )
        self.code_shape, self.upper = (num_latents, num_categories), tuple(upper)
        self.register_buffer("codes", enumerate_codes(*upper).flatten(-2), persistent=False)
        self.network = mlp([self.codes.shape[-1], *hidden, num_latents * num_categories])

    def extra_repr(self) -> str:
        """The arguments, for `repr`."""
        num_latents, num_categories = self.code_shape
        return named(num_latents=num_latents, num_categories=num_categories, upper=self.upper)

    def forward(self) -> MixtureCodes:
        """Return the distribution over codes, with event shape (D, K)."""
        logits = self.network(self.codes).unflatten(-1, self.code_shape)  # (K2^D2, D, K)
        weights = torch.zeros_like(logits[:, 0, 0])
        return MixtureCodes(weights, dist.OneHotCategorical(logits=logits).to_event(1))
