"""Straight-through estimators: the Jacobian of a softmax in place of the derivative of a draw."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pyro_dvae.elbos.pathwise import PathwiseELBO, softmax_pull


class StraightThroughELBO(PathwiseELBO):
    """1/tau J(softmax(theta/tau)) g, J(p) = diag(p) - p p^T, g = df/dz at D (Bengio et al. 2013).

    Exact at tau = 1 for f linear in z, elsewhere right to first order.

    Args:
        num_particles: S, draws of z a datum.
        temperature: tau > 0; [Liu et al. 2023] tune it to between 1.3 and 1.5.
        **options: as in `PathwiseELBO`.
    """

    def pull(self, gradient: Tensor, logits: Tensor, code: Tensor, perturbed: Tensor) -> Tensor:
        """1/tau J(softmax(theta/tau)) g."""
        return softmax_pull(logits, gradient, self.temperature)


class GappedStraightThroughELBO(PathwiseELBO):
    """1/tau J(softmax(theta'/tau)) g, theta' moved so that D leads by a gap (Fan et al. 2022).

    theta'_D = max theta, and the others min(theta_k, max theta - gap): consistent with the draw as
    a Gumbel relaxation is, without its noise.

    Args:
        num_particles: S, draws of z a datum.
        temperature: tau > 0.
        gap: in nats, >= 0.
        **options: as in `PathwiseELBO`.

    Raises:
        ValueError: gap negative or not finite.
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
            raise ValueError(f"Expected a finite gap >= 0; got {gap}. Use 1.0, say.")
        self.gap = gap

    def extra_repr(self) -> str:
        """The settings, for `repr`."""
        return f"{super().extra_repr()}, gap={self.gap}"

    def pull(self, gradient: Tensor, logits: Tensor, code: Tensor, perturbed: Tensor) -> Tensor:
        """1/tau J(softmax(theta'/tau)) g."""
        top = logits.amax(-1, keepdim=True)
        moved = torch.where(code > 0, top, torch.minimum(logits, top - self.gap))
        return softmax_pull(moved, gradient, self.temperature)
