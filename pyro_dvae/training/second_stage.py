"""The second stage of training: fit the prior, or the guide, of a trained model alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from pyro_dvae.defaults import VALIDATION_SHARE, TrainingSettings
from pyro_dvae.elbos.score_function import ReinforceELBO
from pyro_dvae.semi_supervised import SemiSupervisedVAE
from pyro_dvae.training.batches import (
    Batch,
    TrainingData,
    check_weights,
    served,
    training_data,
)
from pyro_dvae.training.fixed_model import guide_objective
from pyro_dvae.training.held_out import hold_out
from pyro_dvae.training.progress import epochs_of
from pyro_dvae.training.records import EpochRecord
from pyro_dvae.training.trainer import Trainer
from pyro_dvae.vae import DiscreteVAE


def with_prior(vae: DiscreteVAE, prior: nn.Module) -> DiscreteVAE:
    """A model with another prior, which shares networks, likelihood and guide with the first.

    For a `SemiSupervisedVAE` it is another p(y) p(z|y) of the class y and the other latents z.

    Raises:
        ValueError: the codes of the prior have another shape.
    """
    parts = vae.encoder, vae.decoder, prior, vae.likelihood, vae.posterior_family
    has_classes = isinstance(vae, SemiSupervisedVAE)
    swapped = SemiSupervisedVAE(*parts, alpha=vae.alpha) if has_classes else DiscreteVAE(*parts)
    swapped.train(vae.training)
    if not (vae.takes_labels or swapped.takes_labels):
        with torch.no_grad():
            its_own, other = (tuple(model.prior_codes().event_shape) for model in (vae, swapped))
        if its_own != other:
            raise ValueError(
                f"Expected a prior over codes of shape (D, K) = {its_own}; got {other}. Build it "
                "for the model's codes."
            )
    return swapped


class SecondStageTrainer(Trainer):
    """A `Trainer` that trains some parts of a trained model, and leaves the others as they are.

    Nothing is annealed unless `annealing` says so.
    """

    _fixed: tuple[nn.Module, ...]
    """The parts that stay fixed. They run in eval mode, without gradients."""

    @contextmanager
    def _stepping(self) -> Iterator[None]:
        """Freeze the fixed parts within steps, and unfreeze them afterwards."""
        weights = [weight for part in self._fixed for weight in part.parameters()]
        asked = [weight.requires_grad for weight in weights]
        with super()._stepping():
            for part in self._fixed:
                part.eval()  # no dropout, no statistics of batches
            for weight in weights:
                weight.requires_grad_(False)
            try:
                yield
            finally:
                for weight, flag in zip(weights, asked, strict=True):
                    weight.requires_grad_(flag)


class PriorTrainer(SecondStageTrainer):
    """Maximises the mean over the data of E_q(z|x) log p(z) in the prior; all else stays fixed.

    With q and p(x|z) fixed this is the ELBO up to a constant. So the records hold ELBOs, and the
    best weights are those of the best validation ELBO. Each step draws new z from q(z|x). The
    optimum is the prior of the family that is nearest, in KL, to the mean over the data of q(z|x),
    the aggregate posterior (Tomczak & Welling 2018). In a `SemiSupervisedVAE` the first latent is
    the label of a datum where that is known, and is drawn from q(y|x) where it is not.

    Args:
        vae: a trained model that holds the prior to fit; `with_prior` puts one in.
        data: the data that the model was trained on, as `Trainer` takes them.
        validation: other data (M, *event), or a pair (x, labels (M,)); None for no validation.
        **options: further arguments of `Trainer`, such as `batch_size` or `seed`. Nothing is
            annealed unless `annealing` says so.

    Raises:
        ValueError: see `Trainer`; or the prior has no weights.
    """

    def __init__(
        self,
        vae: DiscreteVAE,
        data: TrainingData | Batch,
        validation: Batch | None = None,
        **options: Any,
    ) -> None:
        if not list(vae.prior.parameters()):
            raise ValueError(
                f"Expected a prior with weights to fit; got {type(vae.prior).__name__}, which has "
                'none. Use AutoregressivePrior, prior="autoregressive", for example.'
            )
        check_weights(vae.prior, "a prior")
        self._fixed = (vae.encoder, vae.decoder, vae.likelihood, vae.posterior_family)
        elbo = ReinforceELBO(max_plate_nesting=1)
        super().__init__(vae, elbo, data, validation, **{"annealing": 0, **options})


class GuideTrainer(SecondStageTrainer):
    """Maximises the ELBO in the guide q(z|x) alone; decoder, likelihood and prior stay fixed.

    log p(x) does not change, so that the ELBO grows by as much as the mean over the data of
    KL(q(z|x) || p(z|x)) falls. Where all K^D codes can be summed, the gradient is exact
    (`FixedModelELBO`), and all codes are decoded only once. A step then costs about as much as one
    of RLOO with few particles. Elsewhere the gradient is that of `RlooELBO` with 8 particles.

    Args:
        vae: a trained model. Its encoder and the weights of its guide are trained.
        data: the data that the model was trained on, as `Trainer` takes them.
        validation: other data (M, *event), or a pair (x, labels (M,)); None for no validation.
        **options: further arguments of `Trainer`, such as `batch_size` or `seed`. Nothing is
            annealed unless `annealing` says so.

    Raises:
        ValueError: see `Trainer`; or the model has classes of partly labelled data.
    """

    def __init__(
        self,
        vae: DiscreteVAE,
        data: TrainingData | Batch,
        validation: Batch | None = None,
        **options: Any,
    ) -> None:
        check_guide(vae)
        self._fixed = (vae.decoder, vae.likelihood, vae.prior)
        data = training_data(vae, data)
        weight = next(vae.parameters())
        index = torch.arange(min(2, len(data)), device=weight.device)
        rows = served(data, index, torch.Generator(weight.device), weight.dtype)
        elbo = guide_objective(vae, rows[0], options.get("batch_size", TrainingSettings.batch_size))
        super().__init__(vae, elbo, data, validation, **{"annealing": 0, **options})


def check_guide(vae: DiscreteVAE) -> None:
    """Refuse a model whose guide cannot be trained alone.

    Raises:
        ValueError: it has classes of partly labelled data, or all weights of its encoder are frozen
            or it has none.
    """
    if isinstance(vae, SemiSupervisedVAE):
        raise ValueError(
            "Expected a model without classes, whose guide is trained by the ELBO alone; got "
            "a SemiSupervisedVAE. Train its guide together with its model, for more epochs."
        )
    check_weights(vae.encoder, "an encoder")


def fit_guide(
    vae: DiscreteVAE,
    data: TrainingData | Batch,
    validation: Batch | float | None = VALIDATION_SHARE,
    *,
    epochs: int = TrainingSettings.epochs,
    patience: int | None = TrainingSettings.patience,
    seed: int = TrainingSettings.seed,
    split_seed: int = TrainingSettings.split_seed,
    progress: bool = False,
    **options: Any,
) -> Iterator[EpochRecord]:
    """Train the guide of a trained model further, with all else fixed, and keep the best weights.

        for record in fit_guide(trained, x, epochs=10):
            print(record)

    When the iterator is exhausted, encoder and guide have the weights of the epoch with the best
    validation ELBO, or of the last epoch if there is no validation. See `GuideTrainer`.

    Args:
        vae: a trained model, whose encoder is changed.
        data: the data that the model was trained on, as `fit` takes them.
        validation: as for `fit_prior`.
        epochs: the most epochs to train.
        patience: stop after this many epochs without a better validation ELBO; None never stops
            early. It is not used without validation.
        seed: the seed of everything that is drawn, but for the validation data.
        split_seed: the seed of the choice of the validation data, as for `fit`.
        progress: show how far the training is, as `fit` does.
        **options: further arguments of `Trainer`, such as `batch_size` or `learning_rate`.

    Raises:
        ValueError: see `GuideTrainer`; or the data are too few to keep some apart.
    """
    trainer = GuideTrainer(vae, *_divided(vae, data, validation, split_seed), seed=seed, **options)
    yield from _run(trainer, epochs, patience, progress)


def fit_prior(
    vae: DiscreteVAE,
    data: TrainingData | Batch,
    validation: Batch | float | None = VALIDATION_SHARE,
    *,
    epochs: int = TrainingSettings.epochs,
    patience: int | None = TrainingSettings.patience,
    seed: int = TrainingSettings.seed,
    split_seed: int = TrainingSettings.split_seed,
    progress: bool = False,
    **options: Any,
) -> Iterator[EpochRecord]:
    """Fit the prior of a trained model to its codes, and keep the best weights.

        vae = with_prior(trained, AutoregressivePrior(num_latents=4, num_categories=8))
        for record in fit_prior(vae, x):
            print(record)

    When the iterator is exhausted, the prior has the weights of the epoch with the best validation
    ELBO, or of the last epoch if there is no validation. Nothing else of the model has changed.

    Args:
        vae: a trained model that holds the prior to fit.
        data: the data that the model was trained on, as `fit` takes them.
        validation: the share (below 1) of the data, or their number, that is kept apart for
            validation, which are those of `fit` with the same split_seed; or other data
            (M, *event), or a pair (x, labels (M,)); None or 0 for no validation.
        epochs: the most epochs to train.
        patience: stop after this many epochs without a better validation ELBO; None never stops
            early. It is not used without validation.
        seed: the seed of everything that is drawn, but for the validation data.
        split_seed: the seed of the choice of the validation data, as for `fit`.
        progress: show how far the training is, as `fit` does.
        **options: further arguments of `Trainer`, such as `batch_size` or `learning_rate`.

    Raises:
        ValueError: see `PriorTrainer`; or the data are too few to keep some apart.
    """
    trainer = PriorTrainer(vae, *_divided(vae, data, validation, split_seed), seed=seed, **options)
    yield from _run(trainer, epochs, patience, progress)


def _divided(
    vae: DiscreteVAE, data: TrainingData | Batch, validation: Batch | float | None, split_seed: int
) -> tuple[TrainingData, Batch | None]:
    """The training data, and those for validation."""
    return hold_out(vae, training_data(vae, data), validation, split_seed)


def _run(
    trainer: SecondStageTrainer, epochs: int, patience: int | None, progress: bool
) -> Iterator[EpochRecord]:
    if trainer.validation is None and patience == TrainingSettings.patience:
        patience = None
    yield from epochs_of(trainer, epochs, progress=progress, value="ELBO", patience=patience)
    trainer.keep_best()
