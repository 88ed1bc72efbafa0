"""The profile of the categories of each latent, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyro_dvae.evaluation.usage import ACTIVE_INFORMATION

if TYPE_CHECKING:
    from pyro_dvae.evaluation.profile_figures import Profile

_MOST_CLASSES = 20
"""More classes than this are not printed."""


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
    idle = [d for d, nats in enumerate(profile.information.tolist()) if nats < ACTIVE_INFORMATION]
    for d in range(len(profile.sizes)):
        if d not in idle:
            lines += ["", *_latent(profile, d, num)]
    if idle:
        names = ", ".join(f"z{d + 1}" for d in idle)
        tells = "tells" if len(idle) == 1 else "tell"
        lines += ["", f"{names} {tells} nothing about a row: less than {ACTIVE_INFORMATION} nats"]
    return "\n".join(lines)


def _latent(profile: Profile, d: int, num: int) -> list[str]:
    told, possible = profile.class_information, profile.class_entropy
    about = (
        ""
        if told is None
        else f", and {told[d]:.2f} of {possible:.2f} nats about {profile.class_column}"
    )
    lines = [f"z{d + 1} tells {profile.information[d]:.2f} nats about a row{about}"]
    shown = profile.largest(d)
    for k in shown:
        size = profile.sizes[d, k].item()
        apart = [_feature(profile, d, k, i) for i in profile.distinctive(d, k, num)]
        share = f"{100 * size / profile.num_data:.0f} %"
        lines.append(
            f"  category {k}: {size:,.0f} rows ({share}): "
            f"{'; '.join(apart) or 'much like all rows'}"
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
    if told is None or len(profile.classes) > _MOST_CLASSES:
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
