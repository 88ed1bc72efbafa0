"""What is done to stored values, on request and never silently, before a likelihood takes them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyro_dvae.checks import one_of
from pyro_dvae.data.read.errors import DataError
from pyro_dvae.data.read.extent import Extent, extent, extent_of
from pyro_dvae.data.read.rows import Rows
from pyro_dvae.data.serve.kinds import (
    MOST,
    check_kind,
    keep_kind,
    kind_of,
    levels_of,
    serve_kind,
    suggestion,
)

BINARIZATIONS = ("dynamic", "static", "threshold")
POLICIES = (*BINARIZATIONS, "none")


@dataclass(frozen=True)
class Preparation:
    """How stored values become those of a likelihood: zeros and ones of a Bernoulli one.

    For it a value v stands for the brightness b = v / 255 (uint8), or
    b = (v - low) / (high - low) under a range. Under ``"dynamic"`` it is drawn as Bernoulli(b)
    whenever it is served, under ``"static"`` so drawn once, under ``"threshold"`` it is b >= 1/2;
    under ``"none"`` every v must be 0 or 1.

    Under any other likelihood nothing is binarised. A uint8 v, or any under a range, becomes b
    where the likelihood is one of [0, 1], and (v + 1/2) / 256 instead of v / 255 where 0 and 1
    are excluded; for L levels a v in a range becomes floor(L b), at most L - 1. All other values
    stay as they are.

    Args:
        binarize: One of ``POLICIES``; ``"none"`` under any likelihood but the Bernoulli.
        range: (low, high), the values that stand for 0 and 1; None for uint8 values of 255.
        likelihood: Its name on the command line, or ``name:argument``.

    Raises:
        ValueError: If policy or likelihood are unknown, do not go together, or the range is none.
    """

    binarize: str = "dynamic"
    range: tuple[float, float] | None = None
    likelihood: str = "bernoulli"

    def __post_init__(self) -> None:
        one_of("binarisation", self.binarize, POLICIES)
        if not self.makes_bits and self.binarize != "none":
            raise ValueError(
                f"Expected no binarisation for the {self.likelihood} likelihood; got "
                f"{self.binarize}. Leave --binarize out, or use --likelihood bernoulli."
            )
        if self.range is not None:
            low, high = self.range
            if not 0 < high - low < math.inf:
                raise ValueError(
                    f"Expected a range of finite width, the lower number first; got {low:g},"
                    f"{high:g}. Name the least and the greatest value that can occur."
                )

    @property
    def makes_bits(self) -> bool:
        """Whether the likelihood takes zeros and ones."""
        return kind_of(self.likelihood) == "bits"

    def check(self, found: Extent) -> None:
        """Refuse values that this preparation does not turn into those of the likelihood.

        Args:
            found: What the values are.

        Raises:
            DataError: If they are outside the range, neither uint8 nor in a range, or, under
                ``"none"``, not all 0 or 1; or, under another likelihood, none of its own.
        """
        if not self.makes_bits:
            check_kind(self.likelihood, found, self.range)
            return
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
                f"threshold. Or{suggestion(found).removeprefix('Use')}."
            )

    def keep(self, values: Tensor) -> Tensor:
        """Do all that needs no draw.

        Args:
            values: Stored values, any shape.

        Returns:
            Bits (bool), or the brightness to draw from (uint8 of 255, or float32 in [0, 1]); for
            another likelihood than the Bernoulli what ``serve`` makes its values of.

        Raises:
            DataError: If ``check`` does not let them pass.
        """
        if values.numel() and (self.binarize == "none" or self.range is not None):
            self.check(extent_of(values))
        return self.convert(values)

    def convert(self, values: Tensor) -> Tensor:
        """Do the same to some of the values that `check` let pass, without another look."""
        if not self.makes_bits:
            return keep_kind(self.likelihood, values, self.range)
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
        return serve(kept, generator) if self.makes_bits else serve_kind(self.likelihood, kept)


def serve(kept: Tensor, generator: torch.Generator) -> Tensor:
    """Zeros and ones, float32, of bits and brightness; brightness is drawn from."""
    if kept.dtype == torch.bool:
        return kept.to(torch.float32)
    # A comparison may write floats at once, which costs a quarter of bits and their conversion.
    return torch.lt(_noise(kept, generator), kept, out=torch.empty_like(kept, dtype=torch.float32))


def draw(grey: Tensor, generator: torch.Generator) -> Tensor:
    """One draw of Bernoulli(brightness) for each value.

    Args:
        grey: uint8 of 255, or float32 in [0, 1], any shape and device.
        generator: Source of the draw, on any device.

    Returns:
        Bits, bool, of the same shape on the same device.
    """
    return _noise(grey, generator) < grey


def _noise(grey: Tensor, generator: torch.Generator) -> Tensor:
    device = generator.device
    if grey.dtype == torch.uint8:
        # Of the 255 equally likely noise values 0..254, exactly v are below v: no float is needed.
        noise = torch.randint(
            255, grey.shape, dtype=torch.uint8, generator=generator, device=device
        )
    else:
        noise = torch.rand(grey.shape, dtype=torch.float32, generator=generator, device=device)
    return noise.to(grey.device)


def choose(
    found: Extent,
    binarize: str | None = None,
    range: tuple[float, float] | None = None,
    likelihood: str = "bernoulli",
) -> Preparation:
    """Settle how training data are prepared.

    Args:
        found: What the training data are.
        binarize: The policy asked for. None: ``"none"`` for data that are all 0 or 1 and have
            no range, and for any likelihood but the Bernoulli; else ``"dynamic"``.
        range: The range asked for.
        likelihood: That of the model. For one of L levels that were not named L is 256 for uint8
            values, else one more than the greatest; uint8 values that are no such levels are cut
            into L by the range (0, 256): v becomes L v // 256.

    Raises:
        DataError: If the data do not fit that, or need no policy and one was asked for.
        ValueError: If policy, range or likelihood are none.
    """
    if kind_of(likelihood) != "bits":
        preparation = Preparation(binarize or "none", range, likelihood)
        preparation = _with_levels(preparation, found)
        preparation.check(found)
        return preparation
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


def _with_levels(asked: Preparation, found: Extent) -> Preparation:
    is_uint8 = found.dtype == torch.uint8
    name, _, argument = asked.likelihood.partition(":")
    if name != "categorical":
        return asked
    if not argument:
        levels = int(found.high) + 1 if 0 < found.high < MOST["levels"] and not is_uint8 else 256
        return replace(asked, likelihood=f"categorical:{levels}")
    if is_uint8 and asked.range is None and found.high >= levels_of(asked.likelihood):
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
        DataError: If shape or dtype is another one, or the values are outside the range.
    """
    kinds = [f"{other.dtype} of shape {(len(other), *other.event_shape)}" for other in (rows, like)]
    if (rows.event_shape, rows.dtype) != (like.event_shape, like.dtype):
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
            "them agree, or use --range 0,255 if they are very dark grey."
        )
