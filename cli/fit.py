"""`pdvae fit`: train a discrete VAE and leave a run folder behind."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import CommandError, Device, DeviceOption, SeedOption, user_errors

if TYPE_CHECKING:
    from pyro_dvae import Config, DiscreteVAE, EpochRecord, Evaluation, Images


def fit(
    run_dir: Annotated[
        Path | None,
        typer.Argument(
            help="New folder for the run; runs/<data>-d4k8-<estimator>-<n> if left out."
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(help="The most epochs to train.")] = 50,
    latents: Annotated[int, typer.Option(help="D, the categorical variables of a code.")] = 4,
    categories: Annotated[int, typer.Option(help="K, the categories of each variable.")] = 8,
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
    batch_size: Annotated[int, typer.Option(help="Images a step.")] = 100,
    lr: Annotated[float, typer.Option(help="Adam's learning rate.")] = 1e-3,
    averaging: Annotated[
        float, typer.Option(help="Decay of the average of the weights that is kept; 0: none.")
    ] = 0.999,
    data: Annotated[
        str | None,
        typer.Option(help="mnist or mnist-sample; mnist, else the bundled sample, if left out."),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder of the IDX files; else $PDVAE_DATA_DIR, the cache.")
    ] = None,
    binarize: Annotated[
        str, typer.Option(help="dynamic (redrawn each batch), static (drawn once) or threshold.")
    ] = "dynamic",
    validation: Annotated[
        float, typer.Option(help="Fraction of the training images kept for validation.")
    ] = 0.05,
    patience: Annotated[
        int, typer.Option(help="Epochs without a better validation ELBO before stopping; 0: never.")
    ] = 10,
    seed: SeedOption = 0,
    device: DeviceOption = Device.auto,
) -> None:
    """Train a discrete VAE, best validation weights kept.

    Example: pdvae fit --epochs 50 --latents 4 --categories 8
    """
    with user_errors():
        from pyro_dvae.checkpoints import create_run
        from pyro_dvae.checks import one_of
        from pyro_dvae.config import ESTIMATORS, Config
        from pyro_dvae.data import load_images

        from .devices import pick_device

        one_of("estimator", estimator, ESTIMATORS)
        default_particles = ESTIMATORS[estimator].particles
        config = Config(
            binarize=binarize,
            num_latents=latents,
            num_categories=categories,
            estimator=estimator,
            num_particles=default_particles if particles is None else particles,
            baseline=baseline,
            temperature=temperature,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=lr,
            averaging=averaging,
            validation=validation,
            patience=patience or None,
            seed=seed,
        )
        target = pick_device(device)
        images = load_images(data, data_dir)
        if images.notice:
            print(images.notice, file=sys.stderr)
        name = f"{images.name}-d{latents}k{categories}-{estimator}"
        folder = create_run(run_dir, name)
    try:
        _train(folder, config, images, target)
    except (OSError, FloatingPointError) as error:
        raise CommandError(str(error), 1) from error
    except KeyboardInterrupt:
        raise CommandError(f"interrupted; the best weights so far are in {folder}", 130) from None


def _train(folder: Path, config: Config, images: Images, device: Any) -> None:
    import torch

    from pyro_dvae import BinaryImages, __version__, build_elbo, build_vae, evaluate, split
    from pyro_dvae.checkpoints import append_metrics, write_config, write_weights
    from pyro_dvae.config import ESTIMATORS
    from pyro_dvae.streams import RandomStream
    from pyro_dvae.training import fit as train

    event_shape = tuple(images.train.shape[1:])
    train_rows, validation_rows = split(len(images.train), config.validation, config.seed)
    pixels = BinaryImages(images.train, config.binarize, seed=config.seed)
    training = pixels.subset(train_rows).to(device)
    held_out = pixels.subset(validation_rows).fixed(config.seed).to(device)
    facts = {
        "name": images.name,
        "source": images.source,
        "binarize": config.binarize,
        "num_train": len(training),
        "num_validation": len(held_out),
        "num_test": len(images.test),
    }
    with RandomStream(config.seed):
        vae = build_vae(config, event_shape).to(device)
        elbo = build_elbo(config, event_shape)
    write_config(folder, config, event_shape, facts, __version__)
    write_weights(folder, vae)
    print(
        f"{folder}: {images.name} from {images.source}, {len(training)} training and "
        f"{len(held_out)} validation images, binarisation {config.binarize}, "
        f"{config.estimator} with {config.num_particles} particles, {device}"
    )

    records: list[EpochRecord] = []
    value = ESTIMATORS[config.estimator].value
    with _Progress(config.epochs, value) as progress:
        for record in train(
            vae,
            elbo,
            training,
            held_out,
            epochs=config.epochs,
            batch_size=config.batch_size,
            learning_rate=config.learning_rate,
            averaging=config.averaging,
            patience=config.patience,
            seed=config.seed,
            on_step=progress.step,
        ):
            records.append(record)
            append_metrics(folder, vars(record))
            if record.is_best:
                write_weights(folder, vae)
            progress.epoch(record)
    if len(records) < config.epochs:
        print(f"stopped: no better validation ELBO for {config.patience} epochs")

    grey = images.test.to(device, torch.float32) / 255
    test = BinaryImages(images.test, config.binarize, seed=config.seed).fixed(config.seed)
    scores = evaluate(vae, test.to(device), seed=config.seed)
    append_metrics(folder, {"test": vars(scores)})
    _report(scores, config)
    _draw(folder, vae, records, config, grey[:12], test[:12].to(device))
    print(f"run folder: {folder}")


class _Progress:
    """A bar on a terminal, a line an epoch elsewhere."""

    def __init__(self, epochs: int, value: str) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self.epochs = epochs
        self.train = "train" if value == "ELBO" else f"(train {value})"
        self.done = 0
        self.bar = Progress(
            TextColumn("epoch"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            disable=not sys.stdout.isatty(),
        )
        self.task = self.bar.add_task("", total=epochs)

    def __enter__(self) -> _Progress:
        if not self.bar.disable:  # a disabled bar of an older rich still prints a newline
            self.bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if not self.bar.disable:
            self.bar.stop()

    def step(self, step: int, steps: int) -> None:
        self.bar.update(self.task, completed=round(self.done + step / steps, 2))

    def epoch(self, record: EpochRecord) -> None:
        self.done = record.epoch
        train, held_out = f"{record.train_elbo:.2f}", f"{record.validation_elbo:.2f}"
        self.bar.update(
            self.task,
            completed=self.done,
            description=f"ELBO {self.train} {train}, validation {held_out}",
        )
        if self.bar.disable:
            print(
                f"epoch {record.epoch}/{self.epochs}: ELBO {self.train} {train}, validation "
                f"{held_out} "
                f"nats/image, {record.seconds:.0f} s",
                flush=True,
            )


def _report(scores: Evaluation, config: Config) -> None:
    exact = scores.standard_error == 0
    how = "exact" if exact else f"± {scores.standard_error:.2f}, by draws"
    print(
        f"test ELBO {scores.elbo:.2f} nats/image ({how}; {config.binarize} binarisation, "
        f"{scores.num_data} images)\n"
        f"  = entropy {scores.entropy:.2f} - D log K {-scores.log_prior:.2f} "
        f"- BCE {-scores.log_likelihood:.2f}"
    )
    if scores.log_marginal is None:
        codes = f"{config.num_categories}^{config.num_latents}"
        print(f"  log p(x): not summed, K^D = {codes} is too large")
    else:
        print(f"  log p(x) {scores.log_marginal:.2f} (exact, all codes)")


def _draw(
    folder: Path,
    vae: DiscreteVAE,
    records: list[EpochRecord],
    config: Config,
    grey: Any,
    binary: Any,
) -> None:
    from pyro_dvae import plots
    from pyro_dvae.streams import RandomStream

    caption = f"D={config.num_latents}, K={config.num_categories}, {config.estimator}"
    plots.save_figure(plots.elbo_figure(records, caption), folder / "elbo.png")
    plots.save_figure(
        plots.reconstruction_figure(vae, grey, binary, config.seed), folder / "reconstructions.png"
    )
    plots.save_figure(plots.latents_figure(vae, binary[0]), folder / "latents.png")
    with RandomStream(config.seed, binary.device):
        means = vae.sample(64, means=True)
    title = "means of p(x|z), z from the prior"
    plots.save_figure(plots.image_grid(means, 8, title), folder / "samples.png")
