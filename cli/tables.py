"""Parts of the figures of an evaluation: numbers with their errors, and tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyro_dvae import Evaluation

_SHOWN_LATENTS = 20
"""The most latents of which the table shows a line each."""


def figure(scores: Evaluation, name: str, *, sign: int = 1, places: int = 2) -> str:
    """A figure times the sign, with its standard error if it comes from draws."""
    # -0.0 + 0.0 is 0.0, so that -0.00 is never printed.
    value = round(sign * getattr(scores, name), places) + 0.0
    error = scores.standard_errors.get(name)
    return f"{value:.{places}f}" + ("" if error is None else f" ± {error:.2g}")


def posteriors_table(scores: Evaluation) -> str:
    """The ELBO of each posterior, a line each."""
    sweeps = f"{scores.refined_sweeps} sweep{'s' * (scores.refined_sweeps != 1)}"
    rows = [("encoder", "encoder_elbo", ""), ("refined", "refined_elbo", f"by {sweeps}")]
    if scores.log_marginal is not None:
        rows.append(("exact", "log_marginal", "= log p(x)"))
    known = [(label, *_parted(figure(scores, name)), note) for label, name, note in rows]
    return "ELBO by q(z|x):\n" + indented(aligned(known, "<><<"))


def _parted(text: str) -> tuple[str, str]:
    """A figure and its standard error, as two cells of a table."""
    value, _, error = text.partition(" ")
    return value, error


def gaps_table(scores: Evaluation, bound: str, *, is_uniform: bool) -> str:
    """The differences of the figures above, each with its formula."""
    kl = "D log K - entropy" if is_uniform else "-E_q log p(z) - entropy"
    rows = [
        ("posterior gap", "posterior_gap", "log p(x) - ELBO = KL(q(z|x) || p(z|x))"),
        ("family gap", "family_gap", "log p(x) - best factorised q(z|x) that was found"),
        ("encoder gap", "encoder_gap", "best factorised q(z|x) - encoder"),
        ("importance gap", "importance_gap", f"{bound} - ELBO"),
        ("annealed gap", "annealed_gap", f"annealed({scores.annealed_sweeps}) - ELBO"),
        ("remaining gap", "remaining_gap", f"log p(x) - {bound}"),
        ("KL(q || prior)", "kl", kl),
        ("bits per dimension", "bits_per_dimension", "-ELBO / (P log 2), P elements"),
    ]
    known = []
    for label, name, formula in rows:
        if getattr(scores, name) is not None:
            text = figure(scores, name, places=4 if name == "bits_per_dimension" else 2)
            known.append((label, *_parted(text), f"= {formula}"))
    return aligned(known, "<><<")


def simple_models_table(scores: Evaluation, datum: str) -> str:
    """What simple models reach on the same data, a line each."""
    simple = scores.simple_models
    assert simple is not None
    rows = []
    for label, name, value, meaning in simple.rows():
        if value is None:
            reason = {"mixture": "no mixture", "independent": "no independent elements"}[name]
            rows.append((reason, "", "", "is fitted for this likelihood"))
            continue
        error = simple.standard_errors.get(name)
        rows.append((label, f"{value:.2f}", "" if error is None else f"± {error:.2g}", meaning))
    lines = [
        f"simple models, fitted to {simple.num_train:,} training {datum}s, in nats per {datum} of "
        f"the same {scores.num_data}:",
        aligned(rows, "<><<"),
    ]
    if scores.bits_saved is not None:
        lines.append(
            f"against independent elements, the model saves {scores.bits_saved:.2f} bits per "
            f"{datum}"
        )
    return "\n".join(lines)


def aligned(rows: Sequence[Sequence[str]], sides: str) -> str:
    """Lines of a table, with two blanks between the columns.

    Args:
        rows: the texts of each row, one per column.
        sides: one character per column: "<" aligns it at the left, ">" at the right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)
        ).rstrip()
        for row in rows
    )


def latents_table(scores: Evaluation) -> str:
    """KL, information and perplexity of each latent, a line each."""
    columns = {
        "KL": scores.kl_per_latent,
        "information": scores.information_per_latent,
        "perplexity": scores.perplexity_per_latent,
    }
    shown = {name: values for name, values in columns.items() if values is not None}
    rows = [["latent", *shown]]
    for latent, values in enumerate(zip(*shown.values(), strict=True), 1):
        rows.append([f"z{latent}", *(f"{value:.3f}" for value in values)])
    if len(rows) > _SHOWN_LATENTS + 1:
        total = len(rows) - 1
        least = [f"{min(values):.3f}" for values in shown.values()]
        most = [f"{max(values):.3f}" for values in shown.values()]
        rows = rows[: _SHOWN_LATENTS + 1]
        rows += [[f"least of {total}", *least], [f"most of {total}", *most]]
    return aligned(rows, "<" + ">" * len(shown))


def indented(text: str) -> str:
    """A text with two blanks before each line."""
    return "\n".join(f"  {line}" for line in text.split("\n"))
