"""ReinMax: pathwise estimators of second order. All are biased."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pyro_dvae.elbos.gumbel_softmax import ConditionalGumbelELBO
from pyro_dvae.elbos.pathwise import PathwiseELBO, jacobian_product


class ReinMaxELBO(PathwiseELBO):
    """2 J((softmax(theta/tau) + D)/2) g - 1/2 J(softmax(theta)) g (Liu et al. 2023).

    J(p) = diag(p) - p p^T, g = df/dz at the draw D. Heun's rule between the draw and the mean:
    exact at tau = 1 for f quadratic in z, elsewhere right to second order.

    Args:
        num_particles: S, draws of z a datum.
        temperature: tau > 0; the paper asks for at least 1, and tunes it to 1.3 to 1.5.
        **options: as in `PathwiseELBO`.
    """

    def __init__(self, num_particles: int = 1, *, temperature: float = 1.3, **options: Any) -> None:
        super().__init__(num_particles, temperature=temperature, **options)

    def pull(self, gradient: Tensor, logits: Tensor, code: Tensor, perturbed: Tensor) -> Tensor:
        """2 J((softmax(theta/tau) + D)/2) g - 1/2 J(pi) g."""
        middle = ((logits / self.temperature).softmax(-1) + code) / 2
        return 2 * jacobian_product(middle, gradient) - jacobian_product(logits.exp(), gradient) / 2


class ReinMaxRaoELBO(ConditionalGumbelELBO):
    """2/tau mean_m J(softmax((theta_D + G_m)/tau)) g - 1/2 J(softmax(theta)) g (Wang & Bui 2026).

    theta_D = log((softmax(theta) + D)/2), and argmax(theta_D + G_m) = D: ReinMax, the Jacobian at
    its middle point replaced by that of Rao-Blackwellised Gumbel noise there. Arguments as in
    `ConditionalGumbelELBO`.
    """

    def pull(self, gradient: Tensor, logits: Tensor, code: Tensor, perturbed: Tensor) -> Tensor:
        """2/tau mean_m J(softmax((theta_D + G_m)/tau)) g - 1/2 J(pi) g."""
        pi = logits.exp()
        first = self.mean_pull(gradient, ((pi + code) / 2).log(), code)
        return 2 * first - jacobian_product(pi, gradient) / 2
