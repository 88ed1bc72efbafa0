"""The event files that TensorBoard reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import fail

if TYPE_CHECKING:
    from pyro_dvae import EpochRecord


def require_tensorboard() -> None:
    """Refuse `--tensorboard` where the package is missing, before anything is made."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError:
        fail(
            "Expected the tensorboard package for --tensorboard; got none. Run "
            "pip install 'pyro-dvae[tensorboard]', or leave the option out."
        )


def event_log(folder: Path, first_epoch: int) -> Any:
    """The writer of a run's event files. It hides what was written before from `first_epoch` on."""
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder / "tensorboard"), purge_step=first_epoch)


def add_epoch(events: Any, record: EpochRecord) -> None:
    """Write the figures of an epoch."""
    values = {
        "ELBO/train": record.train_elbo,
        "ELBO/validation": record.validation_elbo,
        "log p(x)/validation": record.validation_log_marginal,
    }
    for latent, information in enumerate(record.validation_information or (), 1):
        values[f"information/z{latent}"] = information
    for name, value in values.items():
        if value is not None:
            events.add_scalar(name, value, record.epoch)
    events.flush()
