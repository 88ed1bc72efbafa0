"""Annealed importance sampling: a bound on log p(x) where there are too many codes to sum over."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from pyro_dvae.checks import at_least
from pyro_dvae.codes import wide
from pyro_dvae.evaluation.blocks import Blocks
from pyro_dvae.evaluation.importance import log_mean_exp
from pyro_dvae.evaluation.inference import Inference
from pyro_dvae.evaluation.joint import JointBlock, evaluating
from pyro_dvae.posteriors import FactorisedPosterior
from pyro_dvae.processes import in_turn
from pyro_dvae.streams import seed_of_part

if TYPE_CHECKING:
    from pyro_dvae.vae import DiscreteVAE

CHAINS = 10
"""Default number of chains per datum."""
AIS_DATA = 100
"""Default number of data for which the chains are run."""
_SECTION = 25
"""Data whose chains share a random stream, and are run by one process."""
_UNIFORM_SHARE = 0.5
"""The expected number of latents of a code that the base distribution draws uniformly."""


class AnnealedBound(NamedTuple):
    """The bound of annealed importance sampling on log p(x) of N data, in nats."""

    log_marginal: Tensor
    """(N,) log of the mean weight of the chains, whose expectation is at most log p(x)."""
    variance: Tensor
    """(N,) the variance of the above over the chains, by the jackknife."""


def annealed_bound(
    vae: DiscreteVAE,
    x: Tensor,
    labels: Tensor | None = None,
    *,
    sweeps: int,
    chains: int = CHAINS,
    seed: int = 0,
    together: bool = False,
) -> AnnealedBound:
    """Log 1/C sum_c w_c, log w = sum_i (t_i - t_{i-1}) log p(x, z_{i-1}) / r(z_{i-1}).

    z_0 is drawn from the base distribution r(z), a product of the guide's marginals q(z_d|x), each
    mixed with a small share of the uniform distribution. z_i is one Metropolis-Hastings update of
    z_{i-1}, which leaves r(z)^(1 - t_i) p(x, z)^t_i invariant. t_i = i/n rises from 0 to 1 in
    n = D `sweeps` steps. So p(x) = E[w] for any number of steps, and by Jensen's inequality the
    expectation of the result is at most log p(x). It comes closer with more sweeps and with more
    chains (Neal 2001, "Annealed importance sampling"; Wu et al. 2017, "On the quantitative analysis
    of decoder-based generative models").

    An update draws a new category of one latent from r; the latents take turns. Let w(z) be
    p(x, z) / r(z). Then the update from z to z' is accepted with probability
    min(1, (w(z') / w(z))^t). Each step decodes one code per chain.

    Args:
        vae: the model. It is in eval mode meanwhile.
        x: (N, *event) of the model's dtype and on its device, in the support of the likelihood.
        labels: (N,) int64 if the prior is conditional on labels, else None.
        sweeps: how often each latent is updated, while t rises from 0 to 1.
        chains: C, the number of chains per datum, at least 2.
        seed: seed of all draws.
        together: whether all processes of the process group call this with the same arguments, and
            each computes its part.

    Raises:
        ValueError: an argument is out of range, or x is outside the support.
    """
    at_least("sweeps of annealed importance sampling", sweeps, 1)
    at_least("chains", chains, 2)
    blocks = Blocks(vae, x, labels, Inference(), section_size=_SECTION)

    def section(number: int) -> list[tuple[Tensor, Tensor]]:
        generator, found = torch.Generator().manual_seed(seed_of_part(seed, number)), []
        for _, (block, encoded, _) in blocks.section(number, blocks.refiner(number)):
            log_r = _base(encoded.marginals())
            size = max(1, block.draws_at_once // chains)
            for start in range(0, len(block.x), size):
                rows = slice(start, min(start + size, len(block.x)))
                with evaluating(vae):
                    log_weights = _chains(block, log_r, rows, sweeps, chains, generator)
                bound, variance = log_mean_exp(log_weights)
                found.append((bound.cpu(), variance.cpu()))
        return found

    sections = in_turn(section, len(blocks), together=together)
    found = [each for some in sections for each in some]
    bound, variance = zip(*found, strict=True)
    return AnnealedBound(torch.cat(bound).to(x.device), torch.cat(variance).to(x.device))


def evenly_spaced(num_data: int, num_chosen: int) -> Tensor:
    """The indices of at most so many of N data, with equal steps, (n,) int64.

    Args:
        num_data: N.
        num_chosen: the number of data to choose, at least 2.

    Raises:
        ValueError: `num_chosen` is below 2.
    """
    at_least("data of annealed importance sampling", num_chosen, 2)
    num_chosen = min(num_chosen, num_data)
    return torch.arange(num_chosen, device="cpu") * num_data // num_chosen


def _base(log_q: Tensor) -> Tensor:
    """Log r of each latent, (B, D, K): (1 - e) q_d + e / K, so that r is nowhere 0.

    Without the uniform share e = 1 / (2 D), a guide that is wrongly certain of a category could
    hardly be left.

    Args:
        log_q: (B, D, K), normalised.
    """
    _, num_latents, num_categories = log_q.shape
    share = _UNIFORM_SHARE / num_latents
    uniform = torch.full_like(log_q, math.log(share / num_categories))
    return torch.logaddexp(log_q + math.log1p(-share), uniform)


def _chains(
    block: JointBlock,
    log_r: Tensor,
    rows: slice,
    sweeps: int,
    chains: int,
    generator: torch.Generator,
) -> Tensor:
    """Log w of each chain, (b, C).

    Args:
        block: log p(x, z) of B data.
        log_r: log r of each latent, (B, D, K).
        rows: slice of b of the B data.
        sweeps: as of `annealed_bound`.
        chains: C.
        generator: a random number generator of the CPU.
    """
    base = FactorisedPosterior(log_r[rows])
    every, num_latents = slice(None), log_r.shape[1]
    one = [FactorisedPosterior(log_r[rows, d : d + 1]) for d in range(num_latents)]
    code, log_base = base.draw(every, chains, generator)  # (b, C, D) and (b, C)
    ratio = block.log_joint(rows, code) - log_base  # log p(x, z) / r(z)
    steps = num_latents * sweeps
    log_weight = ratio / steps
    for step in range(1, steps):
        latent = (step - 1) % num_latents
        proposed, log_new = one[latent].draw(every, chains, generator)  # (b, C, 1) and (b, C)
        log_old = log_r[rows, latent].gather(-1, code[..., latent])
        candidate = code.clone()
        candidate[..., latent] = proposed[..., 0]
        new_base = log_base - log_old + log_new
        new_ratio = block.log_joint(rows, candidate) - new_base
        uniform = torch.rand(ratio.shape, dtype=torch.float64, generator=generator, device="cpu")
        log_uniform = wide(uniform.to(ratio.device)).log()
        # ratio is -inf where p(x, z) is 0: then any candidate with p(x, z') > 0 is accepted.
        is_accepted = log_uniform < step / steps * (new_ratio - ratio)
        is_accepted |= ratio.isneginf() & ~new_ratio.isneginf()
        code = torch.where(is_accepted.unsqueeze(-1), candidate, code)
        log_base = torch.where(is_accepted, new_base, log_base)
        ratio = torch.where(is_accepted, new_ratio, ratio)
        log_weight = log_weight + ratio / steps
    return log_weight
