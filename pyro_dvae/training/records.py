"""The figures of an epoch of training."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EpochRecord:
    """One epoch of training, in nats per datum."""

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
    """Whether the validation ELBO is the best so far; without validation data always True."""
    seconds: float
    """The seconds spent in training steps so far, without validation."""
