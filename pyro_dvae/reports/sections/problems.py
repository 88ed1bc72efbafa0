"""What a reader should look at first: warnings in words, with what to do."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise

from pyro_dvae.evaluation import (
    ACTIVE_INFORMATION,
    describe_collapse,
    describe_unused,
    is_far,
    num_codes,
)
from pyro_dvae.reports.blocks import Block, Finding, Section
from pyro_dvae.reports.opened import Reported, best_known, standard_error
from pyro_dvae.runs import estimator_of

_OVERFITTING = 0.05
_CHANCE = 3.0


def findings(reported: Reported) -> Section:
    """All warnings and notes; or that nothing was found."""
    found = [finding for check in CHECKS for finding in check(reported)]
    order = ("warning", "note", "good")
    found.sort(key=lambda each: order.index(each.level))
    if not any(finding.level == "warning" for finding in found):
        text = "None of the checks of this page found a problem."
        found.insert(0, Finding("good", "No warnings.", text))
    blocks: list[Block] = list(found)
    return Section("findings", "What to look at first", blocks)


def no_data(reported: Reported) -> Iterator[Finding]:
    """Whether the data of the run were found."""
    words = reported.words.text
    if reported.splits is None:
        yield Finding(
            "warning",
            "The data of the run were not found.",
            f"This page shows what the run folder alone tells. {words(reported.missing)}",
        )


def unfinished(reported: Reported) -> Iterator[Finding]:
    """Whether the training came to its end, and whether more would help."""
    records, config = reported.run.metrics, reported.config
    if reported.run.status == "unfinished":
        done = records[-1].epoch if records else 0
        yield Finding(
            "note",
            "The training is not finished.",
            f"It came to epoch {done} of {config.epochs + config.guide_epochs}.",
            reported.words.text("Continue it with resume=...") if done else "",
        )
    name, pairs = _validation(reported)
    curve = [value for _, value in pairs]
    best = max((r.epoch for r in records if r.is_best and not r.of_guide), default=0)
    if len(curve) >= 5 and reported.run.status == "complete" and best == len(curve):
        rise = curve[-1] - curve[-1 - max(1, len(curve) // 5)]
        if rise > 0.005 * abs(curve[-1]):
            yield Finding(
                "note",
                f"The {name} was still rising.",
                f"In the last fifth of the epochs the validation {name} rose by {rise:.2f} nats "
                f"per {reported.datum}.",
                reported.words.text(f"Train longer: epochs={2 * config.epochs}."),
            )


def collapse(reported: Reported) -> Iterator[Finding]:
    """Whether latents tell nothing about the data."""
    scores = reported.scores
    rows = [r.validation_information for r in reported.run.metrics]
    history = [row for row in rows if row is not None]
    last = history[-1:] if scores is None else [scores.information_per_latent]
    number = num_codes(reported.config.num_latents, reported.config.num_categories)
    told = describe_collapse(last, number) if last else None
    if told is not None:
        what, _, todo = told.partition("). ")
        yield Finding(
            "warning",
            "Posterior collapse.",
            f"{what.partition(': ')[2]}).",
            reported.words.text(todo),
        )


def unused(reported: Reported) -> Iterator[Finding]:
    """Whether latents use few of their categories."""
    scores, config = reported.scores, reported.config
    if scores is None:
        return
    told = describe_unused(scores.unused_categories, config.num_categories)
    if told is not None and config.prior == "uniform":
        what, use, todo = told.partition(" Use ")
        text = what.removeprefix("Unused categories: ")
        yield Finding(
            "note", "Categories are unused.", text, reported.words.text(f"{use.strip()} {todo}")
        )
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
            "Categories are rarely used.",
            f"These latents use less than half of their {config.num_categories} categories: "
            f"{', '.join(few)}.",
            "A smaller number of categories may do as well. If the prior was trained with the "
            "networks, it may have closed categories early: try a uniform prior, and fit a prior "
            "to the codes afterwards.",
        )


def overfitting(reported: Reported) -> Iterator[Finding]:
    """Whether the training data are much more probable than others."""
    own, train = reported.terms, reported.train_terms
    if own is not None and train is not None:
        name, other = "ELBO", own.elbo.cpu()
        trained = train.elbo.cpu()
        if own.log_marginal is not None and train.log_marginal is not None:
            name, other, trained = "log p(x)", own.log_marginal.cpu(), train.log_marginal.cpu()
        gap = float(trained.mean() - other.mean())
        error = math.hypot(standard_error(trained), standard_error(other))
        if gap > _CHANCE * error and gap > _OVERFITTING * abs(float(other.mean())):
            yield Finding(
                "warning",
                "The model overfits.",
                f"The {name} of training data is {gap:.2f} ± {error:.2g} nats per "
                f"{reported.datum} higher than that of the {reported.part} part.",
                reported.words.text(
                    "Use more data, dropout=0.3, smaller hidden layers, or fewer categories."
                ),
            )
    name, curve = _validation(reported)
    if len(curve) > 4:
        best_epoch, best = max(curve, key=lambda pair: pair[1])
        fall = best - curve[-1][1]
        if best_epoch < 0.8 * curve[-1][0] and fall > 0.01 * abs(best):
            yield Finding(
                "note",
                f"The validation {name} fell in the end.",
                f"It was best in epoch {best_epoch}, and {fall:.2f} nats lower in the last. The "
                f"weights of epoch {reported.run.epoch} were kept, so that no harm was done.",
                reported.words.text(f"A shorter training would do, of epochs={2 * best_epoch}."),
            )


def _validation(reported: Reported) -> tuple[str, list[tuple[int, float]]]:
    """What decides which epoch of the model is best, its name, and its value in each epoch."""
    records = [record for record in reported.run.metrics if not record.of_guide]
    name, values = "ELBO", [r.validation_elbo for r in records]
    if "log p(x)" in estimator_of(reported.config.estimator).value:
        known = [r.validation_log_marginal for r in records]
        name, values = ("log p(x)", known) if None not in known else (name, values)
    pairs = zip(records, values, strict=True)
    return name, [(record.epoch, value) for record, value in pairs if value is not None]


def noise(reported: Reported) -> Iterator[Finding]:
    """Whether the curve jumps more than it rises; and how exact the figures are."""
    name, pairs = _validation(reported)
    tail = [value for _, value in pairs[len(pairs) // 2 :]]
    if len(tail) >= 6:
        steps = [b - a for a, b in pairwise(tail)]
        falls = sorted(-step for step in steps if step < 0)
        typical = falls[len(falls) // 2] if falls else 0.0
        rise = tail[-1] - tail[0]
        if len(falls) >= len(steps) / 3 and typical > max(0.005 * abs(tail[-1]), rise / 2):
            yield Finding(
                "warning",
                "The training is noisy.",
                f"In the second half, the validation {name} fell in {len(falls)} of {len(steps)} "
                f"epochs, typically by {typical:.2f} nats, and rose by {rise:.2f} nats in all.",
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


def far(reported: Reported) -> Iterator[Finding]:
    """Whether the ELBO is far below log p(x)."""
    scores = reported.scores
    if scores is None or reported.config.alpha is not None:
        return
    gap, log_p = scores.posterior_gap, scores.log_prob
    known = gap if gap is not None else scores.importance_gap
    if known is None or not is_far(known, log_p):
        return
    family, encoder = scores.family_gap, scores.encoder_gap
    which = ""
    todo = reported.words.text("Train the encoder alone, by fit_guide; log p(x) stays as it is.")
    if reported.config.guide_epochs:  # which have done that already
        todo = reported.words.text('Use p(z|x) in its place, with posterior="exact".')
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


def simple(reported: Reported) -> Iterator[Finding]:
    """Whether simple models of the same data are as good."""
    stored, terms = reported.stored, reported.terms
    simple = None if stored is None else stored.evaluation.simple_models
    if stored is None or simple is None or simple.independent is None or terms is None:
        return
    own, number = stored.evaluation.log_prob, stored.evaluation.num_data
    values = {"independent elements": simple.independent}
    if simple.mixture is not None:
        values[f"a mixture of {simple.mixture_size} of them"] = simple.mixture
    told = ", ".join(f"{name} {value:.2f}" for name, value in values.items())
    text = (
        f"On the {number:,} {reported.datum}s of the {reported.part} part, the log p(x) of the "
        f"model, or its bound, is {own:.2f} nats. That of simple models: {told}."
    )
    each = best_known(terms)[1]
    error = standard_error(each) * math.sqrt(len(each) / number)
    ahead = max(values.values()) - own
    if ahead > 2 * error:
        todo = "Train longer, or use more codes. If this stays so, the simple model is better."
        yield Finding("warning", "A simple model is better.", text, todo)
    elif ahead > 0:
        yield Finding("note", "A simple model is as good.", text)
    else:
        yield Finding("good", "The model is better than simple models.", text)


CHECKS: tuple[Callable[[Reported], Iterator[Finding]], ...] = (
    no_data,
    unfinished,
    collapse,
    unused,
    overfitting,
    far,
    simple,
    noise,
)
"""Each looks at one thing. To add a check, write such a function and add it here."""
