"""The learning curve, and the ELBO's parts."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pyro_dvae.evaluation import Evaluation
from pyro_dvae.reports.blocks import Block, Picture, Section, Table, Text
from pyro_dvae.reports.drawing import SOFT, drawing
from pyro_dvae.reports.opened import Reported, standard_error
from pyro_dvae.training.records import EpochRecord


def learning(reported: Reported) -> Section | None:
    """The ELBO per epoch, the information of each latent per epoch, and the ELBO's parts."""
    records = reported.run.metrics
    blocks: list[Block] = []
    if len(records) > 1:
        blocks.append(_curve(reported, records))
        if records[-1].validation_information is not None:
            blocks.append(_information(records))
    elif records:
        text = "The training had one epoch, so that there is no curve."
        blocks.append(Text(text))
    if reported.scores is not None:
        blocks.append(parts(reported, reported.scores))
    return Section("learning", "The ELBO", blocks) if blocks else None


def _curve(reported: Reported, records: Sequence[EpochRecord]) -> Picture:
    figure = Figure(figsize=(5.6, 3.3), layout="constrained")
    axes = figure.subplots()
    epochs = [record.epoch for record in records]
    curves: dict[str, list[float | None]] = {
        "ELBO, training": [r.train_elbo for r in records],
        "ELBO, validation": [r.validation_elbo for r in records],
        "log p(x), validation": [r.validation_log_marginal for r in records],
    }
    told = []
    for label, values in curves.items():
        known = [value for value in values if value is not None]
        if len(known) == len(values):
            axes.plot(epochs, known, label=label, markevery=max(1, len(epochs) // 12))
            told.append(f"{label} goes from {known[0]:.2f} to {known[-1]:.2f}")
    best = reported.run.epoch
    axes.axvline(best, color=SOFT, linestyle="--", marker="", label=f"weights kept, epoch {best}")
    for first in [record.epoch for record in records if record.of_guide][:1]:
        label = f"guide alone, after epoch {first - 1}"
        axes.axvline(first, color=SOFT, linestyle=":", marker="", label=label)
        told.append(f"from epoch {first} on, the guide alone is trained")
    # The first epoch starts so far below that the others would look alike.
    tail = [v for r in records[1:] for v in (r.train_elbo, r.validation_elbo) if v is not None]
    room = 0.05 * (max(tail) - min(tail)) + 1e-3
    axes.set_ylim(bottom=min(tail) - room)
    axes.set(xlabel="epoch", ylabel=f"nats per {reported.datum}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(True)
    figure.legend(loc="outside upper left", ncols=2)
    alt = f"Learning curves in nats per {reported.datum} over {len(records)} epochs. "
    caption = (
        "The ELBO of each epoch. The training ELBO is a mean over the steps of the epoch, while "
        "the weights changed; the other curves are of the averaged weights."
    )
    return drawing(figure, f"{alt}{'; '.join(told)}.", caption)


def _information(records: Sequence[EpochRecord]) -> Picture:
    known = [(r.epoch, r.validation_information) for r in records]
    rows = [(epoch, values) for epoch, values in known if values is not None]
    figure = Figure(figsize=(5.6, 2.8), layout="constrained")
    axes = figure.subplots()
    epochs = [epoch for epoch, _ in rows]
    last = rows[-1][1]
    shown = sorted(range(len(last)), key=lambda d: -last[d])[:8]
    for d in sorted(shown):
        values = [row[d] for _, row in rows]
        axes.plot(epochs, values, label=f"z{d + 1}", markevery=max(1, len(epochs) // 12))
    axes.set(xlabel="epoch", ylabel="information, nats")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(True)
    figure.legend(loc="outside upper left", ncols=4)
    most = f", the {len(shown)} latents with the most at the end" if len(last) > 8 else ""
    ends = ", ".join(f"z{d + 1} {last[d]:.2f}" for d in sorted(shown))
    return drawing(
        figure,
        f"Information of each latent per epoch. At the end, in nats: {ends}.",
        f"What each latent tells about the validation data, I(x; z_d){most}. A line that falls to "
        "0 is a latent that has collapsed.",
    )


def parts(reported: Reported, scores: Evaluation) -> Table:
    """The parts of the ELBO, whose sum it is."""
    terms = reported.terms
    assert terms is not None
    each = {
        "log_likelihood": terms.log_likelihood,
        "log_prior": terms.log_prior,
        "entropy": terms.entropy,
        "elbo": terms.elbo,
    }
    meanings = {
        "log_likelihood": ("reconstruction, E_q[log p(x|z)]", "how well codes of q(z|x) explain x"),
        "log_prior": ("+ prior, E_q[log p(z)]", "how probable these codes are before x is seen"),
        "entropy": ("+ entropy of q(z|x)", "how unsure the encoder is: 0 if it is sure of a code"),
        "elbo": ("= ELBO", "a lower bound on log p(x)"),
    }
    rows = [
        [
            meanings[name][0],
            f"{vars(scores)[name]:.2f}",
            f"{standard_error(values):.2g}",
            meanings[name][1],
        ]
        for name, values in each.items()
    ]
    rows.append(
        [
            "KL(q(z|x) || p(z))",
            f"{scores.kl:.2f}",
            f"{standard_error(-terms.log_prior - terms.entropy):.2g}",
            "minus the prior and the entropy terms: what the code costs",
        ]
    )
    return Table(
        f"The parts of the ELBO, in nats per {reported.datum}",
        ["part", "mean", "standard error", "what it says"],
        rows,
        left=(3,),
        notes=[of_how_many(reported, scores.num_data)],
    )


def of_how_many(reported: Reported, number: int) -> str:
    """How many data the figures of a table are of, and what their errors are."""
    some = reported.sample
    assert some is not None
    which = f"all {number:,}" if number == some.total else f"{number:,} of the {some.total:,}"
    drawn = "" if number == some.total else ", drawn at random"
    return (
        f"Means over {which} {reported.datum}s of the {some.part} part{drawn}. The standard error "
        "is that of the mean over the data: their standard deviation / sqrt(N)."
    )
