"""Rows of a run whose missing values are filled in, and columns that are predicted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_dvae.data import DataError
from pyro_dvae.data.read.extent import in_blocks
from pyro_dvae.displays import html_fields
from pyro_dvae.evaluation import Prediction, impute_blocks, predict
from pyro_dvae.runs.config import preparation_of
from pyro_dvae.runs.named import beside, column_names, named_values
from pyro_dvae.runs.rows import PreparedRows, model_labels
from pyro_dvae.runs.run import Run

_EXACT_WHOLE = 2**53
"""Whole numbers up to this are exact in double precision."""


class Filled(NamedTuple):
    """N data without gaps."""

    values: Tensor
    """(N, *event_shape), in double precision, as the data are stored."""
    missing: Tensor
    """(N, *event_shape) bool: which of the values were missing."""

    def _repr_html_(self) -> str:
        """What it holds, as a table for a notebook."""
        return html_fields(
            self, f"Filled: {len(self.values)} data, {int(self.missing.sum()):,} values filled in"
        )


def fill_rows(
    run: Run,
    rows: PreparedRows,
    *,
    draws: bool = False,
    importance_samples: int = 1000,
    seed: int = 0,
) -> Filled:
    """Fill missing values in; those that are there stay as they are stored.

    Args:
        run: the run.
        rows: of `run.rows(..., gaps=True)`.
        draws: draw the values; else they are means, or the most probable level. See `impute`.
        importance_samples: codes drawn per datum, where there are too many for a sum.
        seed: of the draws.

    Raises:
        ValueError: the elements of the likelihood are not independent given z.
    """
    blocks = fill_blocks(run, rows, draws=draws, importance_samples=importance_samples, seed=seed)
    return Filled(*map(torch.cat, zip(*blocks, strict=True)))


def fill_blocks(
    run: Run,
    rows: PreparedRows,
    *,
    draws: bool = False,
    importance_samples: int = 1000,
    seed: int = 0,
) -> Iterator[Filled]:
    """What `fill_rows` returns, which explains the arguments, block by block.

    Raises:
        ValueError: the elements of the likelihood are not independent given z.
    """
    weight = next(run.vae.parameters())
    labels = model_labels(run.config, rows.labels, rows.name)
    x = rows.x.to(weight)
    restore = preparation_of(run.config, run.event_shape).restore
    blocks = impute_blocks(
        run.vae,
        x,
        None if labels is None else labels.to(weight.device),
        draws=draws,
        importance_samples=importance_samples,
        seed=seed,
    )
    start = 0
    for block in blocks:
        stop = start + len(block)
        stored = rows.stored.read(torch.arange(start, stop, device="cpu")).double()
        values = restore(block.cpu().double())
        yield Filled(torch.where(stored.isnan(), values, stored), stored.isnan())
        start = stop


def num_missing(rows: PreparedRows) -> int:
    """The number of values that are missing."""
    blocks = in_blocks(rows.stored)
    return sum(int(rows.stored.read(index).isnan().sum()) for index in blocks)


def filled_table(run: Run, rows: PreparedRows, blocks: Iterable[Filled]) -> Iterator[list[Any]]:
    """The header of a table of filled data, and its rows, with the names of levels.

    Args:
        run: the run.
        rows: the data before.
        blocks: what `fill_blocks` makes of them.
    """
    about = beside(run.data, rows)
    yield [*about, *column_names(run.data, run.event_shape)]
    columns = [part.tolist() if isinstance(part, Tensor) else part for part in about.values()]
    left = zip(*columns, strict=True) if columns else repeat(())
    exact = rows.stored.dtype == torch.float64
    for filled in blocks:
        cells = named_values(run.data, filled.values)
        for row, gaps in zip(cells, filled.missing.flatten(1).tolist(), strict=True):
            texts = [
                _text(cell, exact and not gap) if isinstance(cell, float) else cell
                for cell, gap in zip(row, gaps, strict=True)
            ]
            yield [*next(left), *texts]


def _text(number: float, exact: bool) -> str:
    if number.is_integer() and abs(number) < _EXACT_WHOLE:
        return str(int(number))
    return repr(number) if exact else f"{number:.9g}"


def column_number(run: Run, name: str) -> int:
    """The number of a column of a run's table.

    Args:
        run: the run.
        name: the name of the column; or its number, counted from 0.

    Raises:
        ValueError: the data are no table, or have no such column.
    """
    names = column_names(run.data, run.event_shape)
    if len(run.event_shape) == 1:
        if name in names:
            return names.index(name)
        if name.isdecimal() and int(name) < len(names):
            return int(name)
    shown = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
    what = shown if len(run.event_shape) == 1 else "a table"
    raise DataError(f"Expected a column of {run.folder}: {what}; got {name!r}. Name one.")


def predict_rows(
    run: Run, rows: PreparedRows, column: int, *, importance_samples: int = 1000, seed: int = 0
) -> tuple[Prediction, Prediction]:
    """Predict a column from the others; and, to compare with it, from nothing.

    Args:
        run: the run.
        rows: of `run.rows(..., gaps=True)`.
        column: the number of the column.
        importance_samples: codes drawn per datum, where there are too many for a sum.
        seed: of the draws.

    Returns:
        p(x_c|x_r) of each row, and p(x_c).
    """
    x, labels = _on_device(run, rows)
    nothing = torch.full_like(x, torch.nan)
    nothing[:, column] = x[:, column]
    given, alone = (
        predict(run.vae, each, column, labels, importance_samples=importance_samples, seed=seed)
        for each in (x, nothing)
    )
    return given, alone


def _on_device(run: Run, rows: PreparedRows) -> tuple[Tensor, Tensor | None]:
    weight = next(run.vae.parameters())
    labels = model_labels(run.config, rows.labels, rows.name)
    x = rows.x[: len(rows.x)].to(weight)
    return x, None if labels is None else labels.to(weight.device)
