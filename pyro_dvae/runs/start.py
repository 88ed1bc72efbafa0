"""Runs that are about to train: new ones, and ones that go on."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pyro.infer import ELBO

from pyro_dvae.data import Scan, Source, Splits, given_kinds, only_seen, with_categories
from pyro_dvae.processes import done_by_first
from pyro_dvae.runs.checkpoints import GUIDE_STATE, STATE, create_run
from pyro_dvae.runs.config import Config, build_elbo, build_vae
from pyro_dvae.runs.labelled import data_per_label, with_copies
from pyro_dvae.runs.parts import is_conditional
from pyro_dvae.runs.reading import reading_of
from pyro_dvae.runs.record import DataRecord
from pyro_dvae.runs.resolve import (
    check_source,
    check_values,
    resolve_settings,
)
from pyro_dvae.runs.rows import model_batch
from pyro_dvae.runs.run_trainer import RunTrainer
from pyro_dvae.runs.settings import trusted_config
from pyro_dvae.runs.sizes import refuse_too_large
from pyro_dvae.runs.weights import refuse_sizes_beyond
from pyro_dvae.semi_supervised import SemiSupervisedVAE
from pyro_dvae.streams import RandomStream
from pyro_dvae.training.batches import Batch
from pyro_dvae.training.fitting import calibrate
from pyro_dvae.training.guide_epochs import has_guide_to_train
from pyro_dvae.training.mixture_start import resolve_start, start_from_mixture
from pyro_dvae.training.second_stage import check_guide
from pyro_dvae.training.trainer import Trainer
from pyro_dvae.vae import DiscreteVAE


def start_run(
    source: Source,
    folder: str | Path | None = None,
    *,
    found: Scan | None = None,
    device: torch.device | str = "cpu",
    **settings: Any,
) -> RunTrainer:
    """A new run: its settings resolved, its data split, its model built, its folder made.

        with start_run(open_source("images.npy"), "runs/mine", epochs=20) as training:
            for record in training.epochs():
                print(record)
            print(training.finish())

    Args:
        source: the data, as `open_source` gives them.
        folder: a new folder for the run; None for `runs/<data>-d<D>k<K>-<estimator>-<n>`.
        found: the result of `check_source`, if it has been called already.
        device: where to train.
        **settings: settings of `Config`, by name; see `resolve_settings` for those that are left
            out. Where `compile` is left out, the step is compiled if that repays.

    Raises:
        ValueError: a setting is out of its range, or data, parts of the model and estimator do not
            fit one another. No folder is made then.
    """
    device = torch.device(device)
    found = check_source(source) if found is None else found
    source, config = plan_run(source, found, **settings)
    data = DataRecord.of(source, config, (found.low or 0.0, found.high or 0.0))
    splits = data.splits(source, num_copies=found.num_duplicates)
    _check(config, splits, device)
    config = _with_start(config, splits)
    trainer = _trainer(config, splits, device, fresh=True)
    if config.guide_epochs:
        if settings.get("guide_epochs"):
            check_guide(trainer.vae)
        elif not has_guide_to_train(trainer.vae):  # an encoder of the user's own, without weights
            config = replace(config, guide_epochs=0)
    if settings.get("compile") is None and trainer.compile_if_long(config.epochs):
        config = replace(config, compile=True)
    if config.num_particles is None:  # the estimator is the user's own, and has its defaults
        particles = trainer.elbo.num_particles
        config = replace(config, num_particles=particles, annealing=trainer.annealing)
    data = replace(data, config=config)
    codes = f"d{config.num_latents}k{config.num_categories}"
    name = f"{file_stem(source.name)}-{codes}-{file_stem(config.estimator)}"
    path = done_by_first(lambda: create_run(folder, name))
    return RunTrainer(path, trainer, _counted(data, source, splits, trainer), splits)


def plan_run(source: Source, found: Scan, **settings: Any) -> tuple[Source, Config]:
    """The data as a new run with these settings takes them, and its resolved settings.

    Nothing is built or written.

    Args:
        source: the data.
        found: the result of `check_source`.
        **settings: settings of `Config`, by name; `compile=None` does not compile.

    Raises:
        ValueError: a setting is out of its range, or the data do not fit the likelihood.
    """
    settings["compile"] = bool(settings.get("compile"))
    kinds = given_kinds(settings.get("likelihood", Config.likelihood))
    source = source if kinds is None else with_categories(source, kinds)
    prior, alpha = settings.get("prior", Config.prior), settings.get("alpha")
    source = with_classes(source, prior, partly=alpha is not None)
    return source, resolve_settings(source, found, **settings)


def resume_run(
    folder: str | Path,
    *,
    data: str | Path | None = None,
    data_dir: str | Path | None = None,
    device: torch.device | str = "cpu",
    trust_code: bool = False,
    **settings: Any,
) -> RunTrainer:
    """A run that goes on from its last state, to the weights that it would have come to at once.

    Args:
        folder: the run's.
        data: where its data lie now, if that is somewhere else.
        data_dir: the folder that its data lie in now, if that is another one.
        device: where to train.
        trust_code: import the modules that the run names, whoever made it; see `load_run`.
        **settings: `epochs` may be more than the run's. All others, those of `open_source` too,
            must be the run's.

    Raises:
        ValueError: there is no run, a damaged file, data that have changed, or another setting than
            the run's.
    """
    device = torch.device(device)
    folder = Path(folder)
    file = trusted_config(folder, trust_code=trust_code, trains=True)
    for state in (STATE, GUIDE_STATE):
        refuse_sizes_beyond(folder / state, file.config)
    config = replace(file.config, epochs=settings.pop("epochs", file.config.epochs))
    record = replace(file.data, config=config).moved_to(data, data_dir)
    _refuse_other_settings(folder, {**vars(config), **record.reading._asdict()}, settings)
    source = record.open()
    splits = record.splits(source)
    _check(config, splits, device)
    trainer = _trainer(config, splits, device, fresh=False)
    record = _counted(record, source, splits, trainer)
    return RunTrainer(folder, trainer, record, splits, resume=True)


def new_model(config: Config, event_shape: Sequence[int]) -> tuple[DiscreteVAE, ELBO]:
    """An untrained model and its ELBO, whose weights come from the seed of the settings.

    Args:
        config: the settings.
        event_shape: shape of a datum.
    """
    shape = tuple(event_shape)
    with RandomStream(config.seed):
        return build_vae(config, shape), build_elbo(config, shape)


def _counted(record: DataRecord, source: Source, splits: Splits, trainer: Trainer) -> DataRecord:
    """The record, with what the open data and their parts tell of themselves."""
    record = record.counting(source, splits)
    is_labelled = record.config.alpha is not None
    return replace(record, data_per_label=data_per_label(trainer.data)) if is_labelled else record


def with_classes(source: Source, prior: str, *, partly: bool = False) -> Source:
    """The data; for a model that takes labels, their labels counted from 0 without gaps."""
    return only_seen(source) if partly or is_conditional(prior) else source


def _check(config: Config, splits: Splits, device: torch.device) -> None:
    refuse_too_large(config, splits.train.event_shape, len(splits.train), device)
    check_values(config, splits)


def _with_start(config: Config, splits: Splits) -> Config:
    """The settings, with the start that the parts of the model and the size of the data allow."""
    shape = tuple(splits.train.event_shape)
    if config.start is None and config.num_latents > 1:  # no model is built in vain
        return replace(config, start="random")
    size = len(splits.train), math.prod(shape)
    return replace(config, start=resolve_start(*new_model(config, shape), size, config.start))


def _trainer(config: Config, splits: Splits, device: torch.device, *, fresh: bool) -> Trainer:
    """The training before its first step; the state of a run that is not fresh is still to come."""
    shape = tuple(splits.train.event_shape)
    vae, elbo = new_model(config, shape)
    vae.to(device)
    train: Any = splits.train.to(device)
    calibrate(vae, train, config.seed)  # the state of a resumed run replaces it
    if fresh and config.start == "mixture":
        start_from_mixture(vae, train, config.seed)
    if isinstance(vae, SemiSupervisedVAE):
        train = with_copies(config, train)
        vae.alpha *= data_per_label(train)
    validation = validation_data(config, splits, device)
    with parts_that_fit():
        return Trainer(vae, elbo, train, validation, **config.training)


@contextmanager
def parts_that_fit() -> Iterator[None]:
    """Say as a ValueError that parts of a model cannot be combined, of which a trial run tells."""
    try:
        yield
    except TypeError as error:
        raise ValueError(str(error)) from error


def validation_data(config: Config, splits: Splits, device: torch.device) -> Batch | None:
    """The validation data of a run as a `Trainer` takes them; None where there are none."""
    if splits.validation is None:
        return None
    x, labels = model_batch(config, splits, "validation", device)
    return x if labels is None else (x, labels)


def _refuse_other_settings(folder: Path, its_own: dict[str, Any], settings: dict[str, Any]) -> None:
    given = {
        name: tuple(value) if isinstance(value, list) else value  # a config holds tuples
        for name, value in {**settings, **reading_of(settings)}.items()
    }
    differences = [
        f"{name}={value!r} (the run's: {its_own[name]})"
        for name, value in sorted(given.items())
        if value != its_own[name]
    ]
    if differences:
        raise ValueError(
            f"Expected the settings of {folder}; got {', '.join(differences)}. Leave them out, or "
            "start a new run."
        )


def file_stem(name: str) -> str:
    """The name of data, or of a prior, as a part of a folder's name."""
    return re.sub(r"[^\w.-]+", "-", Path(name).stem).strip("-.") or "data"
