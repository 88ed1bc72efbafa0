"""Score-function estimators: REINFORCE and its baselines, leave-one-out."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from pyro_dvae.elbos.base import DiscreteELBO, Terms


class ReinforceELBO(DiscreteELBO):
    """(f(z) - b) grad log q(z|x), f the learning signal (Williams 1992; Eqs. 22 to 27 of [JL25]).

    With a prior whose KL is in closed form, f = log p(x|z) = -BCE(g(z), x): the tutorial's
    recipe (Eqs. 71 to 81, 84 and 85).
    A baseline b that does not depend on the draw leaves the mean of the gradient as it is and
    lowers its variance.

    Args:
        num_particles: S, draws of z a datum.
        baseline: None for b = 0; a number, in nats per datum ([JL25] uses f + 125, so b = -125); or
            "running_mean", the exponential mean of f over the steps before this one.
        decay: weight of the past in the running mean.
        **options: `beta`, `free_bits`, `analytic_kl`, `max_plate_nesting` of `DiscreteELBO`.

    Raises:
        ValueError: an unknown baseline, one that is not finite, or a decay outside [0, 1).
    """

    is_unbiased: ClassVar[bool] = True
    mean: Tensor
    weight: Tensor

    def __init__(
        self,
        num_particles: int = 1,
        *,
        baseline: float | Literal["running_mean"] | None = None,
        decay: float = 0.99,
        **options: Any,
    ) -> None:
        super().__init__(num_particles, **options)
        named = isinstance(baseline, str)
        if (named and baseline != "running_mean") or (
            isinstance(baseline, (int, float)) and not math.isfinite(baseline)
        ):
            raise ValueError(
                f"Expected a baseline that is None, finite, or 'running_mean'; got {baseline!r}. "
                "Choose one of them."
            )
        if not 0 <= decay < 1:
            raise ValueError(f"Expected a decay in [0, 1); got {decay}. Use 0.99, say.")
        self.baseline = baseline
        self.decay = decay
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("weight", torch.zeros(()))

    def surrogate(self, terms: Terms) -> Tensor:
        """(*batch) whose gradient is the estimator."""
        signal = terms.learning_signal.detach()  # (S, *batch)
        return self.objective(terms) + ((signal - self._baseline(signal)) * terms.log_guide).mean(0)

    def _baseline(self, signal: Tensor) -> Tensor | float:
        if self.baseline != "running_mean":
            return self.baseline or 0.0
        # The weights of the past sum to `weight`; before the first step there is none.
        baseline = torch.where(self.weight > 0, self.mean / self.weight, 0.0)
        self.mean = self.decay * self.mean + (1 - self.decay) * signal.mean()
        self.weight = self.decay * self.weight + (1 - self.decay)
        return baseline


class RlooELBO(DiscreteELBO):
    """1/(S-1) sum_s (f_s - mean f) grad log q(z_s|x): REINFORCE, leave-one-out (Kool et al. 2019).

    Each particle's baseline is the mean learning signal of the datum's other particles, so it is
    independent of the draw, costs nothing and needs no tuning.

    Args:
        num_particles: S, at least 2.
        **options: `beta`, `free_bits`, `analytic_kl`, `max_plate_nesting` of `DiscreteELBO`.

    Raises:
        ValueError: num_particles < 2.
    """

    is_unbiased: ClassVar[bool] = True

    def __init__(self, num_particles: int = 4, **options: Any) -> None:
        if num_particles < 2:
            raise ValueError(
                "Expected at least 2 particles for the leave-one-out baseline; got "
                f"{num_particles}. Raise num_particles, or use ReinforceELBO."
            )
        super().__init__(num_particles, **options)

    def surrogate(self, terms: Terms) -> Tensor:
        """(*batch) whose gradient is the estimator."""
        signal = terms.learning_signal.detach()  # (S, *batch)
        others = (signal.sum(0) - signal) / (self.num_particles - 1)
        return self.objective(terms) + ((signal - others) * terms.log_guide).mean(0)
