"""The profile of the categories of each latent, in words and as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyro_dvae.displays import html_table
from pyro_dvae.evaluation.usage import ACTIVE_INFORMATION

if TYPE_CHECKING:
    from pyro_dvae.evaluation.profile_figures import Profile

_MOST_CLASSES = 20
"""More classes than this are not printed."""
_MOST_LATENTS = 12
"""Largest number of latents that a notebook shows: those that tell most."""


def profile_text(profile: Profile, num: int = 3) -> str:
    """Lines that say how many rows each category has, and what sets it apart from all rows.

    Args:
        profile: the profile.
        num: features per category.
    """
    lines = [
        f"Profile of {profile.num_data:,} rows. A row counts for a category by its probability "
        "q(z|x). In brackets: all rows.",
        "sd: the difference in standard deviations of all rows. x: how many times as often.",
        "Typical rows are those with the highest q(z|x), by name, or by number from 0.",
    ]
    idle = _idle(profile)
    for d in range(len(profile.sizes)):
        if d not in idle:
            lines += ["", *_latent(profile, d, num)]
    if idle:
        lines += ["", _says_of_idle(idle)]
    return "\n".join(lines)


def profile_html(profile: Profile, num: int = 3) -> str:
    """The same as one HTML table per latent, for a notebook.

    Args:
        profile: the profile.
        num: features per category.
    """
    idle = _idle(profile)
    order = profile.information.argsort(descending=True, stable=True).tolist()
    told = sorted(d for d in order[:_MOST_LATENTS] if d not in idle)
    hidden = len(profile.sizes) - len(told) - len(idle)
    shown = () if len(profile.classes) > _MOST_CLASSES else profile.classes
    names = [f"{profile.class_column} {name}" for name in shown]
    heads = ["category", "rows", "share", "what sets it apart (all rows)", "typical rows", *names]
    numbers = (1, 2, *range(5, len(heads)))
    tables = []
    for d in told:
        rows = []
        for k in profile.largest(d):
            typical = ", ".join(profile.typical_rows(d, k))
            row = [str(k), f"{profile.sizes[d, k]:,.0f}", _percent(profile.shares[d, k].item())]
            row += [_apart(profile, d, k, num), typical]
            if names and profile.class_counts is not None:
                row += [f"{count:,.1f}" for count in profile.class_counts[d, k].tolist()]
            rows.append(row)
        tables.append(html_table(heads, rows, numbers=numbers, caption=_tells(profile, d)))
    notes = [f"and {hidden} more latents, which tell less"] if hidden else []
    notes += [_says_of_idle(idle)] if idle else []
    ends = "".join(f"<p>{note}</p>" for note in notes)
    head = f"<p><b>Profile of {profile.num_data:,} rows</b></p>"
    return f"<div>{head}{''.join(tables)}{ends}</div>"


def _idle(profile: Profile) -> list[int]:
    """The latents that tell nothing about a row."""
    return [d for d, nats in enumerate(profile.information.tolist()) if nats < ACTIVE_INFORMATION]


def _says_of_idle(idle: list[int]) -> str:
    names = ", ".join(f"z{d + 1}" for d in idle)
    tells = "tells" if len(idle) == 1 else "tell"
    return f"{names} {tells} nothing about a row: less than {ACTIVE_INFORMATION} nats"


def _tells(profile: Profile, d: int) -> str:
    told, possible = profile.class_information, profile.class_entropy
    about = (
        ""
        if told is None
        else f", and {told[d]:.2f} of {possible:.2f} nats about {profile.class_column}"
    )
    return f"z{d + 1} tells {profile.information[d]:.2f} nats about a row{about}"


def _apart(profile: Profile, d: int, k: int, num: int) -> str:
    apart = [_feature(profile, d, k, i) for i in profile.distinctive(d, k, num)]
    return "; ".join(apart) or "much like all rows"


def _latent(profile: Profile, d: int, num: int) -> list[str]:
    lines = [_tells(profile, d)]
    shown = profile.largest(d)
    for k in shown:
        share = _percent(profile.shares[d, k].item())
        lines.append(
            f"  category {k}: {profile.sizes[d, k]:,.0f} rows ({share}): "
            f"{_apart(profile, d, k, num)}"
        )
        typical = profile.typical_rows(d, k)
        if typical:
            lines.append(f"    typical rows: {', '.join(typical)}")
    more = int(profile.used[d].sum()) - len(shown)
    if more:
        lines.append(f"  and {more} more categories with fewer rows")
    unused = [str(k) for k, used in enumerate(profile.used[d].tolist()) if not used]
    if unused:
        lines.append(f"  unused categories: {', '.join(unused)}")
    if profile.class_information is None or len(profile.classes) > _MOST_CLASSES:
        return lines
    return [*lines, *_classes(profile, d, shown)]


def _feature(profile: Profile, d: int, k: int, i: int) -> str:
    """One feature of a category, beside that of all rows."""
    feature = profile.features[i]
    value, whole = profile.means[d, k, i].item(), profile.whole[i].item()
    if feature.level is None:
        difference = profile.differences[d, k, i]
        return f"{feature} {value:.4g} ({whole:.4g}, {difference:+.1f} sd)"
    return f"{feature} {_percent(value)} ({_percent(whole)}, x {profile.lifts[d, k, i]:.2g})"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _classes(profile: Profile, d: int, shown: list[int]) -> list[str]:
    """The number of rows of each category shown and each class."""
    assert profile.class_counts is not None
    known = round(profile.class_counts[d].sum().item())
    of = f" (of {known:,} with one)" if known < profile.num_data else ""
    rows = [[f"rows per {profile.class_column}{of}", *profile.classes]]
    for k in shown:
        counts = profile.class_counts[d, k].tolist()
        rows.append([f"category {k}", *(f"{count:,.1f}" for count in counts)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  "
        + "  ".join(
            f"{cell:{'>' if i else '<'}{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
