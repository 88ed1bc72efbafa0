"""The part of the training data that `fit` keeps for validation."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from pyro_dvae.checks import at_least
from pyro_dvae.data.serve.allocate import allocate, validation_kept
from pyro_dvae.defaults import VALIDATION_SHARE
from pyro_dvae.training.batches import (
    Batch,
    DivisibleData,
    OrderedData,
    TrainingData,
    as_batch,
    served,
)
from pyro_dvae.training.labelled import RepeatedLabels
from pyro_dvae.vae import DiscreteVAE


@runtime_checkable
class HasCopies(Protocol):
    """Training data that know which of them are equal, such as `BinaryImages`."""

    def groups_of_copies(self) -> Tensor | None:
        """(N,) int64, the groups of equal data that are kept in one part; None for none."""


class ChosenData:
    """Some of the data of another `TrainingData`.

    Args:
        data: the data to choose from.
        index: (n,) int64, the indices of the chosen data.
    """

    def __init__(self, data: TrainingData, index: Tensor) -> None:
        self.data, self.index = data, index

    def __len__(self) -> int:
        """n, the number of chosen data."""
        return len(self.index)

    def batch(self, index: Tensor, generator: torch.Generator) -> Batch:
        """The data of these indices into the n chosen data."""
        self.index = self.index.to(index.device)
        return self.data.batch(self.index[index], generator)


class ChosenOrderedData(ChosenData):
    """Some of the data of other `OrderedData`, in the order of these."""

    data: OrderedData

    def order(self, generator: torch.Generator) -> Tensor:
        """All indices into the n chosen data in the order of an epoch, (n,) int64."""
        order = self.data.order(generator)
        places = order.new_full((len(self.data),), -1)
        places[self.index.to(order.device)] = torch.arange(len(self), device=order.device)
        chosen = places[order]
        return chosen[chosen >= 0]


def hold_out(
    vae: DiscreteVAE, data: TrainingData, validation: Batch | float | None, seed: int
) -> tuple[TrainingData, Batch | None]:
    """Divide data into a part to train on and a part to validate on.

    The rows for validation, and the one draw of their random parts, are those that `make_splits`
    makes with the same seed.

    Args:
        vae: the model.
        data: N data points.
        validation: the share (below 1) of them, or their number, to keep for validation, evenly
            among the classes where there are labels, and copies of one datum together; or other
            data, as `fit` takes them; None or 0 for no validation. The share that is the default
            keeps at least 200 data points or a fifth, and at most 10,000 or 64 MiB.
        seed: the seed of the choice of these data, and of the draw of their random parts.

    Returns:
        The data to train on, and the data to validate on: (M, *event), in a pair with labels (M,)
        if the data have labels, or None.

    Raises:
        ValueError: a part would be empty.
    """
    at_least("training data", len(data), 1)
    if not isinstance(validation, (int, float)):
        return data, None if validation is None else as_batch(vae, validation)
    if not validation:
        return data, None
    if isinstance(data, RepeatedLabels):
        raise ValueError(
            "Expected validation data of their own, since copies of a datum would be in both "
            f"parts; got validation={validation} of {type(data).__name__}. Keep some data apart "
            "before you repeat the others."
        )
    weight = next(vae.parameters())
    if validation == VALIDATION_SHARE:
        validation = validation_kept(len(data), datum_shape(vae, data))
    if isinstance(data, DivisibleData):
        labels = None if data.labels is None else data.labels.cpu()
        copies = data.groups_of_copies() if isinstance(data, HasCopies) else None
        train, kept, _ = allocate(len(data), validation, 0, seed, labels, copies)
        part = data.subset(kept)
        x = part.fixed(seed)
        return data.subset(train), x if part.labels is None else (x, part.labels)
    train, kept, _ = allocate(len(data), validation, 0, seed)
    chosen = ChosenOrderedData if isinstance(data, OrderedData) else ChosenData
    stream = torch.Generator(weight.device).manual_seed(seed)
    return chosen(data, train), data.batch(kept.to(weight.device), stream)


def datum_shape(vae: DiscreteVAE, data: TrainingData) -> torch.Size:
    """The shape of one datum, (*event)."""
    weight = next(vae.parameters())
    first = torch.zeros(1, dtype=torch.int64, device=weight.device)
    return served(data, first, torch.Generator(weight.device), weight.dtype)[0].shape[1:]
