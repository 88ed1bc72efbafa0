"""ReinMax: pathwise estimators that are right to second order. They are biased."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pyro_dvae.elbos.gumbel_softmax import ConditionalGumbelELBO
from pyro_dvae.elbos.pathwise import PathwiseELBO, jacobian_product


class ReinMaxELBO(PathwiseELBO):
    """2 J((softmax(theta/tau) + z)/2) g - 1/2 J(softmax(theta)) g (Liu et al. 2023).

    J(p) = diag(p) - p p^T, theta are the logits of q, and g = df/dz is the gradient of the
    objective f at the one-hot draw z. It is Heun's rule between the draw and the mean. At tau = 1
    the estimate is exact if f is quadratic in z, and right to second order otherwise.

    Args:
        num_particles: S, draws of z per datum.
        temperature: tau > 0. The paper asks for at least 1, and tunes it to values between 1.3 and
            1.5.
        **options: `beta`, `free_bits`, `max_plate_nesting` of `DiscreteELBO`.
    """

    def __init__(self, num_particles: int = 1, *, temperature: float = 1.3, **options: Any) -> None:
        super().__init__(num_particles, temperature=temperature, **options)

    def pull(self, gradient: Tensor, logits: Tensor, code: Tensor, perturbed: Tensor) -> Tensor:
        """2 J((softmax(theta/tau) + z)/2) g - 1/2 J(softmax(theta)) g."""
        middle = ((logits / self.temperature).softmax(-1) + code) / 2
        return 2 * jacobian_product(middle, gradient) - jacobian_product(logits.exp(), gradient) / 2


class ReinMaxRaoELBO(ConditionalGumbelELBO):
    """2/tau mean_m J(softmax((theta_z + G_m)/tau)) g - 1/2 J(softmax(theta)) g (Wang & Bui 2026).

    It is ReinMax with another first Jacobian: the mean over Gumbel noise G_1 ... G_M, given that
    argmax(theta_z + G_m) = z, at the logits theta_z = log((softmax(theta) + z)/2).
    `ConditionalGumbelELBO` explains the other symbols and the arguments.
    """

    def pull(self, gradient: Tensor, logits: Tensor, code: Tensor, perturbed: Tensor) -> Tensor:
        """2/tau mean_m J(softmax((theta_z + G_m)/tau)) g - 1/2 J(softmax(theta)) g."""
        pi = logits.exp()
        first = self.mean_pull(gradient, ((pi + code) / 2).log(), code)
        return 2 * first - jacobian_product(pi, gradient) / 2
