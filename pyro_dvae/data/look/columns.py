"""What kind of values each column of a table holds."""

from __future__ import annotations

from itertools import groupby

import torch

from pyro_dvae.data.read.errors import DataError
from pyro_dvae.data.read.extent import in_blocks
from pyro_dvae.data.read.rows import Rows

MOST_CATEGORIES = 16
"""Columns of whole numbers below it are taken for categories, and others for counts."""


def mixed_spec(rows: Rows) -> str:
    """The likelihood of a table's columns, each by its values: ``mixed:bernoulli,normal*3``.

    A column is ``bernoulli`` if it holds 0 and 1 alone, ``categorical:L`` if whole numbers 0 to
    L - 1 with L at most ``MOST_CATEGORIES``, ``negative-binomial`` if others from 0 on, and else
    ``normal``.

    Args:
        rows: The data as stored, finite.

    Raises:
        DataError: If they are no table.
    """
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
    kinds = [(kind, len(list(run))) for kind, run in groupby(_kind(*column) for column in columns)]
    return "mixed:" + ",".join(f"{kind}*{run}" if run > 1 else kind for kind, run in kinds)


def _kind(low: float, high: float, is_whole: bool) -> str:
    if not is_whole or low < 0 or high == 0:
        return "normal"
    if high == 1:
        return "bernoulli"
    return f"categorical:{int(high) + 1}" if high < MOST_CATEGORIES else "negative-binomial"
