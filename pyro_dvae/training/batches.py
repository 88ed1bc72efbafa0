"""The data that training draws batches from, and the checks before the first step."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeAlias, runtime_checkable

import pyro
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pyro_dvae.data.serve.divide import kept_together
from pyro_dvae.elbos.base import DiscreteELBO
from pyro_dvae.elbos.pathwise import PathwiseELBO
from pyro_dvae.networks.assembly import check_parts
from pyro_dvae.streams import RandomStream
from pyro_dvae.tensors import as_arguments
from pyro_dvae.vae import DiscreteVAE

Batch: TypeAlias = "Tensor | tuple[Tensor, Tensor]"
"""x (B, *event), or x and labels (B,) int64."""


@runtime_checkable
class TrainingData(Protocol):
    """Data that training draws batches from, such as `BinaryImages`.

    An epoch takes the data in random order, unless they are `OrderedData`.
    """

    def __len__(self) -> int:
        """The number of data."""

    def batch(self, index: Tensor, generator: torch.Generator) -> Batch:
        """The data of these indices: (B, *event), or a pair with labels (B,) int64.

        Args:
            index: (B,) int64.
            generator: the stream of random numbers for the random parts of the data.
        """


@runtime_checkable
class OrderedData(TrainingData, Protocol):
    """Training data with an order of their own for an epoch, such as `BlockData`."""

    def order(self, generator: torch.Generator) -> Tensor:
        """All indices in the order of an epoch, (N,) int64."""


@runtime_checkable
class DivisibleData(TrainingData, Protocol):
    """Training data that can be divided into parts, such as `BinaryImages`."""

    @property
    def labels(self) -> Tensor | None:
        """(N,) int64, or None."""

    def subset(self, index: Tensor) -> DivisibleData:
        """The data of these indices, (n,) int64."""

    def fixed(self, seed: int) -> Tensor:
        """(N, *event), without labels, with their random parts drawn once."""


class TensorData:
    """The rows of a tensor, with their labels if there are any."""

    def __init__(self, x: Tensor, labels: Tensor | None = None) -> None:
        self.x, self.labels = x, labels

    def __len__(self) -> int:
        """The number of data."""
        return len(self.x)

    def batch(self, index: Tensor, generator: torch.Generator) -> Batch:
        """The data of these indices, (B, *event), in a pair with their labels if there are any."""
        return self.x[index] if self.labels is None else (self.x[index], self.labels[index])

    def subset(self, index: Tensor) -> TensorData:
        """The rows of these indices, with their labels."""
        return TensorData(self.x[index], None if self.labels is None else self.labels[index])

    def fixed(self, seed: int) -> Tensor:
        """All rows, (N, *event); no part of them is random."""
        return self.x

    def groups_of_copies(self) -> Tensor | None:
        """(N,) int64, the groups of equal rows that are kept in one part; None for none."""
        return kept_together(self.x)


def arguments(batch: Batch) -> tuple[Tensor, ...]:
    """The arguments of model and guide: (x,) or (x, labels)."""
    return batch if isinstance(batch, tuple) else (batch,)


def training_data(vae: DiscreteVAE, data: Any) -> TrainingData:
    """The data to train on: `TrainingData` as they are, all other data as tensors.

    Args:
        vae: the model.
        data: `TrainingData`; or x, or a pair (x, labels), each of a type that `as_arguments` takes.
    """
    if isinstance(data, TrainingData) and callable(data.batch):  # a table may have such a column
        return data
    return TensorData(*as_arguments(vae, *_pair(data)))


def as_batch(vae: DiscreteVAE, data: Any) -> Batch:
    """Data x, or a pair (x, labels), of any type that `as_arguments` takes, as tensors."""
    x, labels = as_arguments(vae, *_pair(data))
    return x if labels is None else (x, labels)


def _pair(data: Any) -> tuple[Any, ...]:
    if not isinstance(data, tuple):
        return (data,)
    if len(data) != 2:
        raise ValueError(
            f"Expected data x, or a pair (x, labels); got a tuple of {len(data)}. Pass one of them."
        )
    return data


def served(
    data: TrainingData, index: Tensor, generator: torch.Generator, dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """The arguments of model and guide for these indices; real numbers get the model's dtype."""
    x, *labels = arguments(data.batch(index, generator))
    if not isinstance(x, Tensor):
        raise ValueError(
            "Expected a tensor, or a pair of tensors, from batch(index, generator) of the training "
            f"data; got {type(x).__name__} from {type(data).__name__}. Pass one tensor of all rows."
        )
    return (x.to(dtype) if x.is_floating_point() else x), *labels


def rows_told(elbo: Any, index: Tensor, data: TrainingData) -> AbstractContextManager[None]:
    """Inside, an ELBO that keeps codes knows the row numbers of a batch, (B,) int64."""
    keeps_codes = isinstance(elbo, DiscreteELBO) and elbo.keeps_codes
    return elbo.at_rows(index, len(data)) if keeps_codes else nullcontext()


def epoch_order(data: TrainingData, generator: torch.Generator, device: torch.device) -> Tensor:
    """All indices in the order of one epoch, (N,) int64.

    They are on the device, unless the data are `OrderedData`, which choose it.
    """
    if isinstance(data, OrderedData):
        return data.order(generator)
    return torch.randperm(len(data), generator=generator, device="cpu").to(device)


def show_likelihood(vae: DiscreteVAE, data: TrainingData, device: torch.device) -> None:
    """Let a likelihood that is not calibrated warn of that, by its `before_training`."""
    if vae.likelihood.is_calibrated():
        return
    index = torch.arange(min(2, len(data)), device=device)
    some = served(data, index, torch.Generator(device), next(vae.parameters()).dtype)[0]
    vae.likelihood.before_training(data.x if isinstance(data, TensorData) else some)


def check_weights(part: nn.Module, what: str) -> None:
    """Raise a ValueError unless a model, or a part of one, can be trained, and here."""
    weights = [weight for weight in part.parameters() if weight.requires_grad]
    if not weights:
        frozen = any(True for _ in part.parameters())
        raise ValueError(
            f"Expected {what} with weights to train; got {type(part).__name__}, "
            + (
                "whose weights are all frozen. Unfreeze some with requires_grad_()."
                if frozen
                else "which has none. Use one that has some."
            )
        )
    if torch.is_inference_mode_enabled() or any(weight.is_inference() for weight in weights):
        raise ValueError(
            "Expected a training outside of torch.inference_mode, in which nothing can be "
            f"differentiated; got one inside, or {what} that was built inside. Leave that mode, or "
            "use torch.no_grad in its place."
        )


def check_data(
    vae: DiscreteVAE, elbo: Any, data: TrainingData, validation: Batch | None, device: torch.device
) -> tuple[Tensor, ...]:
    """Check the data and the parts of the model, and run two rows with the checks of Pyro.

    Returns:
        The two rows, as model and guide take them.

    Raises:
        ValueError: the data are outside the support of the likelihood, or have another shape than
            the model expects; the parts do not fit one another; the decoder mixes the codes of a
            batch; the programs have a `pyro.param` that is no weight of the model; or the ELBO does
            not take discrete draws, or asks the guide for an argument that it does not have.
    """
    # A pathwise gradient goes through the statistics of a batch too.
    if not isinstance(elbo, PathwiseELBO):
        _refuse_mixed_codes(vae)
    index = torch.arange(min(2, len(data)), device=device)
    rows = served(data, index, torch.Generator(device), next(vae.parameters()).dtype)
    whole = (data.x, data.labels) if isinstance(data, TensorData) else rows
    for x, *labels in (whole, *([] if validation is None else [arguments(validation)])):
        vae.likelihood.check(x)
        for each in labels:
            if each is not None:
                vae.check_labels(each)
    check_parts(vae, *rows)
    with (
        RandomStream(0, device),
        pyro.validation_enabled(True),
        pyro.get_param_store().scope(),
        rows_told(elbo, index, data),
    ):
        try:
            elbo.loss(vae.model, vae.guide, *rows)
        except NotImplementedError as error:
            raise ValueError(
                f"Expected an ELBO that takes discrete draws; got {type(elbo).__name__}, whose "
                f"error is: {str(error).rstrip('.')}. Use Pyro's Trace_ELBO, or an ELBO of "
                "pyro_dvae."
            ) from error
        except TypeError as error:
            if "'observations'" not in str(error):
                raise
            raise ValueError(
                "Expected an ELBO without a sleep phase, since the guide takes no argument "
                f"`observations`; got {type(elbo).__name__}. Use insomnia=1.0, or WakeSleepELBO."
            ) from error
        except RuntimeError as error:
            if "does not require grad" not in str(error):
                raise
            raise ValueError(
                "Expected programs that run without gradients too, as an evaluation does; got a "
                "call of torch.autograd.grad that fails there. Put the call, and what it "
                "differentiates, inside `with torch.enable_grad():`."
            ) from error
        _refuse_other_params(vae, elbo)
    return rows


def _refuse_mixed_codes(vae: DiscreteVAE) -> None:
    """Refuse a decoder that computes statistics of a batch.

    Then log p(x|z) of a datum depends on the codes of the other data, and the score function of a
    code lacks its effect on the other data.
    """
    for name, layer in vae.decoder.named_modules():
        if isinstance(layer, _BatchNorm):
            raise ValueError(
                "Expected a decoder that treats each code by itself in training; got "
                f"{type(layer).__name__} at '{name}', which mixes the codes of a batch. Use "
                "GroupNorm or LayerNorm."
            )


def _refuse_other_params(vae: DiscreteVAE, elbo: Any) -> None:
    """Refuse parameters that are in Pyro's store alone, because no step would train them."""
    own = {
        id(weight)
        for module in (vae, elbo)
        if isinstance(module, nn.Module)
        for weight in module.parameters()
    }
    others = [
        name
        for name, weight in pyro.get_param_store().named_parameters()
        if weight.requires_grad and id(weight) not in own
    ]
    if others:
        raise ValueError(
            "Expected all that is trained to be parameters of the model; got "
            f"pyro.param '{others[0]}' in its programs alone. Make it an nn.Parameter or a "
            "PyroParam of the model, or train with SVI."
        )
