"""A search with Optuna, shared by processes that may be killed."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from sweeping import SMALL as SHARED
from sweeping import Stop
from sweeping import source as source

from pyro_dvae.data import Source
from pyro_dvae.runs import inspect_run
from pyro_dvae.sweeps import Range, sweep

optuna = pytest.importorskip("optuna")
pytestmark = pytest.mark.slow

SMALL = SHARED | {"estimator": "rloo"}
VARY: dict[str, Any] = {
    "learning_rate": Range(1e-3, 1e-1, log=True),
    "num_latents": Range(1, 3),
    "prior": ["uniform", "learned"],
}


def study(folder: str) -> Any:
    return optuna.load_study(study_name=folder, storage=f"sqlite:///{folder}/.sweep.db")


def test_a_search_trains_trials_with_every_seed(source: Source) -> None:
    found = sweep(source, "found", VARY, seeds=2, trials=3, **SMALL)
    assert len(found.runs) == 6
    trials = study("found").trials
    for run in found.runs:
        trial = trials[int(run.folder.name[6:10])]
        assert run.config.learning_rate == trial.params["learning_rate"]
        assert run.config.num_latents == trial.params["num_latents"]
        assert run.config.prior == trial.params["prior"]
    for trial in trials:
        runs = [run for run in found.runs if int(run.folder.name[6:10]) == trial.number]
        best = [max(r.validation_elbo or 0.0 for r in run.metrics if r.is_best) for run in runs]
        assert trial.value == pytest.approx(sum(best) / 2)
    assert found.best == max(trials, key=lambda trial: trial.value).params
    assert len(found.groups()) == 3
    lines: list[str] = []
    more = sweep(source, "found", VARY, seeds=2, trials=4, tell=lines.append, **SMALL)
    assert len(more.runs) == 8
    assert any(line.startswith("trial 3:") for line in lines)
    assert not any(line.startswith("trial 2:") for line in lines)
    with pytest.raises(ValueError, match="got another one of that name"):
        sweep(source, "found", VARY, seeds=3, trials=4, **SMALL)


def test_a_trial_that_is_stopped_is_taken_up(source: Source) -> None:
    left = 5

    def check() -> None:  # at the start of each look at the storage, and after each step
        nonlocal left
        left -= 1
        if left == 0:
            raise Stop

    with pytest.raises(Stop):
        sweep(source, "cut", VARY, trials=1, check=check, **SMALL)
    lines: list[str] = []
    found = sweep(source, "cut", VARY, trials=1, tell=lines.append, **SMALL)
    assert [run.folder.name for run in found.runs] == ["trial=0000,seed=0"]
    assert "trial=0000,seed=0: taken up again after epoch 1" in lines
    states = [trial.state.name for trial in study("cut").trials]
    assert states == ["FAIL", "COMPLETE"]


def test_the_trial_of_a_process_that_is_gone_is_taken_up(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = sys.modules["pyro_dvae.sweeps.search"]
    monkeypatch.setattr(room, "_HEARTBEAT", 1)
    monkeypatch.setattr(room, "_GRACE", 1)
    sweep(source, "gone", VARY, trials=1, **SMALL)
    dead = study("gone").ask()  # as a process that is killed leaves it
    params = {
        "learning_rate": dead.suggest_float("learning_rate", 1e-3, 1e-1, log=True),
        "num_latents": dead.suggest_int("num_latents", 1, 3),
        "prior": dead.suggest_categorical("prior", ["uniform", "learned"]),
    }
    dead.storage.record_heartbeat(dead._trial_id)
    found = sweep(source, "gone", VARY, trials=2, **SMALL)
    assert [run.folder.name for run in found.runs] == ["trial=0000,seed=0", "trial=0001,seed=0"]
    assert found.runs[1].config.learning_rate == params["learning_rate"]
    last = study("gone").trials[-1]
    assert (last.params, last.user_attrs) == (params, {"first": 1})


def test_a_trial_below_the_median_is_pruned(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = sys.modules["pyro_dvae.sweeps.search"]
    monkeypatch.setattr(room, "_STARTUP", 1)
    rates = {"learning_rate": Range(1e-3, 1e-1)}
    sweep(source, "pruned", rates, trials=1, **SMALL)
    known = room._Objective._one_run

    def one_run(self: Any, trial: Any, *arguments: Any) -> float:
        report = trial.report
        trial.report = lambda elbo, epoch: report(elbo - 100.0, epoch)
        return known(self, trial, *arguments)

    monkeypatch.setattr(room._Objective, "_one_run", one_run)
    found = sweep(source, "pruned", rates, trials=2, **SMALL)
    assert found.left_out == {"trial 1": "pruned"}
    assert len(found.runs) == 1
    assert inspect_run("pruned/trial=0001,seed=0").status == "unfinished"


def test_a_storage_that_cannot_be_opened_is_refused(source: Source) -> None:
    with pytest.raises(ValueError, match="Expected a storage that Optuna can open"):
        sweep(source, "bad", VARY, trials=1, storage="nothing://x", **SMALL)
