"""What a reader should look at first: warnings in words, with what to do."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise

from pyro_dvae.evaluation import ACTIVE_INFORMATION, describe_collapse
from pyro_dvae.reports.blocks import Block, Finding, Section
from pyro_dvae.reports.opened import Reported, standard_error

_LEAST_FAR, _FAR_SHARE = 1.0, 0.1
_LEAST_SHARE = 0.1
_CHANCE = 3.0


def findings(reported: Reported) -> Section:
    """All warnings and notes; or that nothing was found."""
    found = [finding for check in CHECKS for finding in check(reported)]
    if not any(finding.level == "warning" for finding in found):
        text = "None of the checks of this page found a problem."
        found.insert(0, Finding("good", "No warnings.", text))
    blocks: list[Block] = list(found)
    return Section("findings", "What to look at first", blocks)


def _no_data(reported: Reported) -> Iterator[Finding]:
    words = reported.words.text
    if reported.splits is None:
        yield Finding(
            "warning",
            "The data of the run were not found.",
            f"This page shows what the run folder alone tells. {words(reported.missing)}",
        )


def _unfinished(reported: Reported) -> Iterator[Finding]:
    records, config = reported.run.metrics, reported.config
    if reported.run.status == "unfinished":
        done = records[-1].epoch if records else 0
        yield Finding(
            "note",
            "The training is not finished.",
            f"It came to epoch {done} of {config.epochs}.",
            reported.words.text("Continue it with resume=...") if done else "",
        )
    curve = [r.validation_elbo for r in records if r.validation_elbo is not None]
    if len(curve) >= 5 and reported.run.status == "complete" and reported.run.epoch == len(curve):
        rise = curve[-1] - curve[-1 - max(1, len(curve) // 5)]
        if rise > 0.005 * abs(curve[-1]):
            yield Finding(
                "note",
                "The ELBO was still rising.",
                f"In the last fifth of the epochs the validation ELBO rose by {rise:.2f} nats per "
                f"{reported.datum}.",
                reported.words.text(f"Train longer: epochs={2 * config.epochs}."),
            )


def _collapse(reported: Reported) -> Iterator[Finding]:
    scores = reported.scores
    rows = [r.validation_information for r in reported.run.metrics]
    history = [row for row in rows if row is not None]
    last = history[-1:] if scores is None else [scores.information_per_latent]
    told = describe_collapse(last) if last else None
    if told is not None:
        what, _, todo = told.partition("). ")
        yield Finding(
            "warning",
            "Posterior collapse.",
            f"{what.partition(': ')[2]}).",
            reported.words.text(todo),
        )


def _unused(reported: Reported) -> Iterator[Finding]:
    scores, config = reported.scores, reported.config
    if scores is None:
        return
    pairs = zip(scores.perplexity_per_latent, scores.information_per_latent, strict=True)
    few = [
        f"z{d} ({perplexity:.1f})"
        for d, (perplexity, information) in enumerate(pairs, 1)
        if information >= ACTIVE_INFORMATION and perplexity < config.num_categories / 2
    ]
    if few:
        yield Finding(
            "note",
            "Categories are unused.",
            f"These latents use less than half of their {config.num_categories} categories: "
            f"{', '.join(few)}.",
            "A smaller number of categories may do as well. If the prior was trained with the "
            "networks, it may have closed categories early: try a uniform prior, and fit a prior "
            "to the codes afterwards.",
        )


def _overfitting(reported: Reported) -> Iterator[Finding]:
    if reported.scores is None or reported.terms is None:
        return
    train, other = reported.train_elbo, reported.terms.elbo.cpu()
    if train is not None:
        gap = float(train.mean() - other.mean())
        error = math.hypot(standard_error(train), standard_error(other))
        if gap > _CHANCE * error and gap > 0.05 * abs(float(other.mean())):
            yield Finding(
                "warning",
                "The model overfits.",
                f"The ELBO of training data is {gap:.2f} ± {error:.2g} nats per {reported.datum} "
                f"higher than that of the {reported.part} part.",
                reported.words.text(
                    "Use more data, dropout=0.3, smaller hidden layers, or fewer categories."
                ),
            )
    curve = [(r.epoch, r.validation_elbo) for r in reported.run.metrics]
    known = [(epoch, value) for epoch, value in curve if value is not None]
    if len(known) > 4:
        best_epoch, best = max(known, key=lambda pair: pair[1])
        fall = best - known[-1][1]
        if best_epoch < 0.8 * known[-1][0] and fall > 0.01 * abs(best):
            yield Finding(
                "note",
                "The validation ELBO fell in the end.",
                f"It was best in epoch {best_epoch}, and {fall:.2f} nats lower in the last. The "
                f"weights of epoch {reported.run.epoch} were kept, so that no harm was done.",
                reported.words.text("A shorter training would do: a lower patience, or dropout."),
            )


def _noise(reported: Reported) -> Iterator[Finding]:
    curve = [r.validation_elbo for r in reported.run.metrics if r.validation_elbo is not None]
    tail = curve[len(curve) // 2 :]
    if len(tail) >= 6:
        steps = [b - a for a, b in pairwise(tail)]
        falls = sorted(-step for step in steps if step < 0)
        typical = falls[len(falls) // 2] if falls else 0.0
        rise = tail[-1] - tail[0]
        if len(falls) >= len(steps) / 3 and typical > max(0.005 * abs(tail[-1]), rise / 2):
            yield Finding(
                "warning",
                "The training is noisy.",
                f"In the second half, the validation ELBO fell in {len(falls)} of {len(steps)} "
                f"epochs, typically by {typical:.2f} nats, more than it gained.",
                reported.words.text(
                    "Use learning_rate=0.0003, a larger batch, more draws per datum, or an "
                    "estimator with less variance."
                ),
            )
    if reported.terms is not None:
        error = standard_error(reported.terms.elbo)
        if error == error:
            yield Finding(
                "note",
                "How exact the figures are.",
                f"The standard error of the ELBO over the {len(reported.terms.elbo):,} "
                f"{reported.datum}s of this page is {error:.2g} nats. Runs that differ by less "
                f"than twice that are not told apart, unless the same {reported.datum}s are "
                "compared in pairs.",
            )


def _far(reported: Reported) -> Iterator[Finding]:
    scores = reported.scores
    if scores is None or reported.config.alpha is not None:
        return
    gap, log_p = scores.posterior_gap, scores.log_prob
    known = gap if gap is not None else scores.importance_gap
    if known is None or known < max(_LEAST_FAR, _FAR_SHARE * abs(log_p)):
        return
    family, encoder = scores.family_gap, scores.encoder_gap
    which = ""
    todo = "Train the encoder alone, by the ELBO (fit_guide); log p(x) stays as it is."
    if family is not None and encoder is not None:
        which = f" {encoder:.2f} of them are the encoder's, {family:.2f} the family's."
        if family > encoder:
            todo = reported.words.text('Use guide="autoregressive", whose latents may depend.')
    yield Finding(
        "warning",
        "The ELBO is far from log p(x).",
        f"It lies {known:.2f} nats per {reported.datum} below "
        f"{'log p(x)' if gap is not None else 'the importance-weighted bound'}: q(z|x) is far from "
        f"the exact posterior.{which} Codes that the encoder gives are less good than they could "
        "be.",
        todo,
    )


def _simple(reported: Reported) -> Iterator[Finding]:
    stored = reported.stored
    simple = None if stored is None else stored.evaluation.simple_models
    if stored is None or simple is None:
        return
    own = stored.evaluation.log_prob
    better = [
        f"{label} ({value:.2f})"
        for label, name, value, _ in simple.rows()
        if value is not None and value > own and name != "prior_codes"
    ]
    if better:
        yield Finding(
            "warning",
            "A simple model is better.",
            f"On the {stored.evaluation.num_data:,} {reported.datum}s of the {reported.part} part, "
            f"the model has {own:.2f} nats, and less than {' and '.join(better)}.",
            "Train longer, or use more codes. If this stays so, the simple model is the better "
            "choice.",
        )
    elif simple.independent is not None:
        mixture = (
            ""
            if simple.mixture is None
            else (f", and a mixture of {simple.mixture_size} of them {simple.mixture:.2f}")
        )
        yield Finding(
            "good",
            "Simple models are worse.",
            f"On the {stored.evaluation.num_data:,} {reported.datum}s of the {reported.part} part, "
            f"the model has {own:.2f} nats. Independent elements have {simple.independent:.2f}"
            f"{mixture}.",
        )


CHECKS: tuple[Callable[[Reported], Iterator[Finding]], ...] = (
    _no_data,
    _unfinished,
    _collapse,
    _unused,
    _overfitting,
    _far,
    _simple,
    _noise,
)
"""Each looks at one thing. To add a check, write such a function and add it here."""
