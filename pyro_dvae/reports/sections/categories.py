"""What each category of each latent means in the training data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from matplotlib.figure import Figure
from torch import Tensor

from pyro_dvae.evaluation import ACTIVE_INFORMATION, Profile
from pyro_dvae.reports.blocks import (
    Bar,
    Block,
    Cell,
    Group,
    Picture,
    Pictures,
    Section,
    Shaded,
    Table,
    Text,
)
from pyro_dvae.reports.drawing import INK, drawing
from pyro_dvae.reports.images import png
from pyro_dvae.reports.opened import Reported, Some

_MOST_LATENTS = 8
_MOST_CATEGORIES = 16
_MOST_LINES = 8
_MOST_FEATURES = 40
_NUM_TYPICAL = 4
_PIXELS = 56
"""Width of a small picture, in CSS pixels."""


def categories(reported: Reported) -> Section | None:
    """A table per latent: the mean of the data, the typical data and the classes per category."""
    if reported.members is None or not (reported.is_image or reported.is_table):
        return None
    some = reported.members
    groups = _of_images(reported, some) if reported.is_image else _of_table(reported)
    number = len(some.x)
    exact = reported.is_table and reported.profile_posterior == "exact"
    which = "all" if number == some.total else f"{number:,} of the"
    text = (
        f"Told by {which} {some.total:,} training {reported.datum}s. Each counts for a category "
        "by its probability q(z_d=k|x), that of "
        f"{'the exact p(z|x)' if exact else 'the encoder'}."
    )
    return Section("categories", "What each category means", [Text(text), *groups])


def _shown(information: Sequence[float]) -> list[int]:
    """The latents to show, in order: the active ones, or the one that tells most."""
    order = sorted(range(len(information)), key=lambda d: -information[d])
    active = [d for d in order if information[d] >= ACTIVE_INFORMATION]
    return sorted((active or order[:1])[:_MOST_LATENTS])


def _left_out(number: int, shown: int) -> list[Block]:
    if shown == number:
        return []
    return [Text(f"{shown} of {number} latents are shown: those that tell most about the data.")]


# --- Images ---


def _of_images(reported: Reported, some: Some) -> list[Block]:
    log_q = reported.log_posterior(some)
    q = log_q.exp()
    images = reported.shown(some, range(len(q))).double()
    sizes = q.sum(0)  # (D, K)
    information = _information(q)
    shown = _shown(information)
    blocks: list[Block] = _left_out(len(information), len(shown))
    for d in shown:
        order = sizes[d].argsort(descending=True, stable=True)[:_MOST_CATEGORIES].tolist()
        used = sorted(k for k in order if sizes[d, k] >= 0.5)
        odds = log_q[:, d] - _others(log_q[:, d])
        most = float(sizes[d].max()) / len(q)
        rows = [_image_row(reported, some, q[:, d, k], odds[:, k], images, k, most) for k in used]
        head = ["category", "share", f"mean {reported.datum}", "most typical"]
        if some.rows.labels is not None:
            head.append("classes")
        number = int((sizes[d] >= 0.5).sum())
        notes = [f"{len(used)} of {number} used categories are shown."] * (len(used) < number)
        unused = q.shape[2] - number
        if unused:
            notes.append(f"{unused} of {q.shape[2]} categories are not used.")
        table = Table(f"Categories of latent z{d + 1}", head, rows, left=(2, 3, 4), notes=notes)
        blocks.append(Group(f"z{d + 1}: {information[d]:.2f} nats", [table]))
    return blocks


def _information(q: Tensor) -> list[float]:
    """I(x; z_d) in nats, of each latent."""
    mean = q.mean(0)
    entropy = -torch.special.xlogy(mean, mean).sum(-1)
    each = -torch.special.xlogy(q, q).sum(-1).mean(0)
    return (entropy - each).clamp(min=0).tolist()


def _others(log_q: Tensor) -> Tensor:
    """Log (1 - q) as the sum over the other categories, for many q are 1 when rounded."""
    number = log_q.shape[-1]
    each = log_q.unsqueeze(-2).expand(*log_q.shape[:-1], number, number)
    own = torch.eye(number, dtype=torch.bool)
    return each.masked_fill(own, -torch.inf).logsumexp(-1)


def _image_row(
    reported: Reported, some: Some, q: Tensor, odds: Tensor, images: Tensor, k: int, most: float
) -> list[Cell]:
    share = float(q.mean())
    mean = torch.einsum("n,n...->...", q, images) / q.sum()
    best = odds.argsort(descending=True, stable=True)[:_NUM_TYPICAL].tolist()
    best = [n for n in best if q[n] > share]
    scale = _PIXELS / images.shape[-1]
    typical = []
    for n in best:
        its = reported.class_of(some, n)
        alt = f"image {reported.place(some, n)}" + ("" if its is None else f", class {its}")
        typical.append(png(images[n], f"Typical of category {k}: {alt}", scale))
    row: list[Cell] = [
        str(k),
        Bar(f"{100 * share:.1f} %", share / most),
        Pictures([png(mean, f"Mean of the images of category {k}", scale)]),
        Pictures(typical),
    ]
    if some.rows.labels is not None:
        row.append(_classes(reported, some, q))
    return row


def _classes(reported: Reported, some: Some, q: Tensor) -> str:
    """The most frequent classes of a category, with their shares."""
    weights: Counter[str] = Counter()
    for n, weight in enumerate(q.tolist()):
        its = reported.class_of(some, n)
        if its is not None:
            weights[its] += weight
    total = sum(weights.values()) or 1.0
    top = [(name, weight / total) for name, weight in weights.most_common(3)]
    return ", ".join(f"{name} ({100 * share:.0f} %)" for name, share in top if share >= 0.005)


# --- Tables ---


def _of_table(reported: Reported) -> list[Block]:
    found = reported.profile
    assert found is not None
    profile = found.with_classes() if len(found.classes) <= 12 else found
    information = found.information.tolist()
    shown = _shown(information)
    blocks: list[Block] = _left_out(len(information), len(shown))
    features = _features(profile)
    for d in shown:
        used = profile.largest(d, _MOST_CATEGORIES)
        group: list[Block] = []
        if len(features) > 1 and len(used) > 1:
            group.append(_lines(profile, d, features))
        group += [_heat(profile, d, used, features), _apart(profile, d, used)]
        blocks.append(Group(f"z{d + 1}: {information[d]:.2f} nats", group))
    return blocks


def _features(profile: Profile) -> list[int]:
    """The features to show: of two levels of a column one is enough; those that differ most."""
    columns: dict[str, list[int]] = {}
    for i, feature in enumerate(profile.features):
        columns.setdefault(feature.column, []).append(i)
    kept = [i for its in columns.values() for i in (its[1:] if len(its) == 2 else its)]
    spread = (profile.shares[..., None] * profile.differences.nan_to_num(0).square()).sum(1)
    weight = spread.max(0).values
    return sorted(sorted(kept, key=lambda i: -weight[i].item())[:_MOST_FEATURES])


def _lines(profile: Profile, d: int, features: Sequence[int]) -> Picture:
    """The profile plot of a latent class analysis: a line per category over all features."""
    used = profile.largest(d, _MOST_LINES)
    names = [str(profile.features[i]) for i in features]
    longest = min(28, max(map(len, names)))
    figure = Figure(figsize=(5.6, 2.6 + 0.075 * longest), layout="constrained")
    axes = figure.subplots()
    differences = profile.differences[d][:, list(features)]
    for k in used:
        axes.plot(differences[k].tolist(), label=f"{k} ({100 * profile.shares[d, k]:.0f} %)")
    axes.axhline(0, color=INK, linewidth=0.8, marker="")
    axes.set_xticks(range(len(names)), [_short(name) for name in names], rotation=90)
    axes.set_ylabel("difference from all rows, sd")
    axes.grid(True, axis="x")
    figure.legend(title="category (share of rows)", ncols=4, loc="outside upper center")
    number = int(profile.used[d].sum())
    few = f"The {len(used)} largest of {number} used categories. " if len(used) < number else ""
    return drawing(
        figure,
        f"Profile of latent z{d + 1}: the difference of each category from all rows, per column. "
        "The table below has the numbers.",
        f"{few}Each line is a category. A point at 1 is a mean, or a frequency, that lies one "
        "standard deviation of all rows above that of all rows.",
    )


def _short(name: str) -> str:
    text = name if len(name) <= 28 else f"{name[:25]}..."
    return text.replace("$", r"\$")  # matplotlib reads dollars as mathematics


def _heat(profile: Profile, d: int, used: Sequence[int], features: Sequence[int]) -> Table:
    head = ["column", "all rows", *map(str, used)]
    rows: list[list[Cell]] = [
        ["share of rows", "100 %", *(f"{100 * profile.shares[d, k]:.1f} %" for k in used)]
    ]
    for i in features:
        feature = profile.features[i]
        is_level = feature.level is not None
        cells: list[Cell] = [str(feature), _value(profile.whole[i].item(), is_level)]
        for k in used:
            difference = profile.differences[d, k, i].nan_to_num(0).item()
            shade = max(-3, min(3, round(difference * 1.5)))
            cells.append(Shaded(_value(profile.means[d, k, i].item(), is_level), shade))
        rows.append(cells)
    notes = [
        "Means of columns of numbers; of a column of categories, how frequent each level is. A "
        "darker cell lies further from all rows: orange above, blue below."
    ]
    number = int(profile.used[d].sum())
    if len(used) < number:
        notes.append(f"The {len(used)} largest of {number} used categories are shown.")
    if len(features) == _MOST_FEATURES:
        notes.append(f"The {_MOST_FEATURES} columns and levels that differ most are shown.")
    return Table(f"Profiles of the categories k of z{d + 1}", head, rows, notes=notes)


def _value(value: float, is_level: bool) -> str:
    if value != value:
        return "–"
    if is_level:
        return f"{100 * value:.0f} %"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.3g}"


def _apart(profile: Profile, d: int, used: Sequence[int]) -> Table:
    """What sets each category apart, in words, and its most typical rows."""
    rows: list[list[Cell]] = []
    for k in used:
        told = []
        for i in profile.distinctive(d, k, 4):
            feature = profile.features[i]
            is_level = feature.level is not None
            value = _value(profile.means[d, k, i].item(), is_level)
            told.append(f"{feature} {value} (all: {_value(profile.whole[i].item(), is_level)})")
        size = profile.sizes[d, k].item()
        rows.append(
            [
                str(k),
                f"{size:.1f}",
                "; ".join(told) or "nothing that chance could not explain",
                ", ".join(profile.typical_rows(d, k)),
            ]
        )
    return Table(
        f"What sets the categories of z{d + 1} apart",
        ["category", "rows", "sets it apart", "most typical rows"],
        rows,
        left=(2, 3),
    )
