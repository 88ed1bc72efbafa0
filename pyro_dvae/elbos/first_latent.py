"""An exact sum over the first latent, such as a class, with draws of all others."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from pyro_dvae.elbos.base import DiscreteELBO
from pyro_dvae.elbos.pair import scored_codes
from pyro_dvae.elbos.terms import Terms


class SumFirstELBO(DiscreteELBO):
    """sum_y q(y|x) 1/S sum_s f(y, z_s), y the first latent, z_s drawn from q(z|x, y) for each y.

    This is how Kingma et al. (2014, "Semi-supervised learning with deep generative models", Eq. 7)
    sum over the classes y of unlabelled data. f is the objective. Its derivative in q(y|x) is
    exact, given z_s. The score function of the other latents has leave-one-out baselines, as in
    `RlooELBO`: for each y, the mean of f(y, z) at the other particles. Where y is known
    (`obs_mask`), f is the same for every y, so q(y|x) gets no gradient from it.

    The first latent is the first variable of the guide's first code site. The other variables of
    this site keep their draws for all y. All later sites are drawn anew. Each step needs S (K + 1)
    decoder evaluations per datum, S of them for the draws themselves.

    Args:
        num_particles: S, draws of z per datum and category y, at least 2.
        **options: `beta`, `free_bits`, `analytic_kl`, `max_plate_nesting` of `DiscreteELBO`.

    Raises:
        ValueError: num_particles < 2.
        TypeError: when it is run, a site that needs a score is not categorical. The message names
            the site.
    """

    is_unbiased: ClassVar[bool] = True
    reruns: ClassVar[bool] = True

    def __init__(self, num_particles: int = 2, **options: Any) -> None:
        if num_particles < 2:
            raise ValueError(
                "Expected at least 2 particles for the leave-one-out baseline; got "
                f"{num_particles}. Raise num_particles, or use ReinforceELBO."
            )
        super().__init__(num_particles, **options)

    def surrogate(self, terms: Terms) -> Tensor:
        """(*batch) nats. Its gradient is the estimate."""
        sites = scored_codes(terms.pair)
        if not sites:
            return self.objective(terms)
        name, site = next(iter(sites.items()))
        log_q = site.logits[..., 0, :].movedim(-1, 0)  # (K, S, *batch)
        order = list(terms.pair.guide_sites)
        later = order[order.index(name) + 1 :]
        at = self.split(terms.pair.at({name: _each_category(site.code)}, redraw=later))
        weight = log_q.exp()
        if site.mask is not None:  # the score of all sites lacks log q where a mask is off
            log_q = torch.where(site.mask[..., 0], log_q, 0)
        f = at.learning_signal.detach()
        advantage = f - (f.sum(1, keepdim=True) - f) / (self.num_particles - 1)
        # A category of probability zero has a score of -inf, and gives no gradient.
        log_q_others = torch.where(weight > 0, at.log_guide - log_q, 0)
        value = torch.where(weight > 0, at.log_likelihood - at.penalty, 0)
        estimate = weight * value + weight.detach() * advantage * log_q_others
        return estimate.sum(0).mean(0)


def _each_category(code: Tensor) -> Tensor:
    """The codes (K, *code.shape) that have each category as their first latent."""
    num_categories = code.shape[-1]
    first = torch.eye(num_categories, dtype=code.dtype, device=code.device)
    first = first.reshape(num_categories, *[1] * (code.dim() - 2), 1, num_categories)
    first = first.expand(num_categories, *code.shape[:-2], 1, num_categories)
    others = code[..., 1:, :].expand(num_categories, *code[..., 1:, :].shape)
    return torch.cat([first, others], -2)
