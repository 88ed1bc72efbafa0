"""Whether a likelihood takes some data, and the settings that make it take them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from pyro_dvae.data.read.errors import DataError, shorten
from pyro_dvae.data.read.extent import Extent
from pyro_dvae.data.read.rows import NO_LEVELS, Levels
from pyro_dvae.data.serve.choose import choose
from pyro_dvae.data.serve.kinds import kind_of, values_of
from pyro_dvae.data.serve.ranges import usual_range
from pyro_dvae.likelihoods import LIKELIHOODS
from pyro_dvae.likelihoods.names import masked


@dataclass(frozen=True)
class Fit:
    """Whether a likelihood takes the data."""

    likelihood: str
    fits: bool
    """Whether it takes them as they are, or with the settings."""
    settings: dict[str, Any] | None
    """What makes the data fit, as ``make_splits`` and ``Config`` take it, such as
    ``{"likelihood": "poisson"}``; None if nothing is needed, or nothing helps."""
    reason: str

    @property
    def text(self) -> str:
        """The settings as Python takes them: ``likelihood="poisson"``; empty if there are none."""
        return ", ".join(
            f'{name}="{value}"' if isinstance(value, str) else f"{name}={value}"
            for name, value in (self.settings or {}).items()
        )


def fits(
    found: Extent | None, event_shape: tuple[int, ...], levels: Levels = NO_LEVELS
) -> tuple[Fit, ...]:
    """Judge data for every likelihood that has a name.

    Args:
        found: What the values are; None if some are infinite, or all are missing.
        event_shape: Of a datum.
        levels: The names of the levels of each column of a table that holds names.
    """
    names = [name for name in LIKELIHOODS if name != "masked"]
    if found is None:
        reason = "values are infinite, or all are missing"
        return tuple(Fit(likelihood, False, None, reason) for likelihood in names)
    known = found._replace(has_missing=False)
    judged = [
        _names(name, levels)
        or (_bits(name, known) if kind_of(name) == "bits" else _other(name, known, event_shape))
        for name in names
    ]
    return tuple(map(_with_gaps, judged) if found.has_missing else judged)


def _with_gaps(fit: Fit) -> Fit:
    """The same for data with missing values."""
    if not fit.fits:
        return fit
    if fit.likelihood in ("multinomial", "correlated-normal"):
        return replace(fit, fits=False, settings=None, reason="values are missing")
    settings = {"likelihood": fit.likelihood, **(fit.settings or {})}
    return replace(fit, settings={**settings, "likelihood": masked(fit.likelihood)})


def column_of_names(likelihood: str | nn.Module, levels: Levels) -> str | None:
    """The first column of names that a likelihood would take for numbers; None if there is none.

    Args:
        likelihood: The likelihood; or its name, or ``name:argument``.
        levels: The names of the levels of each column of a table that holds names.
    """
    most = {"bits": 2, "levels": math.inf, "columns": math.inf}.get(kind_of(likelihood), 0)
    return next((name for name, its in levels.items() if len(its) > most), None)


def _names(likelihood: str, levels: Levels) -> Fit | None:
    """That a likelihood of numbers does not fit a table of names; None if there is none."""
    column = column_of_names(likelihood, levels)
    if column is None:
        return None
    return Fit(likelihood, False, None, f"column {column!r} holds names: {_shown(levels[column])}")


def _shown(levels: tuple[str, ...]) -> str:
    return shorten(list(levels), 4)


def _bits(likelihood: str, found: Extent) -> Fit:
    """Judge data for a likelihood that takes zeros and ones."""

    def fit(settings: dict[str, Any] | None, reason: str, fits: bool = True) -> Fit:
        return Fit(likelihood, fits, settings, reason)

    if found.is_binary:
        return fit(None, "every value is 0 or 1, and is taken as it is")
    if math.isinf(found.high - found.low):
        return fit(None, "the values are further apart than floats can tell", False)
    try:
        choose(found)
        how = "a pixel is then 1 with probability value / 255; or static, or threshold"
        return fit({"binarize": "dynamic"}, how)
    except DataError:
        how = "a value is then 1 with probability (value - LOW) / (HIGH - LOW)"
        return fit({"range": usual_range(found)}, how)


def _other(likelihood: str, found: Extent, event_shape: tuple[int, ...]) -> Fit:
    kind, values = kind_of(likelihood), values_of(likelihood)
    if kind == "columns" and len(event_shape) != 1:
        return Fit(likelihood, False, None, "a datum is no row of a table")
    settings: dict[str, Any] = {"likelihood": likelihood}
    try:
        chosen = choose(found, **settings)
    except DataError:
        if kind != "unit" or math.isinf(found.high - found.low):
            return Fit(likelihood, False, None, f"it takes {values.wanted.rstrip(',')}")
        settings["range"] = usual_range(found)
        chosen = choose(found, **settings)
    how = chosen.describe(found.dtype)
    if kind == "real" and found.is_whole:
        how += "; of whole numbers it is no probability, but a density near them"
    if kind == "columns":
        how += "; each column has a kind of its own, as above, or as mixed:NAME=normal,... says"
    return Fit(likelihood, True, settings, how)
