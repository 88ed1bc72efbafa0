"""Binarization: grey images served as zeros and ones."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_dvae.data.serve.prepare import BINARIZATIONS, POLICIES, Preparation
from pyro_dvae.data.serve.served import PreparedData

__all__ = ["BINARIZATIONS", "BinaryImages"]


class BinaryImages(PreparedData):
    """Data in memory, on one device, served as zeros and ones under a binarization policy.

    Under ``"dynamic"`` a pixel is redrawn as Bernoulli(value / 255) whenever it is served; under
    ``"static"`` it was so drawn once, on construction; under ``"threshold"`` it is value >= 128.

    Args:
        pixels: Grey values, uint8, shape (N, *event_shape); of any dtype under a range, or, all
            0 or 1, under ``"none"``.
        policy: One of ``BINARIZATIONS``, or ``"none"`` for values that are zeros and ones.
        seed: Seed of the draw of ``"static"``, the same on every device.
        range: (low, high), the values that stand for 0 and 1; None for uint8 values of 255.
        labels: (N,) int64, served with the images, or None.

    Raises:
        ValueError: If the pixels are not uint8 and have no range, or the policy is unknown.
    """

    def __init__(
        self,
        pixels: Tensor,
        policy: str = "dynamic",
        *,
        seed: int = 0,
        range: tuple[float, float] | None = None,
        labels: Tensor | None = None,
    ) -> None:
        if pixels.dtype != torch.uint8 and range is None and policy != "none":
            raise ValueError(f"Expected uint8 pixels; got {pixels.dtype}. Pass values 0 to 255.")
        if policy not in POLICIES:
            raise ValueError(f"Expected one of {BINARIZATIONS}; got {policy!r}. Choose one.")
        super().__init__(pixels, Preparation(policy, range), seed=seed, labels=labels)

    @property
    def policy(self) -> str:
        """The binarization policy."""
        return self.preparation.binarize
