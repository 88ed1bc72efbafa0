"""The figures of each datum, in nats: the ELBO's parts, the importance-weighted bound, log p(x)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor

from pyro_dvae.checks import one_of
from pyro_dvae.codes import ROWS, kl_divergence, total, wide
from pyro_dvae.evaluation.coordinate_ascent import best_elbo
from pyro_dvae.evaluation.importance import draw_in_chunks, importance_bound
from pyro_dvae.evaluation.inference import FoundBlock, Inference, Refiner, find_posterior
from pyro_dvae.evaluation.joint import Joint, JointBlock, TabulatedBlock, evaluating
from pyro_dvae.evaluation.marginal import log_sum
from pyro_dvae.evaluation.plan import Plan, check_settings, make_plan
from pyro_dvae.evaluation.terms import DatumTerms, empty_terms, tensors_of
from pyro_dvae.posteriors import EnumerablePosterior, FactorisedPosterior, Posterior
from pyro_dvae.tensors import as_arguments

if TYPE_CHECKING:
    from pyro_dvae.vae import DiscreteVAE


def datum_scores(
    vae: DiscreteVAE,
    x: Any,
    labels: Any = None,
    *,
    bound: Literal["elbo", "importance", "exact"] = "elbo",
    importance_samples: int = 1000,
    num_samples: int = 16,
    batch_size: int = ROWS,
    seed: int = 0,
) -> Tensor:
    """The ELBO, the importance-weighted bound or log p(x) of each datum, in nats.

    The data with the lowest score surprise the model most. The mean of the scores is the figure
    that `evaluate` gives for the same arguments.

    Args:
        vae: the model. It is in eval mode meanwhile.
        x: (N, *event), N >= 1, in the support of the likelihood: a tensor, an array or a table.
        labels: (N,) integers if the prior is conditional on labels; otherwise None.
        bound: "elbo"; "importance" for the importance-weighted bound; or "exact" for log p(x),
            which needs K^D <= 65,536 (`MAX_CODES`).
        importance_samples: k, draws of z per datum for the importance-weighted bound.
        num_samples: draws of z per datum for the ELBO, if there are too many codes to sum over.
        batch_size: data that are encoded at once. The result does not depend on it.
        seed: seed of the draws.

    Returns:
        (N,) nats, in the order of x.

    Raises:
        ValueError: an argument is out of range, x is outside the support, or K^D is too large.

    Example:
        >>> scores = datum_scores(vae, x)
        >>> surprising = x[scores.argsort()[:10]]
    """
    one_of("bound", bound, ("elbo", "importance", "exact"))
    x, labels = as_arguments(vae, x, labels)
    labels = vae.prior_labels(labels)
    terms = datum_terms(
        vae,
        x,
        labels,
        exact=True if bound == "exact" else None,
        importance_samples=importance_samples if bound == "importance" else None,
        num_samples=num_samples,
        batch_size=batch_size,
        seed=seed,
    )
    scores = {
        "elbo": terms.elbo,
        "importance": terms.importance_bound,
        "exact": terms.log_marginal,
    }
    return cast(Tensor, scores[bound])


def exact_terms(
    vae: DiscreteVAE, x: Any, labels: Any = None, *, batch_size: int = ROWS
) -> DatumTerms:
    """Every part of the ELBO as a sum over all K^D codes, and log p(x), (N,) each, in nats.

    Args:
        vae: a model with K^D <= `MAX_CODES`.
        x: (N, *event), N >= 1, in the support of the likelihood: a tensor, an array or a table.
        labels: (N,) integers if the prior is conditional on labels; otherwise None.
        batch_size: data that are encoded at once. The result does not depend on it.

    Raises:
        ValueError: K^D exceeds `MAX_CODES`, or x is outside the support.
    """
    x, labels = as_arguments(vae, x, labels)
    labels = vae.prior_labels(labels)
    return datum_terms(vae, x, labels, exact=True, batch_size=batch_size)


def datum_terms(
    vae: DiscreteVAE,
    x: Any,
    labels: Tensor | None = None,
    *,
    exact: bool | None = None,
    importance_samples: int | None = None,
    num_samples: int = 16,
    batch_size: int = ROWS,
    seed: int = 0,
    on_block: Callable[[Posterior], None] | None = None,
    inference: Inference | None = None,
    compare: bool = False,
) -> DatumTerms:
    """The figures of each datum, (N,) each, computed block by block in bounded memory.

    Args:
        vae: the model. It is in eval mode meanwhile.
        x: (N, *event), of the model's dtype and on its device: a tensor, or an object that returns
            slices of rows (`ServedRows`), which need not fit into memory.
        labels: (N,) int64 on the model's device if the prior is conditional on labels, else None.
        exact: True for sums over all codes, False for draws, None for sums if they are cheap.
        importance_samples: k, draws of z per datum for the importance-weighted bound; None for no
            such bound.
        num_samples: draws of z per datum for the ELBO, if it is not a sum over codes.
        batch_size: the largest number of data in a block. If K^D is large, a block has fewer.
        seed: seed of the draws.
        on_block: None, or a function that is called with q(z|x) of each block of data.
        inference: how q(z|x) is found; None for the guide's.
        compare: whether to compute the ELBO of the guide's q(z|x), of the refined one, and of the
            best factorised one too.

    Raises:
        ValueError: an argument is out of range, x is outside the support, or K^D is too large.
    """
    check_settings(num_samples, importance_samples, batch_size)
    inference = Inference() if inference is None else inference
    if inference.needs_table and exact is False:
        raise ValueError(
            "Expected exact=True or None for the exact posterior, which is a sum over all codes; "
            "got False. Use posterior='refined'."
        )
    exact = inference.needs_table if exact is None else exact
    # Two streams, so that neither figure depends on whether the other is computed.
    elbo_draws = torch.Generator().manual_seed(2 * seed)
    bound_draws = torch.Generator().manual_seed(2 * seed + 1)
    # The posteriors that are compared have the same uniform numbers.
    compared = [torch.Generator().manual_seed(2 * seed) for _ in range(2)] if compare else []
    with evaluating(vae):
        joint = Joint(vae, x, labels, guided=True)
        inference.check(joint.num_codes, joint.described)
        plan = make_plan(
            joint,
            exact=exact,
            num_samples=num_samples,
            importance_samples=importance_samples,
            batch_size=batch_size,
        )
        figures: DatumTerms | None = None
        refiner = Refiner(inference)
        for start in range(0, len(x), plan.block_size):
            some = slice(start, start + plan.block_size)
            rows, known = x[some], None if labels is None else labels[some]
            if not isinstance(x, Tensor):
                vae.likelihood.check(rows)
            found = find_posterior(plan, joint, rows, known, refiner)
            terms = _block_terms(plan, found.block, found.posterior, elbo_draws)
            if compare:
                terms = _compared(terms, plan, found, refiner, compared)
            if plan.importance_samples is not None:
                draws = plan.importance_samples, bound_draws
                terms = _with_bound(terms, found.block, found.posterior, *draws)
            figures = empty_terms(terms, len(x)) if figures is None else figures
            for whole, part in zip(tensors_of(figures), tensors_of(terms), strict=True):
                whole[some] = part
            if on_block is not None:
                on_block(found.posterior)
    return cast(DatumTerms, figures)._replace(prior_error=joint.prior_error)


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
