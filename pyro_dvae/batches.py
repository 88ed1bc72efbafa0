"""What training draws its batches from, and the checks before its first step."""

from __future__ import annotations

from typing import Any, Protocol

import pyro
import torch
from torch import Tensor

from pyro_dvae.streams import RandomStream


class TrainingData(Protocol):
    """What training draws its batches from; `BinaryImages` is one.

    It may have a method `order(generator)`, which returns all indices in the order of an epoch,
    (N,) int64; else any order is as likely as another.
    """

    def __len__(self) -> int:
        """The number of data."""

    def batch(self, index: Tensor, generator: torch.Generator) -> Tensor:
        """The data of these indices, (B, *event), random parts drawn from the generator."""


class TensorData:
    """The rows of a tensor."""

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def __len__(self) -> int:
        """The number of data."""
        return len(self.x)

    def batch(self, index: Tensor, generator: torch.Generator) -> Tensor:
        """The data of these indices, (B, *event)."""
        return self.x[index]


def epoch_order(data: TrainingData, generator: torch.Generator, device: torch.device) -> Tensor:
    """All indices in the order of one epoch, (N,) int64, on the device unless the data say it."""
    order = getattr(data, "order", None)
    if order is not None:
        return order(generator)
    return torch.randperm(len(data), generator=generator).to(device)


def check_data(
    vae: Any, elbo: Any, data: TrainingData, validation: Tensor | None, device: torch.device
) -> None:
    """Check the range of the data, and run two rows with all of Pyro's checks on.

    Raises:
        ValueError: data outside the likelihood's support, or of another shape than the model's.
    """
    check = getattr(vae.likelihood, "check", None)
    rows = data.batch(torch.arange(min(2, len(data)), device=device), torch.Generator(device))
    if check is not None:
        check(data.x if isinstance(data, TensorData) else rows)
        if validation is not None:
            check(validation)
    with (
        RandomStream(0, device),
        pyro.validation_enabled(True),
        pyro.get_param_store().scope(),
    ):
        elbo.loss(vae.model, vae.guide, rows)
