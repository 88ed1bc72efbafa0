"""Codes that the reader chooses, and what the decoder makes of them."""

from __future__ import annotations

import math
from collections import Counter
from itertools import product
from typing import Any

import torch
from torch import Tensor

from pyro_dvae.reports.blocks import (
    Block,
    Cell,
    CodeExplorer,
    Pictures,
    Section,
    Table,
    Text,
)
from pyro_dvae.reports.images import mosaic, png
from pyro_dvae.reports.opened import Reported
from pyro_dvae.reports.sections.pictures import cell_text, decoded, first_columns, word_columns
from pyro_dvae.runs import decoded_rows, shade_of
from pyro_dvae.runs.named import column_names

_MOST_CODES = 4_096
_MOST_PIXELS = 4_200_000
"""The largest number of values in the picture of all codes."""
_MOST_CELLS = 60_000
"""The largest number of cells of all rows that are decoded for a table."""
_SHADES = 32
_MOST_LATENTS, _MOST_CATEGORIES = 16, 16
_NUM_EXAMPLES = 8
_MOST_COLUMNS = 24
_PIXELS = 48


def traversal(reported: Reported) -> Section | None:
    """All codes to click through, where they are few; and each latent varied alone."""
    if not (reported.is_image or reported.is_table):
        return None
    blocks: list[Block] = []
    start = _start(reported)
    explorer = _explorer(reported, start)
    if explorer is not None:
        blocks += [
            Text(
                "Choose a category of each latent. The decoder's mean of p(x|z) at this code "
                "is shown at once."
            ),
            explorer,
        ]
    blocks.append(_alone(reported, start))
    return Section("traversal", "Codes to click through", blocks)


def _start(reported: Reported) -> list[int]:
    """The code of the first datum, or zeros."""
    codes = reported.codes
    return [0] * reported.config.num_latents if codes is None else codes[0].tolist()


def _explorer(reported: Reported, start: list[int]) -> CodeExplorer | None:
    config, shape = reported.config, reported.run.event_shape
    number = reported.num_codes
    most = _MOST_PIXELS if reported.is_image else _MOST_CELLS
    if number > _MOST_CODES or number * math.prod(shape) > most:
        return None
    codes = torch.tensor(list(product(range(config.num_categories), repeat=config.num_latents)))
    data: dict[str, Any] = {"latents": config.num_latents, "categories": config.num_categories}
    if reported.codes is not None:
        counts = Counter(map(tuple, reported.codes.tolist()))
        data["counts"] = [counts[code] for code in map(tuple, codes.tolist())]
        data["total"] = len(reported.codes)
        data["datum"] = reported.datum
    common: dict[str, Any] = {
        "key": f"{reported.key}-codes",
        "latents": config.num_latents,
        "categories": config.num_categories,
        "start": start,
        "examples": _examples(reported),
    }
    caption = f"All {number:,} codes are in this page."
    if not reported.is_image:
        names = column_names(reported.run.data, shape)[:_MOST_COLUMNS]
        cells = decoded_rows(reported.run, codes).cells
        data["rows"] = [list(map(cell_text, row[:_MOST_COLUMNS])) for row in cells]
        return CodeExplorer(data=data, caption=caption, columns=names, **common)
    images = _means(reported, codes)
    across = config.num_categories ** -(-config.num_latents // 2)
    pixels = mosaic(images, across, gap=0)
    data |= {"across": across, "width": shape[-1], "height": shape[-2]}
    alt = (
        f"The means of p(x|z) of all {number:,} codes, {across} per row; the last latent changes "
        "fastest."
    )
    sprite = png(pixels, alt, colours=_SHADES if len(pixels) == 1 else 64)
    return CodeExplorer(data=data, caption=caption, sprite=sprite, **common)


def _means(reported: Reported, codes: Tensor) -> Tensor:
    shade = shade_of(reported.run)
    parts = [decoded(reported, block)[0] for block in codes.split(1024)]
    images = torch.cat(parts)
    return images if shade is None else shade(images)


def _examples(reported: Reported) -> list[tuple[str, list[int]]]:
    some, codes = reported.sample, reported.codes
    if some is None or codes is None:
        return []
    return [
        (reported.place(some, n), codes[n].tolist()) for n in range(min(_NUM_EXAMPLES, len(codes)))
    ]


def _alone(reported: Reported, start: list[int]) -> Table:
    """Each latent varied alone, the others as in the first datum."""
    config = reported.config
    latents = range(min(config.num_latents, _MOST_LATENTS))
    categories = range(min(config.num_categories, _MOST_CATEGORIES))
    codes = torch.tensor(
        [
            [k if e == d else start[e] for e in range(config.num_latents)]
            for d in latents
            for k in categories
        ]
    )
    about = "the first datum of this page" if reported.codes is not None else "the code of zeros"
    caption = "Each latent varied alone"
    notes = [f"The other latents have the categories of {about}."]
    if len(latents) < config.num_latents or len(categories) < config.num_categories:
        notes.append(
            f"The first {len(latents)} latents and {len(categories)} categories are shown, of "
            f"{config.num_latents} and {config.num_categories}."
        )
    rows: list[list[Cell]] = []
    if reported.is_image:
        images = _means(reported, codes)
        left = range(1, 1 + len(categories))
        scale = _PIXELS / images.shape[-1]
        for d in latents:
            row: list[Cell] = [f"z{d + 1}"]
            for k in categories:
                alt = f"z{d + 1} = {k}" + (", as in the datum" if start[d] == k else "")
                row.append(Pictures([png(images[d * len(categories) + k], alt, scale)]))
            rows.append(row)
        return Table(caption, ["latent", *map(str, categories)], rows, left=left, notes=notes)
    names = column_names(reported.run.data, reported.run.event_shape)[:_MOST_COLUMNS]
    cells = list(decoded_rows(reported.run, codes).cells)
    for i, (d, k) in enumerate(product(latents, categories)):
        mark = " (as in the datum)" if start[d] == k else ""
        rows.append([f"z{d + 1} = {k}{mark}", *map(cell_text, cells[i][:_MOST_COLUMNS])])
    return Table(
        caption,
        ["code", *names],
        rows,
        left=word_columns(reported),
        notes=notes + first_columns(reported),
    )
