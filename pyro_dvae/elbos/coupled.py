"""DisARM for categorical variables: pairs of draws that are coupled so that they differ."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from pyro_dvae.codes import one_hot
from pyro_dvae.elbos.base import DiscreteELBO
from pyro_dvae.elbos.pair import scored_codes
from pyro_dvae.elbos.terms import Terms


class DisarmELBO(DiscreteELBO):
    """1/2 w_d (f(z) - f(z')) grad (log q_d(z_d) - log q_d(z'_d)), summed over the latents d.

    DisARM-IW for categorical variables by stick breaking (Dong, Mnih & Tucker 2021). The draw z and
    its partner z' are each distributed as q. They are coupled, latent by latent, so that they
    differ. f is the learning signal: the part of the objective that depends on the draw. w_d is
    the probability of (z_d, z'_d) under independent draws, divided by that under the coupling. So
    the mean of the estimate is that of leave-one-out with two independent draws. If z_d = z'_d,
    the term is 0. With K = 2 it is DisARM (Dong, Mnih & Tucker 2020), whose gradient in the logit
    theta is 1/2 (f(b) - f(b')) (-1)^b' sigmoid(|theta|) if b != b'.

    If there are several sites, they are coupled one after the other. Earlier sites keep their
    draws, and the guide draws later sites anew, given the partner. The gradient in the decoder and
    the prior is that at z alone. To add the one at z' would need another backward pass, which
    costs more than it gains. Each particle is a pair. It needs 1 + (number of sites) decoder
    evaluations per datum, one of them with gradient.

    Args:
        num_particles: S, pairs of draws per datum. The estimate is their mean.
        **options: `beta`, `free_bits`, `analytic_kl`, `max_plate_nesting` of `DiscreteELBO`.

    Raises:
        TypeError: when it is run, a site that needs a score is not categorical. The message names
            the site.
    """

    is_unbiased: ClassVar[bool] = True
    reruns: ClassVar[bool] = True

    def surrogate(self, terms: Terms) -> Tensor:
        """(*batch) nats. Its gradient is the estimate."""
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
    """s_i = pi_i / sum_{j >= i} pi_j, with categories i in the order of increasing probability.

    One uniform u_i per stick s_i gives two coupled draws. z is the first category with u_i < s_i.
    Its partner is the first category with u_i > 1 - s_i. The last stick is 1, so that one category
    is always found. In this order, all sticks but the last are at most 1/2. So no other stick gives
    the same category in both draws. All sticks but the last two are at most 1/3. So the weights
    below are finite, and less than 2.

    Args:
        logits: (..., K) normalised.
    """

    def __init__(self, logits: Tensor) -> None:
        pi, self.order = logits.exp().sort(-1)
        self.rank = self.order.argsort(-1)
        self.s = pi / pi.flip(-1).cumsum(-1).flip(-1)  # each sum is at least 1/K: it has the mode

    def partner(self, index: Tensor) -> Tensor:
        """Draw the partners (...) of drawn categories (...), given those draws.

        Args:
            index: (...) int64 drawn categories.
        """
        drawn = self._rank_of(index).unsqueeze(-1)
        i = torch.arange(self.s.shape[-1], device=index.device)
        # u_i >= s_i before the drawn stick, and u_i < s_i at it. After it, any u_i is possible.
        success = torch.where(i < drawn, self.s / (1 - self.s), self.s * (i > drawn))
        success = torch.where(i == len(i) - 1, 1, success)
        first = (torch.rand_like(success) < success).byte().argmax(-1, keepdim=True)
        return self.order.gather(-1, first).squeeze(-1)

    def weight(self, index: Tensor, partner: Tensor) -> Tensor:
        """The probability of two categories under independent draws, over that under the coupling.

        It is (1 - s_m) / (1 - r_m) prod_{i < m} (1 - s_i)^2 / (1 - 2 s_i + s_i r_i), (...), or 0 if
        the two are equal. m is the first of the two in the order of the sticks. r_i is the
        probability that a second draw succeeds at stick i, given that one does: `again`.

        Args:
            index: (...) int64 drawn categories.
            partner: (...) int64 their partners.
        """
        first = torch.minimum(self._rank_of(index), self._rank_of(partner)).unsqueeze(-1)
        again = self.again
        ratio = (1 - self.s) ** 2 / (1 - 2 * self.s + self.s * again)
        before = torch.cat([torch.ones_like(ratio[..., :1]), ratio[..., :-1]], -1).cumprod(-1)
        weight = before * (1 - self.s) / (1 - again)
        weight = weight.expand(*index.shape, -1).gather(-1, first).squeeze(-1)
        return torch.where(index == partner, 0, weight)

    @property
    def again(self) -> Tensor | float:
        """(..., K) probability that a second draw succeeds at a stick, given that one does."""
        return 0.0  # the weight is not asked for at the last stick, where it is 1

    def _rank_of(self, index: Tensor) -> Tensor:
        return self.rank.expand(*index.shape, -1).gather(-1, index.unsqueeze(-1)).squeeze(-1)
