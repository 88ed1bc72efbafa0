"""Refuse data after training that hold a value which the model does not know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pyro_dvae.data.read.errors import DataError
from pyro_dvae.data.read.extent import in_blocks
from pyro_dvae.data.read.rows import Rows
from pyro_dvae.data.serve.kinds import Values
from pyro_dvae.data.serve.prepare import Preparation
from pyro_dvae.likelihoods.base import Likelihood
from pyro_dvae.likelihoods.masked import unmasked
from pyro_dvae.likelihoods.mixed import Mixed

_BLOCK_BYTES = 2**20
"""The size of the rows that are read at once. Each byte may be a value, for whose comparison some
20 bytes are used."""


def refuse_unseen(
    rows: Rows,
    preparation: Preparation,
    likelihood: Likelihood,
    where: str,
    columns: Sequence[str] | None = None,
) -> None:
    """Refuse data with a value that a trained model gives no probability.

    Args:
        rows: The data as stored, finite or missing, of the shape of the training data. They are
            read in blocks.
        preparation: What is done to them.
        likelihood: The likelihood of the model.
        where: What the message calls the data.
        columns: The names of the columns of a table; None if they have no names.

    Raises:
        DataError: If there is such a value. The message names the row of the first one, counted
            from 1, its column, and the values that the model knows.
    """
    for index in in_blocks(rows, _BLOCK_BYTES):
        values = rows.read(index)
        wrong = ~_inside(values, preparation, likelihood)
        if wrong.any():
            row, *place = wrong.nonzero()[0].tolist()
            known = _known(preparation, likelihood, place)
            raise DataError(
                f"Expected {known}{_at(place, columns)}, as the model was trained on; got "
                f"{values[(row, *place)].item():g} in row {int(index[row]) + 1} of {where} (the "
                "first is row 1). Correct such rows or leave them out, or train a model on data "
                "that hold such values."
            )


def _at(place: list[int], columns: Sequence[str] | None) -> str:
    if columns is not None and len(place) == 1 and place[0] < len(columns):
        return f" in column {columns[place[0]]!r}"
    if len(place) == 1:
        return f" in column {place[0]} (counted from 0)"
    return f" at {tuple(place)} (counted from 0)" if place else ""


def _bounds(preparation: Preparation) -> Values | None:
    """The stored values that the model knows; None if it knows all."""
    values = preparation.values
    if preparation.range is not None:
        low, high = preparation.range
        return replace(values, low=low, high=high, is_whole=False)
    return None if preparation.makes_bits and preparation.binarize != "none" else values


def _inside(values: Tensor, preparation: Preparation, likelihood: Likelihood) -> Tensor:
    """Whether the model knows each value, (B, *event)."""
    its = unmasked(likelihood)
    if isinstance(its, Mixed):
        return its.support.inside(values.double()) | values.isnan()
    known = _bounds(preparation)
    is_grey = values.dtype == torch.uint8 and preparation.range is None and preparation.values.grey
    if known is None or is_grey:
        return torch.ones_like(values, dtype=torch.bool)
    return known.contain(values) | values.isnan()


def _known(preparation: Preparation, likelihood: Likelihood, place: list[int]) -> str:
    its = unmasked(likelihood)
    if isinstance(its, Mixed):
        return its.support.words(place[0])
    return str(_bounds(preparation))
