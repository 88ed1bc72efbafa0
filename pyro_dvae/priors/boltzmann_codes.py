"""Distributions over codes p(z) = exp(E(z)) / Z, with log Z estimated or summed."""

from __future__ import annotations

import copy
import math
from typing import Any, ClassVar

import torch
from pyro.distributions import constraints
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor

from pyro_dvae.priors.annealing import PairEnergy
from pyro_dvae.sequences import SequentialCodes


class BoltzmannCodes(TorchDistribution):
    """p(z) = exp(E(z)) / Z with event shape (D, K), where log Z is an estimate with an error.

    Args:
        energy: E.
        log_normaliser: () log Z in nats, with its gradient.
        log_normaliser_error: () the standard error of log Z in nats.
        num_sweeps: the number of Gibbs sweeps for a draw.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    has_rsample = False

    def __init__(
        self,
        energy: PairEnergy,
        log_normaliser: Tensor,
        log_normaliser_error: Tensor,
        num_sweeps: int,
    ) -> None:
        super().__init__(event_shape=energy.field.shape)
        self.energy, self.num_sweeps = energy, num_sweeps
        self.log_normaliser, self.log_normaliser_error = log_normaliser, log_normaliser_error

    @property
    def support(self) -> constraints.Constraint:
        """The one-hot codes."""
        return constraints.independent(constraints.one_hot, 1)

    def expand(self, batch_shape: Any, _instance: Any = None) -> BoltzmannCodes:
        """The same distribution with a larger batch shape; nothing is copied."""
        other = copy.copy(self)
        other._batch_shape = torch.Size(batch_shape)
        return other

    def log_prob(self, value: Tensor) -> Tensor:
        """E(z) - log Z in nats, (...), of codes (..., D, K), one-hot or relaxed."""
        score = self.energy(value) - self.log_normaliser
        return score.expand(torch.broadcast_shapes(score.shape, self.batch_shape))

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw codes (*sample_shape, *batch, D, K), with one Gibbs chain for each."""
        shape = torch.Size(sample_shape) + self.batch_shape
        codes = self.energy.chains(math.prod(shape), self.num_sweeps)
        return codes.reshape(*shape, *self.event_shape)


class BoltzmannTable(SequentialCodes):
    """p(z) = exp(E(z)) / Z with event shape (D, K), computed by sums over all K^D codes.

    For relaxed codes, log p(z) and the conditionals are linear in each latent. So
    log p(z) = sum_d z_d . log p(z_d | z_1 ... z_{d-1}) holds for relaxed codes too.

    Args:
        energy: E.
    """

    def __init__(self, energy: PairEnergy) -> None:
        super().__init__(torch.Size(), *energy.field.shape)
        self.energy = energy
        total = energy.table()
        self.conditionals: list[Tensor] = []  # per d the table (K^d, K) of log p(z_{d+1} | ...)
        for _ in range(self.event_shape[0]):
            later = total.view(-1, self.event_shape[-1])
            total = later.logsumexp(-1)
            self.conditionals.insert(0, later - total.unsqueeze(-1))
        self.log_normaliser = total.squeeze(0)
        self.log_normaliser_error = torch.zeros_like(self.log_normaliser.detach())

    @property
    def like(self) -> Tensor:
        """A tensor with the dtype and the device of the drawn codes."""
        return self.conditionals[0]

    def conditional(self, prefix: Tensor) -> Tensor:
        """Log p(z_{d+1} | z_1 ... z_d) in nats, (..., K), given a prefix (..., d, K)."""
        latents = prefix.shape[-2]
        table = self.conditionals[latents]
        if latents == 0:
            return table[0]
        prefix = prefix.to(table)
        # A graph for export may not branch by what a tensor holds.
        traced = torch.compiler.is_compiling()
        if traced or prefix.requires_grad or not ((prefix == 0) | (prefix == 1)).all():
            mixed = table.flatten()
            for latent in prefix.unbind(-2):
                rest = mixed.view(*mixed.shape[:-1], self.event_shape[-1], -1)
                mixed = (latent.unsqueeze(-2) @ rest).squeeze(-2)
            return mixed
        # One-hot codes without a gradient need only a look-up, which takes no memory.
        place = self.event_shape[-1] ** torch.arange(latents - 1, -1, -1, device=prefix.device)
        return table[(prefix.argmax(-1) * place).sum(-1)]

    def log_prob(self, value: Tensor) -> Tensor:
        """E(z) - log Z in nats, (...), of codes (..., D, K), one-hot or relaxed."""
        score = self.energy(value) - self.log_normaliser
        return score.expand(torch.broadcast_shapes(score.shape, self.batch_shape))
