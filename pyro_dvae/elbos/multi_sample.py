"""VIMCO: the importance-weighted bound on log p(x), with a baseline for each particle."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from pyro.distributions.util import is_identically_zero
from torch import Tensor

from pyro_dvae.codes import total
from pyro_dvae.elbos.base import DiscreteELBO
from pyro_dvae.elbos.pair import Pair
from pyro_dvae.elbos.plates import common_scale
from pyro_dvae.elbos.terms import Terms


class VimcoELBO(DiscreteELBO):
    """sum_s (L - L_{-s}) grad log q(z_s|x) + sum_s w_s / (sum_j w_j) grad log w_s.

    This is VIMCO (Mnih & Rezende 2016), an unbiased gradient of the importance-weighted bound
    L = log 1/S sum_s w_s per datum, with weights w_s = p(x, z_s) / q(z_s|x). L_{-s} is L with
    log w_s replaced by the mean of the other log w. So this baseline does not depend on z_s. **The
    value is L.** In expectation, L lies between the ELBO (S = 1) and log p(x), and grows with S
    (Burda et al. 2016).

    The bound has no closed form, so the KL is log q - log p at the draws. With beta != 1 the
    gradient is that of the bound with w_s = p(x|z_s) (p(z_s) / q(z_s|x))^beta. If all sites have
    one scale (`poutine.scale`, or N/B of a plate), it is a factor in front of the logarithm. If
    only a latent has a scale, in model and guide, it acts as a beta of that latent.

    Args:
        num_particles: S, at least 2. Each needs one decoder evaluation per datum.
        **options: `beta`, `max_plate_nesting` of `DiscreteELBO`.

    Raises:
        ValueError: num_particles < 2, or free bits are given. When it is run: observed sites have
            several scales, or a latent has different scales in model and guide.
        TypeError: `analytic_kl` is given.
    """

    is_unbiased: ClassVar[bool] = True

    def __init__(self, num_particles: int = 4, **options: Any) -> None:
        if num_particles < 2:
            raise ValueError(
                f"Expected at least 2 particles for {type(self).__name__}; got "
                f"{num_particles}. Raise num_particles, or use ReinforceELBO."
            )
        super().__init__(num_particles, **options, analytic_kl=False)
        if self.free_bits:
            raise ValueError(
                "Expected no free bits, since the bound has no KL term; got free_bits = "
                f"{self.free_bits}. Use RlooELBO."
            )

    def extra_repr(self) -> str:
        """The settings, for `repr`."""
        return f"num_particles={self.num_particles}, beta={self.beta}"

    def loss_scale(self, pair: Pair) -> float:
        """The scale of the observed sites, a factor in front of the logarithm."""
        for name in pair.guide_sites.keys() & pair.latents.keys():
            common_scale(pair.latents[name], pair.guide_sites[name])
        observed = [site for site in pair.model_sites.values() if site["is_observed"]]
        return common_scale(*(observed or pair.latents.values()))

    def bound(self, terms: Terms) -> Tensor:
        """(*batch) L, the importance-weighted bound, in nats per datum."""
        return log_mean_exp(self.log_weights(terms))

    def log_weights(self, terms: Terms) -> Tensor:
        """(S, *batch) log w_s = log p(x, z_s) - log q(z_s|x), whatever beta is, in nats."""
        flat, latents = terms.pair.plates.flat, terms.pair.latents
        log_w = terms.log_likelihood
        for name, site in terms.pair.guide_sites.items():
            log_p = latents[name]["log_prob"] if name in latents else 0.0
            log_w = log_w - flat((site["log_prob"] - log_p) / site["scale"])
        return log_w

    def surrogate(self, terms: Terms) -> Tensor:
        """(*batch) nats. Its gradient is the estimate."""
        # In the KL of a draw, log q is detached. The gradient of log w needs that of log q.
        log_q = scaled_log_guide(terms)
        log_w = terms.log_likelihood - terms.penalty - self.beta * (log_q - log_q.detach())
        bound = log_mean_exp(log_w)  # its gradient is the second sum of the formula
        signal = (bound - _leave_one_out(log_w)).detach()  # (S, *batch)
        return bound + (signal * terms.log_guide).sum(0)


def log_mean_exp(log_w: Tensor) -> Tensor:
    """(*batch) log 1/S sum_s w_s of weights whose logarithms are (S, *batch)."""
    return log_w.logsumexp(0) - math.log(log_w.shape[0])


def _leave_one_out(log_w: Tensor) -> Tensor:
    """(S, *batch) L_{-s}, where log w_s is replaced by the mean of the other log w."""
    num_particles = log_w.shape[0]
    itself = torch.eye(num_particles, dtype=torch.bool, device=log_w.device)
    itself = itself.reshape(num_particles, num_particles, *[1] * (log_w.dim() - 1))
    others = log_w.unsqueeze(1).expand(-1, num_particles, *log_w.shape[1:])  # (S, left out, *batch)
    mean = others.masked_fill(itself, 0).sum(0) / (num_particles - 1)
    return log_mean_exp(torch.where(itself, mean, others))


def scaled_log_guide(terms: Terms) -> Tensor:
    """(S, *batch) log q(z|x) of the sites without reparametrised draws, as it counts in the KL."""
    # It differs from `Terms.log_guide` where a site has a mask: here it acts as in the KL.
    plates = terms.pair.plates
    scored = [
        plates.flat(site["log_prob"]) / terms.scale
        for site in terms.pair.guide_sites.values()
        if not is_identically_zero(site["score_parts"].score_function)
    ]
    return total(scored)
