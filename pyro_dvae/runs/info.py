"""What a run folder tells of itself without its model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyro_dvae.data import PARTS
from pyro_dvae.displays import html_table, named
from pyro_dvae.evaluation import Evaluation
from pyro_dvae.runs.config import Config
from pyro_dvae.runs.log import Status, read_epochs, stored_evaluation, training_status
from pyro_dvae.runs.record import DataRecord
from pyro_dvae.training.records import EpochRecord

_PARTS = ("num_latents", "num_categories", "prior", "likelihood", "guide", "network")
_TRAINING = ("estimator", "num_particles")


@dataclass(frozen=True, repr=False)
class RunInfo:
    """What a run folder tells of itself without the model: what `inspect_run` returns."""

    folder: Path
    event_shape: tuple[int, ...]
    """Shape of a datum."""
    data: DataRecord
    """What the run remembers of its data; `data.splits()` gives them."""
    version: str
    """The version of the library that made the run."""
    epoch: int
    """The epoch that the weights in the folder come from: the one with the best validation ELBO."""
    num_parameters: int | None
    """Of the model; None where only code of the user's own could tell."""

    def __repr__(self) -> str:
        weights = "" if self.num_parameters is None else f", {self.num_parameters:,} parameters"
        parts = named(**self._settings(*_PARTS), event_shape=self.event_shape)
        training = named(**self._settings(*_TRAINING))
        head = f"{type(self).__name__} {str(self.folder)!r}: epoch {self.epoch}{weights}"
        return f"{head}, by pyro_dvae {self.version}\n  {parts}\n  {training}\n  {self.data}"

    def _repr_html_(self) -> str:
        """What it is, as a table for a notebook."""
        weights = None if self.num_parameters is None else f"{self.num_parameters:,}"
        told = {
            "epoch of the weights": self.epoch,
            "parameters": weights,
            "event_shape": self.event_shape,
            **self._settings(*_PARTS, *_TRAINING),
            "data": self.data,
            "version of pyro_dvae": self.version,
        }
        rows = [[name, str(value)] for name, value in told.items() if value is not None]
        return html_table(
            ["", "value"], rows, caption=f"{type(self).__name__} {str(self.folder)!r}"
        )

    def _settings(self, *names: str) -> dict[str, object]:
        return {name: vars(self.config)[name] for name in names}

    @property
    def config(self) -> Config:
        """The settings."""
        return self.data.config

    @property
    def metrics(self) -> list[EpochRecord]:
        """One record per epoch of the training; `pandas.DataFrame(run.metrics)` is a table.

        Raises:
            ValueError: `metrics.jsonl` is damaged.
        """
        return read_epochs(self.folder)

    @property
    def status(self) -> Status:
        """One of "complete", "stopped early" and "unfinished", as a training that goes on is.

        Raises:
            ValueError: `metrics.jsonl` is damaged.
        """
        return training_status(self.config, self.metrics)

    @property
    def evaluation(self) -> dict[str, Evaluation]:
        """The stored figures of these weights: part of the data ("test", ...) -> figures.

        A training stores those of the test part at its end, and `write_evaluation` those of any.

        Raises:
            ValueError: `evaluation.json` is damaged.
        """
        stored = {part: stored_evaluation(self.folder, part) for part in PARTS}
        return {
            part: figures.evaluation
            for part, figures in stored.items()
            if figures is not None and figures.epoch == self.epoch
        }
