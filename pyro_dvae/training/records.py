"""The figures of an epoch of training."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyro_dvae.displays import html_fields

if TYPE_CHECKING:
    from pyro_dvae.evaluation.figures import Evaluation


@dataclass(frozen=True)
class EpochRecord:
    """One epoch of training, in nats per datum.

    A notebook shows it as a table. `pandas.DataFrame(records)` is one table of many epochs.
    """

    epoch: int
    """The number of the epoch, from 1."""
    train_elbo: float
    """The mean of the training estimates of the ELBO in the epoch, while the weights changed."""
    validation_elbo: float | None
    """The ELBO of the validation data after the epoch, exact if `evaluate` is exact; or None."""
    validation_log_marginal: float | None
    """The exact log p(x) of the validation data if all K^D codes can be summed; else None."""
    validation_information: tuple[float, ...] | None
    """I(x; z_d) of each latent on the validation data; see `Evaluation.information_per_latent`."""
    is_best: bool
    """Whether the validation ELBO (of `MarginalELBO`: log p(x)) is the best so far; without
    validation data always True."""
    seconds: float
    """The seconds spent in training steps so far, without validation."""
    of_guide: bool = False
    """Whether it is one of the `guide_epochs`, in which the guide alone is trained, after those of
    the model."""

    def _repr_html_(self) -> str:
        """The figures as a table, for a notebook."""
        nats = ("train_elbo", "validation_elbo", "validation_log_marginal")
        units = dict.fromkeys((*nats, "validation_information"), "nats") | {"seconds": "s"}
        return html_fields(self, f"Epoch {self.epoch} of a training, per datum", units)

    @classmethod
    def of(
        cls,
        epoch: int,
        train_elbo: float,
        scores: Evaluation | None,
        best: EpochRecord | None,
        seconds: float,
        *,
        by_marginal: bool,
    ) -> EpochRecord:
        """The record of an epoch.

        Args:
            epoch: its number, from 1.
            train_elbo: the mean of the training estimates.
            scores: the figures of the validation data; None if there are none.
            best: the record of the best epoch so far; None before the first.
            seconds: the seconds in training steps so far.
            by_marginal: whether log p(x) decides which epoch is best, where it is known, as it is
                what `MarginalELBO` maximises; else the ELBO does.
        """
        if scores is None:
            return cls(epoch, train_elbo, None, None, None, True, seconds)
        figures = scores.elbo, scores.log_marginal, scores.information_per_latent
        record = cls(epoch, train_elbo, *figures, False, seconds)
        last = None if best is None else best._score(by_marginal)
        score = record._score(by_marginal)
        is_best = score is None or last is None or math.isnan(last) or score > last
        return replace(record, is_best=is_best)

    def _score(self, by_marginal: bool) -> float | None:
        return (self.validation_log_marginal if by_marginal else None) or self.validation_elbo


def has_converged(epoch: int, best: int, patience: int | None, annealing: int) -> bool:
    """Whether a training stops: after `patience` epochs that were not better, annealing aside.

    Args:
        epoch: the number of complete epochs.
        best: the best of them, from 1; 0 for none.
        patience: the number of epochs; None never stops.
        annealing: the number of epochs of annealing, in which the ELBO may fall for a while.
    """
    return patience is not None and epoch - max(best, annealing) >= patience
