"""Pairwise energies: scores, Gibbs sweeps, and log Z by annealed importance sampling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from pyro_dvae.codes import draw_codes


class PairEnergy:
    """E(z) = sum_d a_d.z_d + sum_{d<e} z_d' W_de z_e, the energy of p(z) = exp(E(z)) / Z.

    E is linear in each latent. So at the probabilities of a factorised q, it is E_q[E(z)].

    Args:
        field: (D, K) a.
        weight: (D, D, K, K) W, which is 0 unless d < e.
        blocks: ranges of latents such that no two latents of a range are coupled. Gibbs sampling
            draws each range at once.
    """

    def __init__(self, field: Tensor, weight: Tensor, blocks: Sequence[slice]) -> None:
        self.field, self.weight, self.blocks = field, weight, blocks

    def __call__(self, codes: Tensor) -> Tensor:
        """E in nats, (...), of codes (..., D, K), one-hot or relaxed."""
        flat = codes.to(self.field.dtype).flatten(-2)
        matrix = self.weight.transpose(1, 2).reshape(self.field.numel(), -1)
        return ((flat @ matrix + self.field.flatten()) * flat).sum(-1)

    def table(self) -> Tensor:
        """E in nats, (K^D,), of all codes in the order of `enumerate_codes`."""
        total = self.field[0]
        for latent in range(1, len(self.field)):
            given = self.field[latent].unsqueeze(0)  # (K^e, K) after e passes of the loop below
            for weight in self.weight[:latent, latent]:
                given = (given.unsqueeze(-2) + weight).flatten(0, 1)
            total = (total.unsqueeze(-1) + given).flatten()
        return total

    @cached_property
    def base(self) -> Tensor:
        """(D, K) logits of the factorised distribution from which annealing starts.

        Those of a latent are its logits if all other latents are uniform. They do not depend on how
        E is split between a and W.
        """
        return self.field + self._symmetric.sum(0) / self.field.shape[-1]

    def base_score(self, codes: Tensor) -> Tensor:
        """sum_d b_d.z_d, (...), where b is `base`."""
        return (codes * self.base).sum((-2, -1))

    @torch.no_grad()
    def sweep(self, codes: Tensor, temperature: float = 1.0) -> None:
        """Draw every latent anew given the others, in place, under exp(t E(z) + (1 - t) b.z).

        Args:
            codes: (C, D, K) one-hot, the states of C chains.
            temperature: t, from 0 for the base distribution to 1 for p.
        """
        for block in self.blocks:
            given = codes.flatten(1) @ self._symmetric[:, block].flatten(1)
            logits = self.field[block] + given.view(len(codes), -1, codes.shape[-1])
            codes[:, block] = draw_codes(self.base[block].lerp(logits, temperature))

    @torch.no_grad()
    def chains(self, num_chains: int, num_sweeps: int) -> Tensor:
        """Run chains from the base distribution, and return their last states (num_chains, D, K).

        t grows from 0 to 1 over the first half of the sweeps.
        """
        codes = draw_codes(self.base.expand(num_chains, *self.base.shape))
        for number in range(1, num_sweeps + 1):
            self.sweep(codes, min(1.0, 2 * number / num_sweeps))
        return codes

    @torch.no_grad()
    def annealed_log_normaliser(
        self, num_chains: int, num_temperatures: int
    ) -> tuple[Tensor, Tensor]:
        """Log Z and its standard error in nats, by annealed importance sampling.

        log Z = log Z_0 + log mean_c w_c, log w_c = sum_i (t_{i+1} - t_i) (E(z_i) - b.z_i). z_0 is
        drawn from the base distribution, and z_i by a Gibbs sweep at t_i from z_{i-1} (Neal 2001;
        Salakhutdinov & Murray 2008). E[w] Z_0 = Z, so by Jensen's inequality the estimate is too
        low on average. The standard error is a jackknife over the chains.

        Args:
            num_chains: C, the number of chains, at least 2.
            num_temperatures: the number of steps from t = 0 to t = 1.
        """
        codes = draw_codes(self.base.expand(num_chains, *self.base.shape))
        log_weight = codes.new_zeros(num_chains)
        for low, high in pairwise(i / num_temperatures for i in range(num_temperatures + 1)):
            log_weight += (high - low) * (self(codes) - self.base_score(codes))
            if high < 1:
                self.sweep(codes, high)
        total = log_weight.logsumexp(0)
        log_mean = total - math.log(num_chains)
        share = (log_weight - total).exp()
        # If one weight is all of the sum, nothing is left without it, so its share is kept below 1.
        without = torch.log1p(-share.clamp(max=1 - torch.finfo(share.dtype).eps))
        error = ((num_chains - 1) * without.var(correction=0)).sqrt()
        return self.base.logsumexp(-1).sum() + log_mean, error

    @cached_property
    def _symmetric(self) -> Tensor:
        """(D K, D, K): row (e, l) holds what z_e = l adds to the logits of all latents."""
        weight = self.weight.detach()
        both = weight + weight.permute(1, 0, 3, 2)
        return both.transpose(1, 2).reshape(self.field.numel(), *self.field.shape)
