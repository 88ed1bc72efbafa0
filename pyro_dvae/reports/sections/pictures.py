"""Reconstructions and samples."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_dvae.codes import one_hot
from pyro_dvae.reports.blocks import Block, Cell, Picture, Section, Strip, Table, Text
from pyro_dvae.reports.images import mosaic, png
from pyro_dvae.reports.opened import Reported, Some
from pyro_dvae.runs import decoded_rows, named_values, sample_grid, sampled_rows, shade_of
from pyro_dvae.runs.config import preparation_of
from pyro_dvae.runs.named import column_names
from pyro_dvae.streams import RandomStream

NUM_EXAMPLES = 10
_NUM_SAMPLES = 40
_NUM_ROWS = 8
_MOST_COLUMNS = 24
_ACROSS = 680
"""Width of a strip, in CSS pixels."""


def reconstructions(reported: Reported) -> Section | None:
    """The first data of the sample, and what the model makes of their codes."""
    some, codes = reported.sample, reported.codes
    if some is None or codes is None or not (reported.is_image or reported.is_table):
        return None
    number = min(NUM_EXAMPLES, len(codes))
    block: Block
    if reported.is_image:
        block = _strips(reported, some, codes[:number])
    else:
        block = _row_pairs(reported, some, codes[: min(number, _NUM_ROWS)])
    text = (
        f"The first {number} {reported.datum}s of the {some.part} part that this page uses, and "
        "the mean of p(x|z) at the most probable code of each."
    )
    return Section("reconstructions", "Reconstructions", [Text(text), block])


def decoded(reported: Reported, codes: Tensor) -> tuple[Tensor, Tensor]:
    """Means of p(x|z) and draws from it, as the likelihood takes them, on the CPU.

    Args:
        reported: the run.
        codes: (N, D) categories.
    """
    weight = next(reported.vae.parameters())
    with torch.no_grad():
        z = one_hot(codes.to(weight.device), reported.config.num_categories, dtype=weight.dtype)
        p = reported.vae.decode(z)
        with RandomStream(reported.config.seed, weight.device):
            draws = p.sample()
    return p.mean.cpu(), draws.cpu()


def _strips(reported: Reported, some: Some, codes: Tensor) -> Strip:
    number = len(codes)
    means, draws = decoded(reported, codes)
    shade = shade_of(reported.run)
    seen = reported.shown(some, range(number))
    images = {"image": seen}
    if shade is None:
        images["as zeros and ones"] = some.x[:number].cpu()
    else:
        means, draws = shade(means), shade(draws)
    images |= {"mean of p(x|z)": means, "a draw of p(x|z)": draws}
    names = [reported.place(some, n) for n in range(number)]
    told = f"of the images {', '.join(names)}"
    rows = [(name, _row(tensor, f"{name}, {told}")) for name, tensor in images.items()]
    return Strip(rows, f"Each column is one image of the {some.part} part: {', '.join(names)}.")


def _row(images: Tensor, alt: str) -> Picture:
    pixels = mosaic(images, len(images))
    return png(pixels, alt, _ACROSS / pixels.shape[-1])


def _row_pairs(reported: Reported, some: Some, codes: Tensor) -> Table:
    number = len(codes)
    restore = preparation_of(reported.config, reported.run.event_shape).restore
    observed = named_values(reported.run.data, restore(some.x[:number].cpu().double()))
    made = list(decoded_rows(reported.run, codes).cells)
    names = column_names(reported.run.data, reported.run.event_shape)[:_MOST_COLUMNS]
    rows: list[list[Cell]] = []
    for n in range(number):
        place = reported.place(some, n)
        rows.append([f"row {place}", *map(cell_text, observed[n][:_MOST_COLUMNS])])
        code = " ".join(map(str, codes[n].tolist()))
        rows.append([f"made of z = {code}", *map(cell_text, made[n][:_MOST_COLUMNS])])
    return Table(
        "Rows, and what the model makes of their codes",
        ["row", *names],
        rows,
        left=word_columns(reported),
        notes=first_columns(reported),
    )


def first_columns(reported: Reported) -> list[str]:
    """A note on how many columns are shown, if not all are."""
    number = reported.run.event_shape[0]
    if number <= _MOST_COLUMNS:
        return []
    return [f"The first {_MOST_COLUMNS} of {number} columns are shown."]


def word_columns(reported: Reported) -> list[int]:
    """The columns of a table of data that hold words, counted from 1."""
    names = column_names(reported.run.data, reported.run.event_shape)
    return [i for i, name in enumerate(names, 1) if name in reported.run.data.levels]


def cell_text(value: float | str) -> str:
    """A cell of a table of data."""
    if isinstance(value, str):
        return value or "–"
    return f"{value:.4g}" if abs(value) < 1e5 else f"{value:.6g}"


def samples(reported: Reported) -> Section | None:
    """Data that the model draws: codes from the prior, and the means of p(x|z) at them."""
    if not (reported.is_image or reported.is_table):
        return None
    text = "Codes are drawn from the prior p(z). The decoder turns each into the mean of p(x|z)."
    block: Block
    seed = reported.config.seed
    if reported.is_image:
        grid = sample_grid(reported.run, _NUM_SAMPLES, seed=seed)
        if grid.rows:
            text += " Each row is a class, for the prior is conditional on it."
            per = grid.num_columns
            rows = [
                (name, _row(grid.images[i * per : (i + 1) * per], f"Samples of class {name}"))
                for i, name in enumerate(grid.rows)
            ]
            block = Strip(rows, f"{len(grid.images)} samples, seed {seed}.")
        else:
            pixels = mosaic(grid.images, 10)
            block = png(
                pixels,
                f"{len(grid.images)} samples of the model",
                _ACROSS / pixels.shape[-1],
                f"{len(grid.images)} samples, seed {seed}.",
            )
    else:
        header, cells = sampled_rows(reported.run, _NUM_ROWS, seed=seed)
        rows_of = [
            [f"sample {i}", *map(cell_text, row[:_MOST_COLUMNS])] for i, row in enumerate(cells, 1)
        ]
        text += " A column of categories has its most probable level."
        more = len(header) - len(column_names(reported.run.data, reported.run.event_shape))
        block = Table(
            "Sampled rows",
            ["sample", *header[:_MOST_COLUMNS]],
            rows_of,
            left=[*range(1, 1 + more), *(i + more for i in word_columns(reported))],
            notes=first_columns(reported),
        )
    return Section("samples", "Samples", [Text(text), block])
