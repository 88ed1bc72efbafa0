"""Zeros and ones, drawn from brightness."""

from __future__ import annotations

import torch
from torch import Tensor


def serve_bits(kept: Tensor, generator: torch.Generator) -> Tensor:
    """Zeros and ones, float32, of the same shape.

    Args:
        kept: Bits (bool), which become numbers; or brightness, from which a bit is drawn each:
            uint8 of 255, or float32 in [0, 1]; any shape and device.
        generator: Source of the draw, on any device; not used for bits.
    """
    if kept.dtype == torch.bool:
        return kept.to(torch.float32)
    # A comparison that writes floats takes a quarter of the time of bits and their conversion.
    return torch.lt(_noise(kept, generator), kept, out=torch.empty_like(kept, dtype=torch.float32))


def draw_bits(grey: Tensor, generator: torch.Generator) -> Tensor:
    """Draw Bernoulli(brightness) for each value.

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
        # Of 255 equally likely numbers 0 to 254, exactly v are below v. So no floats are needed.
        noise = torch.randint(
            255, grey.shape, dtype=torch.uint8, generator=generator, device=device
        )
    else:
        noise = torch.rand(grey.shape, dtype=torch.float32, generator=generator, device=device)
    return noise.to(grey.device)
