"""`pdvae fit`: train a discrete VAE and leave a run folder behind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .console import note
from .errors import fail, user_errors
from .events import require_tensorboard
from .options import Device, DeviceOption, SeedOption, TrustOption
from .reading import (
    READING,
    ChannelsOption,
    ColumnsOption,
    HeaderOption,
    KeyOption,
    LabelsOption,
    SizeOption,
    amount,
    number_range,
    reading,
)
from .report import datum_name, scanned
from .report import values as values_of
from .rows import say_what_is_trusted
from .train import train

if TYPE_CHECKING:
    from pyro_dvae.runs import RunTrainer

_SETTINGS = {
    "latents": "num_latents",
    "categories": "num_categories",
    "particles": "num_particles",
    "lr": "learning_rate",
    "range_": "range",
    "compile_": "compile",
}
"""Options whose setting has another name."""
_NO_SETTINGS = {"run_dir", "resume", "data", "data_dir", "device", "log_every", "tensorboard"}
_NO_SETTINGS |= {"trust_code", *READING}
"""Options that `Config` does not hold."""


def fit(
    context: typer.Context,
    run_dir: Annotated[
        Path | None,
        typer.Argument(
            help="New folder for the run; runs/<data>-d4k8-<estimator>-<n> if left out."
        ),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Run folder to continue; --epochs may grow.")
    ] = None,
    epochs: Annotated[int, typer.Option(help="The most epochs to train.")] = 50,
    latents: Annotated[int, typer.Option(help="D, the categorical variables of a code.")] = 4,
    categories: Annotated[int, typer.Option(help="K, the categories of each variable.")] = 8,
    prior: Annotated[
        str, typer.Option(help="uniform, learned, autoregressive, mixture:20, ...; see the README.")
    ] = "uniform",
    likelihood: Annotated[
        str, typer.Option(help="bernoulli, categorical, normal, poisson, ...; see the README.")
    ] = "bernoulli",
    guide: Annotated[
        str, typer.Option(help="mean-field, or autoregressive: latents know those before them.")
    ] = "mean-field",
    network: Annotated[str, typer.Option(help="mlp, conv, or conv-grid.")] = "mlp",
    encoder: Annotated[
        str | None,
        typer.Option(metavar="MODULE:FACTORY", help="An encoder of your own; its code is run."),
    ] = None,
    decoder: Annotated[
        str | None,
        typer.Option(metavar="MODULE:FACTORY", help="A decoder of your own; its code is run."),
    ] = None,
    hidden: Annotated[
        str,
        typer.Option(help="Widths of the MLP encoder's hidden layers; the decoder reverses them."),
    ] = "512,256",
    estimator: Annotated[
        str, typer.Option(help="trace (Pyro's Trace_ELBO), rloo, ...; the README lists them all.")
    ] = "rloo",
    particles: Annotated[
        int | None, typer.Option(help="Draws of z a datum and step; 4 for rloo and vimco, else 1.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Of a relaxation; the estimator's own if left out.")
    ] = None,
    baseline: Annotated[
        str, typer.Option(help="Of reinforce: none, running_mean, or a number of nats.")
    ] = "running_mean",
    beta: Annotated[float, typer.Option(help="Weight of the KL term in the gradient.")] = 1.0,
    annealing: Annotated[
        int | None,
        typer.Option(help="Epochs in which beta falls to --beta; 10, or 0 for trace and marginal."),
    ] = None,
    initial_beta: Annotated[float, typer.Option(help="Where beta starts to fall.")] = 4.0,
    free_bits: Annotated[
        float, typer.Option(help="Nats a latent whose KL the gradient leaves alone.")
    ] = 0.0,
    batch_size: Annotated[int, typer.Option(help="Images a step.")] = 100,
    lr: Annotated[float, typer.Option(help="Adam's learning rate.")] = 1e-3,
    averaging: Annotated[
        float, typer.Option(help="Decay of the average of the weights that is kept; 0: none.")
    ] = 0.999,
    data: Annotated[
        str | None,
        typer.Option(
            help="A .npy, .npz, .csv, .tsv, .parquet or IDX file, a folder of images, or a data "
            "set's name: mnist, fashion-mnist, ...; mnist, else the bundled mnist-sample, if left "
            "out."
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Folder of a named data set; else $PDVAE_DATA_DIR, the cache."),
    ] = None,
    key: KeyOption = None,
    columns: ColumnsOption = None,
    labels: LabelsOption = None,
    header: HeaderOption = None,
    size: SizeOption = None,
    channels: ChannelsOption = None,
    range_: Annotated[
        str | None,
        typer.Option(
            "--range",
            metavar="LOW,HIGH",
            help="The stored values that stand for 0 and 1; 0,255 for uint8 if left out.",
        ),
    ] = None,
    binarize: Annotated[
        str | None,
        typer.Option(
            help="dynamic (redrawn each batch), static (drawn once), threshold, or none; none "
            "for zeros and ones, else dynamic, if left out."
        ),
    ] = None,
    validation: Annotated[
        str | None,
        typer.Option(
            "--val",
            "--validation",
            help="Training rows kept for validation: fraction, number, 0 for none, or a file; "
            "0.05, at most 10000 rows or 64 MiB, if left out.",
        ),
    ] = None,
    test: Annotated[
        str | None,
        typer.Option(
            help="Rows kept for testing, likewise; the data's own test part, else 0.1, at most "
            "10000 rows, if left out."
        ),
    ] = None,
    compile_: Annotated[
        bool | None,
        typer.Option(
            "--compile/--no-compile",
            help="Compile the step, reinforce's and rloo's; if left out, where it can be, "
            "on the CPU, and the run may take 20000 steps.",
        ),
    ] = None,
    bfloat16: Annotated[
        bool, typer.Option("--bfloat16", help="Networks compute in bfloat16 in training steps.")
    ] = False,
    patience: Annotated[
        int, typer.Option(help="Epochs without a better validation ELBO before stopping; 0: never.")
    ] = 10,
    log_every: Annotated[
        int, typer.Option(help="Steps between lines in metrics.jsonl; 0: one an epoch.")
    ] = 0,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write TensorBoard's event files too.")
    ] = False,
    seed: SeedOption = 0,
    device: DeviceOption = Device.auto,
    trust_code: TrustOption = False,
) -> None:
    """Train a discrete VAE, best validation weights kept; saved after every epoch.

    Example: pdvae fit --epochs 50 --latents 4 --categories 8
    """
    if resume is not None and run_dir is not None:
        fail(f"Expected a new run folder or --resume; got both, {run_dir}. Leave one out.")
    if log_every < 0:
        fail(f"Expected --log-every of at least 0; got {log_every}. Raise it.")
    if tensorboard:
        require_tensorboard()
    options = reading(context.params)
    named = _named(context)
    values: dict[str, Any] = {
        **context.params,
        "hidden": _hidden(hidden),
        "patience": patience or None,
        "range_": number_range(range_),
        "validation": amount("--val", validation),
        "test": amount("--test", test),
    }
    settings = {_SETTINGS.get(name, name): values[name] for name in named - _NO_SETTINGS}
    with user_errors():
        if resume is None:
            training = _new(run_dir, data, data_dir, options, settings, device)
        else:
            training = _resumed(
                resume,
                {**settings, **{name: options[name] for name in named & set(READING)}},
                data,
                data_dir,
                device,
                trust_code,
            )
    train(training, _starts(training), log_every=log_every, tensorboard=tensorboard)


def _new(
    folder: Path | None,
    data: str | None,
    data_dir: Path | None,
    options: dict[str, Any],
    settings: dict[str, Any],
    device: Device,
) -> RunTrainer:
    from pyro_dvae import Config
    from pyro_dvae.data import open_source
    from pyro_dvae.runs import check_source, start_run

    from .devices import pick_device

    target = pick_device(device)
    Config(**settings)  # so that a bad setting is told before the data are read
    source = open_source(data, data_dir=data_dir, **options)
    found = check_source(source)
    if source.notice:
        note(source.notice)
    training = start_run(source, folder, found=found, device=target, **settings)
    if settings.get("likelihood") == "mixed":
        note(f"columns: {training.config.likelihood.removeprefix('mixed:')}")
    print(scanned(found))
    return training


def _resumed(
    folder: Path,
    settings: dict[str, Any],
    data: str | None,
    data_dir: Path | None,
    device: Device,
    trust_code: bool,
) -> RunTrainer:
    from pyro_dvae.runs import resume_run

    from .devices import pick_device

    target = pick_device(device)
    if trust_code:
        say_what_is_trusted(folder)
    return resume_run(
        folder, data=data, data_dir=data_dir, device=target, trust_code=trust_code, **settings
    )


def _starts(training: RunTrainer) -> str:
    data, config = training.data, training.config
    kept = values_of(config, training.splits.stored["train"].dtype)
    return (
        f"{training.folder}: {data.name} from {data.source}, {data.num_train} training and "
        f"{data.num_validation} validation {datum_name(training.event_shape)}s, {kept}, "
        f"{config.estimator} with {config.particles} particles, {training.trainer.device}"
    )


def _named(context: typer.Context) -> set[str]:
    """The options that the command line names."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {
        name for name, source in sources.items() if source is not None and source.name != "DEFAULT"
    }


def _hidden(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(size) for size in text.split(",") if size.strip())
    except ValueError:
        fail(f"Expected --hidden as numbers with commas between; got {text!r}. Use 512,256, say.")
