"""CARMS: several draws per datum that are coupled so that they differ, with leave-one-out."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from pyro.distributions.util import is_identically_zero
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_dvae.codes import code_logits, code_value, one_hot, total
from pyro_dvae.elbos.base import DiscreteELBO
from pyro_dvae.elbos.coupled import Sticks
from pyro_dvae.elbos.pair import Program
from pyro_dvae.elbos.plates import PARTICLES
from pyro_dvae.elbos.sites import CodeDraws, CodeSite
from pyro_dvae.elbos.terms import Terms

COUPLED = "_coupled_particles"
"""The key of a site's `infer` that says that its particles are coupled."""


class CarmsELBO(DiscreteELBO):
    """1/S sum_i 1/(S-1) sum_j w_d(z_id, z_jd) (f_i - f_j) grad log q_d(z_id), summed over d.

    This is CARMS (Dimitriev & Zhou 2021): leave-one-out with S draws that are coupled, latent by
    latent, so that they differ more often than independent draws. Each draw z_i is distributed as
    q. f_i is its learning signal: the part of the objective that depends on the draw. w_d is the
    probability of the pair of categories (z_id, z_jd) under independent draws, divided by that
    under the coupling. So the mean of the estimate is that of `RlooELBO`. If z_id = z_jd, the term
    is 0. With K = 2 it is ARMS (Dimitriev & Zhou 2021b). With S = 2 it couples the draws as
    `DisarmELBO` does; unlike there, the gradient in the decoder and the prior is the mean over all
    draws. The coupling is that of `CoupledSticks`.

    A site is coupled if its distribution is the same for all particles. A site that depends on
    draws before it is drawn independently, as in `RlooELBO`, and so is any site that is no code.
    S decoder evaluations are needed per datum, all of them with gradient.

    Args:
        num_particles: S, draws of z per datum, at least 2.
        **options: `beta`, `free_bits`, `analytic_kl`, `max_plate_nesting` of `DiscreteELBO`.

    Raises:
        ValueError: num_particles < 2.
    """

    is_unbiased: ClassVar[bool] = True

    def __init__(self, num_particles: int = 4, **options: Any) -> None:
        if num_particles < 2:
            raise ValueError(
                f"Expected at least 2 particles to couple; got {num_particles}. Raise "
                "num_particles, or use ReinforceELBO."
            )
        super().__init__(num_particles, **options)

    def wrap(self, guide: Program) -> Program:
        """The guide, with a sampler that couples the particles."""
        return CodeDraws()(CoupledDraws()(guide))

    def surrogate(self, terms: Terms) -> Tensor:
        """(*batch) nats. Its gradient is the estimate."""
        flat, scores = terms.pair.plates.flat, []
        signal = terms.learning_signal.detach()
        score = torch.zeros_like(terms.kl)
        for name, site in terms.pair.guide_sites.items():
            own = site["score_parts"].score_function
            if is_identically_zero(own):
                continue
            if COUPLED in (site["infer"] or {}):
                score = score + _coupled_score(terms.pair.codes[name], signal)
            else:
                scores.append(flat(own))
        advantage = (signal - signal.mean(0)) * (self.num_particles / (self.num_particles - 1))
        return self.objective(terms) + (score + advantage * total(scores)).mean(0)


def _coupled_score(site: CodeSite, signal: Tensor) -> Tensor:
    """(S, *batch) nats; the gradient of its mean over particles is a coupled site's estimate."""
    logits, num_particles = site.logits, len(signal)
    with torch.no_grad():
        index = site.code.argmax(-1)  # (S, *batch, D)
        sticks = CoupledSticks(logits[0], num_particles)
        factor = torch.zeros_like(logits[..., 0])
        for shift in range(1, num_particles):
            difference = (signal - signal.roll(shift, 0)).unsqueeze(-1)
            factor += difference * sticks.weight(index, index.roll(shift, 0))
    log_q = logits.gather(-1, index.unsqueeze(-1)).squeeze(-1)
    return (factor * log_q).sum(-1) / (num_particles - 1)


class CoupledSticks(Sticks):
    """Draws that are coupled at each stick: as few of them as possible take the same category.

    The number of n draws that take a category, of those that took none before, is to vary as little
    as possible. So at stick s, N = floor(n s + u) draws of the n succeed, with a uniform u. Which
    ones is chosen at random. Each succeeds with probability s, and two of them with probability
    E[N (N-1)] / (n (n-1)), the least that is possible. The category of a draw is that of its first
    success. The papers take a Dirichlet copula here. Equal draws are at least as frequent under it.

    Args:
        logits: (..., K) normalised.
        num_draws: n, at least 2.
    """

    def __init__(self, logits: Tensor, num_draws: int) -> None:
        super().__init__(logits)
        self.num_draws = num_draws

    def draw(self) -> Tensor:
        """(n, ...) int64 categories."""
        shape = (self.num_draws, *self.s.shape)
        place = torch.rand(shape, dtype=self.s.dtype, device=self.s.device).argsort(0)
        number = (self.num_draws * self.s + torch.rand_like(self.s)).floor()
        first = (place < number).byte().argmax(-1, keepdim=True)
        return self.order.expand(shape).gather(-1, first).squeeze(-1)

    @property
    def again(self) -> Tensor:
        """(..., K) probability that a second draw succeeds at a stick, given that one does."""
        whole = (self.num_draws * self.s).floor()
        part = self.num_draws * self.s - whole
        pairs = whole * (whole - 1 + 2 * part) / (self.num_draws * (self.num_draws - 1))
        return torch.where(whole > 0, pairs / self.s, 0)


class CoupledDraws(Messenger):
    """Couple the particles of the code sites whose distribution is the same for all of them."""

    def _pyro_sample(self, msg: Any) -> None:
        logits = code_logits(msg["fn"])
        dims = [frame.dim - 2 for frame in msg["cond_indep_stack"] if frame.name == PARTICLES]
        # The plate of particles expands a distribution that does not depend on earlier draws.
        if logits is None or not dims or logits.stride(dims[0]) or msg["is_observed"]:
            return
        # Handlers outside of this one may replace the distribution, and lose the expansion.
        msg["infer"] = {**(msg["infer"] or {}), COUPLED: True}
        if msg["value"] is None:
            with torch.no_grad():
                index = CoupledSticks(logits.select(dims[0], 0), logits.shape[dims[0]]).draw()
                code = one_hot(index, logits.shape[-1], dtype=logits.dtype).movedim(0, dims[0])
            msg["value"] = code_value(msg["fn"], code).reshape(msg["fn"].shape())
