"""Data of which few have a label: those with a label stand in an epoch several times."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_dvae.checks import labelled_share
from pyro_dvae.defaults import LABELLED_SHARE
from pyro_dvae.training.batches import Batch, DivisibleData, OrderedData, TensorData


class RepeatedLabels:
    """The N data, and r - 1 more copies of each of the L data that have a label.

    r is the least number for which r L >= share * (N - L + r L). If 100 of 50,000 data have a
    label, then most batches of 100 have none: the gradient of log q(y|x) of a `SemiSupervisedVAE`
    is zero in most steps, and very large in the others. With copies, each step has some labels.
    All terms of a datum with a label count r times.

    As `alpha` of the model, take a number such as 0.1 times `len(data) / data.num_labelled`.

    Args:
        data: `BinaryImages` or other data with labels (N,), negative where there is none; or a pair
            of tensors (x, labels). Keep the validation data apart before.
        share: the least share of the data of an epoch that have a label, in [0, 1); 0 makes no
            copies.

    Raises:
        ValueError: share is not in [0, 1); no datum has a label; or the data have an order of their
            own for an epoch, as `BlockData` have.
    """

    def __init__(
        self, data: DivisibleData | tuple[Tensor, Tensor], share: float = LABELLED_SHARE
    ) -> None:
        labelled_share(share)
        self.data = TensorData(*data) if isinstance(data, tuple) else data
        if isinstance(self.data, OrderedData):
            raise ValueError(
                "Expected data that are in memory, since copies of a datum must be far apart in an "
                f"epoch; got {type(data).__name__}. Leave this out, or use fewer data."
            )
        labels = self.data.labels
        known = torch.empty(0) if labels is None else (labels.cpu() >= 0).nonzero().flatten()
        if not len(known):
            raise ValueError(
                "Expected labels for some of the data; got none. Pass (x, labels), with -1 where "
                "there is no label."
            )
        without = len(self.data) - len(known)
        wanted = share * without / ((1 - share) * len(known))
        self.copies = max(1, math.ceil(wanted - 1e-9))  # 216.00000000000006 means 216
        self.num_labelled = self.copies * len(known)
        every = torch.arange(len(self.data), device="cpu")
        self._index = torch.cat([every, known.repeat(self.copies - 1)])

    def __repr__(self) -> str:
        without = len(self) - self.num_labelled
        return f"RepeatedLabels: {without} data without a label, {self.num_labelled} with one"

    def __len__(self) -> int:
        """N + (r - 1) L, the number of data in an epoch."""
        return len(self._index)

    def batch(self, index: Tensor, generator: torch.Generator) -> Batch:
        """The data of these indices, with labels; the random parts of each copy are its own."""
        self._index = self._index.to(index.device)
        return self.data.batch(self._index[index], generator)
