"""A prior in which each latent depends on the latents before it."""

from __future__ import annotations

from pyro_dvae.checks import at_least, code_shape
from pyro_dvae.priors.base import Prior
from pyro_dvae.sequences import CausalCodes, CausalNetwork


class AutoregressivePrior(Prior):
    """p(z) = prod_d Cat(z_d; softmax(V_d h_d + v_d)), h_d = relu(b_d + B_d [z_1 ... z_{d-1}]).

    Each latent has a network of its own, whose input is the latents before it (Bengio & Bengio
    2000). By the chain rule, any distribution over codes has this form, and with a wide enough
    hidden layer this prior can approach any of them. Log-probabilities and draws are exact. The
    prior is uniform until it is trained.

    Args:
        num_latents: D, the number of latents of a code, at least 1.
        num_categories: K, the number of categories of a latent, at least 2.
        width: the size of the hidden layer of each network.

    Raises:
        ValueError: D < 1, K < 2 or width < 1.
    """

    sequential = True

    def __init__(self, num_latents: int, num_categories: int, width: int = 64) -> None:
        super().__init__()
        code_shape(num_latents, num_categories)
        at_least("width of the prior", width, 1)
        self.network = CausalNetwork(num_latents, num_categories, width, uniform=True)

    def extra_repr(self) -> str:
        """The arguments, for `repr`."""
        return self.network.extra_repr()

    def forward(self) -> CausalCodes:
        """Return the distribution over codes, with event shape (D, K)."""
        return CausalCodes(self.network)
