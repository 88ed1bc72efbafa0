"""The terms of a block of data: sums over all codes, or means over draws."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from pyro_dvae.codes import kl_divergence, total, wide
from pyro_dvae.evaluation.blocks import FoundBlock
from pyro_dvae.evaluation.coordinate_ascent import best_elbo
from pyro_dvae.evaluation.importance import draw_in_chunks, importance_bound
from pyro_dvae.evaluation.inference import Refiner
from pyro_dvae.evaluation.joint import Joint, JointBlock, TabulatedBlock
from pyro_dvae.evaluation.marginal import log_sum
from pyro_dvae.evaluation.plan import Plan
from pyro_dvae.evaluation.terms import DatumTerms
from pyro_dvae.posteriors import EnumerablePosterior, FactorisedPosterior, Posterior


class BlockTerms:
    """Computes the figures of the data of a section, block after block.

    Args:
        plan: which figures are sums, and which are means over draws.
        refiner: of the section, for the refined q(z|x) where posteriors are compared.
        seed: of the draws of the section.
        compare: whether to compute the ELBO of the guide's q(z|x), of the refined one, and of the
            best factorised one too.
    """

    def __init__(self, plan: Plan, refiner: Refiner, seed: int, compare: bool) -> None:
        self.plan, self.refiner = plan, refiner
        # Two streams, so that neither figure depends on whether the other is computed.
        self._elbo_draws = torch.Generator().manual_seed(2 * seed)
        self._bound_draws = torch.Generator().manual_seed(2 * seed + 1)
        # The posteriors that are compared have the same uniform numbers.
        num = 2 if compare else 0
        self._compared_draws = [torch.Generator().manual_seed(2 * seed) for _ in range(num)]

    def __call__(self, found: FoundBlock) -> DatumTerms:
        """The figures of the next block."""
        block, posterior = found.block, found.posterior
        terms = _block_terms(self.plan, block, posterior, self._elbo_draws)
        if self._compared_draws:
            terms = _compared(terms, self.plan, found, self.refiner, self._compared_draws)
        if self.plan.importance_samples is not None:
            draws = self.plan.importance_samples, self._bound_draws
            terms = _with_bound(terms, block, posterior, *draws)
        return terms


def _block_terms(
    plan: Plan, block: JointBlock, posterior: Posterior, generator: torch.Generator
) -> DatumTerms:
    """The terms of a block of data under a q(z|x)."""
    if plan.exact:
        return _summed_terms(cast(TabulatedBlock, block), cast(EnumerablePosterior, posterior))
    return _drawn_terms(block, posterior, plan.num_samples, generator)


def _compared(
    terms: DatumTerms,
    plan: Plan,
    found: FoundBlock,
    refiner: Refiner,
    generators: list[torch.Generator],
) -> DatumTerms:
    """The terms, and the ELBO of the guide's, of the refined and of the best q(z|x)."""
    block, encoded, posterior = found
    is_refined = refiner.inference.posterior == "refined"
    refined = posterior if is_refined else refiner.refined(block, encoded)
    elbos, variances = {}, {}
    for name, q, draws in zip(("encoder", "refined"), (encoded, refined), generators, strict=True):
        # The stream of `terms` had the same seed, so that they hold the same numbers.
        known = terms if q is posterior else _block_terms(plan, block, q, draws)
        elbos[name] = known.elbo
        if "elbo" in known.variances:
            variances[f"{name}_elbo"] = known.variances["elbo"]
    return terms._replace(
        variances={**terms.variances, **variances},
        encoder_elbo=elbos["encoder"],
        refined_elbo=elbos["refined"],
        best_elbo=best_elbo(block.table(), refined.marginals())
        if plan.exact and isinstance(block, TabulatedBlock)
        else None,
    )


def _summed_terms(block: TabulatedBlock, posterior: EnumerablePosterior) -> DatumTerms:
    """The terms of a block of data, as sums over all codes."""
    prior_term = _prior_term(block.joint, posterior)
    return DatumTerms(
        log_likelihood=posterior.expectation(block.log_likelihood),
        log_prior=posterior.expectation(block.log_prior) if prior_term is None else prior_term,
        entropy=posterior.entropy(),
        log_marginal=log_sum(block.log_prior, block.log_likelihood),
        importance_bound=None,
        variances={},
    )


def _drawn_terms(
    block: JointBlock, posterior: Posterior, num_samples: int, generator: torch.Generator
) -> DatumTerms:
    """The terms of a block of data. Those without a closed form are means over draws."""
    num_data = len(block.x)
    chunks = draw_in_chunks(posterior, num_data, num_samples, block.draws_at_once, generator)
    empty = wide(torch.empty(3, num_data, num_samples, device=block.x.device))
    log_prior, log_likelihood, log_q = empty
    for rows, samples, index, log_q_drawn in chunks:
        log_prior[rows, samples], log_likelihood[rows, samples] = block.drawn(rows, index)
        log_q[rows, samples] = log_q_drawn
    closed = {"log_prior": _prior_term(block.joint, posterior), "entropy": posterior.entropy()}
    means = {name: value for name, value in closed.items() if value is not None}
    drawn = {"log_likelihood": log_likelihood, "log_prior": log_prior, "entropy": -log_q}
    drawn = {name: value for name, value in drawn.items() if name not in means}
    means |= {name: value.mean(-1) for name, value in drawn.items()}
    # The terms of one draw depend on each other, so a sum of terms needs a variance of its own.
    sums = {**drawn, "elbo": total(drawn.values())}
    kl = [value for name, value in drawn.items() if name != "log_likelihood"]
    if kl:
        sums["kl"] = total(kl)
    variances = {name: value.var(-1) / num_samples for name, value in sums.items()}
    return DatumTerms(
        log_likelihood=means["log_likelihood"],
        log_prior=means["log_prior"],
        entropy=means["entropy"],
        log_marginal=None,
        importance_bound=None,
        variances=variances,
    )


def _with_bound(
    terms: DatumTerms,
    block: JointBlock,
    posterior: Posterior,
    num_samples: int,
    generator: torch.Generator,
) -> DatumTerms:
    bound, variance = importance_bound(
        posterior, block.log_joint, len(block.x), num_samples, block.draws_at_once, generator
    )
    variances = {**terms.variances, "importance_bound": variance}
    return terms._replace(importance_bound=bound, variances=variances)


def _prior_term(joint: Joint, posterior: Posterior) -> Tensor | None:
    """E_q[log p(z)], (B,), in closed form; None unless latents are independent under q and p."""
    if joint.prior_log_probs is None or not isinstance(posterior, FactorisedPosterior):
        return None
    return -kl_divergence(posterior.log_q, joint.prior_log_probs) - posterior.entropy()
