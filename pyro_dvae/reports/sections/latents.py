"""What each latent tells, and which codes are used."""

from __future__ import annotations

from collections import Counter

from matplotlib.figure import Figure

from pyro_dvae.evaluation import ACTIVE_INFORMATION, Evaluation
from pyro_dvae.reports.blocks import Bar, Block, Cell, Picture, Section, Table, Text
from pyro_dvae.reports.drawing import SERIES, drawing
from pyro_dvae.reports.opened import Reported
from pyro_dvae.reports.sections.learning import of_how_many

_MOST_LATENTS = 64
_MOST_CODES = 40


def latents(reported: Reported) -> Section | None:
    """KL, information and perplexity of each latent; how often codes are used."""
    scores, codes = reported.scores, reported.codes
    if scores is None or codes is None:
        return None
    config = reported.config
    text = (
        f"{scores.active_latents} of {config.num_latents} latents are active (information of "
        f"{ACTIVE_INFORMATION:g} nats or more). The most probable codes of the {scores.num_data:,} "
        f"{reported.datum}s are {scores.codes_used:,} different ones of {reported.num_codes:,}, "
        f"used as evenly as {scores.code_perplexity:.1f} equally frequent codes would be."
        if reported.is_enumerable
        else f"{scores.active_latents} of {config.num_latents} latents are active (information of "
        f"{ACTIVE_INFORMATION:g} nats or more). The most probable codes of the {scores.num_data:,} "
        f"{reported.datum}s are {scores.codes_used:,} different ones."
    )
    blocks: list[Block] = [Text(text), _table(reported, scores)]
    used = Counter(map(tuple, codes.tolist()))
    blocks.append(_usage(reported, used))
    return Section("latents", "What each latent tells", blocks)


def _table(reported: Reported, scores: Evaluation) -> Table:
    number = reported.config.num_categories
    most = max(scores.information_per_latent) or 1.0
    head = ["latent", "information, nats", "perplexity"]
    if scores.kl_per_latent is not None:
        head.insert(1, "KL, nats")
    rows: list[list[Cell]] = []
    for d, information in enumerate(scores.information_per_latent[:_MOST_LATENTS]):
        row: list[Cell] = [f"z{d + 1}"]
        if scores.kl_per_latent is not None:
            row.append(f"{scores.kl_per_latent[d]:.3f}")
        row.append(Bar(f"{information:.3f}", information / most))
        perplexity = scores.perplexity_per_latent[d]
        row.append(Bar(f"{perplexity:.2f} of {number}", perplexity / number))
        rows.append(row)
    notes = [
        "Information: I(x; z_d), what the latent tells about a datum; at most log K = "
        f"{_log(number):.2f} nats. KL: KL(q(z_d|x) || p(z_d)), what it costs. Perplexity: how many "
        "categories are used, as if all were equally frequent.",
        of_how_many(reported, scores.num_data).partition(" The standard")[0],
    ]
    if len(scores.information_per_latent) > _MOST_LATENTS:
        notes.append(f"The first {_MOST_LATENTS} latents are shown.")
    return Table("The latents", head, rows, notes=notes)


def _usage(reported: Reported, used: Counter[tuple[int, ...]]) -> Picture:
    """A bar per code, the most frequent first."""
    top = used.most_common(_MOST_CODES)
    total = sum(used.values())
    figure = Figure(figsize=(5.6, 2.8), layout="constrained")
    axes = figure.subplots()
    shares = [100 * count / total for _, count in top]
    axes.bar(range(1, len(top) + 1), shares, color=SERIES[0], width=0.8)
    axes.set(xlabel="code, the most frequent first", ylabel=f"% of the {reported.datum}s")
    axes.grid(True, axis="y")
    axes.set_axisbelow(True)
    first = "; ".join(f"{_called(code)}: {100 * count / total:.1f} %" for code, count in top[:3])
    more = f"the {len(top)} most frequent of " if len(used) > len(top) else ""
    return drawing(
        figure,
        f"Share of the {reported.datum}s of each code. The most frequent codes: {first}.",
        f"How often codes are used: {more}{len(used):,} codes. The most frequent: {first}.",
    )


def _called(code: tuple[int, ...]) -> str:
    text = " ".join(map(str, code[:12]))
    return f"z = {text}{' ...' * (len(code) > 12)}"


def _log(number: int) -> float:
    from math import log

    return log(number)
