"""Trackers are told of each epoch and of the end, and cost no training."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pyro_dvae import EpochRecord, Run, load_run
from pyro_dvae.data import open_source
from pyro_dvae.runs import RunTrainer, resume_run, start_run, tracker_factory
from pyro_dvae.sweeps import sweep

Command = Callable[..., tuple[int, str, str]]
SMALL: dict[str, Any] = {
    "estimator": "rloo",
    "num_latents": 2,
    "num_categories": 2,
    "hidden": (4,),
    "averaging": 0.0,
}
OWN = """
class Own:
    def __init__(self, run):
        self.file = run.folder / "told.txt"
        self.tell(f"start after {len(run.metrics)}")

    def tell(self, line):
        with self.file.open("a") as file:
            file.write(line + "\\n")

    def on_epoch(self, record):
        self.tell(f"epoch {record.epoch}")

    def on_step(self, step, train_elbo):
        self.tell(f"step {step}")

    def on_end(self, run):
        self.tell(f"end, {len(run.evaluation)} figures")
"""


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_default_dtype(torch.float32)
    monkeypatch.chdir(tmp_path)
    rows = torch.bernoulli(torch.full((60, 4), 0.5), generator=torch.Generator().manual_seed(0))
    Path("x.csv").write_text(
        "a,b,c,d\n" + "".join(",".join(str(int(v)) for v in row) + "\n" for row in rows)
    )


class Own:
    """Keeps what it is told."""

    def __init__(self, run: Run) -> None:
        self.told: list[Any] = [len(run.metrics)]
        MADE.append(self)

    def on_epoch(self, record: EpochRecord) -> None:
        self.told.append(record)

    def on_end(self, run: Run) -> None:
        self.told.append(run)


MADE: list[Own] = []


def new(folder: str, epochs: int) -> RunTrainer:
    settings = {**SMALL, "epochs": epochs, "guide_epochs": 0, "patience": None}
    return start_run(open_source("x.csv"), folder, **settings)


def test_a_tracker_of_a_run_and_of_its_resumption() -> None:
    MADE.clear()
    with new("run", 2) as training:
        records = list(training.epochs(trackers=[Own]))
        training.finish()
    start, *told, end = MADE[0].told
    assert start == 0
    assert told == records
    assert end.folder == Path("run")
    assert end.evaluation["test"] == load_run("run").evaluation["test"]
    with resume_run("run", epochs=3) as training:
        list(training.epochs(trackers=[Own]))
        training.finish()
    assert MADE[1].told[0] == 2
    assert [record.epoch for record in MADE[1].told[1:-1]] == [3]


class Failing:
    """Fails where it is told to."""

    def __init__(self, run: Run) -> None:
        if self.where == "the start":
            raise ConnectionError("no server\nat all")

    where: str

    def on_epoch(self, record: EpochRecord) -> None:
        if self.where == "on_epoch":
            raise ConnectionError("no server\nat all")

    def on_end(self, run: Run) -> None:
        raise ConnectionError("no server\nat all")


@pytest.mark.parametrize("where", ["the start", "on_epoch", "on_end"])
def test_a_tracker_that_fails_costs_no_training(where: str) -> None:
    MADE.clear()
    failing = type("Failing", (Failing,), {"where": where})
    with new("run", 2) as training, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert len(list(training.epochs(trackers=[failing, Own]))) == 2
        training.finish()
    assert [str(each.message) for each in caught] == [
        f"The tracker Failing failed in {where} (ConnectionError: no server at all). The training "
        "goes on without it."
    ]
    assert len(MADE[0].told) == 4  # the other one heard of all


def test_each_run_of_a_sweep_has_its_tracker() -> None:
    MADE.clear()
    settings = {**SMALL, "epochs": 1, "guide_epochs": 0}
    found = sweep(open_source("x.csv"), "both", seeds=2, trackers=[Own], **settings)
    ends = [own.told[-1].folder for own in MADE]
    assert ends == [run.folder for run in found.runs]


def test_the_command_line_takes_trackers(pdvae: Command) -> None:
    Path("mine.py").write_text(OWN)
    rest = ["--latents=2", "--categories=2", "--hidden=4", "--estimator=rloo", "--log-every=2"]
    fit = ["fit", "--data=x.csv", "--likelihood=bernoulli", "--batch-size=20", *rest]
    status, _, err = pdvae(*fit, "run", "--epochs=1", "--guide-epochs=0", "--track=mine:Own")
    assert (status, err) == (0, "")
    lines = Path("run/told.txt").read_text().splitlines()
    assert lines[0] == "start after 0"
    assert lines[-2:] == ["epoch 1", "end, 1 figures"]
    assert lines[1:-2] == ["step 2"]
    for name, told in (("wandb", "Expected a tracker tensorboard, mlflow or"), ("mine:No", "No")):
        status, _, err = pdvae(*fit, "other", f"--track={name}")
        assert status == 2
        assert told in err
        assert err.count("\n") == 1
    assert not Path("other").exists()
    sys.modules.pop("mine")


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module in (("mlflow", "mlflow"), ("tensorboard", "torch.utils.tensorboard")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ValueError, match=rf"pip install 'pyro-dvae\[{name}\]'"):
            tracker_factory(name)


@pytest.mark.slow
def test_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="the mlflow extra is not installed")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{Path.cwd()}/mlflow.db")
    factory = tracker_factory("mlflow")
    with new("run", 1) as training:
        list(training.epochs(trackers=[factory]))  # no end: as if it had been killed
    with resume_run("run", epochs=3) as training:
        list(training.epochs())  # of which the tracker is not told
    with resume_run("run", epochs=4) as training:
        list(training.epochs(trackers=[factory]))
        training.finish()
    run = load_run("run")
    from mlflow import MlflowClient

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        client = MlflowClient()
        number = Path("run/mlflow.json").read_text().strip()
        found = client.get_run(number)
        history = client.get_metric_history(number, "ELBO/validation")
        assert len(client.search_runs([found.info.experiment_id])) == 1
    assert [metric.step for metric in history] == [1, 2, 3, 4]
    assert [m.value for m in history] == [record.validation_elbo for record in run.metrics]
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "run"
    assert found.data.params["estimator"] == "rloo"
    assert found.data.metrics["ELBO/test"] == run.evaluation["test"].elbo


@pytest.mark.slow
def test_an_mlflow_server_that_is_down_costs_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="the mlflow extra is not installed")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with new("run", 1) as training:
        with pytest.warns(UserWarning, match="The tracker MlflowTracker failed in the start"):
            assert len(list(training.epochs(trackers=[tracker_factory("mlflow")]))) == 1
        training.finish()
