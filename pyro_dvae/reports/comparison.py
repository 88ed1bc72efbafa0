"""Several runs side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from pyro_dvae.reports.blocks import Block, Cell, Picture, Table, Text
from pyro_dvae.reports.drawing import drawing
from pyro_dvae.reports.opened import Reported, standard_error
from pyro_dvae.training.records import EpochRecord


def comparison(reported: Sequence[Reported]) -> list[Block]:
    """A table of all runs, the best ELBO first; their settings that differ; their curves."""
    order = sorted(reported, key=_by_elbo)
    blocks: list[Block] = [_figures(order)]
    differing = _settings(order)
    if differing is not None:
        blocks.append(differing)
    if sum(len(each.run.metrics) > 1 for each in order) > 1:
        blocks.append(_curves(order))
    return blocks


def _by_elbo(reported: Reported) -> float:
    return math.inf if reported.scores is None else -reported.scores.elbo


def same_data(one: Reported, other: Reported) -> bool:
    """Whether the figures of two runs are of the same data, as both likelihoods take them."""
    first, second = one.sample, other.sample
    if first is None or second is None:
        return False
    x, y = first.x, second.x
    same = x.shape == y.shape and torch.equal(x.nan_to_num(), y.to(x).nan_to_num())
    return same and one.vae.likelihood.kind == other.vae.likelihood.kind


def _figures(order: Sequence[Reported]) -> Table:
    best = order[0]
    head = [
        "run",
        "ELBO",
        "± se",
        "difference",
        "± se",
        "log p(x)",
        "± se",
        "active latents",
        "epochs",
        "seconds",
    ]
    rows: list[list[Cell]] = []
    notes = [
        "In nats per datum. Difference: the mean over the data of the ELBO of the run less that of "
        "the first, datum by datum. It is known better than the ELBO of each run.",
    ]
    for each in order:
        scores, terms, records = each.scores, each.terms, each.run.metrics
        seconds = f"{records[-1].seconds:.0f}" if records else "–"
        row: list[Cell] = [each.name]
        if scores is None or terms is None:
            rows.append([*row, *["–"] * 7, str(len(records)), seconds])
            continue
        row += [f"{scores.elbo:.2f}", f"{standard_error(terms.elbo):.2g}"]
        row += _difference(each, best)
        row += _with_error(scores.log_marginal, terms.log_marginal)
        row += [f"{scores.active_latents} of {each.config.num_latents}", str(len(records)), seconds]
        rows.append(row)
        if not same_data(each, best):
            notes.append(f"{each.name} has other data than the first: the two cannot be compared.")
    for each in order:
        if each.sample is not None:
            number, total = len(each.sample.x), each.sample.total
            notes.append(
                f"{each.name}: {number:,} of the {total:,} {each.datum}s of its {each.part} part."
            )
    return Table("The runs, the best ELBO first", head, rows, notes=list(dict.fromkeys(notes)))


def _difference(each: Reported, best: Reported) -> list[Cell]:
    if each is best or each.terms is None or best.terms is None or not same_data(each, best):
        return ["–", "–"]
    difference = each.terms.elbo.cpu() - best.terms.elbo.cpu()
    return [f"{float(difference.mean()):.2f}", f"{standard_error(difference):.2g}"]


def _with_error(value: float | None, each: Tensor | None) -> list[Cell]:
    if value is None or each is None:
        return ["–", "–"]
    return [f"{value:.2f}", f"{standard_error(each):.2g}"]


def _settings(order: Sequence[Reported]) -> Block | None:
    """The settings that are not the same in all runs."""
    settings = [asdict(each.config) | {"data": each.run.data.name} for each in order]
    names = [name for name in settings[0] if any(s[name] != settings[0][name] for s in settings)]
    if not names:
        return Text("All settings of these runs are the same.")
    rows: list[list[Cell]] = [[name, *(_shown(own[name]) for own in settings)] for name in names]
    head = ["setting", *(each.name for each in order)]
    return Table("Settings that differ", head, rows, left=range(1, len(head)))


def _shown(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return ", ".join(map(str, value))
    return "none" if value is None else str(value)


def _curves(order: Sequence[Reported]) -> Picture:
    figure = Figure(figsize=(5.6, 3.3), layout="constrained")
    axes = figure.subplots()
    told, tail = [], []
    for each in order[:8]:
        records = [r for r in each.run.metrics if r.validation_elbo is not None]
        values = [_elbo(r) for r in records]
        if values:
            axes.plot(
                [r.epoch for r in records],
                values,
                label=_short(each.name),
                markevery=max(1, len(values) // 12),
            )
            told.append(f"{each.name} ends at {values[-1]:.2f}")
            tail += values[1:] if len(values) > 2 else values
    if tail:
        room = 0.05 * (max(tail) - min(tail)) + 1e-3
        axes.set_ylim(min(tail) - room, max(tail) + room)
    axes.set(xlabel="epoch", ylabel=f"validation ELBO, nats per {order[0].datum}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(True)
    figure.legend(loc="outside upper left", ncols=2)
    return drawing(
        figure, f"Validation ELBO per epoch: {'; '.join(told)}.", "The validation ELBO per epoch."
    )


def _elbo(record: EpochRecord) -> float:
    assert record.validation_elbo is not None
    return record.validation_elbo


def _short(name: str) -> str:
    text = name if len(name) <= 32 else f"...{name[-29:]}"
    return text.replace("$", r"\$")
