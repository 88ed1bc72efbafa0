"""Answers as HTML: pictures and tables. Every text of a run or of its data is escaped."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup, escape
from torch import Tensor

from pyro_dvae.explorer.answers import Inferred, Step
from pyro_dvae.explorer.explorer import Explorer
from pyro_dvae.explorer.views import View
from pyro_dvae.reports.images import png

_MOST_COLUMNS = 200
"""The largest number of columns that a table of rows shows."""
_MOST_CATEGORIES = 64
"""The largest number of categories that a table of probabilities shows."""
_MOST_WRITTEN = 12
"""The largest number of latents of a code that stands below each step of a walk."""
_SHADES = 8
"""The number of backgrounds of probabilities above 0."""


def message(text: str) -> str:
    """A complaint, which a screen reader reads at once; nothing for no text."""
    return Markup('<p role="alert"><strong>{}</strong></p>').format(text) if text else ""


def note(text: str) -> str:
    """A line in small letters."""
    return Markup('<p class="note">{}</p>').format(text)


def code_text(code: Sequence[int]) -> str:
    """A code as `payloads.code_of` reads it."""
    return " ".join(map(str, code))


def views(explorer: Explorer, named: Sequence[tuple[str, View]], pixels: int) -> str:
    """Data side by side: pictures, or the columns of a table.

    Args:
        explorer: of the run.
        named: a name and a datum each.
        pixels: the width of a picture in CSS pixels.
    """
    if explorer.is_image:
        figures = [_figure(view, name, Markup.escape(name), pixels) for name, view in named]
        return Markup('<div class="views">{}</div>').format(Markup("").join(figures))
    return _rows(explorer.columns, named)


def steps(explorer: Explorer, walked: Sequence[Step], pixels: int) -> str:
    """The data on the way from one code to another; the latent that changed is marked.

    Args:
        explorer: of the run.
        walked: the steps.
        pixels: the width of a picture in CSS pixels.
    """
    whole = explorer.num_latents <= _MOST_WRITTEN
    before = [walked[0], *walked]
    names = [_changed(step, last, whole) for step, last in zip(walked, before, strict=False)]
    if not explorer.is_image:
        codes = [f": {code_text(step.code)}" * whole for step in walked]
        named = [
            (name + code, step.mean) for name, code, step in zip(names, codes, walked, strict=True)
        ]
        return _rows(explorer.columns, named)
    figures = []
    for name, step in zip(names, walked, strict=True):
        marked = Markup(" ").join(
            Markup("<mark>{}</mark>").format(k) if d == step.latent else escape(k)
            for d, k in enumerate(step.code)
        )
        caption = Markup("{}<br>{}").format(name, marked) if whole else escape(name)
        alt = f"The mean of p(x|z) at the code {code_text(step.code)}"
        figures.append(_figure(step.mean, alt, caption, pixels))
    return Markup('<div class="views">{}</div>').format(Markup("").join(figures))


def _changed(step: Step, last: Step, whole: bool) -> str:
    """What a step changes; with its categories, unless the whole code stands beside it."""
    d = step.latent
    if d is None:
        return "start"
    return f"z{d + 1} changed" if whole else f"z{d + 1}: {last.code[d]} → {step.code[d]}"


def figures_table(inferred: Inferred) -> str:
    """The ELBO with its parts, in nats."""
    is_drawn = any(figure.error for figure in inferred.figures)
    head = ["", "nats", "± se"] if is_drawn else ["", "nats"]
    rows = []
    for figure in inferred.figures:
        cells = [Markup("<td>{}</td>").format(f"{figure.nats:.2f}")]
        if is_drawn:
            text = f"{figure.error:.2g}" if figure.error else "–"
            cells.append(Markup("<td>{}</td>").format(text))
        rows.append((figure.name, cells))
    given = "" if inferred.given is None else f", given the class {inferred.given}"
    return _table(f"The ELBO and its parts{given}", head, rows)


def posterior_table(inferred: Inferred) -> str:
    """q(z_d|x) of each latent, and below it the exact one where it is known."""
    several = inferred.exact is not None
    number = min(inferred.q.shape[1], _MOST_CATEGORIES)
    rows = []
    for d, q in enumerate(inferred.q):
        name = f"z{d + 1}"
        rows.append((f"{name}, encoder" if several else name, _shaded(q[:number])))
        if inferred.exact is not None:
            rows.append((f"{name}, exact", _shaded(inferred.exact[d][:number])))
    more = inferred.q.shape[1] - number
    caption = "q(z_d = k|x)" + (f", the first {number} of {number + more} categories" * (more > 0))
    return _table(caption, ["latent", *map(str, range(number))], rows)


def _shaded(probabilities: Tensor) -> list[Markup]:
    """Cells whose background repeats their number, in `_SHADES` + 1 classes of the style."""
    most = int(probabilities.argmax())
    shades = (probabilities * _SHADES).round().int().tolist()
    return [
        Markup('<td class="shade-{}{}">{}</td>').format(
            shade, " most" * (k == most), f"{probability:.2f}"
        )
        for k, (probability, shade) in enumerate(zip(probabilities.tolist(), shades, strict=True))
    ]


def _rows(columns: Sequence[str], named: Sequence[tuple[str, View]]) -> str:
    """A table with one line per column of the data, and one column per datum."""
    rows = [
        (name, [_cell(view.cells[i]) for _, view in named])
        for i, name in enumerate(columns[:_MOST_COLUMNS])
    ]
    more = len(columns) > _MOST_COLUMNS
    caption = f"The first {_MOST_COLUMNS} of {len(columns)} columns" if more else "Values"
    return _table(caption, ["column", *(name for name, _ in named)], rows)


def _cell(value: float | str) -> Markup:
    if isinstance(value, str):
        return Markup('<td class="word">{}</td>').format(value or "–")
    text = f"{value:.4g}" if abs(value) < 1e5 else f"{value:.6g}"
    return Markup("<td>{}</td>").format(text)


def _figure(view: View, alt: str, caption: Markup, pixels: int) -> Markup:
    assert view.image is not None
    width = view.image.shape[-1]
    picture = png(view.image, alt, max(1.0, pixels / width))
    return Markup(
        '<figure><img src="{}" alt="{}" width="{}" height="{}"><figcaption>{}</figcaption></figure>'
    ).format(picture.source, picture.alt, picture.width, picture.height, caption)


def _table(caption: str, head: Sequence[str], rows: Sequence[tuple[str, Sequence[Markup]]]) -> str:
    """A table that scrolls within itself, also by the keyboard."""
    titles = Markup("").join(Markup('<th scope="col">{}</th>').format(name) for name in head[1:])
    first = Markup('<th scope="col">{}</th>' if head[0] else "<td>{}</td>").format(head[0])
    lines = Markup("").join(
        Markup('<tr><th scope="row">{}</th>{}</tr>').format(name, Markup("").join(cells))
        for name, cells in rows
    )
    return Markup(
        '<div class="told" tabindex="0" role="region" aria-label="{}"><table><caption>{}</caption>'
        "<thead><tr>{}{}</tr></thead><tbody>{}</tbody></table></div>"
    ).format(caption, caption, first, titles, lines)
