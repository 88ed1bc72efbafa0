"""Binarization: grey images served as zeros and ones."""

import copy

import torch
from torch import Tensor

from pyro_dvae.data.prepare import BINARIZATIONS, POLICIES, Preparation, draw, serve

__all__ = ["BINARIZATIONS", "BinaryImages"]


class BinaryImages:
    """Data in memory, on one device, served as zeros and ones under a binarization policy.

    Under ``"dynamic"`` a pixel is redrawn as Bernoulli(value / 255) whenever it is served; under
    ``"static"`` it was so drawn once, on construction; under ``"threshold"`` it is value >= 128.

    Args:
        pixels: Grey values, uint8, shape (N, *event_shape); of any dtype under a range, or, all
            0 or 1, under ``"none"``.
        policy: One of ``BINARIZATIONS``, or ``"none"`` for values that are zeros and ones.
        seed: Seed of the draw of ``"static"``, the same on every device.
        range: (low, high), the values that stand for 0 and 1; None for uint8 values of 255.

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
    ) -> None:
        if pixels.dtype != torch.uint8 and range is None and policy != "none":
            raise ValueError(f"Expected uint8 pixels; got {pixels.dtype}. Pass values 0 to 255.")
        if policy not in POLICIES:
            raise ValueError(f"Expected one of {BINARIZATIONS}; got {policy!r}. Choose one.")
        self.policy = policy
        kept = Preparation(policy, range).keep(pixels)
        if policy == "static":
            kept = draw(kept, torch.Generator().manual_seed(seed))
        self._kept = kept  # brightness if dynamic, and bits otherwise

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self._kept)

    @property
    def event_shape(self) -> torch.Size:
        """Shape of one image."""
        return self._kept.shape[1:]

    @property
    def device(self) -> torch.device:
        """Device that holds the images."""
        return self._kept.device

    def batch(self, index: Tensor, generator: torch.Generator) -> Tensor:
        """Serve the images at some indices.

        Args:
            index: Indices, int64, shape (B,).
            generator: Source of the draw of ``"dynamic"``, on any device; else unused.

        Returns:
            Zeros and ones, float32, shape (B, *event_shape).
        """
        return serve(self._kept[index], generator)

    def fixed(self, seed: int) -> Tensor:
        """Serve all images in the one draw that evaluation uses.

        Args:
            seed: Seed of the draw of ``"dynamic"``, the same on every device; else unused.

        Returns:
            Zeros and ones, float32, shape (N, *event_shape).
        """
        return serve(self._kept, torch.Generator().manual_seed(seed))

    def to(self, device: torch.device | str) -> "BinaryImages":
        """Return the same images on another device."""
        return self._with(self._kept.to(device))

    def subset(self, index: Tensor) -> "BinaryImages":
        """Return the images at some indices, shape (B,); static bits stay as drawn."""
        return self._with(self._kept[index])

    def _with(self, kept: Tensor) -> "BinaryImages":
        other = copy.copy(self)
        other._kept = kept
        return other
