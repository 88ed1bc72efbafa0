"""The training of a run folder, from its start or from where it stopped."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .console import complain
from .events import add_epoch, event_log
from .options import CommandError, fail, user_errors
from .pictures import draw
from .progress import Progress
from .report import report, unit, values
from .rows import grey, labels_for, shade
from .sample import sample_grid
from .signals import Signals, StopRequest

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from pyro_dvae import Config, EpochRecord, Trainer
    from pyro_dvae.data import Splits


_CALIBRATING = 5_000
"""Training data that a likelihood sees before the first step."""


def train(
    folder: Path,
    config: Config,
    splits: Splits,
    facts: dict[str, Any],
    device: Any,
    *,
    resume: bool,
    log_every: int,
    tensorboard: bool,
) -> None:
    """Train, saving before the first and after every epoch, and report.

    Args:
        folder: the run's.
        config: its settings.
        splits: its data.
        facts: about the data, for `config.json`.
        device: to train on.
        resume: continue from the folder's last state, rather than start in an empty folder.
        log_every: steps between lines in the metrics beside those of the epochs; 0 for none.
        tensorboard: write event files too.
    """
    from pyro_dvae.data import DataError
    from pyro_dvae.runs.storage import only_writer

    with ExitStack() as held, warnings_in_lines():
        with user_errors():
            held.enter_context(only_writer(folder))
        try:
            trainer, records = _prepare(folder, config, splits, facts, device, resume)
            events = event_log(folder, trainer.epoch + 1) if tensorboard else None
            _say_what_starts(folder, config, splits, facts, trainer, device)
            _run(folder, config, trainer, records, log_every, events)
            finish(folder, config, splits, trainer, records, facts)
        except OSError as error:
            raise CommandError(f"{error}. What was saved before stays in {folder}.", 1) from error
        except DataError as error:  # a file that was whole before
            raise CommandError(f"{error} What was saved before stays in {folder}.", 1) from error
        except FloatingPointError as error:
            raise CommandError(f"{error} The last good weights stay in {folder}.", 1) from error
        except KeyboardInterrupt:
            raise CommandError(
                "interrupted at once; continue from the last save with pdvae fit --resume "
                f"{folder}",
                130,
            ) from None


@contextmanager
def warnings_in_lines() -> Iterator[None]:
    """Print warnings as all else that is wrong."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: complain(str(message))
        yield


def _prepare(
    folder: Path,
    config: Config,
    splits: Splits,
    facts: dict[str, Any],
    device: Any,
    resume: bool,
) -> tuple[Trainer, list[EpochRecord]]:
    from pyro_dvae import Trainer, build_elbo, build_vae
    from pyro_dvae.runs.checkpoints import (
        read_evaluation,
        read_state,
        rewind_metrics,
        write_config,
        write_state,
        write_weights,
    )
    from pyro_dvae.runs.log import epoch_records
    from pyro_dvae.streams import RandomStream

    event_shape = tuple(splits.train.event_shape)
    with RandomStream(config.seed):
        vae = build_vae(config, event_shape).to(device)
        elbo = build_elbo(config, event_shape)
    _calibrate(vae, splits, config.seed)  # of a run that goes on, the state replaces it
    trainer = Trainer(
        vae,
        elbo,
        splits.train.to(device),
        validation_of(config, splits, device),
        **config.training,
    )
    if resume:
        with user_errors():
            trainer.load_state_dict(read_state(folder))
            if trainer.epoch > config.epochs:
                fail(
                    f"Expected at least the {trainer.epoch} epochs that {folder} has; got "
                    f"{config.epochs}. Raise --epochs."
                )
            read_evaluation(folder)  # whose damage would tell at the end
            lines = rewind_metrics(folder, trainer.epoch, trainer.step)
            records = epoch_records(folder, lines)
    else:
        records = []
        write_weights(folder, vae.state_dict(), epoch=0)
        write_state(folder, trainer.state_dict())
    write_config(folder, config, event_shape, facts)
    return trainer, records


def validation_of(config: Config, splits: Splits, device: Any) -> Any:
    """The validation data, with their labels where the model takes them; None without."""
    if splits.validation is None:
        return None
    x = splits.validation.to(device)
    labels = labels_for(config, splits.stored["validation"].labels, "the validation part")
    return x if labels is None else (x, labels.to(device))


def _calibrate(vae: Any, splits: Splits, seed: int) -> None:
    """Show the likelihood some of the training data, whose location and scale it may want."""
    import torch

    calibrate = getattr(vae.likelihood, "calibrate", None)
    if calibrate is not None:
        device = next(vae.parameters()).device
        shuffle = torch.Generator().manual_seed(seed)
        index = torch.randperm(len(splits.train), generator=shuffle)[:_CALIBRATING].sort().values
        calibrate(_first(splits.train, index, seed).to(device))


def _say_what_starts(
    folder: Path,
    config: Config,
    splits: Splits,
    facts: dict[str, Any],
    trainer: Trainer,
    device: Any,
) -> None:
    print(
        f"{folder}: {facts['name']} from {facts['source']}, {facts['num_train']} training and "
        f"{facts['num_validation']} validation {unit(splits.train.event_shape)}s, "
        f"{values(config, splits.stored['train'].dtype)}, {config.estimator} with "
        f"{config.num_particles} particles, {device}"
    )
    if trainer.epoch or trainer.step:
        print(f"continuing after epoch {trainer.epoch}, step {trainer.step} of {trainer.steps}")


def _run(
    folder: Path,
    config: Config,
    trainer: Trainer,
    records: list[EpochRecord],
    log_every: int,
    events: Any,
) -> None:
    from pyro_dvae.runs.checkpoints import append_metrics, write_state, write_weights
    from pyro_dvae.runs.config import ESTIMATORS

    value = ESTIMATORS[config.estimator].value
    datum = unit(trainer.data.event_shape)  # type: ignore[attr-defined]
    with Signals() as signals, Progress(config.epochs, trainer.epoch, value, datum) as progress:

        def on_step(step: int, steps: int) -> None:
            progress.step(step, steps)
            if log_every and step % log_every == 0:
                train_elbo = trainer.train_elbo
                line = {"epoch": trainer.epoch + 1, "step": step, "train_elbo": train_elbo}
                append_metrics(folder, line)
                if events is not None:
                    events.add_scalar("ELBO/steps", train_elbo, trainer.epoch * steps + step)
            signals.check()

        try:
            for record in trainer.run(config.epochs, patience=config.patience, on_step=on_step):
                records.append(record)
                append_metrics(folder, vars(record))
                if record.is_best:
                    write_weights(folder, trainer.best_weights, record.epoch)
                write_state(folder, trainer.state_dict())
                progress.epoch(record)
                if events is not None:
                    add_epoch(events, record)
                signals.check()
        except StopRequest as stop:
            write_state(folder, trainer.state_dict())
            done = f"epoch {trainer.epoch + 1}, step {trainer.step} of {trainer.steps}"
            raise CommandError(
                f"stopped in {done}, and saved. Continue with pdvae fit --resume {folder}",
                stop.status,
            ) from None
    if trainer.epoch < config.epochs:
        print(f"stopped: no better validation ELBO for {config.patience} epochs")


def finish(
    folder: Path,
    config: Config,
    splits: Splits,
    trainer: Trainer,
    records: list[EpochRecord],
    facts: dict[str, Any],
) -> None:
    """Evaluate the best weights of a training on the test data, and draw the pictures.

    Args:
        folder: the run's.
        config: its settings.
        splits: its data.
        trainer: which is done.
        records: of its epochs.
        facts: about the data.
    """
    from dataclasses import asdict

    from pyro_dvae import evaluate
    from pyro_dvae.evaluation.usage import describe_collapse
    from pyro_dvae.runs.checkpoints import write_evaluation

    trainer.keep_best()
    if splits.test is not None:
        device = trainer.device
        labels = labels_for(config, splits.stored["test"].labels, "the test part")
        scores = evaluate(
            trainer.vae,
            splits.test.to(device),
            None if labels is None else labels.to(device),
            seed=config.seed,
        )
        epoch = 0 if trainer.best is None else trainer.best.epoch
        try:
            write_evaluation(folder, "test", {**asdict(scores), "epoch": epoch})
        except ValueError as error:  # they are told below, and nothing else is lost
            complain(f"the figures were not stored: {error}")
        report(scores, "test", config, unit(splits.train.event_shape))
    history = [record.validation_information for record in records]
    collapse = describe_collapse([row for row in history if row is not None])
    if collapse is not None:
        print(collapse)
    _draw(folder, trainer, records, config, splits, facts)
    print(f"run folder: {folder}")


def _draw(
    folder: Path,
    trainer: Trainer,
    records: list[EpochRecord],
    config: Config,
    splits: Splits,
    facts: dict[str, Any],
) -> None:
    vae: Any = trainer.vae
    caption = f"D={config.num_latents}, K={config.num_categories}, {config.estimator}"
    shape = tuple(splits.train.event_shape)

    def draw_elbo() -> Figure:
        from pyro_dvae.runs.plots import elbo_figure

        return elbo_figure(records, caption, unit(shape))

    draw(folder / "elbo.png", draw_elbo)
    if unit(shape) != "image":
        print(f"data of shape {shape} are no images: of the pictures only elbo.png was drawn")
        return
    shown, served = _shown(trainer, config, splits, facts)

    def draw_reconstructions() -> Figure:
        from pyro_dvae.runs.plots import reconstruction_figure

        return reconstruction_figure(vae, shown, served, config.seed, shade(config, facts))

    def draw_latents() -> Figure:
        from pyro_dvae.runs.plots import latents_figure

        return latents_figure(vae, served[0], shade(config, facts))

    draw(folder / "reconstructions.png", draw_reconstructions)
    draw(folder / "latents.png", draw_latents)
    draw(
        folder / "samples.png",
        lambda: sample_grid(vae, config, facts, 64, config.seed, trainer.device),
    )


def _shown(
    trainer: Trainer, config: Config, splits: Splits, facts: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """Some images in [0, 1], and as the encoder sees them, on the model's device."""
    import torch

    part = "test" if splits.test is not None else "train"
    rows = splits.stored[part]
    index = torch.arange(min(12, len(rows)))
    values = rows.read(index)
    x = splits.test[:12] if splits.test is not None else _first(splits.train, index, config.seed)
    shown = grey(x, values, float(values.max()), config, facts)
    return shown.to(trainer.device), x.to(trainer.device)


def _first(data: Any, index: Any, seed: int) -> Any:
    import torch

    batch = data.batch(index, torch.Generator().manual_seed(seed))
    return batch[0] if isinstance(batch, tuple) else batch
