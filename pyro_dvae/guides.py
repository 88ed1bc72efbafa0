"""Guides q(z|x): modules that turn the output of the encoder into a distribution over codes."""

from __future__ import annotations

import pyro.distributions as dist
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor

from pyro_dvae.checks import at_least, code_shape
from pyro_dvae.contracts import Contract
from pyro_dvae.sequences import CausalCodes, CausalNetwork
from pyro_dvae.specs import Named


class Guide(Contract):
    """q(z|x): `forward(context)` returns a distribution over codes, with event shape (D, K).

    The encoder computes the context (B, D, C) from data; the distribution has batch shape (B,).
    Subclass this and write `forward`; the members below have defaults. A plain `nn.Module` with a
    `forward` will do as well: `DiscreteVAE` gives it the defaults.
    """

    OPTIONAL = ("sequential", "num_outputs")

    sequential: bool = False
    """Whether each latent depends on those before it: then `forward` returns `SequentialCodes`."""
    num_outputs: int | None = None
    """C, the numbers that the encoder computes for each latent; None for K, one per category."""


class MeanFieldGuide(Guide):
    """q(z|x) = prod_d Cat(z_d; softmax(f(x)_d)) (Eqs. 14, 15 and 47 of [JL25])."""

    def forward(self, context: Tensor) -> TorchDistribution:
        """The distribution over codes, event shape (D, K).

        Args:
            context: (..., D, K) logits.
        """
        return dist.OneHotCategorical(logits=context).to_event(1)


class AutoregressiveGuide(Guide):
    """q(z|x) = prod_d q(z_d | z_1 ... z_{d-1}, x): each latent knows the latents before it.

    log q(z_d | ...) = log softmax(f(x)_d + V_d h_d + v_d), where
    h_d = relu(b_d + A_d g(x)_d + B_d [z_1 ... z_{d-1}]).

    The encoder computes f, the logits of a mean-field guide, and g. With a layer h_d wide enough
    the guide can be any distribution over codes. So it closes the gap that a mean-field guide
    leaves if the latents of the posterior depend on each other (Gregor et al. 2014; Mnih & Gregor
    2014). V = v = 0 at first, so that training begins with the mean-field guide: dependence
    between latents can be learned only once they carry information.

    Args:
        num_latents: D, at least 1.
        num_categories: K, at least 2.
        width: the size of g(x)_d, and of the hidden layer h_d.

    Raises:
        ValueError: D < 1, K < 2 or width < 1.
    """

    sequential = True
    num_outputs: int

    def __init__(self, num_latents: int, num_categories: int, width: int = 64) -> None:
        super().__init__()
        code_shape(num_latents, num_categories)
        at_least("width of the guide", width, 1)
        self.num_outputs = num_categories + width
        self.network = CausalNetwork(
            num_latents, num_categories, width, num_features=width, uniform=True
        )

    def extra_repr(self) -> str:
        """The arguments, for `repr`."""
        return self.network.extra_repr()

    def forward(self, context: Tensor) -> CausalCodes:
        """The distribution over codes, event shape (D, K).

        Args:
            context: (..., D, K + width), the K logits f and then g.
        """
        num_categories = self.network.num_categories
        return CausalCodes(
            self.network, context[..., num_categories:], context[..., :num_categories]
        )


GUIDES = {
    "mean-field": Named(MeanFieldGuide),
    "autoregressive": Named(AutoregressiveGuide, "width"),
}
"""The names that `Config` and the command line know."""
