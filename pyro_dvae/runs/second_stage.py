"""Runs of a second stage: the prior, or the guide, of a trained run is trained alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyro_dvae.data import Source
from pyro_dvae.runs.checkpoints import create_run
from pyro_dvae.runs.config import Config, build_prior
from pyro_dvae.runs.parts import is_conditional
from pyro_dvae.runs.record import DataRecord, SecondStage
from pyro_dvae.runs.resolve import count_classes
from pyro_dvae.runs.run import Run
from pyro_dvae.runs.run_trainer import RunTrainer
from pyro_dvae.runs.sizes import refuse_too_large
from pyro_dvae.runs.start import file_stem, parts_that_fit, validation_data, with_classes
from pyro_dvae.streams import RandomStream
from pyro_dvae.training.second_stage import GuideTrainer, PriorTrainer, with_prior
from pyro_dvae.vae import DiscreteVAE


def start_prior(
    run: Run,
    prior: str = "autoregressive",
    folder: str | Path | None = None,
    *,
    data_dir: str | Path | None = None,
    seed: int | None = None,
    epochs: int = Config.epochs,
    patience: int | None = Config.patience,
    batch_size: int = Config.batch_size,
    learning_rate: float = Config.learning_rate,
) -> RunTrainer:
    """A new run whose prior is fitted to the codes of another, the second stage; all else is its.

    Args:
        run: the trained run. Its model may be on any device, where the prior is trained.
        prior: the name of the prior, as `Config` takes it.
        folder: a new folder; None for `<run>-<prior>-<n>` beside the trained run.
        data_dir: the folder that the run's data lie in now, if that is another one.
        seed: of the prior's first weights and of its training; None for the run's.
        epochs: the most epochs to train.
        patience: epochs without a better validation ELBO before stopping; None never stops early.
        batch_size: data per step.
        learning_rate: Adam's.

    Raises:
        ValueError: a setting is out of its range, the prior has no weights or does not fit the
            other parts, or the data are not there or have changed. No folder is made then.
    """
    record = run.data.moved_to(data_dir=data_dir)
    partly = run.config.alpha is not None
    if partly and is_conditional(prior):
        raise ValueError(
            f"Expected a prior of the class and the other latents for {run.folder}, whose first "
            f"latent is the class; got {prior}, which takes labels instead. Use "
            'prior="autoregressive", which gives the other latents given the class.'
        )
    source = with_classes(record.open(), prior, partly=partly)
    seed = run.config.seed if seed is None else seed
    config = replace(
        run.config,
        prior=prior,
        num_classes=count_classes(prior, source),
        **_settings(run, epochs, patience, batch_size, learning_rate),
    )

    def model() -> DiscreteVAE:
        with RandomStream(seed):
            fresh = build_prior(config, run.event_shape)
        return with_prior(run.vae, fresh.to(next(run.vae.parameters()).device))

    return _start(run, record, source, config, seed, model, PriorTrainer, folder, prior)


def start_guide(
    run: Run,
    folder: str | Path | None = None,
    *,
    data_dir: str | Path | None = None,
    seed: int | None = None,
    epochs: int = Config.epochs,
    patience: int | None = Config.patience,
    batch_size: int = Config.batch_size,
    learning_rate: float = Config.learning_rate,
) -> RunTrainer:
    """A new run whose guide is trained further on a trained run, with all else fixed.

    Args:
        run: the trained run. **Its own encoder is trained, in memory;** its folder stays as it is.
        folder: a new folder; None for `<run>-guide-<n>` beside the trained run.
        data_dir: the folder that the run's data lie in now, if that is another one.
        seed: of the training; None for the run's.
        epochs: the most epochs to train.
        patience: epochs without a better validation ELBO before stopping; None never stops early.
        batch_size: data per step.
        learning_rate: Adam's.

    Raises:
        ValueError: a setting is out of its range, the run has classes, or the data are not there or
            have changed. No folder is made then.
    """
    record = run.data.moved_to(data_dir=data_dir)
    seed = run.config.seed if seed is None else seed
    config = replace(run.config, **_settings(run, epochs, patience, batch_size, learning_rate))
    source = with_classes(record.open(), config.prior)
    return _start(run, record, source, config, seed, lambda: run.vae, GuideTrainer, folder, "guide")


def _settings(
    run: Run, epochs: int, patience: int | None, batch_size: int, learning_rate: float
) -> dict[str, Any]:
    return {
        "epochs": epochs,
        "guide_epochs": 0,
        "patience": patience if run.config.validation else None,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        **dict.fromkeys(("annealing", "warmup", "cooldown", "reinmax_steps"), 0),
    }


def _start(
    run: Run,
    record: DataRecord,
    source: Source,
    config: Config,
    seed: int,
    model: Callable[[], DiscreteVAE],
    trainer: type[PriorTrainer] | type[GuideTrainer],
    folder: str | Path | None,
    what: str,
) -> RunTrainer:
    """The new run, whose folder is named after `what` if none is given."""
    device = next(run.vae.parameters()).device
    part = "guide" if trainer is GuideTrainer else "prior"
    stage = SecondStage(str(run.folder.resolve()), run.epoch, seed, part)
    record = replace(record, config=config, second_stage=stage, fingerprint=None).naming(source)
    splits = record.splits(source)
    refuse_too_large(config, run.event_shape, len(splits.train), device)
    with parts_that_fit():
        training = trainer(
            model(),
            splits.train.to(device),
            validation_data(config, splits, device),
            batch_size=config.batch_size,
            learning_rate=config.learning_rate,
            averaging=config.averaging,
            seed=seed,
        )
    its_own = run.folder if run.folder.name else run.folder.resolve()
    path = create_run(folder, f"{its_own.name}-{file_stem(what)}", its_own.parent)
    return RunTrainer(path, training, record.counting(source, splits), splits)
