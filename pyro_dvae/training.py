"""The training loop (Algorithm 1 of [JL25])."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import pyro
import torch
from torch import Tensor, nn

from pyro_dvae.averaging import WeightAverage
from pyro_dvae.checks import at_least, training_settings
from pyro_dvae.evaluation import evaluate
from pyro_dvae.streams import RandomStream


class TrainingData(Protocol):
    """What `fit` draws its batches from; `BinaryImages` is one."""

    def __len__(self) -> int:
        """The number of data."""

    def batch(self, index: Tensor, generator: torch.Generator) -> Tensor:
        """The data of these indices, (B, *event), random parts drawn from the generator."""


class _TensorData:
    def __init__(self, x: Tensor) -> None:
        self.x = x

    def __len__(self) -> int:
        return len(self.x)

    def batch(self, index: Tensor, generator: torch.Generator) -> Tensor:
        return self.x[index]


@dataclass(frozen=True)
class EpochRecord:
    """One epoch of training, in nats per datum."""

    epoch: int
    """From 1."""
    train_elbo: float
    """Mean of the ELBO's training estimates over the epoch's data, while the weights moved."""
    validation_elbo: float | None
    """ELBO of the validation data after the epoch (exact where `evaluate` is)."""
    validation_log_marginal: float | None
    """Exact log p(x) of the validation data, where K^D can be summed."""
    is_best: bool
    """The best validation ELBO so far; without validation data, true at every epoch."""
    seconds: float
    """Spent in training steps so far, without validation."""


def fit(
    vae: nn.Module,
    elbo: Any,
    data: TrainingData | Tensor,
    validation: Tensor | None = None,
    *,
    epochs: int = 50,
    batch_size: int = 100,
    learning_rate: float = 1e-3,
    averaging: float = 0.0,
    patience: int | None = None,
    max_seconds: float = math.inf,
    clock: Callable[[], float] = time.perf_counter,
    seed: int = 0,
    on_step: Callable[[int, int], None] | None = None,
) -> Iterator[EpochRecord]:
    """Ascend the ELBO by Adam on batches without replacement; yields one record an epoch.

    Each step follows the gradient of the mean loss per datum of its batch. All parameters of `vae`
    are trained, and those of an ELBO that learns a baseline or a control variate, whatever Pyro's
    parameter store holds: the store is left as it was. Whenever a record is yielded, `vae` holds
    the averaged weights that the record scores; when the iterator is exhausted, those of the best
    validation epoch (without validation data, of the last).

    Args:
        vae: a `DiscreteVAE`, on the device to train on.
        elbo: a `DiscreteELBO`, or one of Pyro's own.
        data: (N, *event) in the support of the likelihood, or `TrainingData`, on vae's device.
        validation: (M, *event), or None.
        epochs: the most epochs to train, at least 0.
        batch_size: B; the last batch of an epoch may be shorter.
        learning_rate: Adam's.
        averaging: decay of the `WeightAverage` that is validated and kept; 0 keeps the weights.
        patience: stop after so many epochs without a better validation ELBO (Algorithm 1's "until
            the validation ELBO has converged"); None never stops early.
        max_seconds: stop when so much time was spent in steps, within an epoch if need be.
        clock: the seconds' clock; `time.process_time` is fair on a machine that others share.
        seed: of the shuffling, the data's random parts and the draws of z, a stream each.
        on_step: called with (step, steps) of the epoch after each step.

    Raises:
        ValueError: an argument out of range, or data outside the likelihood's support.
        FloatingPointError: the loss became NaN or infinite; names the epoch.
    """
    data = _TensorData(data) if isinstance(data, Tensor) else data
    training_settings(epochs, batch_size, learning_rate, averaging, patience)
    at_least("training data", len(data), 1)
    if patience is not None and validation is None:
        raise ValueError(
            "Expected validation data for early stopping; got none. Pass validation, or "
            "patience=None."
        )
    device = next(vae.parameters()).device
    _check_data(vae, elbo, data, validation, device)
    weights = list(vae.parameters())
    if isinstance(elbo, nn.Module):
        weights += elbo.to(device).parameters()
    optimizer = torch.optim.Adam(weights, learning_rate, fused=device.type != "mps")
    average = WeightAverage(vae, averaging)
    shuffling = torch.Generator().manual_seed(seed)
    noise = torch.Generator(device).manual_seed(seed + 1)
    draws = RandomStream(seed + 2, device)

    def train_epoch(epoch: int, seconds_left: float) -> float:
        """One pass over the data; the mean training ELBO."""
        start, num_seen = clock(), 0
        total: Tensor = torch.zeros((), device=device)
        batches = torch.randperm(len(data), generator=shuffling).to(device).split(batch_size)
        for step, index in enumerate(batches, 1):
            try:
                loss = elbo.differentiable_loss(vae.model, vae.guide, data.batch(index, noise))
            except (RuntimeError, ValueError) as error:
                if all(weight.isfinite().all() for weight in vae.parameters()):
                    raise
                raise FloatingPointError(_not_finite(epoch)) from error
            optimizer.zero_grad()
            (loss / len(index)).backward()
            optimizer.step()
            average.update()
            total = total + loss.detach()
            num_seen += len(index)
            if on_step is not None:
                on_step(step, len(batches))
            if clock() - start > seconds_left:
                break
        # The one read from the device in an epoch.
        train_elbo = -total.item() / num_seen
        if not math.isfinite(train_elbo):
            raise FloatingPointError(_not_finite(epoch))
        return train_elbo

    best, best_weights, epochs_since_best, seconds = -math.inf, None, 0, 0.0
    for epoch in range(1, epochs + 1):
        vae.train()
        start = clock()
        # Pyro's checks read from the device at every step; the trial run has made them.
        with draws, pyro.validation_enabled(False), pyro.get_param_store().scope():
            train_elbo = train_epoch(epoch, max_seconds - seconds)
        seconds += clock() - start
        vae.eval()
        with average.in_place():
            scores = None if validation is None else evaluate(vae, validation)
            score = train_elbo if scores is None else scores.elbo
            is_best = scores is None or score > best
            if is_best:
                best, epochs_since_best = score, 0
                best_weights = {k: v.detach().clone() for k, v in vae.state_dict().items()}
            else:
                epochs_since_best += 1
            yield EpochRecord(
                epoch,
                train_elbo,
                None if scores is None else scores.elbo,
                None if scores is None else scores.log_marginal,
                is_best,
                seconds,
            )
        converged = patience is not None and epochs_since_best >= patience
        if converged or seconds > max_seconds:
            break
    if best_weights is not None:
        vae.load_state_dict(best_weights)


def _not_finite(epoch: int) -> str:
    return (
        f"Expected a finite loss; got NaN or infinity in epoch {epoch}. Lower the learning rate, "
        "or look at the data's range."
    )


def _check_data(
    vae: Any, elbo: Any, data: TrainingData, validation: Tensor | None, device: torch.device
) -> None:
    """Check the range of the data, and run two rows with all of Pyro's checks on."""
    check = getattr(vae.likelihood, "check", None)
    rows = data.batch(torch.arange(min(2, len(data)), device=device), torch.Generator(device))
    if check is not None:
        check(data.x if isinstance(data, _TensorData) else rows)
        if validation is not None:
            check(validation)
    with (
        RandomStream(0, device),
        pyro.validation_enabled(True),
        pyro.get_param_store().scope(),
    ):
        elbo.loss(vae.model, vae.guide, rows)
