"""The Boltzmann prior over codes, with couplings of all pairs of latents or those of an RBM."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from pyro_dvae.checks import at_least, code_shape, one_of
from pyro_dvae.codes import MAX_CODES, draw_codes, num_codes
from pyro_dvae.displays import named
from pyro_dvae.priors.annealing import PairEnergy
from pyro_dvae.priors.base import Prior
from pyro_dvae.priors.boltzmann_codes import BoltzmannCodes, BoltzmannTable
from pyro_dvae.streams import RandomStream


class BoltzmannPrior(Prior):
    """p(z) = exp(E(z)) / Z, with the energy E(z) = sum_d a_d.z_d + sum_{d<e} z_d' W_de z_e.

    The pairs (d, e) are all pairs of latents, or those between the first ceil(D/2) latents and the
    others. The latter is a restricted Boltzmann machine, as in DVAE (Rolfe 2017) and DVAE++ (Vahdat
    et al. 2018). The prior is uniform until it is trained.

    Up to `max_codes` codes, log Z is summed, draws are exact, and each latent has known
    probabilities given those before it (`sequential`). Above that:

    - log Z is estimated by annealed importance sampling (Neal 2001; Salakhutdinov & Murray 2008) in
      double precision. The estimate is kept together with the weights that it belongs to. When
      `refresh` finds other weights, it makes a new estimate, with a fixed seed. `forward` calls
      `refresh` in eval mode. On average the estimate is **too low**, so log p(z), the ELBO and
      log p(x) look too good. `log_normaliser_error` says by how much the estimate may be wrong,
      unless the chains missed a mode.
    - The gradient of log Z is the mean of dE over persistent chains (Tieleman 2008). The chains
      move in training mode only, once after every gradient that was taken. In training mode the
      value of log Z is the last estimate plus the mean over the chains of the change of E since
      then. For exact draws from p that is at least the change of log Z. In eval mode, and in
      `log_marginal` and `evaluate` in either mode, the value is the estimate itself.
    - Draws are the last states of Gibbs chains of `num_sweeps` sweeps, of which the first half is
      annealed. They are close to p if the chains mix.

    Args:
        num_latents: D, the number of latents of a code, at least 2.
        num_categories: K, the number of categories of a latent, at least 2.
        pairs: "all", or "bipartite" for a restricted Boltzmann machine.
        max_codes: the largest number of codes K^D over which log Z is summed.
        num_chains: the number of persistent chains.
        chain_sweeps: the number of Gibbs sweeps of these chains per training step.
        num_sweeps: the number of Gibbs sweeps for a draw.

    Raises:
        ValueError: an argument out of range.
    """

    pairs: Tensor
    """(pairs, 2) the latents d < e of each coupling W_de."""
    log_normaliser: Tensor
    """() the estimate of log Z in nats. This and what follows exist only if log Z is not summed."""
    log_normaliser_error: Tensor
    """() the standard error of the estimate in nats."""
    estimated_field: Tensor
    """(D, K) the a that the estimate belongs to."""
    estimated_couplings: Tensor
    """(pairs, K, K) the W that the estimate belongs to."""
    chains: Tensor
    """(num_chains, D, K) the one-hot states of the persistent chains."""

    def __init__(
        self,
        num_latents: int,
        num_categories: int,
        pairs: Literal["all", "bipartite"] = "all",
        *,
        max_codes: int = MAX_CODES,
        num_chains: int = 100,
        chain_sweeps: int = 5,
        num_sweeps: int = 500,
    ) -> None:
        super().__init__()
        code_shape(num_latents, num_categories)
        at_least("latents of a Boltzmann prior", num_latents, 2)
        one_of("pairs", pairs, ("all", "bipartite"))
        at_least("chains", num_chains, 1)
        at_least("sweeps of the chains", chain_sweeps, 1)
        at_least("sweeps", num_sweeps, 1)
        self.num_latents, self.num_categories = num_latents, num_categories
        self.chain_sweeps, self.num_sweeps = chain_sweeps, num_sweeps
        self.num_first = half = (num_latents + 1) // 2 if pairs == "bipartite" else 0
        if half:
            numbers = torch.cartesian_prod(torch.arange(half), torch.arange(half, num_latents))
        else:
            numbers = torch.triu_indices(num_latents, num_latents, 1).T.contiguous()
        self.register_buffer("pairs", numbers, persistent=False)
        self.sequential = num_codes(num_latents, num_categories) <= max_codes
        size = (num_categories, num_categories)
        self.field = nn.Parameter(torch.zeros(num_latents, num_categories))
        self.couplings = nn.Parameter(torch.zeros(len(numbers), *size))
        if not self.sequential:
            uniform = torch.zeros(num_chains, num_latents, num_categories)
            self.register_buffer("chains", draw_codes(uniform))
            self.register_buffer("estimated_field", self.field.detach().clone())
            self.register_buffer("estimated_couplings", self.couplings.detach().clone())
            log_uniform = torch.tensor(num_latents * math.log(num_categories))
            self.register_buffer("log_normaliser", log_uniform)
            self.register_buffer("log_normaliser_error", torch.tensor(0.0))
        self._chains_are_due = True

    def extra_repr(self) -> str:
        """The arguments, for `repr`."""
        text = named(
            num_latents=self.num_latents,
            num_categories=self.num_categories,
            pairs="bipartite" if self.num_first else "all",
        )
        return f"{text}, log Z {'summed' if self.sequential else 'estimated'}"

    def forward(self) -> BoltzmannCodes | BoltzmannTable:
        """Return the distribution over codes, with event shape (D, K)."""
        energy = self._energy(self.field, self.couplings)
        if self.sequential:
            return BoltzmannTable(energy)
        if not self.training:
            self.refresh()
        # An ELBO's trial run, after which no step follows, has no gradients.
        elif torch.is_grad_enabled() and self._chains_are_due:
            self.advance(self.chain_sweeps)
        then = self._energy(self.estimated_field, self.estimated_couplings)
        change = (energy(self.chains) - then(self.chains)).mean()
        if change.requires_grad:
            change.register_hook(self._gradient_taken)
        return BoltzmannCodes(
            energy, self.log_normaliser + change, self.log_normaliser_error, self.num_sweeps
        )

    def advance(self, num_sweeps: int) -> None:
        """Move the persistent chains by some Gibbs sweeps at the current weights."""
        energy = self._energy(self.field.detach(), self.couplings.detach())
        chains = self.chains.clone()
        for _ in range(num_sweeps):
            energy.sweep(chains)
        self.chains = chains
        self._chains_are_due = False

    def estimate_log_normaliser(
        self, num_chains: int = 256, num_temperatures: int = 400, seed: int = 0
    ) -> tuple[float, float]:
        """Estimate log Z for the current weights, and keep the estimate.

        Args:
            num_chains: the number of chains of annealed importance sampling, at least 2.
            num_temperatures: the number of temperatures between the factorised start and p. More
                temperatures give a smaller error.
            seed: the seed of the draws; no global random stream is touched.

        Returns:
            log Z and its standard error in nats. If log Z is summed, the error is 0.

        Raises:
            ValueError: fewer than 2 chains or 1 temperature.
        """
        at_least("chains", num_chains, 2)
        at_least("temperatures", num_temperatures, 1)
        # Apple's devices have no double precision.
        device = torch.device("cpu") if self.field.device.type == "mps" else self.field.device
        weights = (self.field.detach(), self.couplings.detach())
        energy = self._energy(*(weight.to(device).double() for weight in weights))
        if self.sequential:
            return energy.table().logsumexp(0).item(), 0.0
        with RandomStream(seed, device):
            value, error = energy.annealed_log_normaliser(num_chains, num_temperatures)
        self.log_normaliser.copy_(value)
        self.log_normaliser_error.copy_(error)
        self.estimated_field.copy_(self.field.detach())
        self.estimated_couplings.copy_(self.couplings.detach())
        return value.item(), error.item()

    def refresh(self) -> None:
        """Estimate log Z anew if the weights have changed; do nothing if log Z is summed."""
        if not (self.sequential or self._is_fresh()):
            self.estimate_log_normaliser()

    def log_prob_error(self) -> float:
        """The standard error of the estimate of log Z in nats; 0 if log Z is summed."""
        return 0.0 if self.sequential else float(self.log_normaliser_error)

    def _gradient_taken(self, gradient: Tensor) -> None:
        # A step follows a gradient. Comparing weights instead would have to wait for the device.
        self._chains_are_due = True

    def _is_fresh(self) -> bool:
        return torch.equal(self.field, self.estimated_field) and torch.equal(
            self.couplings, self.estimated_couplings
        )

    @property
    def blocks(self) -> list[slice]:
        """Ranges of latents such that no two latents of a range are coupled."""
        half, whole = self.num_first, self.num_latents
        steps = [0, half, whole] if half else range(whole + 1)
        return [slice(start, stop) for start, stop in pairwise(steps)]

    def _energy(self, field: Tensor, couplings: Tensor) -> PairEnergy:
        square = (self.num_latents, self.num_latents, self.num_categories, self.num_categories)
        first, second = self.pairs.to(couplings.device).unbind(1)
        weight = couplings.new_zeros(square).index_put((first, second), couplings)
        return PairEnergy(field, weight, self.blocks)
