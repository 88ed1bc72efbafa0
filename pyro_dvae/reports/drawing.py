"""Figures of matplotlib as SVG within a page: their colours follow the light or the dark page."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib
from cycler import cycler
from markupsafe import Markup
from matplotlib.figure import Figure

from pyro_dvae.reports.blocks import Picture

SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#8c8c01")
"""Colours that readers with any kind of colour blindness tell apart (Okabe and Ito, 2008), and two
more. A page replaces them by its own variants, which have contrast to its background."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
"""A marker per colour, so that no line is told by its colour alone."""
INK, SOFT, GRID = "#010203", "#040506", "#0a0b0c"
_NAMES = {INK: "ink", SOFT: "soft", GRID: "rule"} | {
    colour: f"series-{i}" for i, colour in enumerate(SERIES)
}
"""Colour of a figure -> the name of the variable of `style.css` that takes its place."""
_SETTINGS: Any = {
    "axes.edgecolor": GRID,
    "axes.facecolor": "none",
    "axes.labelcolor": INK,
    "axes.prop_cycle": cycler(color=SERIES, marker=MARKERS),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "figure.facecolor": "none",
    "font.size": 10,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    "savefig.facecolor": "none",
    "svg.fonttype": "none",
    "svg.hashsalt": "pyro_dvae",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
PLACE = "@place@"
"""What the names within an SVG start with. A page puts another text there for each of them, as a
name must occur once in a page."""


@contextmanager
def page_style() -> Iterator[None]:
    """Draw with the settings of a page, whatever the user's settings of matplotlib say."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        yield


def drawing(figure: Figure, alt: str, caption: str = "") -> Picture:
    """A figure as an SVG that is a part of the page.

    Its texts stay texts, in the font of the page.

    Args:
        figure: drawn within `page_style`.
        alt: what it shows, for readers who do not see it.
        caption: the text below it.
    """
    file = io.StringIO()
    figure.savefig(file, format="svg")
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)  # the texts once more
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"| version="[^"]*"', "", svg).replace("xlink:href", "href")
    svg = re.sub(r'\bid="', f'id="{PLACE}', svg)
    svg = re.sub(r'(url\(|href=")#', rf"\1#{PLACE}", svg)
    svg = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", svg)
    svg = re.sub(r"font-family: [^;\"]*;?", "", svg)
    for colour, name in _NAMES.items():
        svg = svg.replace(colour, f"var({'--'}{name})")
    width, height = (float(side) for side in re.findall(r'(?:width|height)="([\d.]+)pt"', svg)[:2])
    named = Markup('<svg role="img" aria-label="{}" ').format(alt)
    svg = re.sub(r'^<svg( width="[^"]*"| height="[^"]*")*', "<svg ", svg)
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)
    body = Markup(named + Markup(svg.removeprefix("<svg ")))
    return Picture(body, alt, round(width * 4 / 3), round(height * 4 / 3), caption)
