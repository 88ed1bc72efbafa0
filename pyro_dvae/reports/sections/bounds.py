"""The gaps between the ELBO, tighter bounds and log p(x)."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from torch import Tensor

from pyro_dvae.evaluation import DatumTerms, Evaluation, ordering
from pyro_dvae.reports.blocks import Block, Picture, Section, Table, Text
from pyro_dvae.reports.drawing import GRID, INK, SERIES, drawing
from pyro_dvae.reports.opened import Reported, standard_error
from pyro_dvae.reports.sections.learning import of_how_many


def bounds(reported: Reported) -> Section | None:
    """The ELBO of the encoder's, the refined and the exact q(z|x), and the bounds."""
    scores, terms = reported.scores, reported.terms
    if scores is None or terms is None:
        return None
    intro = (
        "The ELBO is at most log p(x). What lies between them is KL(q(z|x) || p(z|x)): it is lost "
        "because q(z|x) is not the exact posterior, and not because the model is bad."
    )
    blocks: list[Block] = [Text(intro), _ladder(reported, scores, terms)]
    blocks += [_table(reported, scores, terms), Text(f"Check: {ordering(scores)}")]
    if scores.log_marginal is None:
        blocks.append(
            Text(
                "Log p(x) is not known here, as there are too many codes to sum over. The "
                "importance-weighted bound lies between the ELBO and log p(x)."
            )
        )
    return Section("bounds", "How far the ELBO is from log p(x)", blocks)


def _rungs(scores: Evaluation, terms: DatumTerms) -> list[tuple[str, float, Tensor, str]]:
    """Name, mean, figures of each datum, and meaning, from the lowest bound to log p(x)."""
    k = scores.importance_samples
    rows: list[tuple[str, Any, Any, str]] = [
        ("ELBO", scores.elbo, terms.elbo, "of the encoder's q(z|x)"),
        (
            "ELBO, refined q(z|x)",
            scores.refined_elbo,
            terms.refined_elbo,
            f"after {scores.refined_sweeps} sweeps of coordinate ascent per datum",
        ),
        (
            f"bound({k})",
            scores.importance_bound,
            terms.importance_bound,
            f"importance-weighted, with {k} codes drawn per datum",
        ),
        ("log p(x)", scores.log_marginal, terms.log_marginal, "the sum over all codes"),
    ]
    known = [row for row in rows if row[1] is not None and row[2] is not None]
    return sorted(known, key=lambda row: row[1])


def _ladder(reported: Reported, scores: Evaluation, terms: DatumTerms) -> Picture:
    rungs = _rungs(scores, terms)
    figure = Figure(figsize=(5.6, 0.45 * len(rungs) + 0.9), layout="constrained")
    axes = figure.subplots()
    values = [value for _, value, _, _ in rungs]
    for place, (_, value, each, _) in enumerate(rungs):
        axes.errorbar(
            value, place, xerr=2 * standard_error(each), color=SERIES[0], marker="o", capsize=3
        )
        axes.annotate(
            f"{value:.2f}",
            (value, place),
            (0, 7),
            textcoords="offset points",
            ha="center",
            color=INK,
        )
    axes.set_yticks(range(len(rungs)), [name for name, *_ in rungs])
    axes.set_ylim(-0.6, len(rungs) - 0.3)
    axes.set_xlabel(f"nats per {reported.datum}")
    axes.margins(x=0.12)
    axes.grid(True, axis="x")
    axes.tick_params(axis="y", color=GRID)
    told = "; ".join(f"{name} {value:.2f}" for (name, *_), value in zip(rungs, values, strict=True))
    return drawing(
        figure,
        f"Bounds in nats per {reported.datum}: {told}.",
        "Each bound with two standard errors to both sides. All are of the same data, so that "
        "their differences are known better than each of them.",
    )


def _table(reported: Reported, scores: Evaluation, terms: DatumTerms) -> Table:
    stored = reported.stored
    whole = None if stored is None else stored.evaluation
    if whole is not None and whole.num_data == scores.num_data:
        whole = None
    names = {"ELBO": "elbo", "log p(x)": "log_marginal"}
    rows = []
    for name, value, each, meaning in _rungs(scores, terms):
        row = [name, f"{value:.2f}", f"{standard_error(each):.2g}"]
        if whole is not None:
            row.append(_optional(vars(whole).get(names.get(name, ""))))
        rows.append([*row, meaning])
    for name, key, high, low, meaning in _gaps(scores, terms):
        row = [name, f"{vars(scores)[key]:.2f}", f"{standard_error(high - low):.2g}"]
        if whole is not None:
            row.append(_optional(vars(whole)[key]))
        rows.append([*row, meaning])
    head = ["figure", "mean", "standard error"]
    notes = [of_how_many(reported, scores.num_data)]
    if whole is not None:
        head.append(f"all {whole.num_data:,}")
        notes.append(
            f"The column of all {whole.num_data:,} {reported.datum}s is what the run folder keeps."
        )
    if scores.standard_errors:
        told = ", ".join(f"{name} {error:.2g}" for name, error in scores.standard_errors.items())
        notes.append(f"Draws of codes add an error of their own, which is in it already: {told}.")
    return Table(
        f"Bounds and gaps, in nats per {reported.datum}",
        [*head, "what it is"],
        rows,
        left=(len(head),),
        notes=notes,
    )


def _optional(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _gaps(scores: Evaluation, terms: DatumTerms) -> list[tuple[str, str, Tensor, Tensor, str]]:
    """Name, field of the figures, the two terms whose difference it is, and the meaning."""
    elbo, log_p, bound = terms.elbo, terms.log_marginal, terms.importance_bound
    encoder = elbo if terms.encoder_elbo is None else terms.encoder_elbo
    rows: list[tuple[str, str, Any, Any, str]] = [
        ("posterior gap", "posterior_gap", log_p, elbo, "log p(x) - ELBO"),
        (
            "family gap",
            "family_gap",
            log_p,
            terms.best_elbo,
            "of it, what no factorised q(z|x) can reach",
        ),
        (
            "encoder gap",
            "encoder_gap",
            terms.best_elbo,
            encoder,
            "of it, what a better encoder could gain",
        ),
        (
            "importance gap",
            "importance_gap",
            bound,
            elbo,
            f"bound({scores.importance_samples}) - ELBO",
        ),
        (
            "remaining gap",
            "remaining_gap",
            log_p,
            bound,
            f"log p(x) - bound({scores.importance_samples})",
        ),
    ]
    return [row for row in rows if row[2] is not None and row[3] is not None]
