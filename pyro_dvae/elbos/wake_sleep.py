"""Reweighted wake-sleep: maximum likelihood for the model, and forward KL for the guide."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from pyro_dvae.elbos.distributions import describe
from pyro_dvae.elbos.multi_sample import VimcoELBO, scaled_log_guide
from pyro_dvae.elbos.pair import Pair
from pyro_dvae.elbos.terms import Terms


class WakeSleepELBO(VimcoELBO):
    """sum_s w_s / (sum_j w_j) grad (log p(x, z_s) + log q(z_s|x)), w_s = p(x, z_s) / q(z_s|x).

    These are the two wake phases of reweighted wake-sleep (Bornschein & Bengio 2015), per datum.
    The first term estimates the gradient of log p(x) in the weights of the model. The second
    estimates that of -KL(p(z|x) || q(z|x)), the forward KL, in the weights of the guide. Both have
    a bias, which falls as 1/S. No draw is differentiated, and no baseline is needed. The sleep
    phase, which fits the guide to draws of the model, is not part of it. `MarginalELBO` is its
    limit for many particles. **The value is the importance-weighted bound**, as that of
    `VimcoELBO`.

    With beta != 1 the target of the guide is the posterior of the likelihood p(x|z)^(1/beta): the
    weights are w_s = p(x|z_s)^(1/beta) p(z_s) / q(z_s|x). It is also the best guide of the ELBO
    with this beta. log p(z) then has the weight beta in the first term.

    Args:
        num_particles: S, at least 2. Each needs one decoder evaluation per datum.
        **options: `beta` > 0, `max_plate_nesting` of `DiscreteELBO`.

    Raises:
        ValueError: num_particles < 2, beta is 0, or free bits are given. When it is run: the guide
            has reparametrised draws, or scales are as `VimcoELBO` refuses them.
        TypeError: `analytic_kl` is given.
    """

    is_unbiased: ClassVar[bool] = False

    def __init__(self, num_particles: int = 4, **options: Any) -> None:
        super().__init__(num_particles, **options)
        if not self.beta:
            raise ValueError("Expected a beta > 0, by which it divides; got 0. Raise beta.")

    def split(self, pair: Pair) -> Terms:
        """The terms of the ELBO, from the traces of model and guide."""
        for name, site in pair.guide_sites.items():
            if site["fn"].has_rsample and not site["is_observed"]:
                raise ValueError(
                    "Expected draws that are not reparametrised, since the guide is fitted to "
                    f"them; got {describe(site['fn'])} at site '{name}'. Use VimcoELBO."
                )
        return super().split(pair)

    def surrogate(self, terms: Terms) -> Tensor:
        """(*batch) nats. Its gradient is the estimate."""
        log_joint = terms.log_likelihood - terms.penalty  # with log q in it, detached
        weight = (log_joint.detach() / self.beta).softmax(0)
        return (weight * (log_joint + scaled_log_guide(terms))).sum(0)
