"""Gumbel-softmax estimators: the Jacobian of a softmax with Gumbel noise."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_dvae.codes import conditional_gumbels
from pyro_dvae.elbos.pathwise import PathwiseELBO, softmax_pull


class GumbelSoftmaxELBO(PathwiseELBO):
    """1/tau J(softmax((theta + G)/tau)) g, G Gumbel noise (Jang et al.; Maddison et al. 2017).

    J(p) = diag(p) - p p^T, theta are the logits of q, and g = df/dz is the gradient of the
    objective f in the input of the decoder.

    With `hard=False`, the decoder gets the relaxed code softmax((theta + G)/tau). **The value of
    `differentiable_loss` is then no bound, but a surrogate** (`value_is_bound` is False). `loss`,
    and all else that is computed without gradients, is the bound at one-hot draws. With `hard=True`
    this is straight-through Gumbel: the decoder gets z = one_hot(argmax(theta + G)).

    Args:
        num_particles: S, draws of z per datum.
        temperature: tau > 0.
        hard: whether the decoder gets the one-hot draw z in place of the relaxed code.
        **options: `beta`, `free_bits`, `max_plate_nesting` of `DiscreteELBO`.
    """

    def __init__(
        self,
        num_particles: int = 1,
        *,
        temperature: float = 1.0,
        hard: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(num_particles, temperature=temperature, **options)
        self.hard = self.value_is_bound = hard

    def extra_repr(self) -> str:
        """The settings, for `repr`."""
        return f"{super().extra_repr()}, hard={self.hard}"

    def value(self, code: Tensor, perturbed: Tensor) -> Tensor:
        """The draw z if `hard` is True or gradients are off, else softmax((theta + G)/tau)."""
        if self.hard or not torch.is_grad_enabled():
            return code
        return (perturbed / self.temperature).softmax(-1)

    def pull(self, gradient: Tensor, logits: Tensor, code: Tensor, perturbed: Tensor) -> Tensor:
        """1/tau J(softmax((theta + G)/tau)) g."""
        return softmax_pull(perturbed, gradient, self.temperature)


class ConditionalGumbelELBO(PathwiseELBO):
    """The base of estimators with 1/tau mean_m J(softmax((theta + G_m)/tau)) g.

    J(p) = diag(p) - p p^T, theta are the logits of q, and g = df/dz is the gradient of the
    objective f at the one-hot draw z. G_1 ... G_M are draws of Gumbel noise, given that
    argmax(theta + G_m) = z.

    Args:
        num_particles: S, draws of z per datum.
        temperature: tau > 0.
        num_conditional: M, draws of G per draw z. The backward pass draws them, in memory that
            grows with M.
        **options: `beta`, `free_bits`, `max_plate_nesting` of `DiscreteELBO`.

    Raises:
        ValueError: num_conditional < 1.
    """

    def __init__(
        self,
        num_particles: int = 1,
        *,
        temperature: float = 1.0,
        num_conditional: int = 100,
        **options: Any,
    ) -> None:
        super().__init__(num_particles, temperature=temperature, **options)
        if num_conditional < 1:
            raise ValueError(
                f"Expected num_conditional of at least 1; got {num_conditional}. Raise it."
            )
        self.num_conditional = num_conditional

    def extra_repr(self) -> str:
        """The settings, for `repr`."""
        return f"{super().extra_repr()}, num_conditional={self.num_conditional}"

    def mean_pull(self, gradient: Tensor, logits: Tensor, code: Tensor) -> Tensor:
        """1/tau mean_m J(softmax((theta + G_m)/tau)) g, (*plates, D, K).

        Args:
            gradient: (*plates, D, K), g.
            logits: (*plates, D, K), theta.
            code: (*plates, D, K), the one-hot draw z.
        """
        draws = conditional_gumbels(logits, code, self.num_conditional)
        return softmax_pull(draws, gradient, self.temperature).mean(0)


class RaoGumbelELBO(ConditionalGumbelELBO):
    """1/tau mean_m J(softmax((theta + G_m)/tau)) g, argmax(theta + G_m) = z (Paulus et al. 2021).

    This is the Rao-Blackwellised straight-through Gumbel estimator. The mean of its gradient is
    that of `GumbelSoftmaxELBO(hard=True)`, and its variance is lower. It needs M draws of noise,
    but only one evaluation of the decoder. `ConditionalGumbelELBO` explains symbols and arguments.
    """

    def pull(self, gradient: Tensor, logits: Tensor, code: Tensor, perturbed: Tensor) -> Tensor:
        """1/tau mean_m J(softmax((theta + G_m)/tau)) g."""
        return self.mean_pull(gradient, logits, code)
