"""The epochs of a training in which the guide alone is trained, after those of the model."""

from __future__ import annotations

from dataclasses import replace

from pyro_dvae.semi_supervised import SemiSupervisedVAE
from pyro_dvae.training.records import EpochRecord, has_converged
from pyro_dvae.training.second_stage import GuideTrainer
from pyro_dvae.training.trainer import Trainer
from pyro_dvae.vae import DiscreteVAE


def has_guide_to_train(vae: DiscreteVAE) -> bool:
    """Whether the guide of a model can be trained alone: see `GuideTrainer`."""
    return not isinstance(vae, SemiSupervisedVAE) and any(
        weight.requires_grad for weight in vae.encoder.parameters()
    )


class GuideEpochs(GuideTrainer):
    """Trains the guide alone by the ELBO, in further epochs of a training that is over.

    It begins with the best weights of the model, and with the same batch size, learning rate,
    averaging and seed. Epochs and seconds go on from those of the model. An epoch is better only if
    its validation ELBO is above all before it, that of the model's best weights included. So the
    validation ELBO never falls.

    Args:
        first: the training of the model, which gets its best weights here. It takes no more steps.
    """

    def __init__(self, first: Trainer) -> None:
        first.keep_best()
        super().__init__(
            first.vae,
            first.data,
            first.validation,
            batch_size=first.batch_size,
            learning_rate=first.optimizer.param_groups[0]["lr"],
            averaging=first.average.decay,
            seed=first.seed,
        )
        self.epoch = self.model_epochs = first.epoch
        self.seconds, self.best = first.seconds, first.best
        self.best_weights = {name: value.clone() for name, value in first.best_weights.items()}
        self.restart_streams()

    def _end_epoch(self) -> EpochRecord:
        record = replace(super()._end_epoch(), of_guide=True)
        if record.is_best:
            self.best = record
        return record

    def _converged(self, patience: int | None) -> bool:
        best = 0 if self.best is None else self.best.epoch
        return has_converged(self.epoch, best, patience, self.model_epochs)
