"""What is done to stored values, on request and never silently, before a likelihood takes them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_dvae.checks import one_of
from pyro_dvae.data.errors import DataError
from pyro_dvae.data.rows import Rows

BINARIZATIONS = ("dynamic", "static", "threshold")
POLICIES = (*BINARIZATIONS, "none")

_READ_BYTES = 2**24


class Extent(NamedTuple):
    """What decides whether a likelihood takes some values."""

    dtype: torch.dtype
    low: float
    high: float
    is_binary: bool
    """Whether every value is 0 or 1."""

    def __str__(self) -> str:
        only = "that are all 0 or 1" if self.is_binary else f"{self.low:g} to {self.high:g}"
        return f"{self.dtype} values {only}"


@dataclass(frozen=True)
class Preparation:
    """How stored values become the zeros and ones of a Bernoulli likelihood.

    A value v stands for the brightness b = v / 255 (uint8), or b = (v - low) / (high - low) under
    a range. Under ``"dynamic"`` it is drawn as Bernoulli(b) whenever it is served, under
    ``"static"`` so drawn once, under ``"threshold"`` it is b >= 1/2; under ``"none"`` every v
    must be 0 or 1.

    Args:
        binarize: One of ``POLICIES``.
        range: (low, high), the values that stand for 0 and 1; None for uint8 values of 255.

    Raises:
        ValueError: If the policy is unknown or the range is not one.
    """

    binarize: str = "dynamic"
    range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        one_of("binarisation", self.binarize, POLICIES)
        if self.range is not None:
            low, high = self.range
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise ValueError(
                    f"Expected a range of two finite numbers, the lower first; got {low:g},"
                    f"{high:g}. Name the least and the greatest value that can occur."
                )

    def check(self, found: Extent) -> None:
        """Refuse values that this preparation does not turn into zeros and ones.

        Args:
            found: What the values are.

        Raises:
            DataError: If they are outside the range, neither uint8 nor in a range, or, under
                ``"none"``, not all 0 or 1.
        """
        if self.range is not None:
            low, high = self.range
            if not low <= found.low <= found.high <= high:
                raise DataError(
                    f"Expected values within the range {low:g},{high:g}; got {found}. "
                    "Widen --range, or clip the data."
                )
        if self.binarize == "none" and (self.range is not None or not found.is_binary):
            got = f"{found} in a range" if self.range is not None else str(found)
            raise DataError(
                f"Expected values that are all 0 or 1 where nothing is binarised; got {got}. "
                "Use --binarize dynamic, static or threshold, with --range LOW,HIGH unless the "
                "values are uint8."
            )
        if self.binarize != "none" and self.range is None and found.dtype != torch.uint8:
            raise DataError(
                f"Expected uint8 values 0 to 255, or only zeros and ones; got {found}. Use --range "
                f"LOW,HIGH, the values that stand for 0 and 1, with --binarize dynamic, static or "
                "threshold."
            )

    def keep(self, values: Tensor) -> Tensor:
        """Do all that needs no draw.

        Args:
            values: Stored values, any shape.

        Returns:
            Bits (bool), or the brightness to draw from (uint8 of 255, or float32 in [0, 1]).

        Raises:
            DataError: If ``check`` does not let them pass.
        """
        if values.numel() and (self.binarize == "none" or self.range is not None):
            self.check(extent_of(values))
        if self.binarize == "none":
            return values == 1
        if self.range is None:
            return values >= 128 if self.binarize == "threshold" else values
        low, high = self.range
        # MPS has no double; there the division alone rounds.
        wide = values.float() if values.device.type == "mps" else values.double()
        grey = (wide - low) / (high - low)
        return grey >= 0.5 if self.binarize == "threshold" else grey.float()


def serve(kept: Tensor, generator: torch.Generator) -> Tensor:
    """Zeros and ones, float32, of what ``Preparation.keep`` kept; brightness is drawn from."""
    return (kept if kept.dtype == torch.bool else draw(kept, generator)).to(torch.float32)


def draw(grey: Tensor, generator: torch.Generator) -> Tensor:
    """One draw of Bernoulli(brightness) for each value.

    Args:
        grey: uint8 of 255, or float32 in [0, 1], any shape and device.
        generator: Source of the draw, on any device.

    Returns:
        Bits, bool, of the same shape on the same device.
    """
    device = generator.device
    if grey.dtype == torch.uint8:
        # Of the 255 equally likely noise values 0..254, exactly v are below v: no float is needed.
        noise = torch.randint(
            255, grey.shape, dtype=torch.uint8, generator=generator, device=device
        )
    else:
        noise = torch.rand(grey.shape, dtype=torch.float32, generator=generator, device=device)
    return noise.to(grey.device) < grey


def choose(
    found: Extent, binarize: str | None = None, range: tuple[float, float] | None = None
) -> Preparation:
    """Settle how training data are prepared.

    Args:
        found: What the training data are.
        binarize: The policy asked for. None: ``"none"`` for data that are all 0 or 1 and have
            no range, and else ``"dynamic"``.
        range: The range asked for.

    Raises:
        DataError: If the data do not fit that, or need no policy and one was asked for.
        ValueError: If the policy or the range is none.
    """
    bits = found.is_binary and range is None
    if bits and binarize not in (None, "none"):
        one_of("binarisation", str(binarize), POLICIES)
        raise DataError(
            f"Expected no binarisation of zeros and ones; got {found} and {binarize}. Leave "
            "--binarize out, or use --range 0,255 if they are very dark grey."
        )
    preparation = Preparation(binarize or ("none" if bits else "dynamic"), range)
    preparation.check(found)
    return preparation


def refuse_unlike(what: str, rows: Rows, like: Rows, preparation: Preparation) -> None:
    """Refuse data that are not of one kind with the training data.

    Args:
        what: The data, for messages.
        rows: The data.
        like: The training data.
        preparation: What is done to both.

    Raises:
        DataError: If shape or dtype is another one, or the values are outside the range.
    """
    kinds = [f"{other.dtype} of shape {(len(other), *other.event_shape)}" for other in (rows, like)]
    if (rows.event_shape, rows.dtype) != (like.event_shape, like.dtype):
        raise DataError(
            f"Expected {what} like the training data, {kinds[1]}; got {kinds[0]}. Make them agree."
        )
    found = extent(rows)
    preparation.check(found)
    if found.is_binary and preparation.binarize != "none" and preparation.range is None:
        raise DataError(
            f"Expected {what} like the training data, uint8 values 0 to 255; got {found}. Make "
            "them agree, or use --range 0,255 if they are very dark grey."
        )


def extent(rows: Rows) -> Extent:
    """Look at every value, in blocks of bounded memory.

    Raises:
        DataError: If a value is missing or infinite, or a row cannot be read.
    """
    found = []
    for index in in_blocks(rows):
        block = extent_of(rows.read(index))
        if not math.isfinite(block.low + block.high):
            raise DataError(
                f"Expected finite values; got {block.low:g} to {block.high:g} in rows {index[0]} "
                f"to {index[-1]}. Drop or replace them."
            )
        found.append(block)
    low, high = min(block.low for block in found), max(block.high for block in found)
    return Extent(rows.dtype, low, high, all(block.is_binary for block in found))


def extent_of(values: Tensor) -> Extent:
    """Look at values in memory, at least one."""
    low, high = values.min().item(), values.max().item()
    is_binary = bool(((values == 0) | (values == 1)).all())
    return Extent(values.dtype, float(low), float(high), is_binary)


def in_blocks(rows: Rows, size: int = _READ_BYTES) -> tuple[Tensor, ...]:
    """The indices of all rows, in blocks of about so many bytes."""
    return torch.arange(len(rows)).split(max(1, size // row_bytes(rows)))


def row_bytes(rows: Rows) -> int:
    """The bytes of one row as stored."""
    return max(1, math.prod(rows.event_shape) * rows.dtype.itemsize)
