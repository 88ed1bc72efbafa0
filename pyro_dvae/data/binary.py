"""Binarization: grey images served as zeros and ones."""

import copy

import torch
from torch import Tensor

BINARIZATIONS = ("dynamic", "static", "threshold")


class BinaryImages:
    """Grey images on one device, served as binary ones under a binarization policy.

    Under ``"dynamic"`` a pixel is redrawn as Bernoulli(value / 255) whenever it is served; under
    ``"static"`` it was so drawn once, on construction; under ``"threshold"`` it is value >= 128.

    Args:
        pixels: Grey values, uint8, shape (N, *event_shape).
        policy: One of ``BINARIZATIONS``.
        seed: Seed of the draw of ``"static"``, the same on every device.

    Raises:
        ValueError: If the pixels are not uint8 or the policy is unknown.
    """

    def __init__(self, pixels: Tensor, policy: str = "dynamic", *, seed: int = 0) -> None:
        if pixels.dtype != torch.uint8:
            raise ValueError(f"Expected uint8 pixels; got {pixels.dtype}. Pass values 0 to 255.")
        if policy not in BINARIZATIONS:
            raise ValueError(f"Expected one of {BINARIZATIONS}; got {policy!r}. Choose one.")
        self.policy = policy
        if policy == "static":
            pixels = _bernoulli(pixels, torch.Generator().manual_seed(seed))
        elif policy == "threshold":
            pixels = (pixels >= 128).to(torch.uint8)
        self._values = pixels  # grey values if dynamic, and bits otherwise

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self._values)

    @property
    def event_shape(self) -> torch.Size:
        """Shape of one image."""
        return self._values.shape[1:]

    @property
    def device(self) -> torch.device:
        """Device that holds the images."""
        return self._values.device

    def batch(self, index: Tensor, generator: torch.Generator) -> Tensor:
        """Serve the images at some indices.

        Args:
            index: Indices, int64, shape (B,).
            generator: Source of the draw of ``"dynamic"``, on any device; else unused.

        Returns:
            Zeros and ones, float32, shape (B, *event_shape).
        """
        values = self._values[index]
        if self.policy == "dynamic":
            values = _bernoulli(values, generator)
        return values.to(torch.float32)

    def fixed(self, seed: int) -> Tensor:
        """Serve all images in the one draw that evaluation uses.

        Args:
            seed: Seed of the draw of ``"dynamic"``, the same on every device; else unused.

        Returns:
            Zeros and ones, float32, shape (N, *event_shape).
        """
        return self.batch(torch.arange(len(self)), torch.Generator().manual_seed(seed))

    def to(self, device: torch.device | str) -> "BinaryImages":
        """Return the same images on another device."""
        return self._with_values(self._values.to(device))

    def subset(self, index: Tensor) -> "BinaryImages":
        """Return the images at some indices, shape (B,); static bits stay as drawn."""
        return self._with_values(self._values[index])

    def _with_values(self, values: Tensor) -> "BinaryImages":
        other = copy.copy(self)
        other._values = values
        return other


def _bernoulli(pixels: Tensor, generator: torch.Generator) -> Tensor:
    # Of the 255 equally likely noise values 0..254, exactly v are below v: no float is needed.
    noise = torch.randint(
        255, pixels.shape, dtype=torch.uint8, generator=generator, device=generator.device
    )
    return (noise.to(pixels.device) < pixels).to(torch.uint8)
