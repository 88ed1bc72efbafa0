"""How far the training is: a progress bar on a terminal, and one line per epoch elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from .console import for_a_bar

if TYPE_CHECKING:
    from pyro_dvae import EpochRecord


class Progress:
    """Shows how far a training is.

    Args:
        epochs: the number of epochs in all.
        done: the number of epochs that are complete already.
        value: what the training reports: the "ELBO", or the name of another value.
        datum: what to call a datum.
    """

    def __init__(self, epochs: int, done: int, value: str, datum: str = "image") -> None:
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
        self.train = "train" if value == "ELBO" else f"(train {value})"
        self.bar = Progress(
            TextColumn("epoch"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=Console(file=for_a_bar(sys.stdout)),
            disable=not sys.stdout.isatty(),
        )
        self.task = self.bar.add_task("", total=epochs, completed=done)

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
