"""What training tells of an epoch."""

from __future__ import annotations

from dataclasses import dataclass


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
    validation_information: tuple[float, ...] | None
    """What each latent says of the validation data; `Evaluation.information_per_latent`."""
    is_best: bool
    """The best validation ELBO so far; without validation data, true at every epoch."""
    seconds: float
    """Spent in training steps so far, without validation."""
