"""A prior of two stochastic layers, the upper one summed out."""

from __future__ import annotations

from collections.abc import Sequence

import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_dvae.checks import code_shape
from pyro_dvae.codes import describe_codes, enumerate_codes, num_codes
from pyro_dvae.networks.mlp import mlp
from pyro_dvae.priors.base import Prior
from pyro_dvae.priors.mixture import MixtureCodes

MAX_UPPER_CODES = 4096
"""Largest number of codes of the upper layer that is summed over at every step."""


class HierarchicalPrior(Prior):
    """p(z) = sum_u p(u) prod_d Cat(z_d; softmax(g(u)_d)), p(u) = K2^-D2, g a small network.

    The upper layer u is a code of its own, D2 one-hot variables of K2 categories. Deep models
    give u a guide and bound log p(z) (Sønderby et al. 2016, "Ladder variational autoencoders");
    here all K2^D2 values of u are summed, so that log p(z) is exact, the bound on log p(x) tighter
    by the KL that a guide of u would leave, and no guide is needed. As a distribution it is a
    mixture with one component a value of u, their parameters tied by g; a draw is ancestral: u,
    then z. Scoring S draws of B data costs S·B·D·K·K2^D2: thousands of upper codes are for a GPU.
    Support: one-hot codes.

    Args:
        num_latents: D, at least 1.
        num_categories: K, at least 2.
        upper: (D2, K2) of the upper layer.
        hidden: sizes of the hidden layers of g: (D2·K2) -> hidden -> (D·K).

    Raises:
        ValueError: D < 1 or K < 2, of either layer, or K2^D2 > `MAX_UPPER_CODES`.
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
        self.code_shape = (num_latents, num_categories)
        self.register_buffer("codes", enumerate_codes(*upper).flatten(-2), persistent=False)
        self.network = mlp([self.codes.shape[-1], *hidden, num_latents * num_categories])

    def forward(self) -> MixtureCodes:
        """The distribution over codes, batch (), event (D, K)."""
        logits = self.network(self.codes).unflatten(-1, self.code_shape)  # (K2^D2, D, K)
        weights = torch.zeros_like(logits[:, 0, 0])
        return MixtureCodes(weights, dist.OneHotCategorical(logits=logits).to_event(1))
