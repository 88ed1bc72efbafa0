"""The data that surprise the model most."""

from __future__ import annotations

from pyro_dvae.reports.blocks import Cell, Pictures, Section, Table, Text
from pyro_dvae.reports.images import png
from pyro_dvae.reports.opened import Reported, Some, best_known
from pyro_dvae.reports.sections.pictures import cell_text, decoded
from pyro_dvae.runs import explain_row, explained_table, shade_of

_NUM = 10
_PIXELS = 56


def surprising(reported: Reported) -> Section | None:
    """The data of the sample with the lowest log p(x), or bound on it."""
    some, terms = reported.sample, reported.terms
    if some is None or terms is None:
        return None
    score, values = best_known(terms)
    order = values.argsort()[:_NUM].tolist()
    median = float(values.median())
    text = (
        f"The {reported.datum}s with the lowest {score}, of the {len(values):,} of this page. "
        f"Half of all have {median:.1f} nats or more. Look at them: wrong labels, errors of "
        "measurement and rare kinds of data come up here first."
    )
    head = ["number", f"{score}, nats"]
    rows: list[list[Cell]] = [[reported.place(some, n), f"{values[n]:.1f}"] for n in order]
    if reported.is_image:
        head += ["image", "reconstruction"]
        _add(rows, _images(reported, some, order))
    elif reported.is_table:
        head.append("what surprises most")
        _add(rows, [[_why(reported, some, n)] for n in order])
    if some.rows.labels is not None:
        head.append("class")
        _add(rows, [[reported.class_of(some, n) or "–"] for n in order])
    caption = f"The most surprising {reported.datum}s of the {some.part} part"
    table = Table(caption, head, rows, left=range(2, len(head)))
    return Section("surprising", "The most surprising data", [Text(text), table])


def _add(rows: list[list[Cell]], more: list[list[Cell]]) -> None:
    for row, cells in zip(rows, more, strict=True):
        row += cells


def _images(reported: Reported, some: Some, order: list[int]) -> list[list[Cell]]:
    """Each image and what the model makes of its code."""
    assert reported.codes is not None
    means, _ = decoded(reported, reported.codes[order])
    shade = shade_of(reported.run)
    means = means if shade is None else shade(means)
    seen = reported.shown(some, order)
    scale = _PIXELS / seen.shape[-1]
    cells: list[list[Cell]] = []
    for i, n in enumerate(order):
        place = reported.place(some, n)
        image = png(seen[i], f"Image {place}", scale)
        cells.append(
            [Pictures([image]), Pictures([png(means[i], f"Reconstruction of {place}", scale)])]
        )
    return cells


def _why(reported: Reported, some: Some, n: int) -> str:
    """The three columns of a row that surprise most, given all others."""
    stored = some.rows.stored
    number = int(stored.index[n])  # type: ignore[attr-defined]
    try:
        table = explained_table(reported.run, explain_row(reported.run, some.rows, number))
    except ValueError:  # the elements depend on each other given z
        return "–"
    return "; ".join(
        f"{name} {cell_text(seen)} (expected {cell_text(expected)})"
        for name, seen, expected, _ in table[:3]
    )
