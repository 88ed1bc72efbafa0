"""The figures of each datum, in nats: the ELBO's parts, the importance-weighted bound, log p(x)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor

from pyro_dvae.checks import at_least, one_of
from pyro_dvae.codes import MAX_CODES, ROWS, kl_divergence, total, wide
from pyro_dvae.evaluation.importance import draw_in_chunks, importance_bound
from pyro_dvae.evaluation.joint import MAX_SUMMED_CODES, Joint, JointBlock, log_sum, unchecked
from pyro_dvae.memory import refuse_bytes
from pyro_dvae.networks.assembly import in_eval_mode
from pyro_dvae.posteriors import CONDITIONALS, FactorisedPosterior, Posterior, posterior_of
from pyro_dvae.tensors import as_arguments

_MOST_NUMBERS = 2**22
"""Made for a datum, to sum over all codes without being asked to: some 20 ms of a CPU."""

_TABLE_ELEMENTS = 2**22
"""Figures of codes or draws, (data, codes), that are held at once."""

_DRAW_BYTES = 40
"""Of five figures in double that are held for each draw of a datum, at least."""


class DatumTerms(NamedTuple):
    """The ELBO's parts for each of N data, in nats; ELBO = log_likelihood + log_prior + entropy."""

    log_likelihood: Tensor
    """(N,) E_q[log p(x|z)], -BCE for a Bernoulli likelihood."""
    log_prior: Tensor
    """(N,) E_q[log p(z)], -D log K for the uniform prior."""
    entropy: Tensor
    """(N,) Entropy(q(z|x))."""
    log_marginal: Tensor | None
    """(N,) log p(x), where all codes were summed."""
    importance_bound: Tensor | None
    """(N,) the k-sample bound on log p(x), where it was asked for."""
    variances: Mapping[str, Tensor]
    """name -> (N,) variance over the draws of those terms that come from draws."""
    prior_error: float = 0.0
    """Standard error of log p(z) where log Z is estimated: it moves all data's figures alike."""

    @property
    def elbo(self) -> Tensor:
        """(N,) the ELBO (Eq. 82 of [JL25])."""
        return self.log_likelihood + self.log_prior + self.entropy


def datum_scores(
    vae: Any,
    x: Any,
    labels: Any = None,
    *,
    bound: Literal["elbo", "importance", "exact"] = "elbo",
    importance_samples: int = 1000,
    num_samples: int = 16,
    batch_size: int = ROWS,
    seed: int = 0,
) -> Tensor:
    """Score each datum by ELBO, importance-weighted bound or log p(x); the lowest surprises most.

    Their mean is the figure of `evaluate` with the same arguments.

    Args:
        vae: a `DiscreteVAE`.
        x: (N, *event), N >= 1, as of `evaluate`.
        labels: (N,), where the prior is conditional on them.
        bound: "elbo", "importance", or "exact" for log p(x), which needs K^D <= `MAX_CODES`.
        importance_samples: k of the importance-weighted bound.
        num_samples: draws of z a datum for an ELBO that is too large to sum.
        batch_size: data encoded at once; the result does not change.
        seed: of the draws.

    Returns:
        (N,) nats, in the order of x.

    Raises:
        ValueError: as `evaluate`, or an unknown bound.
    """
    one_of("bound", bound, ("elbo", "importance", "exact"))
    x, labels = as_arguments(vae, x, labels)
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


def exact_terms(vae: Any, x: Any, labels: Any = None, *, batch_size: int = ROWS) -> DatumTerms:
    """Every part of the ELBO as a sum over all K^D codes, (N,) each, in nats.

    Args:
        vae: a `DiscreteVAE` with K^D <= `MAX_CODES`.
        x: (N, *event).
        labels: (N,), where the prior is conditional on them.
        batch_size: data encoded at once; the result does not change.

    Raises:
        ValueError: K^D exceeds `MAX_CODES`.
    """
    x, labels = as_arguments(vae, x, labels)
    return datum_terms(
        vae,
        x,
        labels,
        exact=True,
        importance_samples=None,
        num_samples=2,
        batch_size=batch_size,
        seed=0,
    )


def datum_terms(
    vae: Any,
    x: Any,
    labels: Any = None,
    *,
    exact: bool | None,
    importance_samples: int | None,
    num_samples: int,
    batch_size: int,
    seed: int,
    on_block: Callable[[Posterior], None] | None = None,
) -> DatumTerms:
    """The terms of each datum, (N,), streamed through blocks of bounded memory.

    Args:
        vae: as in `evaluate`, like all that is not explained here.
        x: (N, *event) of the model's dtype and on its device: a tensor, or what serves its rows by
            slices, `ServedRows`, which need not fit into memory.
        labels: (N,) on the device, where the prior is conditional on them.
        exact: sums over codes, or draws.
        importance_samples: k, or None.
        num_samples: draws where `exact` is not.
        batch_size: data in a block; fewer where K^D is large.
        seed: of the draws.
        on_block: called with q(z|x) of one block of data after the other.

    Raises:
        ValueError: as `evaluate`.
    """
    at_least("batch size", batch_size, 1)
    at_least("samples", num_samples, 2)
    _refuse_too_many("samples", num_samples)
    if importance_samples is not None:
        at_least("importance samples", importance_samples, 2)
        _refuse_too_many("importance samples", importance_samples)
    with evaluating(vae):
        joint = Joint(vae, x, labels, guided=True)
        enumerable = joint.num_codes <= MAX_CODES
        affordable = enumerable and joint.cost <= _MOST_NUMBERS
        exact = affordable if exact is None else exact
        if exact and not enumerable:
            raise ValueError(
                f"Expected at most {MAX_CODES} codes to sum the ELBO over; got K^D = "
                f"{joint.described}. Use draws (exact=None, importance_samples=1000), or "
                f"log_marginal, which sums up to {MAX_SUMMED_CODES}."
            )
        tabulate = exact or (affordable and importance_samples is not None)
        sequential = getattr(vae, "is_sequential", False)
        table = joint.num_codes if tabulate or (sequential and enumerable) else 1
        # Of q(z|x) itself, or of the draws that its marginals are the mean of.
        conditionals = CONDITIONALS if sequential and not enumerable else 1
        code = conditionals * joint.num_latents * joint.num_categories
        columns = max(table, 1 if exact else num_samples, code)
        # A stream each, so that neither figure depends on whether the other is asked for.
        elbo_draws = torch.Generator().manual_seed(2 * seed)
        importance_draws = torch.Generator().manual_seed(2 * seed + 1)
        figures: DatumTerms | None = None
        size = min(batch_size, max(1, _TABLE_ELEMENTS // columns))
        for start in range(0, len(x), size):
            rows = x[start : start + size]
            if not isinstance(x, Tensor):
                joint.check(rows)
            posterior = posterior_of(vae.posterior(rows), tabulate=enumerable)
            stop = start + len(rows)
            known = None if labels is None else labels[start:stop]
            block = JointBlock(joint, rows, tabulate, known)
            if exact:
                terms = _summed_terms(block, posterior)
            else:
                terms = _drawn_terms(block, posterior, num_samples, elbo_draws)
            if importance_samples is not None:
                terms = _with_bound(terms, block, posterior, importance_samples, importance_draws)
            figures = _empty(terms, len(x)) if figures is None else figures
            for whole, part in zip(_tensors(figures), _tensors(terms), strict=True):
                whole[start:stop] = part
            if on_block is not None:
                on_block(posterior)
    return cast(DatumTerms, figures)._replace(prior_error=joint.prior_error)


def _refuse_too_many(what: str, number: int) -> None:
    """Draws of a datum are held at once: the error of their mean needs all of them."""
    needed = _DRAW_BYTES * min(number, 2**63)
    refuse_bytes(f"{number} {what} for each datum", needed, f"the number of {what}")


def _summed_terms(block: JointBlock, posterior: Posterior) -> DatumTerms:
    log_prior, log_likelihood = cast(tuple[Tensor, Tensor], block.all_codes)
    prior_term = _prior_term(block.joint, posterior)
    return DatumTerms(
        posterior.expectation(log_likelihood),
        posterior.expectation(log_prior) if prior_term is None else prior_term,
        cast(Tensor, posterior.entropy()),
        log_sum(log_prior, log_likelihood),
        None,
        {},
    )


def _drawn_terms(
    block: JointBlock, posterior: Posterior, num_samples: int, generator: torch.Generator
) -> DatumTerms:
    """Means over draws of what has no closed form, each with its variance."""
    num_data = len(block.x)
    chunks = draw_in_chunks(posterior, num_data, num_samples, block.draws_at_once, generator)
    empty = wide(torch.empty(3, num_data, num_samples, device=block.x.device))
    log_prior, log_likelihood, log_q = empty
    for rows, draws, index, log_q_drawn in chunks:
        log_prior[rows, draws], log_likelihood[rows, draws] = block.drawn(rows, index)
        log_q[rows, draws] = log_q_drawn
    closed = {"log_prior": _prior_term(block.joint, posterior), "entropy": posterior.entropy()}
    drawn = {"log_likelihood": log_likelihood, "log_prior": log_prior, "entropy": -log_q}
    drawn = {name: value for name, value in drawn.items() if closed.get(name) is None}
    means = {name: value.mean(-1) for name, value in drawn.items()}
    means |= {name: value for name, value in closed.items() if value is not None}
    kl = [value for name, value in drawn.items() if name != "log_likelihood"]
    sums = {**drawn, "elbo": total(drawn.values())}
    if kl:
        sums["kl"] = total(kl)
    variances = {name: value.var(-1) / num_samples for name, value in sums.items()}
    return DatumTerms(**means, log_marginal=None, importance_bound=None, variances=variances)


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
    """E_q log p(z), (B,), in closed form where the latents are independent under q and p."""
    if joint.prior_log_probs is None or not isinstance(posterior, FactorisedPosterior):
        return None
    return -kl_divergence(posterior.log_q, joint.prior_log_probs) - posterior.entropy()


def _empty(terms: DatumTerms, num_data: int) -> DatumTerms:
    """Room for the same terms of all data.

    Terms kept block by block would pin the freed memory of the blocks between them: 6 MB a block
    of a model with 4096 codes.
    """
    rooms: dict[str, Any] = {
        name: value.new_empty(num_data)
        for name, value in terms._asdict().items()
        if isinstance(value, Tensor)
    }
    variances = {name: value.new_empty(num_data) for name, value in terms.variances.items()}
    return terms._replace(**rooms, variances=variances)


def _tensors(terms: DatumTerms) -> list[Tensor]:
    return [value for value in (*terms, *terms.variances.values()) if isinstance(value, Tensor)]


@contextmanager
def evaluating(vae: Any) -> Iterator[None]:
    """In eval mode, without gradients and without Pyro's checks of the data."""
    with unchecked(vae), in_eval_mode(vae):
        yield
