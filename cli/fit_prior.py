"""`pdvae fit-prior`: fit a prior to a trained run's codes, as a new run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .errors import user_errors
from .options import Device, DeviceOption, RunSeedOption, TrustOption
from .rows import DataDirOption, RunArgument, open_run
from .train import train

if TYPE_CHECKING:
    from pyro_dvae import Run
    from pyro_dvae.runs import RunTrainer


def fit_prior(
    run: RunArgument = None,
    run_dir: Annotated[
        Path | None,
        typer.Argument(help="A new folder. If left out: <run>-<prior>-<n> beside the run."),
    ] = None,
    prior: Annotated[
        str, typer.Option(help="p(z): autoregressive, mixture:20, vamp, rbm, ... (see the README).")
    ] = "autoregressive",
    epochs: Annotated[int, typer.Option(help="The most epochs to train.")] = 50,
    patience: Annotated[
        int,
        typer.Option(help="Stop after so many epochs without a better validation ELBO. 0: never."),
    ] = 10,
    batch_size: Annotated[int, typer.Option(help="Data per step.")] = 100,
    lr: Annotated[float, typer.Option(help="The learning rate of Adam.")] = 1e-3,
    data_dir: DataDirOption = None,
    seed: RunSeedOption = None,
    device: DeviceOption = Device.auto,
    trust_code: TrustOption = False,
) -> None:
    """Fit a prior to the codes of a trained run, as a new run.

    Encoder, decoder, likelihood and guide stay as they are, and so does the trained run.

    Example: pdvae fit-prior runs/mnist-d4k8-rloo-1 --prior autoregressive
    """
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
            learning_rate=lr,
        )
        before = _test_elbo(loaded, training)
    data, old = training.data, loaded.config.prior
    scores = train(
        training,
        f"{training.folder}: prior {prior} for the codes of {loaded.folder}, whose prior is {old}, "
        f"{data.num_train} training and {data.num_validation} validation data, {target}",
    )
    if before is not None and scores is not None:
        print(f"test ELBO {before:.2f} with prior {old}, {scores.elbo:.2f} with {prior}")


def _test_elbo(run: Run, training: RunTrainer) -> float | None:
    """The ELBO of the trained run, where there are test data."""
    from pyro_dvae import evaluate
    from pyro_dvae.runs import model_batch

    if training.splits.test is None:
        return None
    x, labels = model_batch(run.config, training.splits, "test", training.trainer.device)
    return evaluate(run.vae, x, labels, seed=run.config.seed).elbo
