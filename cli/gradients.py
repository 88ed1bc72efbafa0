"""`pdvae gradients`: bias, variance and cost of every gradient estimator on one batch."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from .console import for_a_bar, note
from .errors import fail, new_output, user_errors
from .figures import datum_name
from .options import (
    DEFAULTS,
    CategoriesOption,
    Device,
    DeviceOption,
    ForceOption,
    JsonOption,
    LatentsOption,
    RunArgument,
    RunDataDirOption,
    SeedOption,
    TrustOption,
    your_data,
)
from .pictures import own_settings
from .rows import failed_writes, load

if TYPE_CHECKING:
    import torch

    from pyro_dvae import Config, DiscreteVAE, GradientStatistics
    from pyro_dvae.data import Source
    from pyro_dvae.training import Batch


FreshOption = Annotated[
    bool,
    typer.Option(
        "--fresh",
        help="Measure at an untrained model of --latents and --categories, in place of a run.",
    ),
]
EstimatorsOption = Annotated[
    str,
    typer.Option(help="The names of the estimators, with commas between them; or all."),
]
DrawsOption = Annotated[
    int, typer.Option(help="The number of gradients to draw per estimator.", min=20)
]
BatchSizeOption = Annotated[
    int, typer.Option(help="B, the number of training data in the batch.", min=1)
]
DataOption = Annotated[
    str | None,
    your_data(
        help="A file, or the name of a data set. If left out: the data of the run, or mnist "
        "for --fresh."
    ),
]
PlotOption = Annotated[
    Path | None, typer.Option(help="A .png file to write, with the table as a figure.")
]


def gradients(
    run: RunArgument = None,
    fresh: FreshOption = False,
    num_latents: LatentsOption = DEFAULTS.num_latents,
    num_categories: CategoriesOption = DEFAULTS.num_categories,
    estimators: EstimatorsOption = "all",
    draws: DrawsOption = 100,
    batch_size: BatchSizeOption = DEFAULTS.batch_size,
    data: DataOption = None,
    data_dir: RunDataDirOption = None,
    plot: PlotOption = None,
    seed: SeedOption = 0,
    force: ForceOption = False,
    as_json: JsonOption = False,
    device: DeviceOption = Device.auto,
    trust_code: TrustOption = False,
) -> None:
    """Measure the bias, the variance and the cost of estimators.

    The gradients of the encoder and those of the decoder are compared with the exact ones, for one
    batch of training data.

    Example: pdvae gradients --fresh --draws 100 --plot gradients.png
    """
    if plot is not None:
        new_output(plot, force)
    if fresh and run is not None:
        fail(f"Expected a run or --fresh; got both, {run}. Leave one out.")
    with user_errors():
        import torch

        from pyro_dvae import gradient_statistics, reference_gradient

        from .devices import pick_device

        target, names = pick_device(device), _names(estimators)
        if fresh:
            model = _untrained(num_latents, num_categories, seed, data, data_dir)
        else:
            model = _of_run(run, data, data_dir, trust_code)
        vae, batch = _prepared(model, batch_size, seed, target)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        elbos = dict(_possible(names, model.config, vae, batch, every=estimators == "all"))
        torch.manual_seed(seed)
        reference, method = reference_gradient(vae, batch)
    rows = gradient_statistics(vae, batch, elbos, reference, num_draws=draws, seed=seed)
    done = _followed(rows, len(elbos))
    num = min(batch_size, len(model.source.train))
    about = {"model": model.name, "reference": method, "num_draws": draws, "batch_size": num}
    _print(done, model, about, as_json=as_json)
    if plot is not None:
        _draw(done, plot)


class _Model(NamedTuple):
    """The model that gradients are measured at, and the data that the batch is taken from."""

    name: str
    config: Config
    vae: DiscreteVAE
    source: Source


def _names(estimators: str) -> list[str]:
    from pyro_dvae.runs import ESTIMATORS

    names = list(ESTIMATORS) if estimators == "all" else estimators.split(",")
    for name in names:
        if name not in ESTIMATORS and ":" not in name:  # module:factory is the user's own
            fail(f"Expected estimators of {', '.join(ESTIMATORS)}; got {name!r}. Choose others.")
    return names


def _of_run(run: Path | None, data: str | None, data_dir: Path | None, trust_code: bool) -> _Model:
    loaded = load(run, trust_code)
    source = loaded.data.moved_to(data, data_dir).open()
    return _Model(str(loaded.folder), loaded.config, loaded.vae, source)


def _untrained(
    latents: int, categories: int, seed: int, data: str | None, data_dir: Path | None
) -> _Model:
    from pyro_dvae import Config
    from pyro_dvae.data import choose, extent, open_source
    from pyro_dvae.runs import new_model, refuse_too_large

    source = open_source(data, data_dir=data_dir)
    if source.notice:
        note(source.notice)
    binarize = choose(extent(source.train)).binarize
    config = Config(num_latents=latents, num_categories=categories, seed=seed, binarize=binarize)
    refuse_too_large(config, source.train.event_shape)
    vae, _ = new_model(config, source.train.event_shape)
    return _Model("fresh model", config, vae, source)


def _prepared(
    model: _Model, batch_size: int, seed: int, device: torch.device
) -> tuple[DiscreteVAE, Batch]:
    """The model, and x, or (x, labels), of a batch, on the device."""
    import torch

    from pyro_dvae.data import PreparedData, extent
    from pyro_dvae.runs import model_labels, preparation_of, refuse_too_large

    config, rows = model.config, model.source.train
    num = min(batch_size, len(rows))
    refuse_too_large(replace(config, batch_size=num), rows.event_shape, num, device)
    preparation = preparation_of(config, rows.event_shape)
    found = extent(rows) if preparation.looks_at_values else None
    values = rows.read(torch.arange(num))
    x = PreparedData(values, preparation, seed=config.seed, found=found).fixed(seed)
    labels = model_labels(config, None if rows.labels is None else rows.labels[:num], "the data")
    x = x.to(device)
    return model.vae.to(device), x if labels is None else (x, labels.to(device))


def _possible(
    names: list[str], config: Config, vae: DiscreteVAE, batch: Batch, *, every: bool
) -> Iterator[tuple[str, Any]]:
    """The estimators that this model's size and parts allow; those named must be among them."""
    from torch import nn

    from pyro_dvae import build_elbo
    from pyro_dvae.runs import ESTIMATORS

    arguments = batch if isinstance(batch, tuple) else (batch,)
    # The gradients of the ELBO, however the run was trained.
    own: dict[str, Any] = {"temperature": None, "decoder_particles": None}
    own |= {"beta": 1.0, "free_bits": 0.0, "annealing": 0}
    for name in names:
        try:
            particles = ESTIMATORS[name].particles if name in ESTIMATORS else None
            setting = replace(config, estimator=name, num_particles=particles, **own)
            elbo: Any = build_elbo(setting, arguments[0].shape[1:])
            if isinstance(elbo, nn.Module):
                elbo.to(arguments[0].device)
            elbo.loss(vae.model, vae.guide, *arguments)
            yield name, elbo
        except (TypeError, ValueError) as refusal:
            if not every:
                fail(f"{name}: {refusal}")
            note(f"{name} is left out: {refusal}")


def _followed(rows: Iterator[GradientStatistics], number: int) -> list[GradientStatistics]:
    """The rows, with a progress bar on stderr where that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(file=for_a_bar(sys.stderr))
    if not console.is_terminal:
        return list(rows)
    done = []
    with Progress(console=console) as bar:
        task = bar.add_task("estimators", total=2 * number)
        for row in rows:
            done.append(row)
            bar.update(task, advance=1, description=row.estimator)
    return done


def _draw(rows: list[GradientStatistics], output: Path) -> None:
    with failed_writes(), own_settings():
        from pyro_dvae.runs.plots import gradient_figure, save_figure

        save_figure(gradient_figure(rows), output)


def _print(
    rows: list[GradientStatistics], model: _Model, about: dict[str, Any], *, as_json: bool
) -> None:
    if as_json:
        print(json.dumps({**about, "rows": [asdict(row) for row in rows]}))
        return
    datum = datum_name(model.source.train.event_shape)
    print(
        f"{model.name}, {about['batch_size']} {datum}s of {model.source.name}, "
        f"{about['num_draws']} draws; reference: {about['reference']}\n"
        f"(in the gradient of the mean ELBO per {datum}; ± one standard error)"
    )
    for part in dict.fromkeys(row.part for row in rows):
        print(
            f"\n{part:18} {'|bias|':>18} {'bias/|e|':>16} {'variance':>20} {'signal/noise':>16} "
            f"{'cosine':>15} {'decodes':>8} {'ms':>7}"
        )
        for row in rows:
            if row.part == part:
                print(
                    f"{row.estimator:18} {row.bias.value:9.3g} ± {row.bias.error:<6.1g} "
                    f"{row.relative_bias:7.3f} ± {row.relative_bias_error:<6.1g} "
                    f"{row.variance.value:11.4g} "
                    f"± {row.variance.error:<6.1g} {row.signal_to_noise.value:8.3g} "
                    f"± {row.signal_to_noise.error:<5.1g} {row.cosine.value:7.3f} "
                    f"± {row.cosine.error:<5.1g} {row.decoder_evaluations:8.3g} "
                    f"{row.milliseconds:7.1f}"
                )
