"""Mean-field coordinate ascent on the ELBO of each datum, from a table or from drawn codes.

With all other latents held, the ELBO of q(z|x) = prod_d q_d(z_d|x) is largest at

    q_d(k) proportional to exp E_{z_-d ~ q_-d}[log p(x, z_d = k, z_-d)],

where z_-d are all latents but z_d (Saul, Jaakkola & Jordan 1996; Bishop 2006, Eq. 10.9). A sweep
sets each latent to its maximum once, the first latent first.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_dvae.codes import one_hot
from pyro_dvae.evaluation.importance import draw_in_chunks
from pyro_dvae.evaluation.joint import JointBlock
from pyro_dvae.posteriors import FactorisedPosterior, TabulatedPosterior, mean_over

SELECTION_DRAWS = 128
"""Draws per datum by which the ELBO of several q is compared, if it is no sum over all codes."""

_BEST_STARTS, _BEST_SWEEPS, _TIGHT = 4, 10, 0.01
"""How hard the best factorised q(z|x) is searched for; see `best_elbo`."""

_UNCHANGED = 1e-9
"""Sweeps end if no probability changes more. The ELBO, which is flat at its maximum, then changes
by less than its rounding."""


def table_sweep(log_joint: Tensor, log_q: Tensor) -> Tensor:
    """One sweep with exact expectations. No update lowers the ELBO.

    Once a latent is updated, the table is averaged over it, so that the next update works on a
    table that is K times smaller. So a sweep reads the table about twice, whatever D is.

    Args:
        log_joint: log p(x, z) of all codes, (B, K^D), in the order of `enumerate_codes`.
        log_q: log q_d, (B, D, K), normalised.

    Returns:
        (B, D, K), normalised.
    """
    q, rest, updated = log_q.exp(), log_joint, []
    for latent in range(log_q.shape[1]):
        by_category = rest.unflatten(
            -1, (log_q.shape[-1], -1)
        )  # (B, K, codes of the latents behind)
        mean = _mean_behind(by_category, q[:, latent + 1 :])
        new = _normalised(mean, log_q[:, latent])
        updated.append(new)
        rest = mean_over(new.exp(), by_category)
    return torch.stack(updated, 1)


def _mean_behind(by_category: Tensor, q: Tensor) -> Tensor:
    """The mean over some latents that are independent, (B, K).

    Args:
        by_category: (B, K, M), M the number of codes of these latents.
        q: their probabilities, (B, d, K).
    """
    weight = torch.ones_like(by_category[:, :1, :1]).squeeze(1)
    for one in q.unbind(1):
        weight = (weight.unsqueeze(-1) * one.unsqueeze(1)).flatten(1)
    weight = weight.unsqueeze(1)  # (B, 1, M)
    # A product and a sum take a third of the time of a batched product of matrix and vector.
    mean = (by_category * weight).sum(-1)
    if mean.isnan().any():
        mean = torch.where(weight > 0, by_category * weight, 0).sum(-1)
    return mean


def table_elbo(log_joint: Tensor, log_q: Tensor) -> Tensor:
    """E_q[log p(x, z)] - E_q[log q(z|x)], (B,) nats. The arguments are those of `table_sweep`."""
    q = FactorisedPosterior(log_q)
    return q.expectation(log_joint) + q.entropy()


def table_ascent(
    log_joint: Tensor, log_q: Tensor, sweeps: int, *, starts: int = 1
) -> tuple[Tensor, Tensor]:
    """The q with the largest ELBO that some sweeps reach from several starts.

    The starts are the given q; the marginals of p(z|x); and each of the most probable codes of
    p(z|x), as a q that is certain of this code.

    Args:
        log_joint: log p(x, z) of all codes, (B, K^D).
        log_q: the first start, (B, D, K), normalised.
        sweeps: how often each latent is updated. They end early if no ELBO of the block rises.
        starts: number of starts. No more are made than there are codes.

    Returns:
        log q_d, (B, D, K), and its ELBO, (B,) nats.
    """
    best, best_elbo = _ascended(log_joint, log_q, sweeps)
    if starts > 1:
        num_latents, num_categories = log_q.shape[1:]
        p = TabulatedPosterior(log_joint.log_softmax(-1), num_latents, num_categories)
        others = [p.marginals()]
        for number in log_joint.topk(min(starts - 2, log_joint.shape[1])).indices.unbind(-1):
            index = torch.stack(torch.unravel_index(number, p.sizes), -1)  # (B, D)
            others.append(one_hot(index, num_categories, dtype=log_q.dtype).log())
        for start in others:
            best, best_elbo = _better(best, best_elbo, *_ascended(log_joint, start, sweeps))
    return best, best_elbo


def best_elbo(log_joint: Tensor, log_q: Tensor) -> Tensor:
    """The largest ELBO of a factorised q(z|x) that is found, (B,) nats.

    It is a lower bound on the maximum over all factorised q(z|x). The search takes `_BEST_SWEEPS`
    sweeps from each of `_BEST_STARTS` starts. It spares the data whose ELBO is already within
    `_TIGHT` nats of log p(x).

    Args:
        log_joint: log p(x, z) of all codes, (B, K^D).
        log_q: the first start, (B, D, K), normalised.
    """
    best = table_elbo(log_joint, log_q)
    loose = (log_joint.logsumexp(1) - best > _TIGHT).nonzero().squeeze(1)
    if len(loose):
        some = log_joint[loose], log_q[loose]
        found = table_ascent(*some, _BEST_SWEEPS, starts=_BEST_STARTS)[1]
        best[loose] = torch.maximum(best[loose], found)
    return best


class DrawnAscent:
    """Coordinate ascent by local expectations, where there are too many codes for a table.

    The mean of log p(x, z_d = k, z_-d) over z_-d is estimated for all k from `particles` draws of
    z_-d from the present q_-d: K decoded codes per latent, datum and particle. The natural
    parameters of q_d, eta_d = log q_d, then move by a share rho_t of the way to the estimate:

        eta_d <- (1 - rho_t) eta_d + rho_t mean_s log p(x, z_d = k, z_-d^s),   rho_t = 2 / (t + 1),

    in sweep t = 1, 2 ... The draws of z_-d are new for each update, so the estimate is unbiased.
    E_{q_-d}[log p(x, z_d = k, z_-d)] - eta_dk is, up to a constant in k, the natural gradient of
    the exact ELBO in eta_d. So this is stochastic natural-gradient ascent on the exact ELBO, one
    latent at a time (Hoffman et al. 2013, "Stochastic variational inference"). The rho_t have an
    infinite sum, and their squares a finite one: as Robbins & Monro require for convergence to a
    stationary point. A single update can lower the ELBO, by chance.

    In sweep 1, rho_1 = 1: the result forgets the start, but for the draws. With D = 1 there is
    nothing to draw, and the update gives p(z|x).

    Args:
        particles: draws of z_-d per datum and update.
        seed: of all draws. They do not depend on how the data are cut into blocks.
    """

    def __init__(self, particles: int, seed: int) -> None:
        self.particles, self.seed = particles, seed
        self._generators: dict[tuple[str | int, ...], torch.Generator] = {}

    def ascend(self, block: JointBlock, log_q: Tensor, sweeps: int, *, starts: int = 1) -> Tensor:
        """The best of the first start, and of what each start has become after some sweeps.

        The first start is the given q. The others are codes that are drawn from it, as q that are
        certain of them. The ELBO of each candidate is estimated from `SELECTION_DRAWS` draws of the
        same uniform numbers, so that the difference of two candidates has less noise.

        Args:
            block: log p(x, z) of B data.
            log_q: (B, D, K), normalised.
            sweeps: how often each latent is updated.
            starts: number of starts.

        Returns:
            (B, D, K), normalised.
        """
        if log_q.shape[1] == 1:
            return self.update(block, log_q, 0, 1.0, (0, 0, 0))
        firsts = [log_q]
        if starts > 1:
            generator = self._generator("starts")
            index = FactorisedPosterior(log_q).draw(slice(None), starts - 1, generator)[0]
            codes = one_hot(index, log_q.shape[-1], dtype=log_q.dtype)
            firsts += codes.log().unbind(1)
        best, best_elbo = log_q, self.elbo(block, log_q, 0)
        for number, q in enumerate(firsts):
            for sweep in range(1, sweeps + 1):
                for latent in range(q.shape[1]):
                    q = self.update(block, q, latent, 2 / (sweep + 1), (number, sweep, latent))
            elbo = self.elbo(block, q, number + 1)
            best, best_elbo = _better(best, best_elbo, q, elbo)
        return best

    def update(
        self, block: JointBlock, log_q: Tensor, latent: int, step: float, key: tuple[int, int, int]
    ) -> Tensor:
        """Move one latent by a share of the way to its estimated maximum.

        Args:
            block: log p(x, z) of B data.
            log_q: (B, D, K), normalised.
            latent: d.
            step: rho, in (0, 1].
            key: of the draws; another key has independent ones.
        """
        target = self.mean_log_joint(block, log_q, latent, key)
        old = log_q[:, latent]
        new = target if step == 1 else (1 - step) * old + step * target
        log_q = log_q.clone()
        log_q[:, latent] = _normalised(new, old)
        return log_q

    def mean_log_joint(
        self, block: JointBlock, log_q: Tensor, latent: int, key: tuple[int, int, int]
    ) -> Tensor:
        """Estimate of E_{q_-d}[log p(x, z_d = k, z_-d)], (B, K). Arguments as of `update`."""
        num_data, _, num_categories = log_q.shape
        category = torch.arange(num_categories, device=log_q.device)
        total = torch.zeros_like(log_q[:, latent])
        posterior, limit = FactorisedPosterior(log_q), max(1, block.draws_at_once // num_categories)
        # With one latent there is nothing to draw.
        particles = self.particles if log_q.shape[1] > 1 else 1
        chunks = draw_in_chunks(
            posterior, num_data, particles, limit, self._generator("update", *key)
        )
        for rows, _, index, _ in chunks:
            codes = index.unsqueeze(2).repeat(1, 1, num_categories, 1)  # (b, s, K, D)
            codes[..., latent] = category
            log_joint = block.log_joint(rows, codes.flatten(1, 2))
            total[rows] += log_joint.unflatten(1, (-1, num_categories)).sum(1)
        return total / particles

    def elbo(self, block: JointBlock, log_q: Tensor, candidate: int) -> Tensor:
        """Estimate of the ELBO from `SELECTION_DRAWS` draws, (B,) nats.

        Args:
            block: log p(x, z) of B data.
            log_q: (B, D, K), normalised.
            candidate: its number. All candidates have the same uniform numbers.
        """
        q, generator = FactorisedPosterior(log_q), self._generator("elbo", candidate)
        total = torch.zeros_like(log_q[:, 0, 0])
        chunks = draw_in_chunks(q, len(log_q), SELECTION_DRAWS, block.draws_at_once, generator)
        for rows, _, index, _ in chunks:
            total[rows] += block.log_joint(rows, index).sum(1)
        return total / SELECTION_DRAWS + q.entropy()

    def _generator(self, what: str, *key: int) -> torch.Generator:
        """A random stream, which goes on from one block of data to the next.

        Args:
            what: "update" for streams that are independent of each other; else all have one seed.
            key: which of the streams.
        """
        name: tuple[str | int, ...] = (what, *key)
        if name not in self._generators:
            number = self.seed
            for part in key if what == "update" else (len(what),):
                number = number * 100_003 + part + 1
            self._generators[name] = torch.Generator().manual_seed(number % 2**63)
        return self._generators[name]


def _normalised(log_weights: Tensor, otherwise: Tensor) -> Tensor:
    """log_softmax over K; `otherwise` where no category has a weight, as every ELBO is -inf there.

    Args:
        log_weights: (B, K).
        otherwise: (B, K), normalised.
    """
    nothing = log_weights.isneginf().all(-1, keepdim=True)
    return torch.where(nothing, otherwise, log_weights.log_softmax(-1))


def _ascended(log_joint: Tensor, log_q: Tensor, sweeps: int) -> tuple[Tensor, Tensor]:
    """Log q after some sweeps, and its ELBO."""
    for _ in range(sweeps):
        before, log_q = log_q, table_sweep(log_joint, log_q)
        if (log_q.exp() - before.exp()).abs().max() < _UNCHANGED:
            break
    return log_q, table_elbo(log_joint, log_q)


def _better(
    log_q: Tensor, elbo: Tensor, other: Tensor, other_elbo: Tensor
) -> tuple[Tensor, Tensor]:
    """Of each datum, the q with the larger ELBO."""
    is_better = other_elbo > elbo
    log_q = torch.where(is_better[:, None, None], other, log_q)
    return log_q, torch.where(is_better, other_elbo, elbo)
