"""`pdvae gradients`: bias, variance and cost of every gradient estimator on one batch."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .console import for_a_bar, note
from .options import (
    Device,
    DeviceOption,
    ForceOption,
    JsonOption,
    SeedOption,
    TrustOption,
    fail,
    new_output,
    user_errors,
)
from .pictures import own_settings
from .rows import failed_writes, labels_for, load

if TYPE_CHECKING:
    from pyro_dvae import Config
    from pyro_dvae.diagnostics import GradientStatistics


def gradients(
    run: Annotated[
        Path | None, typer.Argument(help="Run folder; the newest below runs/ if left out.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="An untrained model, no run.")] = False,
    latents: Annotated[int, typer.Option(help="D, of a fresh model.")] = 4,
    categories: Annotated[int, typer.Option(help="K, of a fresh model.")] = 8,
    estimators: Annotated[
        str, typer.Option(help="Names with commas between them, or all.")
    ] = "all",
    draws: Annotated[int, typer.Option(help="Gradients drawn an estimator, at least 20.")] = 100,
    batch_size: Annotated[int, typer.Option(help="Training images in the batch.")] = 100,
    data: Annotated[
        str | None, typer.Option(help="A file, or a data set's name; the run's if left out.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder of the IDX files; else $PDVAE_DATA_DIR, the cache.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="PNG to draw the table into.")] = None,
    seed: SeedOption = 0,
    force: ForceOption = False,
    as_json: JsonOption = False,
    device: DeviceOption = Device.auto,
    trust_code: TrustOption = False,
) -> None:
    """Measure every estimator's gradient against the exact one, encoder and decoder apart.

    Example: pdvae gradients --fresh --draws 100 --plot gradients.png
    """
    if plot is not None:
        new_output(plot, force)
    if fresh and run is not None:
        fail(f"Expected a run or --fresh; got both, {run}. Leave one out.")
    if draws < 20:
        fail(f"Expected at least 20 draws; got {draws}. Raise --draws.")
    if batch_size < 1:
        fail(f"Expected a batch of at least 1 image; got {batch_size}. Raise --batch-size.")
    from .report import unit

    with user_errors():
        import torch

        from pyro_dvae import Config, build_vae
        from pyro_dvae.checks import one_of
        from pyro_dvae.data import Preparation, PreparedData, choose, extent, open_source
        from pyro_dvae.diagnostics import gradient_statistics, reference_gradient
        from pyro_dvae.runs.config import ESTIMATORS
        from pyro_dvae.runs.sizes import refuse_too_large
        from pyro_dvae.streams import RandomStream

        from .devices import pick_device
        from .inputs import placed, run_source

        target = pick_device(device)
        names = list(ESTIMATORS) if estimators == "all" else estimators.split(",")
        for name in names:
            one_of("estimator", name, ESTIMATORS)
        loaded = None if fresh else load(run, trust_code)
        if loaded is None:
            source = open_source(data, data_dir=data_dir)
        else:
            source = run_source(placed(loaded.data, data, data_dir))
        if source.notice:
            note(source.notice)
        event_shape = source.train.event_shape
        datum = unit(event_shape)
        if loaded is None:
            what = "fresh model"
            config = Config(num_latents=latents, num_categories=categories, seed=seed)
            preparation = choose(extent(source.train))
            config = replace(config, binarize=preparation.binarize)
        else:
            what, config = str(loaded.folder), loaded.config
        num = min(batch_size, len(source.train))
        refuse_too_large(replace(config, batch_size=num), event_shape, num, target)
        if loaded is None:
            with RandomStream(seed):
                vae = build_vae(config, event_shape)
        else:
            vae = loaded.vae
    vae = vae.to(target)
    values = source.train.read(torch.arange(num))
    preparation = Preparation(config.binarize, config.range, config.likelihood)
    found = extent(source.train) if preparation.looks_at_values else None
    x = PreparedData(values, preparation, seed=config.seed, found=found).fixed(seed).to(target)
    stored = source.train.labels
    with user_errors():
        labels = labels_for(config, None if stored is None else stored[: len(x)], "the data")
    batch = x if labels is None else (x, labels.to(target))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        elbos = dict(_possible(names, config, vae, batch, every=estimators == "all"))
        torch.manual_seed(seed)
        reference, method = reference_gradient(vae, batch)
    rows = []
    with _Bar(list(elbos)) as advance:
        for row in gradient_statistics(vae, batch, elbos, reference, num_draws=draws, seed=seed):
            rows.append(row)
            advance(row)
    if as_json:
        facts = {"model": what, "reference": method, "num_draws": draws, "batch_size": len(x)}
        print(json.dumps({**facts, "rows": [asdict(row) for row in rows]}))
    else:
        print(
            f"{what}, {len(x)} {datum}s of {source.name}, {draws} draws; reference: {method}\n"
            f"(in the gradient of the mean ELBO per {datum}; ± one standard error)"
        )
        _table(rows)
    if plot is not None:
        with failed_writes(), own_settings():
            from pyro_dvae.runs.plots import gradient_figure, save_figure

            save_figure(gradient_figure(rows), plot)


def _possible(
    names: list[str], config: Config, vae: Any, batch: Any, *, every: bool
) -> Iterator[tuple[str, Any]]:
    """The estimators that this model's size and parts allow; those named must be among them."""
    from pyro_dvae import build_elbo
    from pyro_dvae.runs.config import ESTIMATORS
    from pyro_dvae.training.batches import arguments

    device = next(vae.parameters()).device
    # The gradients of the ELBO, however the run was trained.
    own: dict[str, Any] = {"temperature": None, "beta": 1.0, "free_bits": 0.0, "annealing": 0}
    for name in names:
        try:
            particles = ESTIMATORS[name].particles
            setting = replace(config, estimator=name, num_particles=particles, **own)
            elbo: Any = build_elbo(setting, arguments(batch)[0].shape[1:])
            if hasattr(elbo, "to"):
                elbo.to(device)
            elbo.loss(vae.model, vae.guide, *arguments(batch))
            yield name, elbo
        except (TypeError, ValueError) as refusal:
            if not every:
                fail(f"{name}: {refusal}")
            print(f"{name} is left out: {refusal}", file=sys.stderr)


class _Bar:
    """A progress bar on stderr, where it is a terminal."""

    def __init__(self, names: list[str]) -> None:
        from rich.console import Console
        from rich.progress import Progress

        console = Console(file=for_a_bar(sys.stderr))
        self.bar = Progress(console=console, disable=not console.is_terminal)
        self.task = self.bar.add_task("estimators", total=2 * len(names))

    def __enter__(self) -> _Bar:
        if not self.bar.disable:  # a disabled bar of an older rich still prints a newline
            self.bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if not self.bar.disable:
            self.bar.stop()

    def __call__(self, row: GradientStatistics) -> None:
        self.bar.update(self.task, advance=1, description=row.estimator)


def _table(rows: list[GradientStatistics]) -> None:
    for part in dict.fromkeys(row.part for row in rows):
        print(
            f"\n{part:18} {'|bias|':>18} {'bias/|e|':>9} {'variance':>20} {'signal/noise':>16} "
            f"{'cosine':>15} {'decodes':>8} {'ms':>7}"
        )
        for row in rows:
            if row.part == part:
                print(
                    f"{row.estimator:18} {row.bias.value:9.3g} ± {row.bias.error:<6.1g} "
                    f"{row.relative_bias:9.3f} {row.variance.value:11.4g} "
                    f"± {row.variance.error:<6.1g} {row.signal_to_noise.value:8.3g} "
                    f"± {row.signal_to_noise.error:<5.1g} {row.cosine.value:7.3f} "
                    f"± {row.cosine.error:<5.1g} {row.decoder_evaluations:8.3g} "
                    f"{row.milliseconds:7.1f}"
                )
