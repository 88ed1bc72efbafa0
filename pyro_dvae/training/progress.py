"""How far a training is: a bar on a terminal or in a notebook, and a line per epoch elsewhere."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any

from pyro_dvae.training.records import EpochRecord


class Progress:
    """Shows how far a training is.

    On a terminal it is a bar, and in a notebook too, where ipywidgets are installed. Elsewhere it
    is one line per epoch on standard output.

    Args:
        epochs: the number of epochs in all.
        done: the number of epochs that are complete already.
        value: what the training reports: the "ELBO", or the name of another value.
        datum: what to call a datum.
        file: where to show the bar; None for standard output.
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
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self.epochs = epochs
        self.done = done
        self.datum = datum
        self.train = _train(value)
        console = Console(file=file)
        has_bar = find_spec("ipywidgets") is not None if console.is_jupyter else _is_terminal(file)
        self.bar = Progress(
            TextColumn("epoch"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=console,
            disable=not has_bar,
        )
        self.task = self.bar.add_task("", total=epochs, completed=done)

    def extend(self, epochs: int, value: str) -> None:
        """Go on to another number of epochs, in which the training reports another value.

        Args:
            epochs: the number of epochs in all.
            value: what the training reports from now on.
        """
        self.epochs, self.train = epochs, _train(value)
        self.bar.update(self.task, total=epochs)

    def __enter__(self) -> Progress:
        if not self.bar.disable:  # a disabled bar of an older rich still prints a newline
            self.bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if not self.bar.disable:
            self.bar.stop()

    def step(self, step: int, steps: int) -> None:
        """Show that a step of an epoch is done."""
        self.bar.update(self.task, completed=round(self.done + step / steps, 2))

    def epoch(self, record: EpochRecord) -> None:
        """Show that an epoch is done."""
        self.done = record.epoch
        train = f"{record.train_elbo:.2f}"
        held_out = "none" if record.validation_elbo is None else f"{record.validation_elbo:.2f}"
        self.bar.update(
            self.task,
            completed=self.done,
            description=f"ELBO {self.train} {train}, validation {held_out}",
        )
        if self.bar.disable:
            print(
                f"epoch {record.epoch}/{self.epochs}: ELBO {self.train} {train}, validation "
                f"{held_out} nats/{self.datum}, {record.seconds:.0f} s",
                flush=True,
            )


def _train(value: str) -> str:
    return "train" if value == "ELBO" else f"(train {value})"


def _is_terminal(file: Any) -> bool:
    return (sys.stdout if file is None else file).isatty()
