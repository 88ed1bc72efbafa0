"""One run of a sweep: started, taken up again where it was killed, or complete already."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from pyro_dvae.data import Scan, Source
from pyro_dvae.runs.config import Config
from pyro_dvae.runs.info import RunInfo
from pyro_dvae.runs.run import inspect_run
from pyro_dvae.runs.run_trainer import RunTrainer
from pyro_dvae.runs.settings import CONFIG
from pyro_dvae.runs.start import plan_run, resume_run, start_run
from pyro_dvae.runs.storage import LOCK, locked
from pyro_dvae.runs.trackers import TrackerFactory
from pyro_dvae.training.records import EpochRecord


def nothing(*_: Any) -> None:
    """Take any arguments, and do nothing."""


@dataclass(frozen=True)
class Runs:
    """How the runs of a sweep are trained."""

    folder: Path
    """The folder in which each run has its own."""
    source: Source
    found: Scan
    settings: dict[str, Any]
    """The settings that all runs have in common, as they were given."""
    seeds: tuple[int, ...]
    device: torch.device
    trust_code: bool = False
    tell: Callable[[str], None] = field(default=nothing)
    """Called with a line for each run that starts or ends."""
    check: Callable[[], None] = field(default=nothing)
    """Called after each step, and while waiting; an exception from it stops the sweep."""
    trackers: tuple[TrackerFactory, ...] = ()
    """What makes the trackers of each run."""

    def train(
        self,
        name: str,
        point: dict[str, Any],
        seed: int,
        on_epoch: Callable[[EpochRecord], None] = nothing,
    ) -> RunInfo:
        """Train a run to its end, evaluate it on the test data, and store the figures.

        Args:
            name: of its folder.
            point: the settings that vary.
            seed: of the run.
            on_epoch: called with the record of each epoch, those before the run was taken up again
                included. After an exception from it, the run can be taken up again.

        Raises:
            Timeout: another process trains it.
            FloatingPointError: it diverges.
        """
        folder = self.folder / name
        settings = {**self.settings, **point, "seed": seed}
        with locked(self.folder / f".{name}{LOCK}"):
            training = self._training(folder, settings)
            if training is not None:
                with training:
                    _train(training, self.check, on_epoch, self.trackers)
                    training.finish()
            run = inspect_run(folder)
            if training is None:
                for record in run.metrics:
                    on_epoch(record)
                self.tell(f"{name}: was complete")
            else:
                self.tell(f"{name}: complete, {_figures(run)}")
        return run

    def _training(self, folder: Path, settings: dict[str, Any]) -> RunTrainer | None:
        """The training that is still to be done; None for a run that is complete."""
        if not (folder / CONFIG).is_file():  # a process that was killed may leave no more
            self.tell(f"{folder.name}: starts")
            return start_run(self.source, folder, found=self.found, device=self.device, **settings)
        run = inspect_run(folder)
        _refuse_other(run, settings, plan_run(self.source, self.found, **settings)[1])
        epochs = settings.get("epochs", run.config.epochs)
        is_scored = "test" in run.evaluation or not run.data.num_test
        if run.status != "unfinished" and is_scored and epochs <= run.config.epochs:
            return None
        done = run.metrics[-1].epoch if run.metrics else 0
        self.tell(f"{folder.name}: taken up again after epoch {done}")
        return resume_run(folder, device=self.device, trust_code=self.trust_code, epochs=epochs)


def _train(
    training: RunTrainer,
    check: Callable[[], None],
    on_epoch: Callable[[EpochRecord], None],
    trackers: tuple[TrackerFactory, ...],
) -> None:
    stopped = False

    def on_step(step: int, steps: int) -> None:
        nonlocal stopped
        stopped = True
        check()
        stopped = False

    for record in training.records:
        on_epoch(record)
    try:
        for record in training.epochs(on_step=on_step, trackers=trackers):
            on_epoch(record)
    except Exception:
        if stopped:  # the steps up to here are kept
            training.save()
        raise


def _refuse_other(run: RunInfo, named: dict[str, Any], planned: Config) -> None:
    """Refuse a run whose settings are not those that are named, as a config holds them."""
    for name in named:
        its_own, value = vars(run.config)[name], vars(planned)[name]
        # A run can get more epochs.
        if name != "epochs" and named[name] is not None and its_own != value:
            raise ValueError(
                f"Expected the runs of this sweep in {run.folder.parent}; got {run.folder.name} "
                f"with {name}={its_own!r}, and not {value!r}. Name another folder."
            )


def best_validation_elbo(run: RunInfo) -> float | None:
    """The validation ELBO of a run's weights, in nats per datum; None without validation data."""
    best = [record for record in run.metrics if record.is_best]
    return best[-1].validation_elbo if best else None


def _figures(run: RunInfo) -> str:
    known = {"validation": best_validation_elbo(run)}
    if (scores := run.evaluation.get("test")) is not None:
        known["test"] = scores.elbo
    told = [f"{part} ELBO {elbo:.2f}" for part, elbo in known.items() if elbo is not None]
    return ", ".join(told) or "no figures"
