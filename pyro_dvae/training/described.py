"""What `repr` of a trainer says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from pyro_dvae.displays import named, num_parameters, one_line, shape_of
from pyro_dvae.training.batches import arguments

if TYPE_CHECKING:
    from pyro_dvae.training.trainer import Trainer


def description(trainer: Trainer) -> str:
    """How far a trainer is, and its model, ELBO, data, settings and best epoch."""
    elbo = one_line(trainer.elbo) if isinstance(trainer.elbo, nn.Module) else repr(trainer.elbo)
    held_out = "none" if trainer.validation is None else shape_of(arguments(trainer.validation)[0])
    best = "none yet"
    if trainer.best is not None:
        best = f"epoch {trainer.best.epoch}"
        if trainer.best.validation_elbo is not None:
            best += f", validation ELBO {trainer.best.validation_elbo:.3f} nats per datum"
    settings = named(
        batch_size=trainer.batch_size,
        learning_rate=trainer.optimizer.param_groups[0]["lr"],
        averaging=trainer.average.decay,
        annealing=trainer.annealing,
        warmup=trainer.warmup,
        cooldown=trainer.cooldown,
        reinmax_steps=trainer.reinmax_steps,
        seed=trainer.seed,
    )
    return (
        f"{type(trainer).__name__} after {trainer.epoch} epochs, at step {trainer.step} of "
        f"{trainer.steps}"
        f"\n  model: {type(trainer.vae).__name__}, {num_parameters(trainer.vae)}, on "
        f"{trainer.device}"
        f"\n  elbo: {elbo}"
        f"\n  data: {len(trainer.data)}; validation: {held_out}"
        f"\n  {settings}"
        f"\n  best: {best}"
    )
