"""The picture of a profile: what each category of each latent means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from pyro_dvae.evaluation import ACTIVE_INFORMATION, Profile
from pyro_dvae.runs.figure import ShownFigure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_LEVELS = 6
"""Levels of a column that are shown: those that differ most between the categories."""
_MOST_ROWS = 40
"""Features that are shown: those that differ most between the categories."""
_MOST_CLASSES = 12
"""Where there are more classes than this, none is shown."""
_MOST_LATENTS = 12
"""Latents that are shown: those with the most information."""
_ENDS = 2.0
"""Differences beyond this have the same colour."""
_WIDTH, _HEIGHT = 0.42, 0.21
"""Size of a cell, in inches."""
_CELLS_PER_LINE = 24
"""Categories side by side, over all latents."""


def profile_figure(profile: Profile) -> Figure:
    """One map per latent: features in rows, categories in columns, coloured by the difference.

    A difference is that of the category from all rows, in standard deviations of all rows. The
    numbers are means, or frequencies in percent. Categories that are unused are left out, and so
    are latents that tell nothing about the rows, if there are others.

    Args:
        profile: what `profile` returned.
    """
    shown, is_whole = _features(profile)
    if len(profile.classes) <= _MOST_CLASSES:
        number = len(profile.features)
        profile = profile.with_classes()
        shown += range(number, len(profile.features))
    latents = _latents(profile)
    used = [profile.largest(d) for d in latents]
    most = max(map(len, used)) + 1
    per_line = min(len(latents), max(1, _CELLS_PER_LINE // most))
    lines = -(-len(latents) // per_line)
    names = [str(profile.features[i]) for i in shown]
    size = (
        0.075 * max(map(len, names)) + per_line * (most * _WIDTH + 0.15) + 0.9,
        lines * (len(shown) * _HEIGHT + 0.75) + 0.5,
    )
    figure = ShownFigure(figsize=(max(size[0], 5), min(size[1], 400)), layout="constrained")
    grid = figure.subplots(lines, per_line, squeeze=False, sharey=True)
    image: Any = None
    for place, axes in enumerate(grid.flat):
        if place >= len(latents):
            axes.set_axis_off()
            continue
        image = _show(axes, profile, latents[place], used[place], shown, most)
        if place % per_line == 0:
            axes.set_yticks(range(len(names)), [_short(name) for name in names], fontsize=7)
    bar = figure.colorbar(image, ax=grid, shrink=min(1.0, 2.5 / size[1]), aspect=12, pad=0.01)
    bar.set_label("difference from all rows, in sd", fontsize=7)
    bar.ax.tick_params(labelsize=7)
    few = "" if is_whole else "; the features that differ most"
    figure.suptitle(
        "means, or frequencies in %, in the rows of each category "
        f"({profile.num_data:,} rows{few})",
        fontsize=9,
    )
    return figure


def _latents(profile: Profile) -> list[int]:
    """The latents to show, in order."""
    order = profile.information.argsort(descending=True).tolist()
    active = [d for d in order if profile.information[d] >= ACTIVE_INFORMATION]
    return sorted((active or order[:1])[:_MOST_LATENTS])


def _features(profile: Profile) -> tuple[list[int], bool]:
    """The features to show, in the order of the columns, and whether these are all."""
    # How much of the variance of a feature the categories explain, by the latent that does so most.
    explained = (profile.shares[..., None] * profile.differences.nan_to_num(0).square()).sum(1)
    weight = explained.max(0).values
    columns: dict[str, list[int]] = {}
    all_levels = 0
    for i, feature in enumerate(profile.features):
        columns.setdefault(feature.column, []).append(i)
    chosen: list[int] = []
    for its in columns.values():
        if len(its) == 2:
            its = its[1:]  # one level of two says all
        all_levels += len(its)
        chosen += _largest(weight, its, _MOST_LEVELS)
    chosen = _largest(weight, chosen, _MOST_ROWS)
    return chosen, len(chosen) == all_levels


def _largest(weight: Tensor, some: Sequence[int], num: int) -> list[int]:
    return sorted(sorted(some, key=lambda i: -weight[i].item())[:num])


def _show(
    axes: Axes, profile: Profile, d: int, used: list[int], shown: list[int], most: int
) -> Any:
    """One latent: the column of all rows, then its used categories."""
    differences = profile.differences[d, used][:, shown].T  # (F, K)
    values = torch.cat([profile.whole[None], profile.means[d, used]])[:, shown].T
    none = torch.full((len(shown), 1), torch.nan, device="cpu")
    cells = torch.cat([none, differences], 1).numpy()
    image = axes.imshow(cells, cmap="RdBu_r", vmin=-_ENDS, vmax=_ENDS, aspect="auto")
    axes.set_xlim(-0.5, most - 0.5)
    for i, row in enumerate(values.tolist()):
        is_level = profile.features[shown[i]].level is not None
        for k, value in enumerate(row):
            if value == value:
                dark = k > 0 and abs(cells[i, k]) > 0.7 * _ENDS
                text = f"{100 * value:.0f}%" if is_level else _number(value)
                axes.text(
                    *(k, i, text),
                    ha="center",
                    va="center",
                    fontsize=6,
                    color="white" if dark else "black",
                )
    shares = [f"{k}\n{100 * profile.shares[d, k]:.0f}%" for k in used]
    axes.set_xticks(range(len(used) + 1), ["all", *shares], fontsize=7)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    number = int(profile.used[d].sum())
    of = f", {len(used)} of {number} categories" if len(used) < number else ""
    axes.set_title(f"z{d + 1}: {profile.information[d]:.2f} nats{of}", fontsize=8)
    return image


def _number(value: float) -> str:
    """At most five characters or so."""
    return f"{value:.0f}" if 1000 <= abs(value) < 1e5 else f"{value:.3g}"


def _short(name: str) -> str:
    return name if len(name) <= 28 else f"{name[:25]}..."
