"""The kinds of values that likelihoods take, and how stored values become them."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_dvae.checks import one_of
from pyro_dvae.data.read.errors import DataError
from pyro_dvae.data.read.extent import Extent

KINDS = {
    "bernoulli": "bits",
    "continuous-bernoulli": "unit",
    "beta": "open",
    "categorical": "levels",
    "logistic-mixture": "levels",
    "normal": "real",
    "laplace": "real",
    "poisson": "counts",
    "negative-binomial": "counts",
    "multinomial": "counts",
    "mixed": "columns",
}
"""Name of a likelihood -> bits; [0, 1]; (0, 1); 0 ... L - 1; real numbers; 0, 1, ...; a table."""

MOST = {"levels": 2**16, "counts": 2**24, "real": 3e38, "columns": 3e38}
"""The greatest values: float32 tells whole numbers apart up to 2^24."""

Range = tuple[float, float] | None


def kind_of(likelihood: str) -> str:
    """The kind of values that a likelihood takes.

    Args:
        likelihood: Its name, or ``name:argument``.

    Raises:
        ValueError: If there is no such likelihood.
    """
    name = likelihood.partition(":")[0]
    one_of("likelihood", name, KINDS)
    return KINDS[name]


def levels_of(likelihood: str) -> int:
    """L of a likelihood of levels: that of ``categorical:L``, and else 256."""
    name, _, argument = likelihood.partition(":")
    return int(argument) if name == "categorical" and argument.isdecimal() else 256


def suggestion(found: Extent) -> str:
    """The likelihoods whose values these are, as an imperative without its full stop."""
    if found.is_binary:
        return "Use --likelihood bernoulli"
    if found.is_whole and found.low >= 0:
        if found.dtype == torch.uint8:
            return "Use --likelihood bernoulli, continuous-bernoulli or categorical"
        return "Use --likelihood poisson or negative-binomial"
    if found.low >= 0 and found.high <= 1:
        return "Use --likelihood continuous-bernoulli, or beta inside of (0, 1)"
    return "Use --likelihood normal or laplace"


def check_kind(likelihood: str, found: Extent, range: Range) -> None:
    """Refuse stored values that do not become those of the likelihood, unless it takes bits.

    Args:
        likelihood: Its name, or ``name:argument``.
        found: What the values are.
        range: The range they are mapped from, or None.

    Raises:
        DataError: If they do not.
    """
    kind, levels = kind_of(likelihood), levels_of(likelihood)
    low, high = found.low, found.high
    if range is not None:
        _check_range(likelihood, kind, found, range)
        return
    wanted = {
        "unit": "uint8 values 0 to 255, or values in [0, 1],",
        "open": "uint8 values 0 to 255, or values in (0, 1),",
        "levels": f"whole numbers 0 to {levels - 1}",
        "counts": "whole numbers from 0 to 2^24",
    }.get(kind, "numbers that float32 holds")
    is_grey = kind in ("unit", "open") and found.dtype == torch.uint8
    if is_grey and found.is_binary:
        raise DataError(
            f"Expected {wanted} for the {likelihood} likelihood; got {found}. Use --likelihood "
            "bernoulli, or --range 0,255 if they are very dark grey."
        )
    fits = {
        "unit": is_grey or 0 <= low <= high <= 1,
        "open": is_grey or 0 < low <= high < 1,
        "levels": found.is_whole and 0 <= low <= high < levels,
        "counts": found.is_whole and 0 <= low <= high <= MOST["counts"],
    }.get(kind, max(-low, high) <= MOST["real"])
    if not fits:
        ranged = kind in ("unit", "open", "levels")
        mend = ", or --range LOW,HIGH, the values to map from" if ranged else ""
        mend += ", or --likelihood categorical:L" if kind == "levels" else ""
        raise DataError(
            f"Expected {wanted} for the {likelihood} likelihood; got {found}. "
            f"{suggestion(found)}{mend}."
        )


def _check_range(likelihood: str, kind: str, found: Extent, range: tuple[float, float]) -> None:
    low, high = range
    if kind not in ("unit", "open", "levels"):
        raise DataError(
            f"Expected no range for the {likelihood} likelihood, which takes values as they are; "
            f"got {low:g},{high:g}. Leave --range out."
        )
    inside = low < found.low and found.high < high
    if not (inside or (kind != "open" and low <= found.low <= found.high <= high)):
        inner = "inside of the range (its ends excluded)" if kind == "open" else "within the range"
        raise DataError(
            f"Expected values {inner} {low:g},{high:g}; got {found}. Widen --range, or clip the "
            "data."
        )


def keep_kind(likelihood: str, values: Tensor, range: Range) -> Tensor:
    """Do to stored values all but what ``serve_kind`` does.

    Args:
        likelihood: Its name, or ``name:argument``; not one of bits.
        values: Stored values that ``check_kind`` lets pass, any shape.
        range: The range they are mapped from, or None.

    Returns:
        The same shape, uint8 where that is enough, else float32.
    """
    if range is not None:
        low, high = range
        wide = values.float() if values.device.type == "mps" else values.double()
        unit = (wide - low) / (high - low)
        if kind_of(likelihood) != "levels":
            return unit.float()
        levels = levels_of(likelihood)
        values = (unit * levels).floor().clamp(0, levels - 1)
        return values.to(torch.uint8) if levels <= 256 else values.float()
    return values if values.dtype == torch.uint8 else values.float()


def serve_kind(likelihood: str, kept: Tensor) -> Tensor:
    """The likelihood's values, float32, of what ``keep_kind`` kept.

    A uint8 value v stands for v / 255 where [0, 1] is wanted, and for (v + 1/2) / 256 where (0, 1)
    is.
    """
    x = kept.to(torch.float32)
    if kept.dtype == torch.uint8:
        kind = kind_of(likelihood)
        if kind == "unit":
            return x / 255
        if kind == "open":
            return (x + 0.5) / 256
    return x


def describe_kind(likelihood: str, dtype: torch.dtype | str, range: Range) -> str:
    """How stored values v become those of the likelihood, in words.

    Args:
        likelihood: Its name, or ``name:argument``; not one of bits.
        dtype: Of the values, with or without ``torch.``.
        range: The range they are mapped from, or None.
    """
    kind = kind_of(likelihood)
    if range is not None:
        low, high = range
        shifted = f"v / {high:g}" if low == 0 else f"(v - {low:g}) / {high - low:g}"
        if kind != "levels":
            return f"values {shifted}"
        levels = levels_of(likelihood)
        return f"levels floor({levels} {shifted}), at most {levels - 1}"
    is_grey = str(dtype).removeprefix("torch.") == "uint8"
    return {"unit": "values v / 255", "open": "values (v + 1/2) / 256"}.get(
        kind if is_grey else "", "values as stored"
    )
