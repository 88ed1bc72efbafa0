"""Straight-through estimators: the Jacobian of a softmax in place of the derivative of a draw."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pyro_dvae.elbos.pathwise import PathwiseELBO, softmax_pull


class StraightThroughELBO(PathwiseELBO):
    """1/tau J(softmax(theta/tau)) g, J(p) = diag(p) - p p^T (Bengio et al. 2013).

    theta are the logits of q, and g = df/dz is the gradient of the objective f at the one-hot draw.
    At tau = 1 the estimate is exact if f is linear in z, and right to first order otherwise.

    Args:
        num_particles: S, draws of z per datum.
        temperature: tau > 0. Liu et al. (2023) tune it to values between 1.3 and 1.5.
        **options: `beta`, `free_bits`, `max_plate_nesting` of `DiscreteELBO`.
    """

    def pull(self, gradient: Tensor, logits: Tensor, code: Tensor, perturbed: Tensor) -> Tensor:
        """1/tau J(softmax(theta/tau)) g."""
        return softmax_pull(logits, gradient, self.temperature)


class GappedStraightThroughELBO(PathwiseELBO):
    """1/tau J(softmax(theta'/tau)) g, with z ahead by a gap in theta' (Fan et al. 2022).

    J(p) = diag(p) - p p^T, theta are the logits of q, and g = df/dz is the gradient of the
    objective f at the one-hot draw z. theta' are logits whose argmax is z: they are max theta at
    the drawn category, and min(theta_k, max theta - gap) at any other k. A Gumbel relaxation has
    its argmax at z too, but adds noise.

    Args:
        num_particles: S, draws of z per datum.
        temperature: tau > 0.
        gap: lead of the drawn category over the others, in nats, >= 0.
        **options: `beta`, `free_bits`, `max_plate_nesting` of `DiscreteELBO`.

    Raises:
        ValueError: the gap is negative or not finite.
    """

    def __init__(
        self,
        num_particles: int = 1,
        *,
        temperature: float = 1.0,
        gap: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(num_particles, temperature=temperature, **options)
        if not 0 <= gap < math.inf:
            raise ValueError(f"Expected a finite gap >= 0; got {gap}. Use, for example, 1.")
        self.gap = gap

    def extra_repr(self) -> str:
        """The settings, for `repr`."""
        return f"{super().extra_repr()}, gap={self.gap}"

    def pull(self, gradient: Tensor, logits: Tensor, code: Tensor, perturbed: Tensor) -> Tensor:
        """1/tau J(softmax(theta'/tau)) g."""
        top = logits.amax(-1, keepdim=True)
        moved = torch.where(code > 0, top, torch.minimum(logits, top - self.gap))
        return softmax_pull(moved, gradient, self.temperature)
