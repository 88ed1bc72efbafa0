"""The first steps of a training, whose gradient is that of ReinMax."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pyro_dvae.elbos.base import DiscreteELBO
from pyro_dvae.elbos.reinmax import ReinMaxELBO
from pyro_dvae.training.adam import FusedAdam
from pyro_dvae.training.backward import Backward
from pyro_dvae.vae import DiscreteVAE


class ReinMaxSteps(Backward):
    """The gradient of `ReinMaxELBO`, with the beta and the free bits of the training's own ELBO.

    A training by a score function stays on a plateau at first, where the code tells nothing about
    the data: its gradient there is mostly noise. That of ReinMax has little noise, so that a few
    hundred steps leave the plateau. But it is biased. With 49 latents that share their 64
    categories, as those of the network "conv-grid" do, it uses some 20 of these, for which the KL
    to a uniform prior is 20 to 30 nats larger than it need be. An unbiased ELBO afterwards mends
    that within an epoch. `examples/benchmarks/README.md` has the figures.

    Args:
        vae: the model and its guide.
        elbo: the training's own ELBO.
        optimizer: the optimizer, which holds the weights.
        rows: a few data for a trial run, as model and guide take them: x (B, *event) first.

    Raises:
        ValueError: the ELBO has no beta, so that it is another objective.
    """

    def __init__(
        self, vae: DiscreteVAE, elbo: Any, optimizer: FusedAdam, rows: tuple[Tensor, ...]
    ) -> None:
        if not (isinstance(elbo, DiscreteELBO) and elbo.has_beta):
            raise ValueError(
                f"Expected an ELBO with beta after the first steps by ReinMax; got "
                f"{type(elbo).__name__}. Use reinmax_steps=0, or another estimator."
            )
        self._own = elbo
        super().__init__(vae, ReinMaxELBO(free_bits=elbo.free_bits), optimizer, rows)

    def __call__(self, batch: tuple[Tensor, ...], bad: Tensor) -> Tensor:
        """See `Backward`."""
        self.elbo.beta = self._own.beta
        return super().__call__(batch, bad)
