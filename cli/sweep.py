"""`pdvae sweep`: many runs, each combination of settings with every seed, or a search."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyro_dvae.defaults import RunSettings

from .console import note
from .errors import CommandError, fail, user_errors
from .figures import datum_name, scanned, setting
from .fit import named_settings, trackers_of
from .groups import group_lines, setting_name
from .naming import OPTIONS
from .options import Device
from .reading import READING, seconds
from .signals import Signals, StopRequest

if TYPE_CHECKING:
    from pyro_dvae.sweeps import Sweep

_SETTINGS = {field.name for field in fields(RunSettings)}
_REFUSED = ("run_dir", "resume", "log_every")
"""Parameters of `fit` that are those of one run."""


def sweep(
    context: typer.Context,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="The folder that gets a run folder per run. Give the same folder again to go on "
            "with what was killed.",
        ),
    ],
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OPTION=VALUES",
            help="An option of fit, without its dashes, and its values with commas between: "
            "estimator=rloo,vimco. If a value holds commas, put semicolons between the values. A "
            "search also takes a range: lr=1e-4..1e-2, or lr=1e-4..1e-2:log to draw the "
            "logarithm. The option may be given several times. If left out: the seed alone varies.",
        ),
    ] = None,
    seeds: Annotated[
        int,
        typer.Option(help="The number of seeds per setting, counted up from --seed.", min=1),
    ] = 1,
    trials: Annotated[
        int | None,
        typer.Option(
            help="The number of trials of a search with Optuna, of all processes together. A trial "
            "is one choice of the settings, trained with every seed. If left out: every "
            "combination of the values is trained.",
            min=1,
        ),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where Optuna keeps the search, such as sqlite:///sweep.db. All processes of one "
            "search name the same storage, and an --output folder of the same name. If left out: "
            ".sweep.db in the --output folder.",
        ),
    ] = None,
) -> None:
    """Train many runs, and compare their settings over the seeds.

    Every option of pdvae fit can be given too; all runs have it in common. Several processes may
    run the same command at the same time, and share the work.

    Example: pdvae sweep -o both --vary estimator=rloo,vimco --seeds 5
    """
    given = _fit_context(context, context.args)
    for name in _REFUSED:
        if given.get_parameter_source(name).name != "DEFAULT":
            fail(
                f"Expected the options of many runs; got {name.replace('_', '-')} of a single one. "
                "Leave it out; the folders of the runs are made in --output."
            )
    with user_errors():
        varied = dict(_varied(context, text, is_search=trials is not None) for text in vary or [])
        if len(varied) < len(vary or []):
            fail("Expected each option once in --vary; got one twice. Name all its values in one.")
        found = _run(given, output, varied, seeds, trials, storage)
    _show(found, datum_name(found.runs[0].event_shape) if found.runs else "datum")


def _fit_context(context: typer.Context, arguments: list[str]) -> Any:
    """What `pdvae fit` would read of some arguments."""
    parent: Any = context.parent
    return parent.command.commands["fit"].make_context("fit", list(arguments), parent=parent)


def _varied(context: typer.Context, text: str, *, is_search: bool) -> tuple[str, Any]:
    """The setting that a --vary names, and its values as Python takes them."""
    from pyro_dvae.sweeps import Range

    option, equals, values = text.partition("=")
    if not equals or not values.strip():
        fail(f"Expected --vary as OPTION=VALUES; got {text!r}. Try --vary lr=0.001,0.003.")
    name = setting_name(option)
    if name is None:
        known = ", ".join(sorted(OPTIONS[known] for known in _SETTINGS & OPTIONS.keys()))
        fail(f"Expected an option of fit in --vary; got {option.strip()!r}. Known: {known}.")
    low, dots, high = values.partition("..")
    if dots:
        high, colon, scale = high.partition(":")
        if colon and scale != "log":
            fail(f"Expected --vary LOW..HIGH or LOW..HIGH:log; got {text!r}. Change the scale.")
        try:
            return name, Range(float(low), float(high), log=bool(colon))
        except ValueError as error:
            if str(error).startswith("Expected"):
                raise
            fail(f"Expected --vary with two numbers LOW..HIGH; got {text!r}. Try lr=1e-4..1e-2.")
    between = ";" if ";" in values else ","
    return name, [_value(context, name, word.strip()) for word in values.split(between)]


def _value(context: typer.Context, name: str, text: str) -> Any:
    """A value of a setting, as `pdvae fit` reads it."""
    parameters = {parameter.name: parameter for parameter in _fit_parameters(context)}
    if parameters[name].is_flag:
        fail(f"Expected an option with a value in --vary; got {name}. Run both in two sweeps.")
    given = _fit_context(context, [f"{parameters[name].opts[0]}={text}"])
    return named_settings(given)[name]


def _fit_parameters(context: typer.Context) -> list[Any]:
    parent: Any = context.parent
    return parent.command.commands["fit"].params


def _run(
    given: Any,
    output: Path,
    vary: dict[str, Any],
    seeds: int,
    trials: int | None,
    storage: str | None,
) -> Sweep:
    from pyro_dvae import Config
    from pyro_dvae.data import open_source
    from pyro_dvae.runs import check_source
    from pyro_dvae.sweeps import sweep as train_all

    from .devices import pick_device

    named = named_settings(given)
    settings = {name: value for name, value in named.items() if name in _SETTINGS}
    if trials is not None:
        _quiet()
    limit = seconds(given.params["max_time"])
    trackers = trackers_of(given.params["track"], given.params["tensorboard"])
    device = pick_device(Device(given.params["device"]))  # a text, by an older typer
    config = Config(**settings)
    how = {name: value for name, value in named.items() if name in READING}
    source = open_source(given.params["data"], data_dir=given.params["data_dir"], **how)
    scan = check_source(source)
    if source.notice:
        note(source.notice)
    print(scanned(scan, config))
    with Signals(limit) as signals:

        def check() -> None:
            if signals.status is not None:
                raise StopRequest(signals.status)

        try:
            return train_all(
                source,
                output,
                vary,
                seeds=range(config.seed, config.seed + seeds),
                trials=trials,
                storage=storage,
                found=scan,
                device=device,
                trust_code=given.params["trust_code"],
                tell=lambda line: print(line, flush=True),
                check=check,
                trackers=trackers,
                **settings,
            )
        except ModuleNotFoundError as error:
            raise CommandError(str(error)) from error
        except StopRequest as stop:
            again = "Run the same command again to go on"
            raise CommandError(f"stopped, and saved. {again}", stop.status) from None


def _quiet() -> None:
    """Keep Optuna from printing what the lines of the runs tell."""
    with suppress(ModuleNotFoundError):  # of which the sweep itself tells
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)


def _show(found: Sweep, datum: str) -> None:
    """The table of all groups, and what was left out."""
    from pyro_dvae.runs import group_runs

    for name, why in found.left_out.items():
        print(f"{name}: left out, {why}")
    part = "test" if any("test" in run.evaluation for run in found.runs) else "validation"
    groups = group_runs(found.runs, found.by, part=part)
    if groups:
        print(f"{part} ELBO, nats per {datum}, best mean first")
        for line in group_lines(groups, found.runs, part):
            print(line)
    if found.best is not None:
        told = " ".join(f"--{OPTIONS[name]} {setting(value)}" for name, value in found.best.items())
        print(f"best mean validation ELBO: {told}")
    print(f"folder of the runs: {found.folder}")
