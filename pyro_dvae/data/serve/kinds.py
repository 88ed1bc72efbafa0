"""The values that likelihoods take, and how stored values become them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from pyro_dvae.checks import one_of
from pyro_dvae.contracts import completed
from pyro_dvae.data.read.errors import DataError
from pyro_dvae.data.read.extent import Extent
from pyro_dvae.likelihoods.base import KINDS, Likelihood
from pyro_dvae.likelihoods.names import is_masked, named_class, named_likelihood

Range = tuple[float, float] | None

MOST_LEVELS = 2**16
"""The most levels that are counted in data where nobody names their number."""


@dataclass(frozen=True)
class Values:
    """The values of a likelihood, all of one kind."""

    low: float
    high: float
    wanted: str = "numbers that float32 holds"
    """What may be stored where there is no range, in words."""
    is_closed: bool = True
    """Whether `low` and `high` are such values themselves."""
    is_whole: bool = False
    """Whether all are whole numbers."""
    is_ranged: bool = False
    """Whether a range of stored values can be mapped to them."""
    grey: tuple[float, float] | None = None
    """(a, b) where a stored uint8 value v becomes (v + a) / b; None where it stays v."""
    levels: int | None = None
    """L, where a range is cut into L levels; None where it is mapped to [0, 1]."""

    def check(self, name: str, found: Extent, range: Range) -> None:
        """Refuse stored values that do not become these.

        Args:
            name: What messages call the likelihood.
            found: What the stored values are.
            range: The range they are mapped from, or None.

        Raises:
            DataError: If they do not.
        """
        if range is not None:
            self._check_range(name, found, range)
            return
        is_grey = self.grey is not None and found.dtype == torch.uint8
        if is_grey and found.is_binary:
            raise DataError(
                f"Expected {self.wanted} for the {name} likelihood; got {found}. Use "
                'likelihood="bernoulli", or range=(0, 255) if they are very dark grey.'
            )
        fit = self.between(found.low, found.high) and (found.is_whole or not self.is_whole)
        if not (is_grey or fit):
            mend = ", or range=(LOW, HIGH), the values to map from" if self.is_ranged else ""
            mend += ', or likelihood="categorical:L" for L levels' if self.levels else ""
            raise DataError(
                f"Expected {self.wanted} for the {name} likelihood; got {found}. "
                f"{suggestion(found)}{mend}."
            )

    def _check_range(self, name: str, found: Extent, range: tuple[float, float]) -> None:
        low, high = range
        if not self.is_ranged:
            raise DataError(
                f"Expected no range for the {name} likelihood, which takes values as they are; "
                f"got {low:g} to {high:g}. Leave range=... out."
            )
        if not replace(self, low=low, high=high).between(found.low, found.high):
            ends = "" if self.is_closed else " (its ends excluded)"
            raise DataError(
                f"Expected values within the range {low:g} to {high:g}{ends}; got {found}. Widen "
                "range=..., or clip the data."
            )

    def between(self, low: float, high: float) -> bool:
        """Whether all numbers from `low` to `high` lie within the bounds."""
        inside = self.low <= low <= high <= self.high
        return inside and (self.is_closed or (self.low < low and high < self.high))

    def contain(self, values: Tensor) -> Tensor:
        """Whether each value is one of these, in the shape of the values."""
        wide = values.double()
        if self.is_closed:
            inside = (wide >= self.low) & (wide <= self.high)
        else:
            inside = (wide > self.low) & (wide < self.high)
        return inside & (wide == wide.floor()) if self.is_whole else inside

    def keep(self, values: Tensor, range: Range) -> Tensor:
        """Do to stored values all but what `serve` does.

        Args:
            values: Stored values that `check` lets pass, any shape.
            range: The range they are mapped from, or None.

        Returns:
            The same shape, uint8 where that is enough, else float32.
        """
        if range is not None:
            low, high = range
            wide = values.float() if values.device.type == "mps" else values.double()
            unit = (wide - low) / (high - low)
            if self.levels is None:
                return unit.float()
            values = (unit * self.levels).floor().clamp(0, self.levels - 1)
            is_small = self.levels <= 256 and not values.isnan().any()
            return values.to(torch.uint8) if is_small else values.float()
        return values if values.dtype == torch.uint8 else values.float()

    def serve(self, kept: Tensor) -> Tensor:
        """The likelihood's values, float32, of what `keep` kept."""
        x = kept.to(torch.float32)
        if self.grey is None or kept.dtype != torch.uint8:
            return x
        add, divide = self.grey
        return (x + add if add else x) / divide

    def describe(self, dtype: torch.dtype | str, range: Range) -> str:
        """How stored values v become these, in words.

        Args:
            dtype: Of the stored values, with or without ``torch.``.
            range: The range they are mapped from, or None.
        """
        if range is not None:
            low, high = range
            shifted = f"v / {high:g}" if low == 0 else f"(v - {low:g}) / {high - low:g}"
            if self.levels is None:
                return f"values {shifted}"
            return f"levels floor({self.levels} {shifted}), at most {self.levels - 1}"
        if self.grey is None or str(dtype).removeprefix("torch.") != "uint8":
            return "values as stored"
        add, divide = self.grey
        return f"values (v + 1/2) / {divide:g}" if add else f"values v / {divide:g}"

    def __str__(self) -> str:
        ends = "" if self.is_closed else " (its ends excluded)"
        numbers = "whole numbers" if self.is_whole else "numbers"
        return f"{numbers} from {self.low:.12g} to {self.high:.12g}{ends}"


_GREATEST = 3e38
"""About the greatest number that float32 holds."""
_GREY = "uint8 values 0 to 255, or values in"
_VALUES = {
    "bits": Values(0, 1, "zeros and ones", is_whole=True, is_ranged=True),
    "unit": Values(0, 1, f"{_GREY} [0, 1],", is_ranged=True, grey=(0, 255)),
    "open": Values(0, 1, f"{_GREY} (0, 1),", is_closed=False, is_ranged=True, grey=(0.5, 256)),
    # float32 tells whole numbers apart up to 2^24.
    "counts": Values(0, 2**24, "whole numbers from 0 to 2^24", is_whole=True),
    "real": Values(-_GREATEST, _GREATEST),
    "columns": Values(-_GREATEST, _GREATEST),
}
"""Kind of a likelihood -> its values; those of "levels" depend on their number."""


def kind_of(likelihood: str | nn.Module) -> str:
    """The kind of values that a likelihood takes: see `Likelihood.kind`.

    Args:
        likelihood: A likelihood; or its name, or ``name:argument``.

    Raises:
        ValueError: If there is no such likelihood, or no such kind.
    """
    if isinstance(likelihood, str):
        return named_class(likelihood).kind
    kind = completed(likelihood, Likelihood).kind
    one_of(f"kind of the likelihood {type(likelihood).__name__}", kind, KINDS)
    return kind


def takes_missing(likelihood: str | nn.Module) -> bool:
    """Whether a likelihood takes missing values (NaN).

    Args:
        likelihood: A likelihood; or its name, or ``name:argument``.
    """
    if isinstance(likelihood, str):
        return is_masked(likelihood)
    return completed(likelihood, Likelihood).takes_missing


def levels_of(likelihood: str | nn.Module) -> int:
    """L of a likelihood of levels, whose values are 0 to L - 1.

    Args:
        likelihood: A likelihood; or its name, or ``name:argument``.
    """
    if isinstance(likelihood, str):
        return named_likelihood(likelihood).levels
    return completed(likelihood, Likelihood).levels


def values_of(likelihood: str | nn.Module) -> Values:
    """The values that a likelihood takes.

    Args:
        likelihood: A likelihood; or its name, or ``name:argument``.

    Raises:
        ValueError: If there is no such likelihood, or no such kind.
    """
    kind = kind_of(likelihood)
    if kind != "levels":
        return _VALUES[kind]
    levels = levels_of(likelihood)
    wanted = f"whole numbers 0 to {levels - 1}"
    return Values(0, levels - 1, wanted, is_whole=True, is_ranged=True, levels=levels)


def describe_kind(likelihood: str | nn.Module, dtype: torch.dtype | str, range: Range) -> str:
    """How stored values v become those of a likelihood, in words.

    Args:
        likelihood: A likelihood that does not take bits; or its name, or ``name:argument``.
        dtype: Of the stored values, with or without ``torch.``.
        range: The range they are mapped from, or None.
    """
    return values_of(likelihood).describe(dtype, range)


def suggestion(found: Extent) -> str:
    """The likelihoods whose values these are, as an imperative without its full stop."""
    if found.is_binary:
        names = ["bernoulli"]
    elif found.is_whole and found.low >= 0 and found.dtype == torch.uint8:
        names = ["bernoulli", "continuous-bernoulli", "categorical"]
    elif found.is_whole and found.low >= 0:
        names = ["poisson", "negative-binomial"]
    elif found.low >= 0 and found.high <= 1:
        return 'Use likelihood="continuous-bernoulli", or likelihood="beta" inside of (0, 1)'
    else:
        names = ["normal", "laplace"]
    return "Use " + " or ".join(f'likelihood="{name}"' for name in names)
