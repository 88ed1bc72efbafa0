"""Trackers: who is told of each epoch of a training, and of its end."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any, Protocol, runtime_checkable

from pyro_dvae.networks.plugins import own_function
from pyro_dvae.runs.run import Run
from pyro_dvae.runs.storage import write_atomically
from pyro_dvae.training.records import EpochRecord


class Tracker(Protocol):
    """Who is told of a training. A class of your own needs these two methods and no base class."""

    def on_epoch(self, record: EpochRecord) -> object:
        """Take the figures of an epoch, when it is complete and saved."""

    def on_end(self, run: Run) -> object:
        """Take the run with its best weights; `run.evaluation` has its test figures."""


@runtime_checkable
class StepTracker(Protocol):
    """A tracker that is told of steps between the epochs too, where `log_every` asks for them."""

    def on_step(self, step: int, train_elbo: float) -> object:
        """Take the mean training ELBO of the epoch so far, after so many steps of all epochs."""


TrackerFactory = Callable[[Run], Tracker]
"""Called with the run when its training begins or goes on; `run.metrics` has the epochs so far."""


class TensorBoardTracker:
    """Event files for TensorBoard in `tensorboard/` of the run folder.

    Args:
        run: the run. What was written before from the next epoch on is hidden.
    """

    def __init__(self, run: Run) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = str(run.folder / "tensorboard")
        self._events: Any = SummaryWriter(folder, purge_step=len(run.metrics) + 1)

    def on_epoch(self, record: EpochRecord) -> None:
        """Write the figures of an epoch."""
        for name, value in figures_of(record).items():
            self._events.add_scalar(name, value, record.epoch)
        self._events.flush()

    def on_step(self, step: int, train_elbo: float) -> None:
        """Write the training ELBO after a step."""
        self._events.add_scalar("ELBO/steps", train_elbo, step)

    def on_end(self, run: Run) -> None:
        """Close the files."""
        self._events.close()


class MlflowTracker:
    """Settings and figures in MLflow, at the server or in the database of MLFLOW_TRACKING_URI.

    The experiment is that of MLFLOW_EXPERIMENT_NAME, or "pyro_dvae". The run in MLflow has the name
    of the run folder, where `mlflow.json` keeps its number: a training that is resumed goes on in
    it.

    Args:
        run: the run.
    """

    FILE = "mlflow.json"

    def __init__(self, run: Run) -> None:
        # The defaults of MLflow would hold up the training for minutes where no server answers.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        with _quiet_mlflow():
            from mlflow import MlflowClient
            from mlflow.entities import Param

            self._client: Any = MlflowClient()
            number = run.folder / self.FILE
            if number.is_file():
                self._id = number.read_text(encoding="utf-8").strip()
                self._client.update_run(self._id, status="RUNNING")
            else:
                name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "pyro_dvae")
                found = self._client.get_experiment_by_name(name)
                experiment = found.experiment_id if found else self._client.create_experiment(name)
                made = self._client.create_run(experiment, run_name=run.folder.name)
                self._id = made.info.run_id
                write_atomically(number, lambda beside: beside.write_text(self._id + "\n"))
                settings = {**vars(run.config), "data": run.data.name}
                params = [Param(key, str(value)[:500]) for key, value in settings.items()]
                self._client.log_batch(self._id, params=params)
            history = self._client.get_metric_history(self._id, _mlflow_name("ELBO/train"))
            done = max((metric.step for metric in history), default=0)
            for record in run.metrics:  # which a process that was killed has not told
                if record.epoch > done:
                    self.on_epoch(record)

    def on_epoch(self, record: EpochRecord) -> None:
        """Log the figures of an epoch."""
        self._log(figures_of(record), record.epoch)

    def on_step(self, step: int, train_elbo: float) -> None:
        """Log the training ELBO after a step."""
        self._log({"ELBO/steps": train_elbo}, step)

    def on_end(self, run: Run) -> None:
        """Log the test figures, and close the run in MLflow."""
        scores = run.evaluation.get("test")
        if scores is not None:
            figures = {"ELBO/test": scores.elbo, "log p(x)/test": scores.log_marginal}
            self._log({name: x for name, x in figures.items() if x is not None}, run.epoch)
        with _quiet_mlflow():
            self._client.set_terminated(self._id)

    def _log(self, figures: dict[str, float], step: int) -> None:
        with _quiet_mlflow():
            from mlflow.entities import Metric

            now = int(1000 * time.time())
            metrics = [Metric(_mlflow_name(key), x, now, step) for key, x in figures.items()]
            self._client.log_batch(self._id, metrics=metrics)


def figures_of(record: EpochRecord) -> dict[str, float]:
    """The figures of an epoch that are known, by the names that they have in a tracker."""
    values = {
        "ELBO/train": record.train_elbo,
        "ELBO/validation": record.validation_elbo,
        "log p(x)/validation": record.validation_log_marginal,
    }
    for latent, information in enumerate(record.validation_information or (), 1):
        values[f"information/z{latent}"] = information
    return {name: value for name, value in values.items() if value is not None}


def _mlflow_name(name: str) -> str:
    return name.replace("log p(x)", "log_px")  # MLflow takes no brackets


@contextmanager
def _quiet_mlflow() -> Iterator[None]:
    """Keep the warnings of MLflow's own packages, and what it logs, from the user."""
    import logging

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.getLogger("mlflow").setLevel(logging.ERROR)
        yield


_NAMED: dict[str, tuple[TrackerFactory, str]] = {
    "tensorboard": (TensorBoardTracker, "torch.utils.tensorboard"),
    "mlflow": (MlflowTracker, "mlflow"),
}
"""Name of a tracker -> its class, and the module that it needs."""


def tracker_factory(name: str) -> TrackerFactory:
    """What makes the tracker of this name: "tensorboard", "mlflow" or "module:factory".

    Args:
        name: the name. The function or class `factory` of a module gets the `Run`, and returns a
            `Tracker`. The module is looked for in the current folder first.

    Raises:
        ValueError: there is no such tracker, or its package or module cannot be imported.
    """
    if name not in _NAMED:
        if ":" not in name:
            raise ValueError(
                f"Expected a tracker {', '.join(_NAMED)} or module:factory; got {name!r}. Choose "
                "one of them."
            )
        return own_function(name, "tracker")
    factory, module = _NAMED[name]
    try:
        with _quiet_mlflow():
            __import__(module)
    except ImportError as error:
        raise ValueError(
            f"Expected the packages of the tracker {name}; got none of the name {error.name}. Run "
            f"pip install 'pyro-dvae[{name}]', or leave the tracker out."
        ) from error
    return factory


class Trackers:
    """The trackers of one training. One that raises is left out from then on, with a warning.

    A server that is down must not cost a training.

    Args:
        factories: what makes them.
        run: the run whose training begins.
    """

    def __init__(self, factories: Sequence[TrackerFactory], run: Run) -> None:
        self._all: list[Tracker] = []
        for factory in factories:
            is_named = isinstance(factory, (type, FunctionType))
            name = factory.__name__ if is_named else type(factory).__name__
            with _surviving(name, "the start"):
                self._all.append(factory(run))

    def on_epoch(self, record: EpochRecord) -> None:
        """Tell all of an epoch."""
        self._tell("on_epoch", lambda tracker: tracker.on_epoch(record))

    def on_step(self, step: int, train_elbo: float) -> None:
        """Tell those that want to know of a step."""

        def tell(tracker: Tracker) -> None:
            if isinstance(tracker, StepTracker):
                tracker.on_step(step, train_elbo)

        self._tell("on_step", tell)

    def on_end(self, run: Run) -> None:
        """Tell all of the end."""
        self._tell("on_end", lambda tracker: tracker.on_end(run))

    def _tell(self, method: str, call: Callable[[Tracker], object]) -> None:
        well = []
        for tracker in self._all:
            with _surviving(type(tracker).__name__, method):
                call(tracker)
                well.append(tracker)
        self._all = well


@contextmanager
def _surviving(name: str, method: str) -> Iterator[None]:
    """Make a warning of one line of what a tracker raises."""
    try:
        yield
    except Exception as error:
        line = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        warnings.warn(
            f"The tracker {name} failed in {method} ({line}). The training goes on without it.",
            stacklevel=4,
        )
