"""Training in one call."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

import torch

from pyro_dvae.codes import MAX_CODES, num_codes
from pyro_dvae.defaults import VALIDATION_SHARE, TrainingSettings
from pyro_dvae.elbos.base import DiscreteELBO
from pyro_dvae.elbos.exact import MarginalELBO
from pyro_dvae.elbos.reinmax import ReinMaxELBO
from pyro_dvae.elbos.score_function import RlooELBO
from pyro_dvae.elbos.snapshot import SnapshotELBO
from pyro_dvae.guides import MeanFieldGuide
from pyro_dvae.networks.convolution import ConvEncoder
from pyro_dvae.priors import LearnedPrior, UniformPrior
from pyro_dvae.processes import rank
from pyro_dvae.recipe import guide_recipe, training_recipe
from pyro_dvae.training.batches import Batch, TrainingData, arguments, training_data
from pyro_dvae.training.guide_epochs import GuideEpochs, has_guide_to_train
from pyro_dvae.training.held_out import datum_shape, hold_out
from pyro_dvae.training.mixture_start import resolve_start, start_from_mixture
from pyro_dvae.training.progress import epochs_of
from pyro_dvae.training.records import EpochRecord
from pyro_dvae.training.second_stage import check_guide
from pyro_dvae.training.trainer import Trainer
from pyro_dvae.vae import DiscreteVAE

_CALIBRATING = 5_000
"""The most training data that a likelihood is calibrated by."""


def fit(
    vae: DiscreteVAE,
    elbo: Any,
    data: TrainingData | Batch,
    validation: Batch | float | None = VALIDATION_SHARE,
    *,
    epochs: int | None = None,
    guide_epochs: int | None = None,
    patience: int | Literal["auto"] | None = "auto",
    batch_size: int = TrainingSettings.batch_size,
    learning_rate: float | None = None,
    averaging: float | None = None,
    annealing: int | None = TrainingSettings.annealing,
    initial_beta: float = TrainingSettings.initial_beta,
    warmup: int | None = None,
    cooldown: int | None = None,
    reinmax_steps: int | None = None,
    start: str | None = TrainingSettings.start,
    seed: int = TrainingSettings.seed,
    split_seed: int = TrainingSettings.split_seed,
    compiled: bool | None = TrainingSettings.compile,
    capture: bool = False,
    bfloat16: bool = TrainingSettings.bfloat16,
    max_seconds: float = math.inf,
    clock: Callable[[], float] = time.perf_counter,
    on_step: Callable[[int, int], None] | None = None,
    progress: bool = False,
) -> Iterator[EpochRecord]:
    """Train from the start, and keep the best weights, as the command line does with a model.

    It keeps some of the data apart for validation, calibrates the likelihood if nobody has, and
    runs a `Trainer`, with the defaults of the command line: `training_recipe` decides those that
    depend on the number of data. The same seed gives the same weights:

        config = Config()
        vae = build_vae(config, (28, 28))
        images = BinaryImages(load_images("mnist").train)
        for record in fit(vae, RlooELBO(num_particles=4), images, epochs=50):
            print(record)

    When the iterator is exhausted, `vae` holds the weights of the epoch with the best validation
    ELBO, or of the last epoch if there is no validation.

    In a process group of `torch.distributed`, each process calls it with the same arguments. They
    train one model, of which each takes its part of every batch.

    Args:
        vae: a `DiscreteVAE`, on the device to train on.
        elbo: a `DiscreteELBO`, or one of Pyro's own for discrete draws, such as `Trace_ELBO`,
            `TraceGraph_ELBO`, `RenyiELBO` and `ReweightedWakeSleep` (with `insomnia=1.0`).
        data: (N, *event) in the support of the likelihood: a tensor of any type, an array or a
            table; or a pair (x, labels (N,)) where the prior is conditional on labels; or
            `TrainingData`, such as `BinaryImages`, which serves batches on vae's device.
        validation: the share (below 1) of the data, or their number, that is kept apart for
            validation, evenly among the classes where there are labels; or other data (M, *event),
            or a pair (x, labels (M,)); None or 0 for no validation. The share that is the default
            keeps at least 200 data points or a fifth, and at most 10,000 or 64 MiB. Rows that are
            equal to one another come into one part, as in `make_splits`; but not where bits have
            been drawn once already. `TrainingData` of your own need `groups_of_copies` for that.
        epochs: the most epochs to train; None for 50, or as many as make 5,000 steps.
        guide_epochs: the most further epochs in which the guide alone is trained by the ELBO, from
            the best weights on, with all else fixed; see `GuideTrainer`. None for a fifth of
            `epochs` where the ELBO is a `MarginalELBO` and data and codes are few, else 0.
        patience: stop after this many epochs without a better validation ELBO, those of annealing
            aside; None never stops early. "auto" means None where the learning rate falls at the
            end, else 10, or as many as make 1,500 steps. It plays no part without validation.
        batch_size: B, the number of data points per step.
        learning_rate: the learning rate of Adam; None for 0.001, or 0.003 for few data, of at most
            two million values, or 0.002 for more data and a `SnapshotELBO` or a grid; see
            `reinmax_steps`.
        averaging: the decay of the average of the weights, which is what is validated and kept; 0
            keeps the weights themselves. None averages over about two epochs, and over 100 to
            1,000 steps: the decay is 0.99 to 0.999.
        annealing: the number of epochs over which beta, the weight of the KL term, falls linearly
            from `initial_beta` to that of the ELBO. None means 10 epochs, or as many as make 400
            steps, but at most a fifth of `epochs`, and 0 where the ELBO has no beta, and for a
            grid; 0 does not anneal.
        initial_beta: the beta of the first step, where it is annealed.
        warmup: the number of epochs over which the learning rate grows linearly from 0 to its
            value. A guide that commits to codes in the first, large steps of Adam stays with them.
            None for 0. With many data: for a `ReinMaxELBO` as many as make 500 steps, but at most a
            fifth of `epochs`; for a `SnapshotELBO` the same, but at most a fiftieth; for a grid as
            many as `reinmax_steps` last; in all three at least 1.
        cooldown: the number of the last of `epochs` over which the learning rate falls linearly to
            0, which takes the noise of the steps out of the weights. A training that stops early
            may not come to it. None for 0; for many data and a `SnapshotELBO` half of `epochs`, if
            there are at least 20,000 steps and `patience` is no number.
        reinmax_steps: the number of first steps by ReinMax; see `Trainer`. None for 0; for many
            data and a grid 300, but at most a quarter of all. A grid is a `ConvEncoder(grid=True)`
            with more codes than can be summed and a `RlooELBO`, a mean-field guide and a uniform or
            learned prior.
        start: "random" keeps the weights of vae as they are; "mixture" starts from a mixture that
            EM fits to the training data, see `start_from_mixture`. None takes a mixture where vae
            has one latent and the ELBO is a `MarginalELBO`, if there are fewer than 5 training
            data per category and the parts of vae allow it.
        seed: the seed of everything that is drawn, but for the validation data.
        split_seed: the seed of the choice of the validation data, and of the one draw of their
            random parts. Trainings with other seeds have it in common, so that they compare.
        compiled: whether one graph computes the gradient of full batches; see `Trainer`. None
            compiles on the CPU, where that is possible and at least 20,000 steps are to come.
        capture: on a CUDA device, replay the whole step as one CUDA graph; see `Trainer`.
        bfloat16: let the encoder and the decoder compute in bfloat16 in training steps.
        max_seconds: stop when the steps have taken this many seconds, within an epoch if need be.
        clock: the clock of these seconds; `time.process_time` is fair on a machine that others
            share.
        on_step: called with (step, steps) of the epoch after each step.
        progress: show how far the training is, by a bar on a terminal or in a notebook, and by one
            line per epoch elsewhere.

    Raises:
        ValueError: see `Trainer`; or the data are too few to keep some apart.
        FloatingPointError: see `Trainer.run`.
    """
    train, held_out = hold_out(vae, training_data(vae, data), validation, split_seed)
    calibrate(vae, train, seed)
    if guide_epochs:
        check_guide(vae)
    anneals = isinstance(elbo, DiscreteELBO) and elbo.has_beta
    num_elements = math.prod(datum_shape(vae, train))
    if resolve_start(vae, elbo, (len(train), num_elements), start) == "mixture":
        start_from_mixture(vae, train, seed)
    recipe = training_recipe(
        len(train),
        num_elements,
        batch_size,
        anneals=anneals,
        by_snapshot=isinstance(elbo, SnapshotELBO),
        by_reinmax=isinstance(elbo, ReinMaxELBO),
        by_grid=_is_grid(vae, elbo),
        epochs=epochs,
        patience=patience,
        cooldown=cooldown,
    )
    epochs = recipe["epochs"]
    if guide_epochs is None:
        guide_epochs = _guide_epochs(vae, elbo, (len(train), num_elements), epochs)
    trainer = Trainer(
        vae,
        elbo,
        train,
        held_out,
        batch_size=batch_size,
        learning_rate=recipe["learning_rate"] if learning_rate is None else learning_rate,
        averaging=recipe["averaging"] if averaging is None else averaging,
        annealing=recipe["annealing"] if annealing is None else annealing,
        initial_beta=initial_beta,
        warmup=recipe["warmup"] if warmup is None else warmup,
        cooldown=recipe["cooldown"],
        reinmax_steps=recipe["reinmax_steps"] if reinmax_steps is None else reinmax_steps,
        seed=seed,
        compiled=compiled,
        capture=capture,
        bfloat16=bfloat16,
    )
    if compiled is None:
        trainer.compile_if_long(epochs)
    if patience == "auto":
        patience = None if held_out is None else recipe["patience"]
    run = partial(
        epochs_of,
        progress=progress,
        on_step=on_step,
        patience=patience,
        max_seconds=max_seconds,
        clock=clock,
    )
    yield from run(trainer, epochs)
    trainer.keep_best()
    if guide_epochs:
        guide = GuideEpochs(trainer)
        if progress and rank() == 0:
            print("training the guide alone by the ELBO, all else fixed", flush=True)
        yield from run(guide, guide.epoch + guide_epochs, value="ELBO")
        guide.keep_best()


def _is_grid(vae: DiscreteVAE, elbo: Any) -> bool:
    """Whether RLOO trains a model whose latents share their categories, as in a run's recipe."""
    encoder = vae.encoder
    return (
        isinstance(encoder, ConvEncoder)
        and encoder.grid
        and num_codes(*encoder.code_shape) > MAX_CODES
        and type(elbo) is RlooELBO
        and type(vae.posterior_family) is MeanFieldGuide
        and type(vae.prior) in (UniformPrior, LearnedPrior)
        and not vae.observes_labels
    )


def _guide_epochs(vae: DiscreteVAE, elbo: Any, size: tuple[int, int], epochs: int) -> int:
    """The epochs of the guide that the size (N, P) of the data decides."""
    if not isinstance(elbo, MarginalELBO) or not has_guide_to_train(vae):
        return 0
    labels = torch.zeros(1, dtype=torch.int64, device=next(vae.parameters()).device)
    with torch.no_grad():
        shape = vae.prior_codes(labels if vae.takes_labels else None).event_shape
    return guide_recipe(*size, num_codes(*shape), epochs, by_marginal=True)


def calibrate(vae: DiscreteVAE, data: TrainingData, seed: int) -> None:
    """Show some of the training data to a likelihood that is not calibrated yet.

    Args:
        vae: the model.
        data: to train on.
        seed: decides which of the data, where there are more than 5,000.
    """
    if vae.likelihood.is_calibrated():
        return
    device = next(vae.parameters()).device
    shuffle, noise = (torch.Generator(where).manual_seed(seed) for where in ("cpu", device))
    order = torch.randperm(len(data), generator=shuffle, device="cpu")
    index = order[:_CALIBRATING].sort().values.to(device)
    vae.likelihood.calibrate(arguments(data.batch(index, noise))[0])
