"""How far a training is: a bar on a terminal or in a notebook, and a line per epoch elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from html import escape
from typing import TYPE_CHECKING, Any

from pyro_dvae.processes import rank
from pyro_dvae.training.records import EpochRecord

if TYPE_CHECKING:
    from pyro_dvae.training.trainer import Trainer

_PAUSE = 0.2
"""Seconds between two changes of a bar in a notebook: each of them is a message to the browser."""


class Progress:
    """Shows how far a training is: by a bar on a terminal or in a notebook, else by lines.

    Elsewhere it prints one line per epoch on standard output.

        with Progress(epochs=10) as bar:
            for record in trainer.run(10, on_step=bar.step):
                bar.epoch(record)

    Args:
        epochs: the number of epochs in all.
        done: the number of epochs that are complete already.
        value: what the training reports: the "ELBO", or the name of another value.
        datum: what to call a datum.
        file: where to show a bar of a terminal; None for standard output.
    """

    def __init__(
        self,
        epochs: int,
        done: int = 0,
        value: str = "estimate",
        datum: str = "datum",
        file: Any = None,
    ) -> None:
        from rich.console import Console

        self.epochs = epochs
        self.done = done
        self.datum = datum
        self.train = _train(value)
        console = Console(file=file)
        self.view: _Lines
        if console.is_jupyter:
            self.view = _Cell(epochs, done)
        elif (sys.stdout if file is None else file).isatty():
            self.view = _Bar(epochs, done, console)
        else:
            self.view = _Lines()

    def extend(self, epochs: int, value: str) -> None:
        """Go on to another number of epochs, in which the training reports another value.

        Args:
            epochs: the number of epochs in all.
            value: what the training reports from now on.
        """
        self.epochs, self.train = epochs, _train(value)
        self.view.extend(epochs)

    def __enter__(self) -> Progress:
        self.view.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.view.stop()

    def step(self, step: int, steps: int) -> None:
        """Show that a step of an epoch is done."""
        self.view.step(round(self.done + step / steps, 2))

    def epoch(self, record: EpochRecord) -> None:
        """Show that an epoch is done."""
        self.done = record.epoch
        held_out = "none" if record.validation_elbo is None else f"{record.validation_elbo:.2f}"
        figures = f"ELBO {self.train} {record.train_elbo:.2f}, validation {held_out}"
        line = f"epoch {record.epoch}/{self.epochs}: {figures} nats/{self.datum}"
        self.view.epoch(self.done, figures, f"{line}, {record.seconds:.0f} s")


def epochs_of(
    trainer: Trainer,
    epochs: int,
    *,
    progress: bool,
    value: str = "estimate",
    on_step: Callable[[int, int], None] | None = None,
    **limits: Any,
) -> Iterator[EpochRecord]:
    """What `trainer.run` yields, and meanwhile a bar where `progress` asks for one.

    Args:
        trainer: the training.
        epochs: the number of epochs in all.
        progress: whether to show how far it is.
        value: what the training reports, as `Progress` takes it.
        on_step: as `trainer.run` takes it.
        **limits: further arguments of `trainer.run`.
    """
    if not progress or rank() > 0:  # process 0 shows it for all
        yield from trainer.run(epochs, on_step=on_step, **limits)
        return
    with Progress(epochs, trainer.epoch, value) as bar:

        def after_step(step: int, steps: int) -> None:
            bar.step(step, steps)
            if on_step is not None:
                on_step(step, steps)

        for record in trainer.run(epochs, on_step=after_step, **limits):
            bar.epoch(record)
            yield record


def _train(value: str) -> str:
    return "train" if value == "ELBO" else f"(train {value})"


class _Lines:
    """One line per epoch, where nothing can be drawn over."""

    def start(self) -> None:
        """Begin to show."""

    def stop(self) -> None:
        """End: what is shown then stays."""

    def extend(self, epochs: int) -> None:
        """Show another number of epochs in all."""

    def step(self, done: float) -> None:
        """Show that so many epochs are done, of which the last one is in part."""

    def epoch(self, done: int, figures: str, line: str) -> None:
        """Show that an epoch is done: its figures beside a bar, or as a line by itself."""
        print(line, flush=True)


class _Bar(_Lines):
    """A bar on a terminal, by rich."""

    def __init__(self, epochs: int, done: int, console: Any) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self.bar = Progress(
            TextColumn("epoch"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=console,
        )
        self.task = self.bar.add_task("", total=epochs, completed=done)

    def start(self) -> None:
        self.bar.start()

    def stop(self) -> None:
        self.bar.stop()

    def extend(self, epochs: int) -> None:
        self.bar.update(self.task, total=epochs)

    def step(self, done: float) -> None:
        self.bar.update(self.task, completed=done)

    def epoch(self, done: int, figures: str, line: str) -> None:
        self.bar.update(self.task, completed=done, description=figures)


class _Cell(_Lines):
    """A bar in a notebook: one output that changes in place, and is saved with the notebook.

    It is an HTML element, for the bar of rich needs ipywidgets in a notebook, and is not saved.
    """

    def __init__(self, epochs: int, done: float) -> None:
        self.epochs, self.first, self.done = epochs, done, done
        self.figures = ""
        self.handle: Any = None

    def start(self) -> None:
        from IPython.display import display

        self.started = self.shown = time.monotonic()
        self.handle = display(self._content(), raw=True, display_id=True)

    def stop(self) -> None:
        self._show(ended=True)

    def extend(self, epochs: int) -> None:
        self.epochs = epochs
        self._show()

    def step(self, done: float) -> None:
        self.done = done
        if time.monotonic() >= self.shown + _PAUSE:
            self._show()

    def epoch(self, done: int, figures: str, line: str) -> None:
        self.figures = figures
        self.step(done)

    def _show(self, *, ended: bool = False) -> None:
        self.handle.update(self._content(ended=ended), raw=True)
        self.shown = time.monotonic()

    def _content(self, *, ended: bool = False) -> dict[str, str]:
        """The bar, by its MIME types."""
        seconds, done = time.monotonic() - self.started, self.done - self.first
        words = f"{seconds:.0f} s" if ended else ""
        if done and not ended:
            words = f"about {seconds / done * (self.epochs - self.done):.0f} s left"
        parts = [part for part in (self.figures, words) if part]
        head = f"epoch {int(self.done)}/{self.epochs}"
        bar = f'<progress value="{self.done}" max="{self.epochs}" style="width:16em"></progress>'
        about = escape(", ".join(parts))
        return {
            "text/plain": ", ".join([head, *parts]),
            "text/html": f"<div><label>{head} {bar}</label> {about}</div>",
        }
