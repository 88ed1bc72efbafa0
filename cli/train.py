"""The training of a run folder on a terminal: progress, signals, messages, pictures."""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from .console import for_a_bar
from .errors import CommandError
from .figures import datum_name, dead_parts, print_figures
from .pictures import draw
from .processes import is_first, wait_for_first
from .signals import STOPPED, Signals, StopRequest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pyro_dvae import EpochRecord, Evaluation
    from pyro_dvae.runs import RunTrainer, TrackerFactory


_SHARE = 0.05
"""The share of the time of a training that the pictures of its best epochs may take."""
_FIRST = 3.0
"""Seconds that the first pictures may take. Most of it is the import of matplotlib."""


_GUIDE = "training the encoder alone by the ELBO, all else fixed"


def train(
    training: RunTrainer,
    starts: str,
    *,
    log_every: int = 0,
    trackers: Sequence[TrackerFactory] = (),
    max_seconds: float = math.inf,
) -> Evaluation | None:
    """Train, evaluate the best weights on the test data, print and draw.

    Args:
        training: the run that is about to train.
        starts: the line that says what is trained, printed when the folder is locked.
        log_every: steps between lines in the metrics beside those of the epochs; 0 for none.
        trackers: what makes the trackers, which are told of each epoch.
        max_seconds: save and stop after this many seconds.

    Returns:
        The figures of the test data; None where there are none.
    """
    from pyro_dvae.data import DataError
    from pyro_dvae.training import ProcessError

    folder = training.folder
    kept = f"What was saved before stays in {folder}."
    try:
        with ExitStack() as held:
            try:
                held.enter_context(training)
            except ValueError as error:
                raise CommandError(str(error)) from error
            print(starts)
            _run(training, log_every, trackers, max_seconds)
            return _finish(training)
    # A full disk, a file of data that was whole before, or another process that has failed.
    except (OSError, DataError, ProcessError) as error:
        raise CommandError(f"{str(error).rstrip('.')}. {kept}", 1) from error
    except FloatingPointError as error:
        raise CommandError(f"{error} The last good weights stay in {folder}.", 1) from error
    except KeyboardInterrupt:
        again = f"continue from the last save with pdvae fit --resume {folder}"
        raise CommandError(
            f"interrupted at once; {again if training.keeps_state else kept}", 130
        ) from None


def _run(
    training: RunTrainer,
    log_every: int,
    trackers: Sequence[TrackerFactory],
    max_seconds: float,
) -> None:
    from pyro_dvae.runs import estimator_of
    from pyro_dvae.training import Progress

    trainer, config = training.trainer, training.config
    if trainer.epoch or trainer.step:
        print(f"continuing after epoch {trainer.epoch}, step {trainer.step} of {trainer.steps}")
    if training.is_of_guide:
        print(_GUIDE)
    by_elbo = training.is_of_guide or not training.keeps_state
    value = "ELBO" if by_elbo else estimator_of(config.estimator).value
    datum = datum_name(training.event_shape)
    bar = Progress(training.last_epoch, trainer.epoch, value, datum, for_a_bar(sys.stdout))
    pictures = _Pictures(training)
    with Signals(max_seconds, quiet=not is_first()) as signals, bar as progress:

        def on_step(step: int, steps: int) -> None:
            progress.step(step, steps)
            stop_if_asked()

        def stop_if_asked() -> None:
            status = signals.status
            if training.trainer.agree_to_stop(status is not None):
                raise StopRequest(status or STOPPED)  # another process was asked

        def on_guide() -> None:
            _say_if_stopped(training.trainer.epoch, config.epochs, config.patience)
            print(_GUIDE)
            progress.extend(training.last_epoch, "ELBO")

        try:
            for record in training.epochs(
                log_every=log_every, on_step=on_step, on_guide=on_guide, trackers=trackers
            ):
                progress.epoch(record)
                stop_if_asked()
                pictures.after(record)
        except StopRequest as stop:
            training.save()
            pictures.stop()
            wait_for_first()
            raise CommandError(_stopped(training), stop.status) from None
    _say_if_stopped(training.trainer.epoch, training.last_epoch, config.patience)


def _say_if_stopped(epoch: int, last: int, patience: int | None) -> None:
    if epoch < last:
        print(f"stopped: no better validation ELBO for {patience} epochs")


def _stopped(training: RunTrainer) -> str:
    trainer, folder = training.trainer, training.folder
    where = f"stopped in epoch {trainer.epoch + 1}"
    if not training.keeps_state:
        return f"{where}; the best prior so far is in {folder}"
    where += f", step {trainer.step} of {trainer.steps}"
    return f"{where}, and saved. Continue with pdvae fit --resume {folder}"


def _finish(training: RunTrainer) -> Evaluation | None:
    scores = training.finish()
    if scores is not None:
        print_figures(scores, "test", training.config, datum_name(training.event_shape))
    history = [record.validation_information for record in training.records]
    known = [row for row in history if row is not None]
    for line in dead_parts(known, scores, training.config):
        if line is not None:
            print(line)
    _draw(training)
    print(f"run folder: {training.folder}")
    return scores


class _Pictures:
    """Draws the pictures of the best weights so far, so that they are there whenever it ends.

    Args:
        training: the run that is about to train.
    """

    def __init__(self, training: RunTrainer) -> None:
        self._training, self._start = training, time.monotonic()
        self._spent, self._last = 0.0, _FIRST
        self._are_new = True

    def after(self, record: EpochRecord) -> None:
        """Draw after an epoch, if it is the best so far and there is time for it."""
        if record.is_best:
            self._are_new = False
            if self._spent + self._last <= _SHARE * (time.monotonic() - self._start):
                self._draw()

    def stop(self) -> None:
        """Draw where the training was told to stop."""
        if not self._are_new:
            self._training.trainer.keep_best()
            self._draw()

    def _draw(self) -> None:
        start = time.monotonic()
        _draw(self._training, quiet=True)
        self._last = time.monotonic() - start
        self._spent += self._last
        self._are_new = True


def _draw(training: RunTrainer, *, quiet: bool = False) -> None:
    """Draw the pictures of the weights that the model has, in process 0.

    Args:
        training: the run.
        quiet: whether to say nothing of pictures that cannot be drawn.
    """
    from pyro_dvae.runs import example_images, sample_grid, shade_of

    if not is_first():
        return
    run, seed = training.run, training.config.seed
    folder, shape, config = run.folder, run.event_shape, run.config

    def elbo() -> Figure:
        from pyro_dvae.runs.plots import elbo_figure

        caption = f"D={config.num_latents}, K={config.num_categories}, {config.estimator}"
        return elbo_figure(training.records, caption, datum_name(shape))

    draw(folder / "elbo.png", elbo, quiet=quiet)
    if datum_name(shape) != "image":
        if not quiet:
            print(f"data of shape {shape} are no images: of the pictures only elbo.png was drawn")
            if len(shape) == 1:
                print(f"what the categories mean: pdvae traverse {shlex.quote(str(folder))}")
        return
    shown, x = (
        images.to(training.trainer.device) for images in example_images(run, training.splits)
    )
    shade = shade_of(run)

    def reconstructions() -> Figure:
        from pyro_dvae.runs.plots import reconstruction_figure

        return reconstruction_figure(run.vae, shown, x, seed, shade)

    def latents() -> Figure:
        from pyro_dvae.runs.plots import latents_figure

        return latents_figure(run.vae, x[0], shade)

    def samples() -> Figure:
        from pyro_dvae.runs.plots import image_grid

        return image_grid(*sample_grid(run, 64, seed=seed))

    draw(folder / "reconstructions.png", reconstructions, quiet=quiet)
    draw(folder / "latents.png", latents, quiet=quiet)
    draw(folder / "samples.png", samples, quiet=quiet)
