"""`pdvae fit-prior`, `pdvae fit-guide`: train one part of a trained run further, as a new run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .errors import user_errors
from .fit import trackers_of
from .fit_options import TrackOption
from .options import (
    DEFAULTS,
    BatchSizeOption,
    Device,
    DeviceOption,
    EpochsOption,
    LearningRateOption,
    PatienceOption,
    PriorOption,
    RunArgument,
    RunDataDirOption,
    RunSeedOption,
    TrustOption,
)
from .rows import open_run
from .train import train

if TYPE_CHECKING:
    from pyro_dvae import Run
    from pyro_dvae.runs import RunTrainer


GUIDE_EPOCHS = 10
"""With the model fixed, the guide needs few epochs."""


def fit_prior(
    run: RunArgument = None,
    run_dir: Annotated[
        Path | None,
        typer.Argument(
            help="The new folder for the new run. If left out: a folder beside that of the run, "
            "whose name ends in the prior and a number."
        ),
    ] = None,
    prior: PriorOption = "autoregressive",
    epochs: EpochsOption = DEFAULTS.epochs,
    patience: PatienceOption = DEFAULTS.patience or 0,
    batch_size: BatchSizeOption = DEFAULTS.batch_size,
    learning_rate: LearningRateOption = DEFAULTS.learning_rate,
    data_dir: RunDataDirOption = None,
    track: TrackOption = None,
    seed: RunSeedOption = None,
    device: DeviceOption = Device.auto,
    trust_code: TrustOption = False,
) -> None:
    """Fit a prior to the codes of a trained run, as a new run.

    The encoder, the decoder, the likelihood and the guide of the new run are those of the trained
    run, which does not change.

    Example: pdvae fit-prior runs/mnist-d4k8-snapshot-1 --prior autoregressive
    """
    trackers = trackers_of(track, False)
    with user_errors():
        from pyro_dvae.runs import start_prior

        loaded, target = open_run(run, device, trust_code)
        training = start_prior(
            loaded,
            prior,
            run_dir,
            data_dir=data_dir,
            seed=seed,
            epochs=epochs,
            patience=patience or None,
            batch_size=batch_size,
            learning_rate=learning_rate,
        )
        before = _test_elbo(loaded, training)
    old = loaded.config.prior
    scores = train(
        training,
        f"{training.folder}: prior {prior} for the codes of {loaded.folder}, whose prior is {old}, "
        f"{_counts(training)}, {target}",
        trackers=trackers,
    )
    if before is not None and scores is not None:
        print(f"test ELBO {before:.2f} with prior {old}, {scores.elbo:.2f} with {prior}")


def fit_guide(
    run: RunArgument = None,
    run_dir: Annotated[
        Path | None,
        typer.Argument(
            help="The new folder for the new run. If left out: a folder beside that of the run, "
            "whose name ends in guide and a number."
        ),
    ] = None,
    epochs: EpochsOption = GUIDE_EPOCHS,
    patience: PatienceOption = DEFAULTS.patience or 0,
    batch_size: BatchSizeOption = DEFAULTS.batch_size,
    learning_rate: LearningRateOption = DEFAULTS.learning_rate,
    data_dir: RunDataDirOption = None,
    track: TrackOption = None,
    seed: RunSeedOption = None,
    device: DeviceOption = Device.auto,
    trust_code: TrustOption = False,
) -> None:
    """Train the encoder of a trained run further, as a new run.

    The decoder, the likelihood and the prior stay those of the trained run. So log p(x) stays as it
    is, and the ELBO comes nearer to it. Where all codes can be summed, the gradient is exact. The
    trained run does not change.

    Example: pdvae fit-guide runs/mnist-d4k8-snapshot-1
    """
    trackers = trackers_of(track, False)
    with user_errors():
        from pyro_dvae.runs import start_guide

        loaded, target = open_run(run, device, trust_code)
        training = start_guide(
            loaded,
            run_dir,
            data_dir=data_dir,
            seed=seed,
            epochs=epochs,
            patience=patience or None,
            batch_size=batch_size,
            learning_rate=learning_rate,
        )
        before = _test_elbo(loaded, training)
    scores = train(
        training,
        f"{training.folder}: the guide of {loaded.folder}, {_counts(training)}, {target}",
        trackers=trackers,
    )
    if before is not None and scores is not None:
        print(f"test ELBO {before:.2f} before, {scores.elbo:.2f} after")


def _counts(training: RunTrainer) -> str:
    data = training.data
    return f"{data.num_train} training and {data.num_validation} validation data"


def _test_elbo(run: Run, training: RunTrainer) -> float | None:
    """The ELBO of the trained run, where there are test data."""
    from pyro_dvae import evaluate
    from pyro_dvae.runs import model_batch

    if training.splits.test is None:
        return None
    x, labels = model_batch(run.config, training.splits, "test", training.trainer.device)
    return evaluate(run.vae, x, labels, seed=run.config.seed).elbo
