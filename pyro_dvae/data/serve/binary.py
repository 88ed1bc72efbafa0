"""Binarization: grey images become zeros and ones."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_dvae.data.serve.prepare import BINARIZATIONS, POLICIES, Preparation
from pyro_dvae.data.serve.served import PreparedData

__all__ = ["BINARIZATIONS", "BinaryImages"]


class BinaryImages(PreparedData):
    """Grey images in memory that are served as zeros and ones.

    The policy says how a pixel becomes 0 or 1:

    - ``"dynamic"``: it is drawn as Bernoulli(value / 255), anew for every batch.
    - ``"static"``: it is drawn so once, when this object is built.
    - ``"threshold"``: it is 1 if value >= 128.
    - ``"none"``: the values are all 0 or 1, and stay.

    Args:
        pixels: (N, *event_shape) grey values, uint8. With a range, or under ``"none"``, they may
            have any dtype.
        policy: One of the four above.
        seed: Seed of the draw of ``"static"``. It gives the same bits on every device.
        range: (low, high), the values that stand for 0 and 1; None for uint8 values of 255.
        labels: (N,) int64 labels, served with the images; None if there are none.

    Raises:
        ValueError: If the pixels are not uint8 and have no range, or the policy is unknown.

    Example:
        >>> images = BinaryImages(torch.tensor([[0, 200]], dtype=torch.uint8), "threshold")
        >>> images.fixed(0).tolist()
        [[0.0, 1.0]]
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
            raise ValueError(
                f"Expected uint8 pixels; got {pixels.dtype}. Pass values 0 to 255, or "
                "range=(LOW, HIGH), the values that stand for 0 and 1."
            )
        if policy not in POLICIES:
            raise ValueError(f"Expected one of {BINARIZATIONS}; got {policy!r}. Choose one.")
        super().__init__(pixels, Preparation(policy, range), seed=seed, labels=labels)

    @property
    def policy(self) -> str:
        """The binarization policy."""
        return self.preparation.binarize
