"""What is done to stored values, on request and never silently, before a likelihood takes them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

import torch
from torch import Tensor, nn

from pyro_dvae.checks import one_of
from pyro_dvae.data.read.errors import DataError
from pyro_dvae.data.read.extent import Extent, extent_of
from pyro_dvae.data.serve.bits import serve_bits
from pyro_dvae.data.serve.kinds import (
    Values,
    kind_of,
    suggestion,
    takes_missing,
    values_of,
)
from pyro_dvae.data.serve.ranges import RangeError, usual_range
from pyro_dvae.likelihoods.names import masked

BINARIZATIONS = ("dynamic", "static", "threshold")
POLICIES = (*BINARIZATIONS, "none")


@dataclass(frozen=True)
class Preparation:
    """How stored values become those that a likelihood takes.

    A likelihood of bits, such as the Bernoulli, takes zeros and ones. For it a stored value v
    stands for the brightness b = v / 255 (uint8), or b = (v - low) / (high - low) under a range.
    ``binarize`` makes a bit of b:

    - ``"dynamic"``: drawn as Bernoulli(b) whenever it is served.
    - ``"static"``: drawn so once.
    - ``"threshold"``: 1 where b >= 1/2.
    - ``"none"``: the stored values are all 0 or 1, and stay.

    For any other likelihood nothing is binarised:

    - Numbers in [0, 1]: a uint8 value, or any value under a range, becomes b. Where 0 and 1 are
      excluded, a uint8 value becomes (v + 1/2) / 256.
    - L levels: a value under a range becomes floor(L b), at most L - 1.
    - All other values stay as they are.

    A missing value, NaN, stays NaN. Only a likelihood such as ``"masked:normal"`` takes it.

    Args:
        binarize: One of ``POLICIES``. ``"dynamic"`` counts as ``"none"`` where the likelihood takes
            no bits.
        range: (low, high), the stored values that stand for 0 and 1; None for uint8 values of 255.
        likelihood: The likelihood; or its name, or ``name:argument``.

    Raises:
        ValueError: If the policy or the likelihood is unknown, if they do not go together, or if
            the range has no width.

    Example:
        >>> from pyro_dvae.data import Preparation, PreparedData
        >>> preparation = Preparation(likelihood="continuous-bernoulli")
        >>> PreparedData(torch.tensor([[0, 255]], dtype=torch.uint8), preparation).fixed(0).tolist()
        [[0.0, 1.0]]
    """

    binarize: str = "dynamic"
    range: tuple[float, float] | None = None
    likelihood: str | nn.Module = "bernoulli"

    def __post_init__(self) -> None:
        one_of("binarisation", self.binarize, POLICIES)
        if not self.makes_bits and self.binarize == "dynamic":
            object.__setattr__(self, "binarize", "none")
        if not self.makes_bits and self.binarize != "none":
            refuse_binarisation(self.name, self.binarize)
        if self.takes_missing and self.binarize == "static":
            raise ValueError(
                f"Expected another binarisation for the {self.name} likelihood, which takes "
                'missing values; got static. Use binarize="dynamic", which draws the validation '
                "and the test data once too."
            )
        if self.range is not None:
            check_range(self.range)

    @cached_property
    def takes_missing(self) -> bool:
        """Whether the likelihood takes missing values (NaN)."""
        return takes_missing(self.likelihood)

    @cached_property
    def kind(self) -> str:
        """The kind of values that the likelihood takes: see `Likelihood.kind`."""
        return kind_of(self.likelihood)

    @property
    def makes_bits(self) -> bool:
        """Whether the likelihood takes zeros and ones."""
        return self.kind == "bits"

    @cached_property
    def values(self) -> Values:
        """The values that the likelihood takes."""
        return values_of(self.likelihood)

    @property
    def name(self) -> str:
        """What messages call the likelihood."""
        named = isinstance(self.likelihood, str)
        return str(self.likelihood) if named else type(self.likelihood).__name__

    def check(self, found: Extent) -> None:
        """Refuse values that this preparation does not turn into those of the likelihood.

        Args:
            found: What all of the values are.

        Raises:
            DataError: If the likelihood does not take them. A likelihood of bits takes values
                within the range, uint8 values, or, under ``"none"``, zeros and ones. Only a
                likelihood of missing values takes such.
        """
        self.refuse_missing(found)
        if not self.makes_bits:
            self.values.check(self.name, found, self.range)
            return
        if self.range is not None:
            low, high = self.range
            if not low <= found.low <= found.high <= high:
                raise DataError(
                    f"Expected values within the range {low:g} to {high:g}; got {found}. "
                    "Widen range=..., or clip the data."
                )
        policies = " or ".join(f'binarize="{policy}"' for policy in BINARIZATIONS)
        if self.binarize == "none" and (self.range is not None or not found.is_binary):
            got = f"{found} in a range" if self.range is not None else str(found)
            raise DataError(
                f"Expected values that are all 0 or 1 where nothing is binarised; got {got}. "
                f"Use {policies}, with range=(LOW, HIGH) unless the values are uint8."
            )
        if self.binarize != "none" and self.range is None and found.dtype != torch.uint8:
            low, high = usual_range(found)
            raise RangeError(
                f"Expected uint8 values 0 to 255, or only zeros and ones; got {found}. Use "
                f"range=({low}, {high}), the values that stand for 0 and 1, with {policies}. "
                f"Or u{suggestion(found).removeprefix('U')}.",
                (low, high),
            )

    def refuse_missing(self, found: Extent) -> None:
        """Refuse values of which some are missing, unless the likelihood takes such.

        Args:
            found: What all of the values are.

        Raises:
            DataError: If it does not.
        """
        if found.has_missing and not self.takes_missing:
            named = isinstance(self.likelihood, str)
            mend = f'likelihood="{masked(self.name)}"' if named else f"Masked({self.name}(...))"
            raise DataError(
                f"Expected no missing values for the {self.name} likelihood; got {found}. Use "
                f"{mend}, which leaves missing values out; or drop or replace them."
            )

    @property
    def looks_at_values(self) -> bool:
        """Whether `check` needs to know the values; else their dtype is enough."""
        return self.binarize == "none" or self.range is not None

    def keep(self, values: Tensor) -> Tensor:
        """Check values, and `convert` them.

        Args:
            values: All of the data, any shape. A part of them may look like other data: a few rows
                of grey images may all be black.

        Raises:
            DataError: If ``check`` does not let them pass.
        """
        if values.numel() and self.looks_at_values:
            self.check(extent_of(values))
        return self.convert(values)

    def convert(self, values: Tensor) -> Tensor:
        """Do all that needs no draw to values, or a part of values, that ``check`` lets pass.

        Args:
            values: Stored values, any shape.

        Returns:
            Bits (bool), or the brightness to draw from (uint8 of 255, or float32 in [0, 1]); for a
            likelihood of other values what ``serve`` makes them of.
        """
        if not self.makes_bits:
            return self.values.keep(values, self.range)
        if self.takes_missing and values.is_floating_point():
            return self._convert_with_gaps(values)
        if self.binarize == "none":
            return values == 1
        if self.range is None:
            return values >= 128 if self.binarize == "threshold" else values
        grey = self._brightness(values, self.range)
        return grey >= 0.5 if self.binarize == "threshold" else grey.float()

    def _brightness(self, values: Tensor, range: tuple[float, float]) -> Tensor:
        low, high = range
        # MPS has no double; there the division alone rounds.
        wide = values.float() if values.device.type == "mps" else values.double()
        return (wide - low) / (high - low)

    def _convert_with_gaps(self, values: Tensor) -> Tensor:
        """Brightness, float32 in [0, 1], or NaN: a bit of brightness 1 is always drawn as 1."""
        grey = values if self.range is None else self._brightness(values, self.range)
        if self.binarize == "threshold":
            grey = torch.where(grey.isnan(), grey, (grey >= 0.5).to(grey.dtype))
        return grey.float()

    def serve(self, kept: Tensor, generator: torch.Generator) -> Tensor:
        """What the likelihood takes, float32, of what ``keep`` kept.

        Args:
            kept: Any shape and device; brightness is drawn from.
            generator: Source of the draw, on any device.
        """
        if not self.makes_bits:
            return self.values.serve(kept)
        bits = serve_bits(kept, generator)
        return torch.where(kept.isnan(), kept, bits) if self.takes_missing else bits

    def restore(self, x: Tensor) -> Tensor:
        """Stored values of what the likelihood takes: the inverse of what was done to them.

        Args:
            x: Any shape. A level becomes the middle of the values that it was cut from.
        """
        if self.range is None:
            return x
        low, high = self.range
        levels = None if self.makes_bits else self.values.levels
        return low + (high - low) * (x if levels is None else (x + 0.5) / levels)

    def describe(self, dtype: torch.dtype | str) -> str:
        """How stored values v become those of the likelihood, in words.

        Args:
            dtype: Of the stored values, with or without ``torch.``.
        """
        return self.values.describe(dtype, self.range)


def refuse_binarisation(name: str, binarize: str) -> NoReturn:
    """Raise a ValueError: the likelihood of this name takes no bits."""
    raise ValueError(
        f"Expected no binarisation for the {name} likelihood; got {binarize}. Leave "
        'binarize=... out, or use likelihood="bernoulli".'
    )


def check_range(range: tuple[float, float]) -> None:
    """Raise a ValueError unless the range (low, high) has a finite width above 0."""
    low, high = range
    if not 0 < high - low < math.inf:
        raise ValueError(
            f"Expected a range of finite width, the lower number first; got {low:g} and {high:g}. "
            "Name the least and the greatest value that can occur."
        )
