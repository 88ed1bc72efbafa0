"""The training data of a run with classes, and the unit of its `alpha`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pyro_dvae.data import Splits
from pyro_dvae.runs.config import Config
from pyro_dvae.training.batches import OrderedData
from pyro_dvae.training.labelled import RepeatedLabels


def with_copies(config: Config, train: Any) -> Any:
    """The training data, where data that have a label stand several times if that was asked for.

    Args:
        config: the settings of a run with classes.
        train: its training data.
    """
    # Copies of data that are read in blocks would be far from the block that is in memory.
    if not config.labelled_share or train.labels is None or isinstance(train, OrderedData):
        return train
    return RepeatedLabels(train, config.labelled_share)


def data_per_label(train: Any) -> float:
    """N / L, where L of N training data have a label; 1 where there are no labels.

    The setting `alpha` times this is the weight of log q(y|x) per labelled datum, which is the
    `alpha` of a `SemiSupervisedVAE`.

    Args:
        train: what `with_copies` returned.
    """
    if isinstance(train, RepeatedLabels):
        return len(train) / train.num_labelled
    labels: Tensor | None = train.labels
    return 1.0 if labels is None else len(train) / int((labels >= 0).sum())


def relative_alpha(config: Config, splits: Splits) -> tuple[float | None, float | None]:
    """The setting `alpha` that stands for the weight of a model, and N / L; None without classes.

    Args:
        config: the settings, whose `alpha` is the weight per labelled datum.
        splits: the data.
    """
    if config.alpha is None:
        return None, None
    per_label = data_per_label(with_copies(config, splits.train))
    return config.alpha / per_label, per_label
