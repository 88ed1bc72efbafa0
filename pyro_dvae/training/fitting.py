"""Training in one call."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

from pyro_dvae.training.batches import Batch, TrainingData
from pyro_dvae.training.records import EpochRecord
from pyro_dvae.training.trainer import Trainer
from pyro_dvae.vae import DiscreteVAE


def fit(
    vae: DiscreteVAE,
    elbo: Any,
    data: TrainingData | Batch,
    validation: Batch | None = None,
    *,
    epochs: int = 50,
    patience: int | None = None,
    max_seconds: float = math.inf,
    clock: Callable[[], float] = time.perf_counter,
    on_step: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Iterator[EpochRecord]:
    """Train from the start, and keep the best weights: a `Trainer`'s `run` and `keep_best`.

    When the iterator is exhausted, `vae` holds the weights of the best validation epoch (without
    validation data, of the last).

    Args:
        vae: see `Trainer`, as for `elbo`, `data` and `validation`.
        elbo: as above.
        data: as above.
        validation: as above.
        epochs: see `Trainer.run`, as for the next four.
        patience: as above.
        max_seconds: as above.
        clock: as above.
        on_step: as above.
        **options: what else a `Trainer` takes: `batch_size`, `learning_rate`, ..., `seed`.
    """
    trainer = Trainer(vae, elbo, data, validation, **options)
    yield from trainer.run(
        epochs, patience=patience, max_seconds=max_seconds, clock=clock, on_step=on_step
    )
    trainer.keep_best()
