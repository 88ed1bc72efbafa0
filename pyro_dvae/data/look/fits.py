"""Whether a likelihood takes some data, and the options that make it take them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from pyro_dvae.data.read.errors import DataError
from pyro_dvae.data.read.extent import Extent
from pyro_dvae.data.serve.kinds import KINDS, describe_kind, kind_of
from pyro_dvae.data.serve.prepare import choose


@dataclass(frozen=True)
class Fit:
    """Whether a likelihood takes the data."""

    likelihood: str
    fits: bool
    """As they are, or with the options."""
    options: str | None
    """What makes them fit, as the command line takes it; None if nothing is needed, or helps."""
    reason: str


Judge = Callable[[Extent | None, tuple[int, ...]], Fit]


def bernoulli(found: Extent | None, event_shape: tuple[int, ...] = ()) -> Fit:
    """Judge data for the Bernoulli likelihood, which takes zeros and ones.

    Args:
        found: What the values are; None if some are missing or infinite.
        event_shape: Of a datum, which does not matter here.

    Returns:
        The judgement.
    """

    def fit(fits: bool, options: str | None, reason: str) -> Fit:
        return Fit("bernoulli", fits, options, reason)

    if found is None:
        return fit(False, None, "values are missing or infinite")
    if found.is_binary:
        return fit(True, None, "every value is 0 or 1, and is taken as it is")
    if math.isinf(found.high - found.low):
        return fit(False, None, "the values are further apart than floats can tell")
    try:
        choose(found)
        how = "a pixel is then 1 with probability value / 255; or static, or threshold"
        return fit(True, "--binarize dynamic", how)
    except DataError:
        low, high = _range(found)
    how = "a value is then 1 with probability (value - LOW) / (HIGH - LOW)"
    return fit(True, f"--range {low},{high}", how)


def other(likelihood: str) -> Judge:
    """How to judge data for another likelihood, by its name."""

    def judge(found: Extent | None, event_shape: tuple[int, ...]) -> Fit:
        if found is None:
            return Fit(likelihood, False, None, "values are missing or infinite")
        if kind_of(likelihood) == "columns" and len(event_shape) != 1:
            return Fit(likelihood, False, None, "a datum is no row of a table")
        option, range = f"--likelihood {likelihood}", None
        try:
            chosen = choose(found, likelihood=likelihood)
        except DataError as error:
            # Of the message, what is expected; what came is told above it.
            reason = str(error).partition(" for the ")[0].removeprefix("Expected ").rstrip(",")
            if kind_of(likelihood) != "unit" or math.isinf(found.high - found.low):
                return Fit(likelihood, False, None, f"it takes {reason}")
            texts = _range(found)
            option += f" --range {texts[0]},{texts[1]}"
            range = (float(texts[0]), float(texts[1]))
            chosen = choose(found, likelihood=likelihood, range=range)
        how = describe_kind(chosen.likelihood, found.dtype, range)
        if kind_of(likelihood) == "real" and found.is_whole:
            how += "; of whole numbers it is no probability, but a density near them"
        if kind_of(likelihood) == "columns":
            how += "; the kind of each column is told by its values, or named: mixed:normal,..."
        return Fit(likelihood, True, option, how)

    return judge


LIKELIHOODS: dict[str, Judge] = {
    name: bernoulli if name == "bernoulli" else other(name) for name in KINDS
}


def _range(found: Extent) -> tuple[str, str]:
    """The narrowest usual range that holds all values, else one about as wide as they are."""
    low, high = found.low, found.high
    whole = not found.dtype.is_floating_point
    for usual in (255, 65535) if whole else (1,):
        if low >= 0 and high <= usual:
            return "0", str(usual)
    if low == high:
        low, high = min(low, 0), max(high, 0)
    # Of the least numbers no part is left to round to.
    unit = 1.0 if whole else max(10.0 ** (math.floor(math.log10(high - low)) - 2), 1e-300)
    texts = f"{math.floor(low / unit) * unit:.12g}", f"{math.ceil(high / unit) * unit:.12g}"
    lower, upper = map(float, texts)
    # Of the greatest numbers the rounded range may be infinite.
    if lower <= low and high <= upper and math.isfinite(upper - lower):
        return texts
    return f"{low:.17g}", f"{high:.17g}"  # exactly
