"""Scores that say how unusual each datum is, for anomaly detection; the lowest are most unusual."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor

from pyro_dvae.checks import one_of
from pyro_dvae.codes import ROWS, wide
from pyro_dvae.defaults import ANOMALY_SCORE
from pyro_dvae.evaluation.joint import Joint, TabulatedBlock, evaluating
from pyro_dvae.evaluation.plan import make_plan
from pyro_dvae.evaluation.scoring import datum_terms
from pyro_dvae.evaluation.simple import first_of, independent_elements
from pyro_dvae.evaluation.surprise import conditional_surprise
from pyro_dvae.likelihoods.counts import Multinomial
from pyro_dvae.likelihoods.entropies import datum_entropy, element_entropies
from pyro_dvae.posteriors import posterior_of
from pyro_dvae.streams import RandomStream
from pyro_dvae.tensors import as_arguments

if TYPE_CHECKING:
    from pyro_dvae.vae import DiscreteVAE

AnomalyScore = Literal["log-prob", "ratio", "conditional", "excess", "typicality"]
"""The names of the scores; see `anomaly_scores`."""

_DRAWS = 16
"""Codes drawn from q(z|x), where they are too many for a sum."""


def log_probs(
    vae: DiscreteVAE,
    x: Any,
    labels: Any = None,
    *,
    importance_samples: int = 100,
    seed: int = 0,
) -> Tensor:
    """Log p(x) of each datum, (N,) nats: exact where that is cheap, else the bound from k draws.

    Args:
        vae: the model. It is in eval mode meanwhile.
        x: (N, *event), N >= 1, in the support of the likelihood: a tensor, an array or a table.
        labels: (N,) integers if the prior is conditional on labels; otherwise None.
        importance_samples: k, the codes drawn per datum for the importance-weighted bound.
        seed: of the draws.
    """
    x, labels = as_arguments(vae, x, labels)
    labels = vae.prior_labels(labels)
    with evaluating(vae):
        joint = Joint(vae, x, labels, guided=True)
        options: Any = {"num_samples": _DRAWS, "importance_samples": None, "batch_size": ROWS}
        is_exact = make_plan(joint, exact=None, **options).exact
    draws = None if is_exact else importance_samples
    terms = datum_terms(vae, x, labels, exact=is_exact, importance_samples=draws, seed=seed)
    found = terms.log_marginal if is_exact else terms.importance_bound
    assert found is not None
    return found


def excess_log_probs(vae: DiscreteVAE, x: Any, labels: Any = None, *, seed: int = 0) -> Tensor:
    """E_q[log p(x|z) + H(p(x'|z))], (N,) nats: minus the cross-entropy of x less the entropy.

    H(p(x'|z)) = E[-log p(x'|z)] is what a draw x' of the decoder costs itself, given the same code
    z. So the expectation of this score over such draws is 0, and a datum that costs more than the
    draws scores below 0. log p(x) itself prefers data of low entropy, such as dark images, whether
    they are usual or not; here these cost no less than expected.

    Args:
        vae: the model. It is in eval mode meanwhile.
        x: (N, *event), N >= 1, in the support of the likelihood: a tensor, an array or a table.
        labels: (N,) integers if the prior is conditional on labels; otherwise None.
        seed: of the draws: of codes, where there are too many for a sum, and of data, where the
            likelihood's entropy has no closed form.

    Raises:
        ValueError: the likelihood is `Multinomial`, whose draws have another total than x.
    """
    return _excess(vae, x, labels, seed, {})


def _excess(vae: DiscreteVAE, x: Any, labels: Any, seed: int, known: dict[str, Tensor]) -> Tensor:
    """What `excess_log_probs` returns.

    Args:
        vae: the model.
        x: the data.
        labels: their labels, or None.
        seed: of the draws.
        known: for the entropies of the codes, which further calls with the same model and seed
            find here.
    """
    if isinstance(vae.likelihood, Multinomial):
        raise ValueError(
            "Expected a likelihood whose draws are like the data for the score 'excess'; got "
            "Multinomial, whose draws all have the same total. Use 'log-prob' or 'ratio'."
        )
    x, labels = as_arguments(vae, x, labels)
    labels = vae.prior_labels(labels)
    parts: list[Tensor] = []
    with evaluating(vae), RandomStream(seed, x.device):
        joint = Joint(vae, x, labels, guided=True)
        options: Any = {"num_samples": _DRAWS, "importance_samples": None, "batch_size": ROWS}
        plan = make_plan(joint, exact=None, **options)
        if plan.exact and "entropies" not in known:
            known["entropies"] = _entropies(joint)
        table = known["entropies"] if plan.exact else None
        for start in range(0, len(x), plan.block_size):
            some = slice(start, start + plan.block_size)
            rows, q = x[some], vae.posterior(x[some])
            observed = ~rows.isnan() if vae.likelihood.takes_missing else None
            if table is None:
                p_x = vae.decode(q.sample((_DRAWS,)))
                parts.append(wide(p_x.log_prob(rows) + datum_entropy(p_x, observed)).mean(0))
                continue
            block = TabulatedBlock(joint, rows, None if labels is None else labels[some])
            seen = None if observed is None else observed.reshape(len(rows), -1).to(table)
            entropy = table.sum(-1)[None] if seen is None else seen @ table.T
            posterior = posterior_of(q, tabulate=True)
            parts.append(posterior.expectation(block.log_likelihood + entropy))
    return torch.cat(parts)


def _entropies(joint: Joint) -> Tensor:
    """H of p(x|z) under each code, (K^D, 1); of each element, (K^D, P), where some are missing."""
    masked, parts = joint.vae.likelihood.takes_missing, []
    for _, p_x in joint.chunks(joint.codes_at_once(1)):
        each = element_entropies(p_x) if masked else datum_entropy(p_x)
        parts.append(wide(each).reshape(len(each), -1))
    return torch.cat(parts)


def anomaly_scores(
    vae: DiscreteVAE,
    x: Any,
    by: AnomalyScore = ANOMALY_SCORE,
    labels: Any = None,
    *,
    train: Any = None,
    validation: Any = None,
    validation_labels: Any = None,
    importance_samples: int = 100,
    seed: int = 0,
) -> Tensor:
    """How usual each datum is, (N,) nats. The lowest scores are those of the most unusual data.

    Args:
        vae: the model. It is in eval mode meanwhile.
        x: (N, *event), N >= 1, in the support of the likelihood: a tensor, an array or a table.
        by: "log-prob": log p(x), or a bound; see `log_probs`.
            "ratio": log p(x) - log p_independent(x), which asks how much the datum agrees with what
            the elements have in common, whatever each of them costs by itself (Ren et al. 2019,
            arXiv:1906.02845, with independent elements as the background).
            "conditional": sum_p log p(x_p|x_r), the pseudo-likelihood (Besag 1975); see
            `conditional_surprise`.
            "excess": E_q[log p(x|z) + H(p(x'|z))]; see `excess_log_probs`.
            "typicality": -|log p(x) - mean log p of validation data|. A datum that is much more
            probable than these is unusual too (Nalisnick et al. 2019, arXiv:1906.02994, for single
            data).
        labels: (N,) integers if the prior is conditional on labels; otherwise None.
        train: (M, *event) training data, which "ratio" needs.
        validation: (M, *event) data that the model was not trained on, which "typicality" needs.
        validation_labels: (M,) labels of these, like `labels`.
        importance_samples: codes drawn per datum, where log p(x) is not a cheap sum.
        seed: of the draws.

    Raises:
        ValueError: there is no such score, data that it needs are missing, or the likelihood does
            not allow it.

    Example:
        >>> from pyro_dvae.evaluation import anomaly_scores
        >>> unusual = x[anomaly_scores(vae, x, "log-prob").argsort()[:3]]
    """
    scorer = anomaly_scorer(
        vae,
        by,
        train=train,
        validation=validation,
        validation_labels=validation_labels,
        importance_samples=importance_samples,
        seed=seed,
    )
    return scorer(x, labels)


def anomaly_scorer(
    vae: DiscreteVAE,
    by: AnomalyScore = ANOMALY_SCORE,
    *,
    train: Any = None,
    validation: Any = None,
    validation_labels: Any = None,
    importance_samples: int = 100,
    seed: int = 0,
) -> Callable[[Any, Any], Tensor]:
    """A function from data (N, *event) and labels, or None, to what `anomaly_scores` returns.

    What has to be known of training and validation data is computed once, here. The arguments are
    those of `anomaly_scores`.
    """
    one_of("score", by, get_args(AnomalyScore))
    draws: dict[str, Any] = {"importance_samples": importance_samples, "seed": seed}
    needed = {"ratio": ("train", train), "typicality": ("validation", validation)}
    if by in needed and needed[by][1] is None:
        raise ValueError(
            f"Expected {needed[by][0]} data for the score {by!r}; got None. Pass them."
        )
    if by == "excess":
        return partial(_excess, vae, seed=seed, known={})
    if by == "conditional":
        return lambda x, labels: -_summed(conditional_surprise(vae, x, labels, seed=seed))
    if by == "log-prob":
        return partial(log_probs, vae, **draws)
    if by == "typicality":
        usual = log_probs(vae, validation, validation_labels, **draws).mean()
        return lambda x, labels: -(log_probs(vae, x, labels, **draws) - usual).abs()
    known = first_of(as_arguments(vae, train)[0], seed)
    elements = independent_elements(vae, known, seed=seed)
    if elements is None:
        raise ValueError(
            "Expected a likelihood whose elements can be independent for the score 'ratio'; got "
            f"{type(vae.likelihood).__name__}. Use 'log-prob'."
        )

    def ratio(x: Any, labels: Any) -> Tensor:
        return log_probs(vae, x, labels, **draws) - elements.log_prob(as_arguments(vae, x)[0])

    return ratio


def _summed(surprise: Tensor) -> Tensor:
    return surprise.reshape(len(surprise), -1).nansum(-1)
