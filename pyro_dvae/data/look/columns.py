"""The likelihood of each column of a table, found from its values."""

from __future__ import annotations

from itertools import groupby

import torch

from pyro_dvae.data.read.errors import DataError
from pyro_dvae.data.read.extent import in_blocks
from pyro_dvae.data.read.rows import Rows, levels_in

MOST_CATEGORIES = 16
"""A column of whole numbers below this is taken for categories, another one for counts."""


def mixed_spec(rows: Rows) -> str:
    """The name of a likelihood for the columns of a table, such as ``mixed:bernoulli,normal*3``.

    A column of zeros and ones, or of two names, gets ``bernoulli``. A column of L names, or of
    whole numbers 0 to L - 1 where L is at most ``MOST_CATEGORIES``, gets ``categorical:L``. A
    column of other whole numbers from 0 on gets ``negative-binomial``. Any other column gets
    ``normal``.

    Args:
        rows: The data as stored, finite.

    Raises:
        DataError: If the data are not a table.
    """
    kinds = [(kind, len(list(run))) for kind, run in groupby(column_kinds(rows))]
    return "mixed:" + ",".join(f"{kind}*{run}" if run > 1 else kind for kind, run in kinds)


def column_kinds(rows: Rows) -> list[str]:
    """The likelihood of each column of a table, as `mixed_spec` finds it."""
    if len(rows.event_shape) != 1:
        raise DataError(
            f"Expected rows of columns for the mixed likelihood; got data of shape "
            f"{(len(rows), *rows.event_shape)}. Use one likelihood for all of a datum, "
            'likelihood="normal" say.'
        )
    low = torch.full(rows.event_shape, torch.inf, dtype=torch.float64, device="cpu")
    high, whole = -low, torch.ones(rows.event_shape, dtype=torch.bool, device="cpu")
    for index in in_blocks(rows):
        values = rows.read(index).double()
        low = torch.minimum(low, values.amin(0))
        high = torch.maximum(high, values.amax(0))
        whole &= (values == values.floor()).all(0)
    columns = zip(low.tolist(), high.tolist(), whole.tolist(), strict=True)
    kinds = [_kind(*column) for column in columns]
    levels = levels_in(rows)
    for i, name in enumerate(rows.columns or ()):
        if name in levels:
            kinds[i] = f"categorical:{len(levels[name])}" if len(levels[name]) > 2 else "bernoulli"
    return kinds


def _kind(low: float, high: float, is_whole: bool) -> str:
    if not is_whole or low < 0 or high == 0:
        return "normal"
    if high == 1:
        return "bernoulli"
    return f"categorical:{int(high) + 1}" if high < MOST_CATEGORIES else "negative-binomial"
