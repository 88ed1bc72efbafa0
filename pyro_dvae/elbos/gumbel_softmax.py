"""Gumbel-softmax estimators: the Jacobian of a softmax with Gumbel noise."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_dvae.codes import conditional_gumbels
from pyro_dvae.elbos.pathwise import PathwiseELBO, softmax_pull


class GumbelSoftmaxELBO(PathwiseELBO):
    """1/tau J(softmax((theta + G)/tau)) g, G Gumbel noise (Jang et al.; Maddison et al. 2017).

    Soft, the decoder sees softmax((theta + G)/tau) and g is taken there: **the value of
    `differentiable_loss` is then a surrogate, not a bound** (`value_is_bound` is False), while
    `loss`, as anything without gradients, is the bound at one-hot draws. Hard, or straight-through
    Gumbel, it sees D = one_hot(argmax(theta + G)).

    Args:
        num_particles: S, draws of z a datum.
        temperature: tau > 0.
        hard: go on with D instead of its relaxation.
        **options: as in `PathwiseELBO`.
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
        """D, or without `hard` its relaxation where gradients are wanted."""
        if self.hard or not torch.is_grad_enabled():
            return code
        return (perturbed / self.temperature).softmax(-1)

    def pull(self, gradient: Tensor, logits: Tensor, code: Tensor, perturbed: Tensor) -> Tensor:
        """1/tau J(softmax((theta + G)/tau)) g."""
        return softmax_pull(perturbed, gradient, self.temperature)


class ConditionalGumbelELBO(PathwiseELBO):
    """1/tau mean_m J(softmax((theta + G_m)/tau)) g, M draws of noise given argmax = D.

    Args:
        num_particles: S, draws of z a datum.
        temperature: tau > 0.
        num_conditional: M, draws of G given D; they are made, and held, in the backward pass.
        **options: as in `PathwiseELBO`.

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
                f"Expected at least 1 conditional draw; got {num_conditional}. Raise it."
            )
        self.num_conditional = num_conditional

    def extra_repr(self) -> str:
        """The settings, for `repr`."""
        return f"{super().extra_repr()}, num_conditional={self.num_conditional}"

    def mean_pull(self, gradient: Tensor, logits: Tensor, code: Tensor) -> Tensor:
        """1/tau mean_m J(softmax((theta + G_m)/tau)) g, argmax(theta + G_m) = D."""
        draws = conditional_gumbels(logits, code, self.num_conditional)
        return softmax_pull(draws, gradient, self.temperature).mean(0)


class RaoGumbelELBO(ConditionalGumbelELBO):
    """1/tau mean_m J(softmax((theta + G_m)/tau)) g, argmax(theta + G_m) = D (Paulus et al. 2021).

    The Rao-Blackwellised straight-through Gumbel: the mean of `GumbelSoftmaxELBO(hard=True)` with
    less variance, for M draws of noise and still one evaluation of the decoder. Arguments as in
    `ConditionalGumbelELBO`.
    """

    def pull(self, gradient: Tensor, logits: Tensor, code: Tensor, perturbed: Tensor) -> Tensor:
        """1/tau mean_m J(softmax((theta + G_m)/tau)) g."""
        return self.mean_pull(gradient, logits, code)
