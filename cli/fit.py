"""`pdvae fit`: train a discrete VAE and leave a run folder behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import (
    Device,
    DeviceOption,
    SeedOption,
    TrustOption,
    fail,
    parts_that_do_not_fit,
    user_errors,
)
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

if TYPE_CHECKING:
    from pyro_dvae import Config
    from pyro_dvae.data import Splits

_SETTINGS = {
    "latents": "num_latents",
    "categories": "num_categories",
    "particles": "num_particles",
    "lr": "learning_rate",
    "range_": "range",
    "compile_": "compile",
}
"""Options whose setting has another name."""
_NO_SETTINGS = {"run_dir", "resume", "epochs", "data", "data_dir", "device", "log_every"}
_NO_SETTINGS |= {"tensorboard", "trust_code", *READING}
"""Options that a resumed run may change; the data are checked by themselves."""
_LONG = 20_000
"""Steps that repay compiling, which takes seconds and saves a tenth of each."""


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
    with user_errors():
        from pyro_dvae import Config
        from pyro_dvae.checks import one_of
        from pyro_dvae.data import only_seen, open_source
        from pyro_dvae.runs.checkpoints import (
            STATE,
            create_run,
            refuse_sizes_beyond,
            trusted_config,
        )
        from pyro_dvae.runs.config import ESTIMATORS
        from pyro_dvae.runs.sizes import refuse_too_large
        from pyro_dvae.training.backward import torch_compiles

        from .devices import pick_device
        from .events import require_tensorboard
        from .inputs import (
            data_facts,
            names_of,
            placed,
            reading_of,
            remembered,
            run_source,
            run_splits,
        )
        from .rows import say_what_is_trusted
        from .settle import check_values, describe, look, settle, stem
        from .train import train

        target = pick_device(device)
        if "estimator" in named:
            one_of("estimator", estimator, ESTIMATORS)
        if particles is None:
            values["particles"] = ESTIMATORS[estimator].particles
        settings = {
            _SETTINGS.get(name, name): value
            for name, value in values.items()
            if name not in _NO_SETTINGS
        }
        if resume is None:
            chosen = {name: value for name, value in settings.items() if value is not None}
            config = Config(epochs=epochs, **{"patience": None, **chosen})
            if "patience" in named and config.patience != settings["patience"]:
                fail("Expected validation data for --patience; got --val 0. Leave one out.")
            source = open_source(data, data_dir=data_dir, **options)
            found = look(source)
            if prior.partition(":")[0] == "conditional":
                source = only_seen(source)
            config = settle(config, settings, source, found)
            facts = {**placed(remembered(options), data, data_dir), **names_of(source)}
            facts["span"] = [found.low, found.high]
            name = f"{stem(source.name)}-d{latents}k{categories}-{estimator}"
        else:
            if trust_code:
                say_what_is_trusted(resume)
            run = trusted_config(resume, trust_code=trust_code)
            refuse_sizes_beyond(resume / STATE, run.config)
            facts, name = placed(run.data, data, data_dir), ""
            _refuse_other_settings(
                resume,
                {**vars(run.config), **reading_of(facts)},
                {**settings, **reading_of(remembered(options))},
                named - _NO_SETTINGS | named & set(READING),
            )
            config = replace(run.config, epochs=epochs) if "epochs" in named else run.config
            source = run_source(facts)
        splits = run_splits(config, facts, source=source)
        refuse_too_large(config, splits.train.event_shape, len(splits.train), target)
        check_values(config, splits)
        may_compile = _try(config, splits)  # before a folder is made
        if resume is None and compile_ is None:
            steps = config.epochs * -(-len(splits.train) // config.batch_size)
            is_long = target.type == "cpu" and steps >= _LONG  # on a card it is not measured
            config = replace(config, compile=is_long and may_compile and torch_compiles())
        facts = data_facts(facts, source, splits, config)
        if tensorboard:
            require_tensorboard()
        folder = create_run(run_dir, name) if resume is None else resume
        if resume is None:
            print(describe(found))
    train(
        folder,
        config,
        splits,
        facts,
        target,
        resume=resume is not None,
        log_every=log_every,
        tensorboard=tensorboard,
    )


def _try(config: Config, splits: Splits) -> bool:
    """Build the model, whose networks may not fit, and take a loss, which its parts may refuse.

    Returns:
        Whether the step can be compiled.
    """
    import torch

    from pyro_dvae import build_elbo, build_vae
    from pyro_dvae.streams import RandomStream
    from pyro_dvae.training.backward import needs_no_traces
    from pyro_dvae.training.batches import check_data

    shape = tuple(splits.train.event_shape)
    with RandomStream(config.seed):
        vae, elbo = build_vae(config, shape), build_elbo(config, shape)
    may_compile = False
    if config.estimator not in ("exact", "marginal"):  # which refuse nothing, and sum over codes
        with parts_that_do_not_fit():
            rows = check_data(vae, elbo, splits.train, None, torch.device("cpu"))
        may_compile = needs_no_traces(vae, elbo, rows)
    if config.compile and not may_compile:
        fail(
            f"Expected a step that can be compiled for --compile; got {config.estimator}, prior "
            f"{config.prior}, guide {config.guide}. Use reinforce or rloo with the mean-field "
            "guide and the uniform or learned prior, or leave --compile out."
        )
    return may_compile


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


def _refuse_other_settings(
    folder: Path, its_own: dict[str, Any], settings: dict[str, Any], named: set[str]
) -> None:
    differences = []
    for name in sorted(named):
        setting = _SETTINGS.get(name, name)
        if settings[setting] != its_own[setting]:
            option = name.rstrip("_").replace("_", "-")
            differences.append(f"--{option} {settings[setting]} (the run's: {its_own[setting]})")
    if differences:
        fail(
            f"Expected the settings of {folder}; got {', '.join(differences)}. Leave them out, or "
            "start a new run."
        )
