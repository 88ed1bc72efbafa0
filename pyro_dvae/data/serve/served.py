"""Data in memory that are served as a likelihood takes them."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import Tensor

from pyro_dvae.data.read.extent import Extent
from pyro_dvae.data.serve.bits import draw_bits
from pyro_dvae.data.serve.divide import kept_together
from pyro_dvae.data.serve.prepare import Preparation

Self = TypeVar("Self", bound="PreparedData")


class PreparedData:
    """Data in memory, on one device, that are served as a likelihood takes them.

    Args:
        values: (N, *event_shape) values as stored.
        preparation: What to do to them.
        seed: Seed of the draw of ``"static"``. It gives the same bits on every device.
        labels: (N,) int64 labels, served with the data; None if there are none.
        found: What all of the data are, if these values are only a part of them; None to look at
            these values.

    Raises:
        DataError: If the preparation does not take the values.
    """

    def __init__(
        self,
        values: Tensor,
        preparation: Preparation,
        *,
        seed: int = 0,
        labels: Tensor | None = None,
        found: Extent | None = None,
    ) -> None:
        self.preparation, self.labels = preparation, labels
        if found is not None:
            preparation.check(found)
        kept = preparation.keep(values) if found is None else preparation.convert(values)
        if preparation.binarize == "static":
            kept = draw_bits(kept, torch.Generator().manual_seed(seed))
        self._kept = kept  # under "dynamic" the brightness that bits are drawn from

    def __repr__(self) -> str:
        labels = "" if self.labels is None else ", with labels"
        data = f"{type(self).__name__} of {len(self)} data of shape {tuple(self.event_shape)}"
        return f"{data}{labels}, on {self.device}: {self.preparation}"

    def __len__(self) -> int:
        """Return the number of data."""
        return len(self._kept)

    @property
    def event_shape(self) -> torch.Size:
        """Shape of one datum."""
        return self._kept.shape[1:]

    @property
    def device(self) -> torch.device:
        """The device that holds the data."""
        return self._kept.device

    def batch(self, index: Tensor, generator: torch.Generator) -> Tensor | tuple[Tensor, Tensor]:
        """Serve some of the data.

        Args:
            index: (B,) int64 indices.
            generator: Source of the draw of ``"dynamic"``, on any device; else not used.

        Returns:
            (B, *event_shape), float32: what the likelihood takes. If there are labels, a pair of
            that and of the labels, (B,).
        """
        x = self.preparation.serve(self._kept.index_select(0, index), generator)
        return x if self.labels is None else (x, self.labels[index])

    def fixed(self, seed: int) -> Tensor:
        """Serve all data at once, without labels, with bits drawn once, as evaluation needs them.

        Args:
            seed: Seed of the draw of ``"dynamic"``, the same on every device; else not used.

        Returns:
            (N, *event_shape), float32: what the likelihood takes.
        """
        return self.preparation.serve(self._kept, torch.Generator().manual_seed(seed))

    def groups_of_copies(self) -> Tensor | None:
        """(N,) int64, the groups of equal data that are kept in one part; None for none."""
        return kept_together(self._kept)

    def to(self: Self, device: torch.device | str) -> Self:
        """The same data on another device."""
        return self._with(
            self._kept.to(device), None if self.labels is None else self.labels.to(device)
        )

    def subset(self: Self, index: Tensor) -> Self:
        """The data at some indices (B,), int64; bits of ``"static"`` are not drawn again."""
        return self._with(self._kept[index], None if self.labels is None else self.labels[index])

    def _with(self: Self, kept: Tensor, labels: Tensor | None) -> Self:
        other = copy.copy(self)
        other._kept, other.labels = kept, labels
        return other
