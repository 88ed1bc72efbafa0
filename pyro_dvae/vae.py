"""The discrete variational autoencoder as a pair of Pyro programs."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistribution
from pyro.nn import PyroModule, pyro_method
from torch import Tensor, nn

from pyro_dvae.codes import one_hot


class DiscreteVAE(PyroModule):
    """p(x, z) = p(z) p(x|z) with z a code of D one-hot variables, and q(z|x) = prod_d Cat(f(x)_d).

    `model` and `guide` are plain Pyro programs with sites "z" (event (D, K)) and "x" in the plate
    "data". They run under any Pyro inference; how q is differentiated is
    the ELBO's affair.

    Args:
        encoder: (B, *event) -> logits (B, D, K).
        decoder: (..., D, K) -> parameters (..., *event) of the likelihood.
        prior: `forward()` -> a distribution with event (D, K).
        likelihood: `forward(params, event_dim)` -> a distribution over x.
    """

    def __init__(
        self, encoder: nn.Module, decoder: nn.Module, prior: nn.Module, likelihood: nn.Module
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.prior = prior
        self.likelihood = likelihood
        self._num_params = int(likelihood.num_params)  # type: ignore[arg-type]

    @pyro_method
    def model(self, x: Tensor | None = None, *, num_data: int = 1) -> Tensor:
        """The generative program (Eqs. 46 and 48 of [JL25]); with x None it draws `num_data` data.

        Args:
            x: (B, *event), or None.
            num_data: B where x is None.

        Returns:
            (B, *event), the value of site "x".
        """
        with pyro.plate("data", num_data if x is None else x.shape[0]):
            z = pyro.sample("z", self.prior())
            return pyro.sample("x", self.decode(z), obs=x)

    @pyro_method
    def guide(self, x: Tensor | None = None, *, num_data: int = 1) -> Tensor:
        """The honest categorical q(z|x) (Eqs. 14, 15 and 47 of [JL25]); signature of `model`.

        log q(z|x) = sum_d log f(x)_d,k(d), k(d) the category drawn for latent d (Eq. 80).

        Raises:
            ValueError: x is None, for q needs data.
        """
        if x is None:
            raise ValueError("Expected data x for q(z|x); got None. Pass x, or run the model.")
        with pyro.plate("data", x.shape[0]):
            code = dist.OneHotCategorical(logits=self.encode(x)).to_event(1)
            return pyro.sample("z", code)

    def encode(self, x: Tensor) -> Tensor:
        """Logits (B, D, K) of q(z|x) for data (B, *event)."""
        return self.encoder(x)

    def decode(self, z: Tensor) -> TorchDistribution:
        """p(x|z): a distribution with batch shape (...) and event shape *event.

        Args:
            z: (..., D, K) one-hot codes.
        """
        params = self.decoder(z)
        event_dim = params.dim() - (z.dim() - 2) - (self._num_params > 1)
        return self.likelihood(params, event_dim)

    @torch.no_grad()
    def reconstruct(self, x: Tensor) -> Tensor:
        """E[x'|z], (B, *event), at the most probable code z of q(z|x)."""
        logits = self.encode(x)
        z = one_hot(logits.argmax(-1), logits.shape[-1], dtype=logits.dtype)
        return self.decode(z).mean

    @torch.no_grad()
    def sample(self, num_samples: int, *, means: bool = False) -> Tensor:
        """Draw z from the prior, then x, or with `means` E[x|z], (num_samples, *event)."""
        x = self.decode(self.prior().expand([num_samples]).sample())
        return x.mean if means else x.sample()
