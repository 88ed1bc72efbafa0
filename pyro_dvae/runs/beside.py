"""Simple models beside the figures of a run, fitted to its training rows once."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from pyro_dvae.data import Splits
from pyro_dvae.evaluation import Evaluation, simple_models
from pyro_dvae.evaluation.simple import MAX_TRAINING_DATA
from pyro_dvae.runs.config import Config
from pyro_dvae.vae import DiscreteVAE


def training_data(splits: Splits, seed: int) -> Tensor:
    """The training data of a run as its model takes them, at most 10,000 of a random order.

    Args:
        splits: the run's data.
        seed: of the order, and of bits that are drawn.
    """
    generator = torch.Generator().manual_seed(seed)
    index = torch.randperm(len(splits.train), generator=generator)[:MAX_TRAINING_DATA]
    batch = splits.train.batch(index.sort().values, generator)
    return batch[0] if isinstance(batch, tuple) else batch


def with_simple_models(
    scores: Evaluation,
    vae: DiscreteVAE,
    config: Config,
    splits: Splits,
    batch: tuple[Tensor, Tensor | None],
    known: Evaluation | None = None,
) -> Evaluation:
    """The same figures, with those of simple models of the run's data; see `simple_models`.

    Args:
        scores: the figures of a part of the run's data.
        vae: the run's model.
        config: its settings.
        splits: its data.
        batch: the part, (N, *event_shape), and labels (N,) or None, as `model_batch` gave them.
        known: figures of the same part from before, of which those of simple models are taken; or
            None to fit them.
    """
    x, labels = batch
    before = None if known is None or known.num_data != len(x) else known.simple_models
    train = x[:1] if before is not None else training_data(splits, config.seed).to(x)
    simple = simple_models(vae, train, x, labels, known=before, seed=config.seed)
    return replace(scores, simple_models=simple)
