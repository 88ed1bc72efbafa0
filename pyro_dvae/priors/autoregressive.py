"""A prior whose latents follow one another."""

from __future__ import annotations

from pyro_dvae.checks import at_least, code_shape
from pyro_dvae.priors.base import Prior
from pyro_dvae.sequences import CausalCodes, CausalNetwork


class AutoregressivePrior(Prior):
    """p(z) = prod_d Cat(z_d; softmax(V_d h_d + v_d)), h_d = relu(b_d + B_d [z_1 ... z_{d-1}]).

    Any distribution over codes can be written so (the chain rule); with a hidden layer wide enough
    any can be approached. Scores and ancestral draws are exact; each latent is scored by a network
    of its own, of the latents before it (Bengio & Bengio 2000). Uniform until it is trained.

    Args:
        num_latents: D, at least 1.
        num_categories: K, at least 2.
        width: size of the hidden layer of each conditional.

    Raises:
        ValueError: D < 1, K < 2 or width < 1.
    """

    sequential = True

    def __init__(self, num_latents: int, num_categories: int, width: int = 64) -> None:
        super().__init__()
        code_shape(num_latents, num_categories)
        at_least("width of the prior", width, 1)
        self.network = CausalNetwork(num_latents, num_categories, width, uniform=True)

    def forward(self) -> CausalCodes:
        """The distribution over codes, event (D, K)."""
        return CausalCodes(self.network)
