"""The likelihood of each column of a table, found from its values."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from pyro_dvae.checks import one_of
from pyro_dvae.data.read.errors import DataError
from pyro_dvae.data.read.extent import in_blocks
from pyro_dvae.data.read.rows import Rows, Source, levels_in
from pyro_dvae.data.read.table_rows import TableRows
from pyro_dvae.likelihoods.names import unmasked
from pyro_dvae.specs import name_and_argument

MOST_CATEGORIES = 16
"""Numbers of a column are names of categories only if they are no more than this."""
_ROWS_PER_CATEGORY = 5
"""And only if each occurs so often, on average."""
_SAMPLE = 10_000
"""Rows that tell the kinds of columns. Their least and greatest values are those of all rows."""
_NEAR, _FAR = 0.05, 0.15
"""Nats per row that a distribution of counts may lose to the one of categories, which says nothing
of values that come later; and that it must win over the normal one where the mean is large."""
_LARGE = 20.0
"""A mean of counts above which a normal distribution may well take their place."""


class ColumnKind(NamedTuple):
    """What a column of a table holds."""

    likelihood: str
    """The name of a likelihood of such values, with the number of its levels."""
    numbers: tuple[float, ...] | None = None
    """The values of a column of numbers that are names of categories; else None."""


def mixed_spec(rows: Rows, given: Mapping[str, str] | None = None) -> str:
    """The name of a likelihood for the columns of a table, such as ``mixed:bernoulli,normal*3``.

    Args:
        rows: The data as stored. Values that are not finite do not count.
        given: Name of a column -> its likelihood, where `column_kinds` shall not find it. An
            "ordinal" or a "categorical" one gets the number of its levels from the data.

    Raises:
        DataError: If the data are not a table, or there is no such column.
    """
    kinds = [kind.likelihood for kind in column_kinds(rows, given)]
    runs = [(kind, len(list(run))) for kind, run in groupby(kinds)]
    return "mixed:" + ",".join(f"{kind}*{run}" if run > 1 else kind for kind, run in runs)


def given_kinds(spec: str) -> dict[str, str] | None:
    """The kinds that ``mixed:year=ordinal,mass=normal`` gives to some columns, by name.

    Returns:
        An empty dict for ``mixed`` alone; None for another likelihood, or one kind per column.
    """
    name, argument = name_and_argument(unmasked(spec))
    if name != "mixed" or (argument is not None and "=" not in argument):
        return None
    items = next(csv.reader([argument or ""], skipinitialspace=True), [])
    return {column.strip(): kind.strip() for column, _, kind in (x.rpartition("=") for x in items)}


def with_categories(source: Source, given: Mapping[str, str]) -> Source:
    """The data, with the columns of numbers that are names of categories taken as levels.

    Args:
        source: The data.
        given: As for `mixed_spec`.
    """
    rows = source.train
    if not isinstance(rows, TableRows) or rows.reread is None or source.test is not None:
        return source
    kinds = zip(rows.columns, column_kinds(rows, given), strict=True)
    found = [name for name, kind in kinds if kind.numbers is not None]
    if not found:
        return source
    return source._replace(train=rows.reread(found))


def column_kinds(rows: Rows, given: Mapping[str, str] | None = None) -> list[ColumnKind]:
    """The likelihood of each column of a table.

    - Zeros and ones, or two names: ``bernoulli``.
    - More names, or whole numbers that are at most 16, each often: ``categorical:L``; of names in
      an order, ``ordinal:L``.
    - Whole numbers from 0 on, small or skewed as counts are: ``negative-binomial``. A distribution
      of counts must describe the column about as well as one of categories does (by the Bayesian
      information criterion), and better than a normal one: clearly so, where the mean is above 20.
    - All others: ``normal``.

    Args:
        rows: The data as stored. Values that are not finite do not count.
        given: As for `mixed_spec`.

    Raises:
        DataError: If the data are not a table, or there is no such column.
    """
    if len(rows.event_shape) != 1:
        raise DataError(
            f"Expected rows of columns for the mixed likelihood; got data of shape "
            f"{(len(rows), *rows.event_shape)}. Use one likelihood for all of a datum, "
            'likelihood="normal" say.'
        )
    given, names = given or {}, rows.columns or tuple(map(str, range(rows.event_shape[0])))
    for name in given:
        one_of("column", name, names)
    low, high, whole = _extents(rows)
    index = torch.linspace(0, len(rows) - 1, min(len(rows), _SAMPLE), device="cpu").long()
    sample = rows.read(index).double().numpy()
    levels, ordered = levels_in(rows), rows.ordered if isinstance(rows, TableRows) else ()
    kinds = []
    for i, name in enumerate(names):
        if name in levels:
            kind = _named(len(levels[name]), name in ordered)
        else:
            kind = _kind(sample[:, i], low[i], high[i], whole[i])
        kinds.append(_as_given(given[name], kind, sample[:, i], high[i]) if name in given else kind)
    return kinds


def _extents(rows: Rows) -> tuple[list[float], list[float], list[bool]]:
    """The least and the greatest value of each column, and whether all are whole."""
    low = torch.full(rows.event_shape, torch.inf, dtype=torch.float64, device="cpu")
    high, whole = -low, torch.ones(rows.event_shape, dtype=torch.bool, device="cpu")
    for index in in_blocks(rows):
        values = rows.read(index).double()
        bad = ~values.isfinite()
        low = torch.minimum(low, values.masked_fill(bad, torch.inf).amin(0))
        high = torch.maximum(high, values.masked_fill(bad, -torch.inf).amax(0))
        whole &= ((values == values.floor()) | bad).all(0)
    return low.tolist(), high.tolist(), whole.tolist()


def _named(num_levels: int, is_ordered: bool) -> ColumnKind:
    if num_levels <= 2:
        return ColumnKind("bernoulli")
    return ColumnKind(f"{'ordinal' if is_ordered else 'categorical'}:{num_levels}")


def _as_given(
    likelihood: str, found: ColumnKind, values: NDArray[np.float64], high: float
) -> ColumnKind:
    if likelihood not in ("categorical", "ordinal"):
        return ColumnKind(likelihood)
    if found.numbers is None and ":" not in found.likelihood and found.likelihood != "bernoulli":
        values = values[np.isfinite(values)]
        distinct = np.unique(values)
        return ColumnKind(f"{likelihood}:{len(distinct)}", tuple(distinct.tolist()))
    levels = found.likelihood.partition(":")[2] or "2"
    return found._replace(likelihood=f"{likelihood}:{levels}")


def _kind(values: NDArray[np.float64], low: float, high: float, is_whole: bool) -> ColumnKind:
    """The kind of a column of numbers."""
    values = values[np.isfinite(values)]
    num = len(values)
    if not is_whole or not num:
        return ColumnKind("normal")
    if low in (0, 1) and high in (0, 1):
        return ColumnKind("bernoulli")
    distinct, times = np.unique(values, return_counts=True)
    counts = _count_fit(values) if low >= 0 else -math.inf
    few = 1 < len(distinct) <= MOST_CATEGORIES and num >= _ROWS_PER_CATEGORY * len(distinct)
    if few:
        categories = (times * np.log(times / num)).sum() / num
        categories -= (len(distinct) - 1 - 2) * math.log(num) / (2 * num)  # counts have two numbers
        if low > 0 or counts < categories - _NEAR:
            return ColumnKind(f"categorical:{len(distinct)}", tuple(distinct.tolist()))
        return ColumnKind("negative-binomial")
    variance = max(float(values.var()), 1 / 12)
    normal = -0.5 * (1 + math.log(2 * math.pi * variance))
    needed = normal + _FAR if values.mean() > _LARGE else normal
    return ColumnKind("negative-binomial" if counts > needed else "normal")


def _count_fit(values: NDArray[np.float64]) -> float:
    """Mean log-probability of counts under a negative binomial distribution of their moments."""
    x = torch.from_numpy(values)
    mean, variance = x.mean(), x.var(unbiased=False)
    excess = (variance - mean).clamp(min=1e-6 * float(mean) + 1e-12)
    total = mean**2 / excess
    ways = (x + total).lgamma() - total.lgamma() - (x + 1).lgamma()
    share = total / (total + mean)
    return float((ways + total * share.log() + torch.xlogy(x, 1 - share)).mean())
