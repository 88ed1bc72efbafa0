"""`pdvae fit`: train a discrete VAE and leave a run folder behind."""

from __future__ import annotations

import shlex
from dataclasses import fields
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import typer

from pyro_dvae.defaults import RunSettings

from . import fit_data_options, fit_options, options
from .console import note
from .errors import fail, user_errors
from .figures import datum_name, scanned
from .figures import values as values_of
from .options import DEFAULTS, Device
from .processes import is_restart, join, may_restart
from .reading import READING, amount, number_range, reading, seconds, widths
from .rows import say_what_is_trusted
from .train import train

if TYPE_CHECKING:
    from pyro_dvae.runs import RunTrainer, TrackerFactory

_SETTINGS = {field.name for field in fields(RunSettings)}
"""The parameters of `fit` that are settings of the run."""


def fit(
    context: typer.Context,
    run_dir: fit_options.NewRunArgument = None,
    num_latents: options.LatentsOption = DEFAULTS.num_latents,
    num_categories: options.CategoriesOption = DEFAULTS.num_categories,
    prior: options.PriorOption = DEFAULTS.prior,
    likelihood: fit_options.LikelihoodOption = DEFAULTS.likelihood,
    guide: fit_options.GuideOption = DEFAULTS.guide,
    network: fit_options.NetworkOption = DEFAULTS.network,
    hidden: fit_options.HiddenOption = fit_options.HIDDEN,
    alpha: fit_options.AlphaOption = DEFAULTS.alpha,
    labelled_share: fit_options.LabelledShareOption = DEFAULTS.labelled_share,
    dropout: fit_options.DropoutOption = DEFAULTS.dropout,
    encoder: fit_options.EncoderOption = DEFAULTS.encoder,
    decoder: fit_options.DecoderOption = DEFAULTS.decoder,
    start: options.StartOption = DEFAULTS.start,
    epochs: options.EpochsOption = DEFAULTS.epochs,
    guide_epochs: fit_options.GuideEpochsOption = DEFAULTS.guide_epochs,
    patience: fit_options.PatienceOption = DEFAULTS.patience or 0,
    batch_size: options.BatchSizeOption = DEFAULTS.batch_size,
    learning_rate: fit_options.LearningRateOption = DEFAULTS.learning_rate,
    averaging: fit_options.AveragingOption = DEFAULTS.averaging,
    estimator: fit_options.EstimatorOption = DEFAULTS.estimator,
    num_particles: fit_options.ParticlesOption = DEFAULTS.num_particles,
    decoder_particles: fit_options.DecoderParticlesOption = DEFAULTS.decoder_particles,
    temperature: fit_options.TemperatureOption = DEFAULTS.temperature,
    baseline: fit_options.BaselineOption = DEFAULTS.baseline,
    beta: fit_options.BetaOption = DEFAULTS.beta,
    annealing: fit_options.AnnealingOption = DEFAULTS.annealing,
    initial_beta: fit_options.InitialBetaOption = DEFAULTS.initial_beta,
    warmup: fit_options.WarmupOption = DEFAULTS.warmup,
    cooldown: fit_options.CooldownOption = DEFAULTS.cooldown,
    reinmax_steps: fit_options.ReinmaxStepsOption = DEFAULTS.reinmax_steps,
    free_bits: fit_options.FreeBitsOption = DEFAULTS.free_bits,
    compile: fit_options.CompileOption = DEFAULTS.compile,
    bfloat16: fit_options.Bfloat16Option = DEFAULTS.bfloat16,
    data: fit_data_options.DataOption = None,
    data_dir: options.DataDirOption = None,
    key: options.KeyOption = None,
    columns: options.ColumnsOption = None,
    drop: options.DropOption = None,
    labels: options.LabelsOption = None,
    ids: options.IdsOption = None,
    group: options.GroupOption = None,
    time: options.TimeOption = None,
    nominal: options.NominalOption = None,
    dates: options.DatesOption = None,
    other: options.OtherOption = None,
    header: options.HeaderOption = None,
    size: options.SizeOption = None,
    channels: options.ChannelsOption = None,
    range: fit_data_options.RangeOption = None,
    binarize: fit_data_options.BinarizeOption = None,
    validation: fit_data_options.ValidationOption = None,
    test: fit_data_options.TestOption = None,
    split: fit_data_options.SplitOption = DEFAULTS.split,
    split_seed: fit_data_options.SplitSeedOption = DEFAULTS.split_seed,
    group_copies: fit_data_options.GroupCopiesOption = DEFAULTS.group_copies,
    drop_copies: fit_data_options.DropCopiesOption = DEFAULTS.drop_copies,
    resume: fit_options.ResumeOption = None,
    max_time: fit_options.MaxTimeOption = None,
    log_every: fit_options.LogEveryOption = 0,
    track: fit_options.TrackOption = None,
    tensorboard: fit_options.TensorboardOption = False,
    seed: options.SeedOption = DEFAULTS.seed,
    device: options.DeviceOption = Device.auto,
    trust_code: options.TrustOption = False,
) -> None:
    """Train a discrete VAE and save it in a run folder.

    The run is saved after every epoch. The weights with the best validation ELBO are kept.

    Example: pdvae fit --epochs 50 --latents 4 --categories 8
    """
    # By name, for typer below 0.29 has paths and choices in `context.params` as texts.
    _train(
        named_settings(context),
        context.obj,
        run_dir=run_dir,
        resume=resume,
        data=data,
        data_dir=data_dir,
        device=device,
        trust_code=trust_code,
        log_every=log_every,
        tensorboard=tensorboard,
        max_time=max_time,
        track=track,
    )


def _train(
    named: dict[str, Any],
    arguments: list[str],
    *,
    run_dir: Path | None,
    resume: Path | None,
    data: str | None,
    data_dir: Path | None,
    device: Device,
    trust_code: bool,
    log_every: int,
    track: list[str] | None,
    tensorboard: bool,
    max_time: str | None,
) -> None:
    """Train with the settings that the arguments of the command line name."""
    start, limit = monotonic(), seconds(max_time)
    _check(resume, run_dir, log_every)
    trackers = trackers_of(track, tensorboard)
    from pyro_dvae.runs import CONFIG

    if resume is None and run_dir is not None and is_restart() and (run_dir / CONFIG).is_file():
        resume, data, named = run_dir, None, {}  # the run has the settings of this command
    with user_errors():
        if resume is None:
            training = _new(run_dir, data, data_dir, named, device, arguments)
        else:
            training = _resumed(resume, data, data_dir, named, device, trust_code)
    train(
        training,
        _starts(training),
        log_every=log_every,
        trackers=trackers,
        max_seconds=limit - (monotonic() - start),
    )


def _check(resume: Path | None, run_dir: Path | None, log_every: int) -> None:
    if resume is not None and run_dir is not None:
        fail(f"Expected a new run folder or --resume; got both, {run_dir}. Leave one out.")
    if resume is None and run_dir is None and may_restart():
        fail(
            "Expected the name of a run folder with torchrun --max-restarts; got none, so that a "
            "restart could not find it. Name one."
        )
    if log_every < 0:
        fail(f"Expected --log-every of at least 0; got {log_every}. Raise it.")


def trackers_of(track: list[str] | None, tensorboard: bool) -> list[TrackerFactory]:
    """What makes the trackers that are named; one that is not there is refused.

    Args:
        track: the values of --track.
        tensorboard: whether --tensorboard is given.
    """
    names = dict.fromkeys([*(track or []), *(["tensorboard"] if tensorboard else [])])
    if not names:
        return []
    from pyro_dvae.runs import tracker_factory

    with user_errors():
        return [tracker_factory(name) for name in names]


def named_settings(context: Any) -> dict[str, Any]:
    """The settings and the options of `reading` that the command line names, as Python takes them.

    What is left out has no value here, not even its default: a run that is resumed has its own,
    and for a new run the data decide some of the settings.
    """
    given = context.params
    values = {
        **given,
        **reading(given),
        "hidden": widths(given["hidden"]),
        "patience": given["patience"] or None,
        "range": number_range(given["range"]),
        "validation": amount("--val", given["validation"]),
        "test": amount("--test", given["test"]),
    }
    sources = {name: context.get_parameter_source(name) for name in _SETTINGS | set(READING)}
    return {
        name: values[name]
        for name, source in sources.items()
        if source is not None and source.name != "DEFAULT"
    }


def _new(
    folder: Path | None,
    data: str | None,
    data_dir: Path | None,
    named: dict[str, Any],
    device: Device,
    arguments: list[str],
) -> RunTrainer:
    from pyro_dvae import Config
    from pyro_dvae.data import (
        RangeError,
        describe_kinds,
        describe_missing,
        given_kinds,
        open_source,
    )
    from pyro_dvae.runs import check_source, split_notes, start_run

    from .devices import pick_device

    target = join(pick_device(device))
    settings = {name: value for name, value in named.items() if name in _SETTINGS}
    Config(**settings)  # so that a bad setting is reported before the data are read
    how = {name: value for name, value in named.items() if name in READING}
    source = open_source(data, data_dir=data_dir, **how)
    found = check_source(source)
    if source.notice:
        note(source.notice)
    try:
        training = start_run(source, folder, found=found, device=target, **settings)
    except RangeError as error:
        command = shlex.join(["pdvae", *arguments, "--range", ",".join(map(str, error.range))])
        raise ValueError(f"{error} To paste: {command}") from error
    if given_kinds(settings.get("likelihood", "")) is not None:
        about = training.data
        kinds = describe_kinds(about.columns or (), training.config.likelihood, about.levels)
        note(f"columns: {kinds}")
    missing = describe_missing(found)
    if missing is not None:
        note(missing)
    for told in split_notes(training.data):
        note(told)
    print(scanned(found, training.config))
    return training


def _resumed(
    folder: Path,
    data: str | None,
    data_dir: Path | None,
    named: dict[str, Any],
    device: Device,
    trust_code: bool,
) -> RunTrainer:
    from pyro_dvae.runs import resume_run

    from .devices import pick_device

    target = join(pick_device(device))
    if trust_code:
        say_what_is_trusted(folder)
    return resume_run(
        folder, data=data, data_dir=data_dir, device=target, trust_code=trust_code, **named
    )


def _starts(training: RunTrainer) -> str:
    """The line that says what is trained."""
    data, config = training.data, training.config
    kept = values_of(config, training.splits.stored["train"].dtype)
    return (
        f"{training.folder}: {data.name} from {data.source}, {data.num_train} training and "
        f"{data.num_validation} validation {datum_name(training.event_shape)}s, {kept}, "
        f"{config.estimator} with {config.particles} particles, {training.trainer.device}"
    )
