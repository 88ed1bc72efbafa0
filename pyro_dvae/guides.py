"""Guides q(z|x): modules that turn what an encoder says of x into a distribution over codes."""

from __future__ import annotations

from typing import ClassVar

import pyro.distributions as dist
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor, nn

from pyro_dvae.checks import at_least, code_shape
from pyro_dvae.sequences import CausalCodes, CausalNetwork


class MeanFieldGuide(nn.Module):
    """q(z|x) = prod_d Cat(z_d; softmax(f(x)_d)) (Eqs. 14, 15 and 47 of [JL25]).

    A guide is a module with `sequential` (whether its latents follow one another) and
    `forward(context)`; the encoder gives the context, (B, D, C).
    """

    sequential: ClassVar[bool] = False

    def forward(self, context: Tensor) -> TorchDistribution:
        """The distribution over codes, event (D, K).

        Args:
            context: (..., D, K) logits, C = K.
        """
        return dist.OneHotCategorical(logits=context).to_event(1)


class AutoregressiveGuide(nn.Module):
    """q(z|x) = prod_d q(z_d | z_1 ... z_{d-1}, x): each latent knows those drawn before it.

    log q(z_d | ...) = log softmax(f(x)_d + V_d h_d + v_d), h_d = relu(b_d + A_d g(x)_d + B_d [z_1
    ... z_{d-1}]); the encoder gives f, as for mean-field, and g. It can be any distribution over
    codes, so it closes the gap that a mean-field guide leaves where the posterior's latents depend
    on each other (Gregor et al. 2014; Mnih & Gregor 2014). V = v = 0 at first: it begins as the
    mean-field guide, for what it adds cannot be learnt before there are codes to follow.

    Args:
        num_latents: D, at least 1.
        num_categories: K, at least 2.
        width: size of g(x)_d, and of the hidden layer of each conditional.

    Raises:
        ValueError: D < 1, K < 2 or width < 1.
    """

    sequential: ClassVar[bool] = True

    def __init__(self, num_latents: int, num_categories: int, width: int = 64) -> None:
        super().__init__()
        code_shape(num_latents, num_categories)
        at_least("width of the guide", width, 1)
        self.num_outputs = num_categories + width
        """C, what the encoder must say of x for each latent."""
        self.network = CausalNetwork(
            num_latents, num_categories, width, num_features=width, uniform=True
        )

    def forward(self, context: Tensor) -> CausalCodes:
        """The distribution over codes, event (D, K).

        Args:
            context: (..., D, K + width).
        """
        num_categories = self.network.num_categories
        return CausalCodes(
            self.network, context[..., num_categories:], context[..., :num_categories]
        )
