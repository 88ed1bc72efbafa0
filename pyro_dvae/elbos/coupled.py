"""Pairs of draws that are coupled to differ: DisARM for categorical variables."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from pyro_dvae.codes import one_hot
from pyro_dvae.elbos.base import DiscreteELBO, Terms
from pyro_dvae.elbos.pair import scored_codes


class DisarmELBO(DiscreteELBO):
    """1/2 w_d (f(z) - f(z')) grad (log q_d(z_d) - log q_d(z'_d)), summed over the latents d.

    DisARM-IW for categoricals by stick breaking (Dong, Mnih & Tucker 2021). A draw z and its
    partner z' are each distributed as q, and coupled, latent by latent, to be different. f is the
    learning signal and w_d the ratio of the probabilities of (z_d, z'_d) drawn independently and
    coupled, so that the mean is that of leave-one-out with two independent draws; where
    z_d = z'_d the term is 0. With K = 2 it is DisARM (Dong, Mnih & Tucker 2020):
    1/2 (f(b) - f(b')) (-1)^b' sigmoid(|theta|) in the logit theta where b != b'.

    Several sites are coupled one after the other: earlier sites stay as drawn, the guide draws
    the later ones anew after the partner. The gradient in the decoder and the prior is that at z,
    since one more backward pass would cost more than it gains. Each particle is a pair:
    1 + (number of sites) decoder evaluations a datum, one of them with gradient.

    Args:
        num_particles: S, pairs a datum; the estimate is their mean.
        **options: `beta`, `free_bits`, `analytic_kl`, `max_plate_nesting` of `DiscreteELBO`.

    Raises:
        TypeError: when run, a site that needs a score is not categorical; the message names it.
    """

    is_unbiased: ClassVar[bool] = True
    reruns: ClassVar[bool] = True

    def surrogate(self, terms: Terms) -> Tensor:
        """(*batch) whose gradient is the estimator."""
        order = list(terms.pair.guide_sites)
        score = torch.zeros_like(terms.kl)
        for name, site in scored_codes(terms.pair).items():
            index = site.code.argmax(-1)  # (S, *batch, D)
            with torch.no_grad():
                sticks = Sticks(site.logits)
                partner = self._partner(sticks, index)
                code = one_hot(partner, site.logits.shape[-1], dtype=site.logits.dtype)
                later = order[order.index(name) + 1 :]
                signal = self.split(terms.pair.at({name: code}, redraw=later)).learning_signal
                half = 0.5 * (terms.learning_signal - signal)  # (S, *batch)
                weight = half.unsqueeze(-1) * sticks.weight(index, partner)
            log_q, log_q_partner = (
                site.logits.gather(-1, z.unsqueeze(-1)).squeeze(-1) for z in (index, partner)
            )
            score = score + (weight * (log_q - log_q_partner)).sum(-1)
        return self.objective(terms) + score.mean(0)

    def _partner(self, sticks: Sticks, index: Tensor) -> Tensor:
        return sticks.partner(index)


class Sticks:
    """s_i = pi_i / sum_{j >= i} pi_j, the categories from the least likely to the most.

    A uniform u_i a stick gives two draws: z is the first category with u_i < s_i, its partner the
    first with u_i > 1 - s_i; the last stick is 1 and always succeeds. In this order s_i <= 1/2 but
    for the last, so no other stick succeeds in both draws, and s_i <= 1/3 but for the last two,
    so the weights below are finite (and less than 2).

    Args:
        logits: (..., K) normalised.
    """

    def __init__(self, logits: Tensor) -> None:
        pi, self.order = logits.exp().sort(-1)
        self.rank = self.order.argsort(-1)
        self.s = pi / pi.flip(-1).cumsum(-1).flip(-1)  # the sums hold the mode: at least 1/K

    def partner(self, index: Tensor) -> Tensor:
        """Partners (...) of drawn categories (...), from the uniforms given the draw."""
        place = self._place(index).unsqueeze(-1)
        i = torch.arange(self.s.shape[-1], device=index.device)
        # Before the drawn stick u_i >= s_i, at it u_i < s_i, after it u_i is free.
        success = torch.where(i < place, self.s / (1 - self.s), self.s * (i > place))
        success = torch.where(i == len(i) - 1, 1, success)
        first = (torch.rand_like(success) < success).byte().argmax(-1, keepdim=True)
        return self.order.gather(-1, first).squeeze(-1)

    def weight(self, index: Tensor, partner: Tensor) -> Tensor:
        """(...) the probability of two categories independent over coupled; 0 where they agree.

        With m the first of the two: (1 - s_m) prod_{i < m} (1 - s_i)^2 / (1 - 2 s_i).
        """
        first = torch.minimum(self._place(index), self._place(partner)).unsqueeze(-1)
        ratio = (1 - self.s) ** 2 / (1 - 2 * self.s)
        before = torch.cat([torch.ones_like(ratio[..., :1]), ratio[..., :-1]], -1).cumprod(-1)
        weight = (before * (1 - self.s)).gather(-1, first).squeeze(-1)
        return torch.where(index == partner, 0, weight)

    def _place(self, index: Tensor) -> Tensor:
        return self.rank.gather(-1, index.unsqueeze(-1)).squeeze(-1)
