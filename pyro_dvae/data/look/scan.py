"""A look at every value of data before training: what they are, and what could be wrong."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_dvae.data.look.columns import ColumnKind, column_kinds
from pyro_dvae.data.look.fits import Fit, fits
from pyro_dvae.data.read.copies import hash_rows
from pyro_dvae.data.read.extent import Extent, in_blocks, is_whole
from pyro_dvae.data.read.images import ImageGroup, ImageRows
from pyro_dvae.data.read.rows import Levels, Rows, levels_in
from pyro_dvae.displays import html_table, shown

MAX_DISTINCT = 256
_BLOCK_BYTES = 2**22
_SHOWN_COLUMNS = 50
"""Largest number of columns that a notebook shows."""


@dataclass(frozen=True)
class ColumnScan:
    """The finite values of one column of a table."""

    name: str
    low: float | None
    high: float | None
    num_missing: int
    levels: tuple[str, ...] | None = None
    """The names of the levels 0, 1, ... where the values stand for such; else None."""
    likelihood: str = "normal"
    """The name of a likelihood of such values, which the "mixed" one gives the column."""
    numbers: tuple[float, ...] | None = None
    """The values of a column of numbers that are names of categories; else None."""


@dataclass(frozen=True)
class Scan:
    """What N data are, found by a look at every value; ``dataclasses.asdict`` makes JSON of it."""

    num_data: int
    event_shape: tuple[int, ...]
    dtype: str
    low: float | None
    """The least finite value; None if there is none."""
    high: float | None
    """The greatest finite value; None if there is none."""
    is_whole: bool
    """Whether every finite value is a whole number."""
    num_distinct: int | None
    """The number of different finite values; None if there are more than ``MAX_DISTINCT``."""
    num_missing: int
    """The number of values that are NaN."""
    num_infinite: int
    """The number of values that are infinite."""
    first_bad: tuple[int, ...] | None
    """The row, and the place in the datum, of the first value that is missing or infinite, both
    counted from 0; None if there is none."""
    num_duplicates: int
    """The number of rows that equal an earlier row."""
    first_duplicate: tuple[int, int] | None
    """The first row that equals an earlier one, and that earlier row; None if there is none."""
    classes: dict[str, int] | None
    """The name of each class -> its number of data; None if there are no labels."""
    images: tuple[ImageGroup, ...] | None
    """The modes and sizes of images in files, before any conversion; None for other data."""
    columns: tuple[ColumnScan, ...] | None
    """The columns of a table; None for other data."""
    fits: tuple[Fit, ...]
    """For each likelihood with a name, whether it takes the data."""

    def _repr_html_(self) -> str:
        """The columns, and which likelihoods take the data, as tables for a notebook."""
        columns = [
            [c.name, shown(c.low), shown(c.high), f"{c.num_missing:,}", c.likelihood]
            for c in self.columns or ()
        ]
        heads = ["column", "least", "greatest", "missing", "likelihood"]
        caption = f"Scan of {self.num_data:,} data of shape {self.event_shape}, {self.dtype}"
        more = len(columns) - _SHOWN_COLUMNS
        tables = [html_table(heads, columns[:_SHOWN_COLUMNS], numbers=(1, 2, 3), caption=caption)]
        if not columns:
            tables = [f"<p>{escape(caption)}</p>"]
        if more > 0:
            tables.append(f"<p>and {more:,} more columns</p>")
        fits = [[fit.likelihood, shown(fit.fits), fit.text, fit.reason] for fit in self.fits]
        heads = ["likelihood", "takes the data", "with", "why"]
        return f"<div>{''.join(tables)}{html_table(heads, fits)}</div>"

    @property
    def num_bad(self) -> int:
        """The number of values that are missing or infinite."""
        return self.num_missing + self.num_infinite

    @property
    def extent(self) -> Extent:
        """What decides whether a likelihood takes the values; for data without infinite ones."""
        low, high = self.low or 0.0, self.high or 0.0
        is_binary = {low, high} <= {0, 1} and (self.num_distinct or 3) <= 2
        missing = self.num_missing > 0
        return Extent(vars(torch)[self.dtype], low, high, is_binary, self.is_whole, missing)


def scan(rows: Rows) -> Scan:
    """Look at all data, in blocks. This takes bounded memory, and 8 bytes per row.

    Args:
        rows: The data as stored.

    Returns:
        What was found.

    Raises:
        DataError: If a row cannot be read.
    """
    names = rows.columns
    found = _Found(rows, num_columns=1 if names is None else len(names))
    for index in in_blocks(rows, _BLOCK_BYTES):
        found.add(index, rows.read(index).cpu())
    low, high = float(found.low.min()), float(found.high.max())
    num_missing = int(found.num_missing.sum())
    is_binary = found.known is not None and set(found.known.tolist()) <= {0, 1}
    extent = None
    if not found.num_infinite and low <= high:
        extent = Extent(rows.dtype, low, high, is_binary, found.is_whole, num_missing > 0)
    levels = levels_in(rows)
    num_duplicates, first_duplicate = _duplicates(found.hashes)
    return Scan(
        num_data=len(rows),
        event_shape=tuple(rows.event_shape),
        dtype=str(rows.dtype).removeprefix("torch."),
        low=_finite(low),
        high=_finite(high),
        is_whole=found.is_whole,
        num_distinct=None if found.known is None else len(found.known),
        num_missing=num_missing,
        num_infinite=found.num_infinite,
        first_bad=found.first_bad,
        num_duplicates=num_duplicates,
        first_duplicate=first_duplicate,
        classes=_classes(rows),
        images=tuple(rows.images) if isinstance(rows, ImageRows) else None,
        columns=None if names is None else found.columns(names, levels, column_kinds(rows)),
        fits=fits(extent, tuple(rows.event_shape), levels),
    )


class _Found:
    """What was found in the blocks that have been looked at."""

    def __init__(self, rows: Rows, num_columns: int) -> None:
        self.low = torch.full((num_columns,), torch.inf, dtype=torch.float64, device="cpu")
        self.high = -self.low
        self.num_missing = torch.zeros(num_columns, dtype=torch.int64, device="cpu")
        self.is_whole = True
        self.num_infinite = 0
        self.first_bad: tuple[int, ...] | None = None
        self.known: Tensor | None = None  # distinct values, ascending; None if too many
        self._counting = True
        self.hashes = np.empty(len(rows), np.uint64)

    def add(self, index: Tensor, block: Tensor) -> None:
        data = block.reshape(len(block), -1).contiguous()
        self.hashes[index.numpy()] = hash_rows(data)
        narrow = {torch.bool: torch.uint8, torch.float16: torch.float32}
        narrow[torch.bfloat16] = torch.float32
        values = data.to(narrow.get(data.dtype, data.dtype)).reshape(-1, len(self.low))
        bad = ~values.isfinite() if values.is_floating_point() else None
        low = high = values
        if bad is not None and bad.any():
            self._add_bad(index, block, values, bad)
            low, high = values.masked_fill(bad, torch.inf), values.masked_fill(bad, -torch.inf)
            values = values[~bad]
        self.is_whole = self.is_whole and is_whole(values)
        self.low = torch.minimum(self.low, low.amin(0).double())
        self.high = torch.maximum(self.high, high.amax(0).double())
        self._add_distinct(values.flatten())

    def columns(
        self, names: tuple[str, ...], levels: Levels, kinds: list[ColumnKind]
    ) -> tuple[ColumnScan, ...]:
        low, high = map(_finite, self.low.tolist()), map(_finite, self.high.tolist())
        its = map(levels.get, names)
        named = zip(names, low, high, self.num_missing.tolist(), its, strict=True)
        return tuple(ColumnScan(*about, *kind) for about, kind in zip(named, kinds, strict=True))

    def _add_bad(self, index: Tensor, block: Tensor, values: Tensor, bad: Tensor) -> None:
        self.num_missing += values.isnan().sum(0)
        self.num_infinite += int(values.isinf().sum())
        if self.first_bad is None:
            row, *place = (~block.isfinite()).nonzero()[0].tolist()
            self.first_bad = (int(index[row]), *place)

    def _add_distinct(self, values: Tensor) -> None:
        if not self._counting:
            return
        if values.dtype == torch.uint8:  # ten times as fast as comparisons
            values = torch.bincount(values).nonzero().flatten().to(torch.uint8)
        known = values[:0] if self.known is None else self.known
        if 0 < len(known) <= 16:
            values = values[~torch.isin(values, known)]
        elif len(known):
            place = torch.searchsorted(known, values).clamp_(max=len(known) - 1)
            values = values[known[place] != values]
        known = torch.cat([known, values.unique()]).unique() if len(values) else known
        self._counting = len(known) <= MAX_DISTINCT
        self.known = known if self._counting else None


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _duplicates(hashes: NDArray[np.uint64]) -> tuple[int, tuple[int, int] | None]:
    order = hashes.argsort(kind="stable")
    repeats = order[1:][hashes[order[1:]] == hashes[order[:-1]]]
    if not len(repeats):
        return 0, None
    first = int(repeats.min())
    return len(repeats), (first, int((hashes == hashes[first]).argmax()))


def _classes(rows: Rows) -> dict[str, int] | None:
    if rows.labels is None:
        return None
    names = dict(enumerate(rows.label_names or ()))
    numbers, counts = rows.labels.unique(return_counts=True)
    pairs = zip(numbers.tolist(), counts.tolist(), strict=True)
    return {names.get(number, str(number)): count for number, count in pairs}
