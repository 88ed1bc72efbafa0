"""Numbers of a trained model over a data set, in nats per datum."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pyro_dvae.codes import ROWS
from pyro_dvae.evaluation.joint import evaluating
from pyro_dvae.evaluation.marginal import MAX_SUMMED_CODES, log_marginal
from pyro_dvae.evaluation.scoring import DatumTerms, datum_scores, datum_terms, exact_terms
from pyro_dvae.evaluation.usage import Usage, UsageCounter
from pyro_dvae.tensors import as_arguments

if TYPE_CHECKING:
    from pyro_dvae.vae import DiscreteVAE

__all__ = [
    "MAX_SUMMED_CODES",
    "DatumTerms",
    "Evaluation",
    "datum_scores",
    "evaluate",
    "exact_terms",
    "log_marginal",
    "ordering",
]

_ROUNDING = 1e-7
_CHANCE = 4.5
"""Standard errors that chance explains."""


@dataclass(frozen=True)
class Evaluation:
    """Means over a data set, in nats per datum; `dataclasses.asdict` of it goes into JSON."""

    elbo: float
    """log_likelihood - kl, a lower bound on log p(x)."""
    log_likelihood: float
    """E_q log p(x|z), -BCE for a Bernoulli likelihood."""
    log_prior: float
    """E_q log p(z), -D log K for the uniform prior."""
    entropy: float
    """Of q(z|x)."""
    kl: float
    """KL(q(z|x) || p(z)) = -log_prior - entropy."""
    log_marginal: float | None
    """Log p(x) by the sum over all codes; None where it was not summed."""
    importance_bound: float | None
    """Of `importance_samples` draws a datum, between the ELBO and log p(x) in expectation."""
    importance_samples: int | None
    posterior_gap: float | None
    """log_marginal - elbo = KL(q(z|x) || p(z|x)), what q loses."""
    importance_gap: float | None
    """importance_bound - elbo."""
    remaining_gap: float | None
    """log_marginal - importance_bound, what more draws would gain."""
    bits_per_dimension: float | None
    """-elbo / (P log 2), P the elements of a datum; None where x is continuous."""
    standard_errors: dict[str, float]
    """name -> that of a figure above, over the draws and, where it is not summed, of the estimate
    of log Z of a Boltzmann prior; what is not named is exact."""
    kl_per_latent: tuple[float, ...] | None
    """KL(q(z_d|x) || p(z_d)); None where the latents of prior or guide are not independent."""
    information_per_latent: tuple[float, ...]
    """I(x; z_d) = KL(q(z_d|x) || mean over x of q(z_d|x)) (Hoffman & Johnson 2016)."""
    perplexity_per_latent: tuple[float, ...]
    """exp of the entropy of the mean over x of q(z_d|x), from 1 to K."""
    active_latents: int
    """Latents with information of at least `usage.ACTIVE_INFORMATION`."""
    codes_used: int
    """Different most probable codes of the data."""
    code_perplexity: float
    """exp of the entropy of how often each of them is used, from 1 to `codes_used`."""
    num_data: int


def evaluate(
    vae: DiscreteVAE,
    x: Any,
    labels: Any = None,
    *,
    importance_samples: int | None = None,
    exact: bool | None = None,
    num_samples: int = 16,
    batch_size: int = ROWS,
    seed: int = 0,
) -> Evaluation:
    """ELBO, its three parts, bounds and log p(x) of a data set (Eqs. 82, 83 and 86 of [JL25]).

    log p(x) - ELBO = KL(q(z|x) || p(z|x)), which is 0 where q is the posterior (Eqs. 31 to 39).
    In expectation ELBO <= importance-weighted bound <= log p(x); `ordering` says whether it holds.

    Args:
        vae: a `DiscreteVAE`, evaluated in eval mode; no global random stream is touched.
        x: (N, *event) in the support of the likelihood, N >= 1: a tensor, or what `as_data` makes
            one of (an array, a table), which converts it to the dtype and device of the weights.
        labels: (N,) int64, where the prior is conditional on them: every p(z) is then p(z|y), and
            log p(x) is log p(x|y).
        importance_samples: k of the importance-weighted bound, at least 2; None leaves it out.
        exact: whether E_q and log p(x) are sums over all K^D codes; None where K^D <= `MAX_CODES`
            and, where p(x|z) is no matrix product, that makes no more than 4 million numbers a
            datum.
        num_samples: draws of z a datum where E_q is not a sum, at least 2.
        batch_size: data encoded at once; memory grows with it, the result does not change.
        seed: of all draws.

    Raises:
        ValueError: an argument out of range, data outside the support, or K^D too large to sum.
    """
    x, labels = as_arguments(vae, x, labels)
    with evaluating(vae):
        prior = vae.prior_codes() if labels is None else None
    counter = UsageCounter(prior)
    terms = datum_terms(
        vae,
        x,
        labels,
        exact=exact,
        importance_samples=importance_samples,
        num_samples=num_samples,
        batch_size=batch_size,
        seed=seed,
        on_block=counter.add,
    )
    num_elements = x[0].numel() if vae.likelihood.support.is_discrete else None
    return _summary(terms, counter.usage(), importance_samples, num_elements)


def ordering(evaluation: Evaluation) -> str:
    """Say in one line whether ELBO <= bound(k) <= log p(x) holds, or by how much not and why.

    Args:
        evaluation: of `evaluate`; what it left out is left out here.
    """
    errors = evaluation.standard_errors
    labels = {
        "elbo": "ELBO",
        "importance_bound": f"bound({evaluation.importance_samples})",
        "log_marginal": "log p(x)",
    }
    chain = [name for name in labels if getattr(evaluation, name) is not None]
    if len(chain) == 1:
        return "ELBO <= log p(x) was not checked: neither log p(x) nor a tighter bound is known."
    excesses, reason = [], "Monte Carlo error explains it"
    for low, high in pairwise(chain):
        value = getattr(evaluation, high)
        excess = getattr(evaluation, low) - value
        if excess <= _ROUNDING * max(1.0, abs(value)):
            continue
        said = f"{labels[low]} exceeds {labels[high]} by {excess:.2g} nats"
        if low in errors or high in errors:
            error = math.hypot(errors.get(low, 0.0), errors.get(high, 0.0))
            said += f" (standard error {error:.2g})"
            if excess > _CHANCE * error:
                reason = "codes too rare to be drawn may carry it, more draws would tell"
        else:
            reason = "without draws this cannot be, do report it"
        excesses.append(said)
    claim = " <= ".join(labels[name] for name in chain)
    return f"{claim} fails: {'; '.join(excesses)}; {reason}." if excesses else f"{claim} holds."


def _summary(
    terms: DatumTerms,
    usage: Usage,
    importance_samples: int | None,
    num_elements: int | None,
) -> Evaluation:
    num_data = len(terms.entropy)
    elbo, log_prior, entropy = (
        values.mean().item() for values in (terms.elbo, terms.log_prior, terms.entropy)
    )
    log_marginal, bound = (
        None if values is None else values.mean().item()
        for values in (terms.log_marginal, terms.importance_bound)
    )
    errors = {
        name: error
        for name, variance in terms.variances.items()
        if (error := variance.sum().sqrt().item() / num_data) > 0
    }
    kl = -log_prior - entropy
    if "kl" not in errors:
        kl = max(kl, 0.0)  # which a sum without draws misses by rounding alone
    if bound is not None:
        errors["importance_gap"] = math.hypot(
            errors.get("importance_bound", 0.0), errors.get("elbo", 0.0)
        )
        if log_marginal is not None:
            errors["remaining_gap"] = errors.get("importance_bound", 0.0)
    if terms.prior_error:  # the same for all data: the mean does not lessen it
        known = {"importance_bound": bound, "log_marginal": log_marginal}
        moved = [name for name, value in known.items() if value is not None]
        for name in ("elbo", "log_prior", "kl", *moved):  # in the gaps between them log Z cancels
            errors[name] = math.hypot(errors.get(name, 0.0), terms.prior_error)
    bits = None if num_elements is None else 1 / (num_elements * math.log(2))
    if bits is not None and "elbo" in errors:
        errors["bits_per_dimension"] = errors["elbo"] * bits
    return Evaluation(
        elbo=elbo,
        log_likelihood=terms.log_likelihood.mean().item(),
        log_prior=log_prior,
        entropy=entropy,
        kl=kl,
        log_marginal=log_marginal,
        importance_bound=bound,
        importance_samples=importance_samples,
        posterior_gap=_difference(log_marginal, elbo),
        importance_gap=_difference(bound, elbo),
        remaining_gap=_difference(log_marginal, bound),
        bits_per_dimension=None if bits is None else -elbo * bits,
        standard_errors=errors,
        num_data=num_data,
        **usage._asdict(),
    )


def _difference(high: float | None, low: float | None) -> float | None:
    return None if high is None or low is None else high - low
