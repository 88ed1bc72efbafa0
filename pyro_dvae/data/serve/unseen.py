"""Data that come after training: a value that the model does not know is named, with its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_dvae.data.read.errors import DataError
from pyro_dvae.data.read.extent import in_blocks
from pyro_dvae.data.read.rows import Rows
from pyro_dvae.data.serve.kinds import MOST, kind_of, levels_of
from pyro_dvae.data.serve.prepare import Preparation


def refuse_unseen(
    rows: Rows,
    preparation: Preparation,
    likelihood: Any,
    where: str,
    columns: Sequence[str] | None = None,
) -> None:
    """Refuse data with a value that a trained model has no probability for, in blocks.

    Args:
        rows: The data as stored, of the shape of the training data, finite.
        preparation: What is done to them.
        likelihood: The model's.
        where: Whose they are, for the message.
        columns: The names of the columns of a table.

    Raises:
        DataError: If there is one; the message names the first one's row, counted from 1, its
            column and the values that the model knows.
    """
    for index in in_blocks(rows):
        values = rows.read(index)
        wrong = ~_inside(values, preparation, likelihood)
        if wrong.any():
            row, *place = wrong.nonzero()[0].tolist()
            known = _known(preparation, likelihood, place)
            raise DataError(
                f"Expected {known}{_at(place, columns)}, as the model was trained on; got "
                f"{values[(row, *place)].item():g} in row {int(index[row]) + 1} of {where} (the "
                "first is row 1). Mend or leave out such rows, or train a model on data with them."
            )


def _at(place: list[int], columns: Sequence[str] | None) -> str:
    if columns is not None and len(place) == 1 and place[0] < len(columns):
        return f" in column {columns[place[0]]!r}"
    if len(place) == 1:
        return f" in column {place[0]} (counted from 0)"
    return f" at {tuple(place)} (counted from 0)" if place else ""


def _bounds(preparation: Preparation) -> tuple[float, float, bool, bool] | None:
    """Least and greatest value, whether they count, and whether values are whole; None: any."""
    kind, inf = kind_of(preparation.likelihood), float("inf")
    if preparation.range is not None:
        return *preparation.range, kind != "open", False
    return {
        "bits": (0, 1, True, True) if preparation.binarize == "none" else None,
        "unit": (0, 1, True, False),
        "open": (0, 1, False, False),
        "levels": (0, levels_of(preparation.likelihood) - 1, True, True),
        "counts": (0, MOST["counts"], True, True),
    }.get(kind, (-inf, inf, True, False))


def _inside(values: Tensor, preparation: Preparation, likelihood: Any) -> Tensor:
    """Whether the model knows each value, (B, *event)."""
    kind = kind_of(preparation.likelihood)
    if kind == "columns":
        inside: Tensor = likelihood.support.inside(values.double())
        return inside
    bounds = _bounds(preparation)
    is_grey = values.dtype == torch.uint8 and preparation.range is None
    if bounds is None or (is_grey and kind in ("unit", "open")):
        return torch.ones_like(values, dtype=torch.bool)
    low, high, closed, whole = bounds
    wide = values.double()
    inside = (wide >= low) & (wide <= high) if closed else (wide > low) & (wide < high)
    return inside & (wide == wide.floor()) if whole else inside


def _known(preparation: Preparation, likelihood: Any, place: list[int]) -> str:
    if kind_of(preparation.likelihood) == "columns":
        words: str = likelihood.support.describe(place[0])
        return words
    low, high, closed, whole = _bounds(preparation) or (0, 255, True, True)
    ends = "" if closed else " (its ends excluded)"
    return f"{'whole numbers' if whole else 'numbers'} from {low:.12g} to {high:.12g}{ends}"
