"""`evaluate`: the figures of a model on a data set."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from pyro_dvae.codes import ROWS
from pyro_dvae.evaluation.annealed import (
    AIS_DATA,
    CHAINS,
    AnnealedBound,
    annealed_bound,
    evenly_spaced,
)
from pyro_dvae.evaluation.figures import Evaluation
from pyro_dvae.evaluation.inference import SWEEPS, Inference, PosteriorName
from pyro_dvae.evaluation.joint import evaluating
from pyro_dvae.evaluation.scoring import datum_terms
from pyro_dvae.evaluation.simple import simple_models
from pyro_dvae.evaluation.terms import DatumTerms
from pyro_dvae.evaluation.usage import BlockUsage, ClassCounter, Usage, UsageCounter
from pyro_dvae.posteriors import Posterior
from pyro_dvae.tensors import as_arguments

if TYPE_CHECKING:
    from pyro_dvae.vae import DiscreteVAE


def evaluate(
    vae: DiscreteVAE,
    x: Any,
    labels: Any = None,
    *,
    train: Any = None,
    importance_samples: int | None = None,
    exact: bool | None = None,
    num_samples: int = 16,
    batch_size: int = ROWS,
    seed: int = 0,
    posterior: PosteriorName = "encoder",
    refine: int | None = None,
    ais: int | None = None,
    ais_data: int = AIS_DATA,
    ais_chains: int = CHAINS,
    together: bool = False,
) -> Evaluation:
    """ELBO = E_q[log p(x|z)] - KL(q(z|x) || p(z)) of a data set, its parts, bounds and log p(x).

    log p(x) - ELBO = KL(q(z|x) || p(z|x)) is 0 if q is the posterior (Eqs. 31 to 39 of [JL25]; the
    ELBO and its parts are Eqs. 82, 83 and 86). It is known if all codes are summed over. In
    expectation, ELBO <= importance-weighted bound <= log p(x).

    Where elements are missing (NaN), x is what is observed of a datum. `elbo_per_element` of the
    result is then the ELBO per observed element.

    Args:
        vae: the model. It is in eval mode meanwhile. No global random stream is used.
        x: (N, *event), N >= 1, in the support of the likelihood: a tensor, an array or a table. It
            is converted to the dtype and the device of the model.
        labels: (N,) integers if the prior is conditional on labels; then each p(z) is p(z|y), and
            log p(x) is log p(x|y). For a `SemiSupervisedVAE` they are the classes, negative where
            the class is not known, and `accuracy` is how often q(y|x) is right. Otherwise None.
        train: (M, *event) the training data, to fit simple models to: the result then has
            `simple_models`. None for no such models, whose fit may take some seconds.
        importance_samples: k >= 2, draws of z per datum for the importance-weighted bound; None for
            no such bound.
        exact: True for expectations and log p(x) as sums over all K^D codes, which needs
            K^D <= 65,536 (`MAX_CODES`); False for expectations from draws; None for sums if they
            are cheap, that is, if p(x|z) is a matrix product, or if they need at most 4 million
            numbers per datum.
        num_samples: draws of z per datum if expectations are not sums, at least 2.
        batch_size: data that are encoded at once, at most 256 of them where codes are drawn. Memory
            grows with it. The result does not depend on it.
        seed: seed of all draws.
        posterior: the q(z|x) of all figures: the guide's, "encoder"; "refined" by coordinate ascent
            on the ELBO (`refine`); or p(z|x), "exact", whose ELBO is log p(x).
        refine: sweeps of coordinate ascent. The result then also has the ELBO of the guide's and of
            the refined q(z|x), and the gap of the guide's in two parts. None for 5 sweeps if
            `posterior` is another than the guide's, else for no comparison.
        ais: sweeps of annealed importance sampling (`annealed_bound`), for a bound on log p(x) that
            is tighter than the others where there are too many codes to sum over. Each sweep
            decodes D codes per chain. None for no such bound.
        ais_data: the number of data, evenly spaced in x, for which chains are run. The bound of
            all data is their ELBO, plus the mean of what the chains add to it for these data.
        ais_chains: the number of chains per datum, at least 2.
        together: whether all processes of a process group call this with the same arguments. Each
            then computes its part of the data, and the result is that of one process.

    Raises:
        ValueError: an argument is out of range, x is outside the support, or K^D is too large.

    Example:
        >>> scores = evaluate(vae, x, importance_samples=100)
        >>> scores.elbo <= scores.log_marginal
        True
    """
    return evaluate_with_terms(
        vae,
        x,
        labels,
        train=train,
        importance_samples=importance_samples,
        exact=exact,
        num_samples=num_samples,
        batch_size=batch_size,
        seed=seed,
        posterior=posterior,
        refine=refine,
        ais=ais,
        ais_data=ais_data,
        ais_chains=ais_chains,
        together=together,
    )[0]


def evaluate_with_terms(
    vae: DiscreteVAE,
    x: Any,
    labels: Any = None,
    *,
    train: Any = None,
    importance_samples: int | None = None,
    exact: bool | None = None,
    num_samples: int = 16,
    batch_size: int = ROWS,
    seed: int = 0,
    posterior: PosteriorName = "encoder",
    refine: int | None = None,
    ais: int | None = None,
    ais_data: int = AIS_DATA,
    ais_chains: int = CHAINS,
    together: bool = False,
) -> tuple[Evaluation, DatumTerms]:
    """What `evaluate` returns for these arguments, and the figures of each datum behind it.

    The standard error of a mean over the data, which are drawn from all possible data, is the
    standard deviation of the figures of each datum / sqrt(N).
    """
    x, labels = as_arguments(vae, x, labels)
    simple = None if train is None else simple_models(vae, train, x, labels, seed=seed)
    classes = ClassCounter(labels if vae.observes_labels else None)
    labels = vae.prior_labels(labels)
    with evaluating(vae):
        prior = vae.prior_codes() if labels is None else None
    counter = _Counters(UsageCounter(prior), classes)
    inference = Inference(posterior, SWEEPS if refine is None else refine, seed=seed)
    compare = refine is not None or posterior != "encoder"
    terms = datum_terms(
        vae,
        x,
        labels,
        exact=exact,
        importance_samples=importance_samples,
        num_samples=num_samples,
        batch_size=batch_size,
        seed=seed,
        count=counter,
        inference=inference,
        compare=compare,
        together=together,
    )
    observed = None
    if vae.likelihood.takes_missing:
        observed = (x.numel() - int(x.isnan().sum())) / len(x)
    num_elements = None
    if vae.likelihood.support.is_discrete:
        num_elements = x[0].numel() if observed is None else observed
    scores = _summary(terms, counter.usage.usage(), importance_samples, num_elements, observed)
    if compare:
        scores = replace(scores, **_compared(terms, inference.sweeps))
    if ais is not None:
        chosen = evenly_spaced(len(x), ais_data)
        rows, known = x[chosen], None if labels is None else labels[chosen]
        draws: dict[str, Any] = {"seed": seed, "together": together}
        annealed = annealed_bound(vae, rows, known, sweeps=ais, chains=ais_chains, **draws)
        scores = _with_annealed(scores, terms, annealed, chosen)
        scores = replace(scores, annealed_sweeps=ais, annealed_chains=ais_chains)
    return replace(scores, accuracy=classes.accuracy(), simple_models=simple), terms


class _Counters:
    """What is counted over all data, as a `Counter`."""

    def __init__(self, usage: UsageCounter, classes: ClassCounter) -> None:
        self.usage, self.classes = usage, classes

    def of(self, posterior: Posterior) -> tuple[BlockUsage, Tensor | None]:
        return self.usage.of(posterior), self.classes.of(posterior)

    def add(self, counted: tuple[BlockUsage, Tensor | None]) -> None:
        self.usage.add(counted[0])
        self.classes.add(counted[1])


def _compared(terms: DatumTerms, sweeps: int) -> dict[str, Any]:
    """The figures of an `Evaluation` that compare the guide's q(z|x) with better ones."""
    encoder, refined, best, log_p = (
        None if values is None else values.mean().item()
        for values in (terms.encoder_elbo, terms.refined_elbo, terms.best_elbo, terms.log_marginal)
    )
    return {
        "encoder_elbo": encoder,
        "refined_elbo": refined,
        "refined_sweeps": sweeps,
        "family_gap": _difference(log_p, best),
        "encoder_gap": _difference(best, encoder),
    }


def _with_annealed(
    scores: Evaluation, terms: DatumTerms, annealed: AnnealedBound, chosen: Tensor
) -> Evaluation:
    """The figures, and the bound of annealed importance sampling of some of the data."""
    gap = annealed.log_marginal - terms.elbo[chosen]
    error = annealed.variance.sum().sqrt().item() / len(chosen)
    noise = terms.variances.get("elbo")
    elbo_error = 0.0 if noise is None else noise.sum().sqrt().item() / len(noise)
    if len(chosen) == len(terms.elbo):  # the ELBO cancels in the bound
        errors = {"annealed_gap": math.hypot(error, elbo_error), "annealed_bound": error}
    else:
        # Other data would have had another gap. Its spread has the noise of all draws in it.
        error = max(error, math.sqrt(gap.var().item() / len(chosen)))
        errors = {"annealed_gap": error, "annealed_bound": math.hypot(error, elbo_error)}
    errors["annealed_bound"] = math.hypot(errors["annealed_bound"], terms.prior_error)
    return replace(
        scores,
        annealed_bound=scores.elbo + gap.mean().item(),
        annealed_gap=gap.mean().item(),
        annealed_data=len(chosen),
        standard_errors={**scores.standard_errors, **errors},
    )


def _summary(
    terms: DatumTerms,
    usage: Usage,
    importance_samples: int | None,
    num_elements: float | None,
    observed: float | None,
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
        kl = max(kl, 0.0)  # rounding alone can make the KL negative
    if bound is not None:
        errors["importance_gap"] = math.hypot(
            errors.get("importance_bound", 0.0), errors.get("elbo", 0.0)
        )
        if log_marginal is not None:
            errors["remaining_gap"] = errors.get("importance_bound", 0.0)
    if terms.prior_error:  # one error for all data, so their mean does not reduce it
        others = ("importance_bound", "log_marginal", "encoder_elbo", "refined_elbo")
        moved = [name for name in others if terms._asdict()[name] is not None]
        for name in ("elbo", "log_prior", "kl", *moved):  # log Z cancels in their gaps
            errors[name] = math.hypot(errors.get(name, 0.0), terms.prior_error)
    bits = None if not num_elements else 1 / (num_elements * math.log(2))
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
        observed_elements=observed,
        **usage._asdict(),
    )


def _difference(high: float | None, low: float | None) -> float | None:
    return None if high is None or low is None else high - low
