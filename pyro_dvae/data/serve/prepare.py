"""What is done to stored values, on request and never silently, before a likelihood takes them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NoReturn

import torch
from torch import Tensor, nn

from pyro_dvae.checks import one_of
from pyro_dvae.data.read.errors import DataError
from pyro_dvae.data.read.extent import Extent, extent, extent_of
from pyro_dvae.data.read.rows import Rows
from pyro_dvae.data.serve.bits import serve_bits
from pyro_dvae.data.serve.kinds import MOST_LEVELS, Values, kind_of, suggestion, values_of
from pyro_dvae.specs import name_and_argument

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
            _refuse_binarisation(self.name, self.binarize)
        if self.range is not None:
            check_range(self.range)

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
                within the range, uint8 values, or, under ``"none"``, zeros and ones.
        """
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
            raise DataError(
                f"Expected uint8 values 0 to 255, or only zeros and ones; got {found}. Use "
                f"range=(LOW, HIGH), the values that stand for 0 and 1, with {policies}. "
                f"Or u{suggestion(found).removeprefix('U')}."
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
        if self.binarize == "none":
            return values == 1
        if self.range is None:
            return values >= 128 if self.binarize == "threshold" else values
        low, high = self.range
        # MPS has no double; there the division alone rounds.
        wide = values.float() if values.device.type == "mps" else values.double()
        grey = (wide - low) / (high - low)
        return grey >= 0.5 if self.binarize == "threshold" else grey.float()

    def serve(self, kept: Tensor, generator: torch.Generator) -> Tensor:
        """What the likelihood takes, float32, of what ``keep`` kept.

        Args:
            kept: Any shape and device; brightness is drawn from.
            generator: Source of the draw, on any device.
        """
        return serve_bits(kept, generator) if self.makes_bits else self.values.serve(kept)

    def describe(self, dtype: torch.dtype | str) -> str:
        """How stored values v become those of the likelihood, in words.

        Args:
            dtype: Of the stored values, with or without ``torch.``.
        """
        return self.values.describe(dtype, self.range)


def _refuse_binarisation(name: str, binarize: str) -> NoReturn:
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


def choose(
    found: Extent,
    binarize: str | None = None,
    range: tuple[float, float] | None = None,
    likelihood: str | nn.Module = "bernoulli",
) -> Preparation:
    """Decide how training data are prepared, where the user does not.

    Args:
        found: What the training data are.
        binarize: The policy asked for. None: ``"none"`` for data that are all 0 or 1 and have
            no range, and for any likelihood that takes no bits; else ``"dynamic"``.
        range: The range asked for.
        likelihood: That of the model; or its name, or ``name:argument``. For ``"categorical"``
            alone, the number of levels L is 256 for uint8 values, else one more than the greatest
            value. For ``"categorical:L"``, uint8 values of L and above are cut into L levels by
            the range (0, 256): v becomes L v // 256.

    Raises:
        DataError: If the data do not fit that, or need no policy and one was asked for.
        ValueError: If there is no such policy, range or likelihood.
    """
    if kind_of(likelihood) != "bits":
        preparation = Preparation(binarize or "none", range, likelihood)
        if binarize == "dynamic":
            _refuse_binarisation(preparation.name, binarize)
        preparation = _with_levels(preparation, found)
        preparation.check(found)
        return preparation
    bits = found.is_binary and range is None
    if bits and binarize not in (None, "none"):
        one_of("binarisation", str(binarize), POLICIES)
        raise DataError(
            f"Expected no binarisation of zeros and ones; got {found} and {binarize}. Leave "
            "binarize=... out, or use range=(0, 255) if they are very dark grey."
        )
    preparation = Preparation(binarize or ("none" if bits else "dynamic"), range, likelihood)
    preparation.check(found)
    return preparation


def _with_levels(asked: Preparation, found: Extent) -> Preparation:
    if not isinstance(asked.likelihood, str):
        return asked
    is_uint8 = found.dtype == torch.uint8
    name, argument = name_and_argument(asked.likelihood)
    if name not in ("categorical", "ordinal"):
        return asked
    if not argument:
        is_counted = 0 < found.high < MOST_LEVELS and (not is_uint8 or name == "ordinal")
        levels = max(2, int(found.high) + 1) if is_counted else 256
        return replace(asked, likelihood=f"{name}:{levels}")
    if is_uint8 and asked.range is None and found.high > asked.values.high:
        return replace(asked, range=(0.0, 256.0))
    return asked


def refuse_unlike(what: str, rows: Rows, like: Rows, preparation: Preparation) -> None:
    """Refuse data that are not of one kind with the training data.

    Args:
        what: The data, for messages.
        rows: The data.
        like: The training data.
        preparation: What is done to both.

    Raises:
        DataError: If the shape is another one, if only one of both is uint8 or bool, or if the
            values are outside the range.
    """
    kinds = [f"{other.dtype} of shape {(len(other), *other.event_shape)}" for other in (rows, like)]
    grey_or_bits = {rows.dtype, like.dtype} & {torch.uint8, torch.bool}
    if rows.event_shape != like.event_shape or (rows.dtype != like.dtype and grey_or_bits):
        raise DataError(
            f"Expected {what} like the training data, {kinds[1]}; got {kinds[0]}. Make them agree."
        )
    found = extent(rows)
    preparation.check(found)
    if (
        preparation.makes_bits
        and found.is_binary
        and preparation.binarize != "none"
        and preparation.range is None
    ):
        raise DataError(
            f"Expected {what} like the training data, uint8 values 0 to 255; got {found}. Make "
            "them agree, or use range=(0, 255) if they are very dark grey."
        )
