"""Local expectations: a sum over the categories of one latent at a time."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from pyro_dvae.codes import total
from pyro_dvae.elbos.pair import scored_codes
from pyro_dvae.elbos.rerun import RerunELBO
from pyro_dvae.elbos.terms import Terms


class LocalExpectationELBO(RerunELBO):
    """sum_d sum_k q(z_d = k | z_{-d}) f(z with z_d = k) grad log q_d(k), z drawn from q(z|x).

    These are local expectation gradients (Titsias & Lazaro-Gredilla 2015). f is the learning
    signal: the part of the objective that depends on the draw. q(z_d = k | z_{-d}) is the guide's
    distribution of one latent, given its draws of all other latents. For a mean-field guide it is
    q_d(k), so the term of latent d is sum_k f(z with z_d = k) grad q_d(k). If there is only one
    latent, the guide's gradient is exact. The gradient in the decoder and the prior is that at the
    drawn z.

    For each site, the programs run once more, without gradient. They run at the D (K-1) codes that
    differ from the draw in one latent. With the draw itself, there are 1 + (sum over sites of
    D (K-1)) decoder evaluations per datum and particle.

    Args:
        num_particles: S, draws of z per datum. The estimate is their mean.
        chunk_size: codes per datum and particle that are run at once, or None for all. Memory grows
            with it. The result does not depend on it.
        **options: `beta`, `free_bits`, `analytic_kl`, `max_plate_nesting` of `DiscreteELBO`.

    Raises:
        ValueError: chunk_size < 1.
        TypeError: when it is run, a site that needs a score is not categorical. The message names
            the site.
    """

    is_unbiased: ClassVar[bool] = True

    def surrogate(self, terms: Terms) -> Tensor:
        """(*batch) nats. Its gradient is the estimate."""
        score = torch.zeros_like(terms.kl)
        for name, site in scored_codes(terms.pair).items():
            with torch.no_grad():
                log_q, signal = self._by_category(terms, name)
                q = log_q.softmax(-1)  # of one latent, given all others
                weight = torch.where(q > 0, q * signal, 0)
            # The logits of categories with q = 0 are -inf, and 0 * -inf would be NaN.
            score = score + (weight * torch.where(q > 0, site.logits, 0)).sum((-2, -1))
        return self.objective(terms) + score.mean(0)

    def _by_category(self, terms: Terms, name: str) -> Tensor:
        """(2, S, *batch, D, K) log q(z|x) and the learning signal of z with z_d = k, in nats."""
        codes = {other: site.code for other, site in terms.pair.codes.items()}
        num_latents, num_categories = codes[name].shape[-2:]
        parts = [_log_guide_and_signal(terms).unsqueeze(1)]
        changed = _changed(codes[name])
        for part in changed.split(self.chunk_size or len(changed)):
            values = {other: code.expand(len(part), *code.shape) for other, code in codes.items()}
            parts.append(_log_guide_and_signal(self.split(terms.pair.at({**values, name: part}))))
        at_draw, at_changed = parts[0], torch.cat(parts[1:], 1)  # (2, 1 or V, S, *batch)
        at_changed = at_changed.unflatten(1, (num_latents, num_categories - 1))
        at_draw = at_draw.unsqueeze(1).expand(-1, num_latents, *[-1] * (at_draw.dim() - 1))
        by_move = torch.cat([at_draw, at_changed], 2).movedim((1, 2), (-2, -1))
        # The code with z_d = k is the draw with latent d moved on by k - z_d categories.
        category = torch.arange(num_categories, device=by_move.device)
        move = (category - codes[name].argmax(-1, keepdim=True)) % num_categories
        return by_move.gather(-1, move.expand_as(by_move))


def _changed(code: Tensor) -> Tensor:
    """The codes that differ from a code in one latent, (V, *code.shape), V = D (K-1).

    Latent by latent, its category is moved on by 1, 2 ... K-1, modulo K.
    """
    num_latents, num_categories = code.shape[-2:]
    moved = torch.stack([code.roll(move, -1) for move in range(1, num_categories)])
    itself = torch.eye(num_latents, dtype=torch.bool, device=code.device)
    itself = itself.reshape(num_latents, *[1] * (code.dim() - 1), num_latents, 1)
    return torch.where(itself, moved, code).flatten(0, 1)


def _log_guide_and_signal(terms: Terms) -> Tensor:
    """(2, *extra, S, *batch) log q(z|x) and the learning signal."""
    # Every site counts. The density of a continuous site depends on the category of a latent that
    # is drawn before it. Observed sites are left out: they are factors, not draws.
    flat = terms.pair.plates.flat
    sites = [site for site in terms.pair.guide_sites.values() if not site["is_observed"]]
    log_q = total(flat(site["fn"].log_prob(site["value"])) for site in sites)
    return torch.stack(torch.broadcast_tensors(log_q, terms.learning_signal))
