"""Sweeps: every combination with every seed, taken up where they were killed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from sweeping import SMALL as SHARED
from sweeping import Stop
from sweeping import source as source

from pyro_dvae.data import Source
from pyro_dvae.runs import STATE, inspect_run, resume_run, start_run
from pyro_dvae.runs.checkpoints import WEIGHTS
from pyro_dvae.runs.storage import locked, read_tensors
from pyro_dvae.sweeps import Range, Sweep, sweep
from pyro_dvae.sweeps.space import folder_name, points

SMALL = SHARED | {"num_latents": 2}
BOTH = {"estimator": ["rloo", "exact"]}


def stop_after(steps: int) -> Any:
    left = steps

    def check() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Stop

    return check


def test_every_combination_is_trained_with_every_seed(source: Source) -> None:
    lines: list[str] = []
    found = sweep(source, "all", BOTH, seeds=2, tell=lines.append, **SMALL)
    names = [f"estimator={name},seed={seed}" for seed in (0, 1) for name in ("rloo", "exact")]
    assert [run.folder.name for run in found.runs] == names
    for run in found.runs:
        assert run.status == "complete"
        assert f"estimator={run.config.estimator},seed={run.config.seed}" == run.folder.name
    groups = found.groups()
    assert {group.settings["estimator"] for group in groups} == {"rloo", "exact"}
    for group in groups:
        elbos = [run.evaluation["test"].elbo for run in group.runs]
        assert group.figures.mean == pytest.approx(sum(elbos) / 2)
        assert group.figures.num_seeds == 2
    before = [(run.folder / WEIGHTS).stat().st_mtime_ns for run in found.runs]
    again = sweep(source, "all", BOTH, seeds=2, tell=lines.append, **SMALL)
    assert [(run.folder / WEIGHTS).stat().st_mtime_ns for run in again.runs] == before
    assert lines[-4:] == [f"{name}: was complete" for name in names]


@pytest.mark.slow
def test_a_run_of_a_sweep_is_that_of_start_run(source: Source) -> None:
    (run,) = sweep(source, "one", **SMALL, seed=3).runs
    with start_run(source, "alone", **SMALL, seed=3) as training:
        assert len(list(training.epochs())) == 2
    assert_same(run.folder, Path("alone"))


def test_what_was_stopped_is_taken_up(source: Source) -> None:
    with pytest.raises(Stop):  # in the second step of the second run
        sweep(source, "cut", seeds=2, check=stop_after(6), **SMALL)
    assert inspect_run("cut/seed=1").status == "unfinished"
    lines: list[str] = []
    cut = sweep(source, "cut", seeds=2, tell=lines.append, **SMALL)
    assert "seed=1: taken up again after epoch 0" in lines
    whole = sweep(source, "whole", seeds=2, **SMALL)
    for one, other in zip(cut.runs, whole.runs, strict=True):
        assert_same(one.folder, other.folder)
        assert one.evaluation == other.evaluation


def test_a_folder_without_settings_is_what_a_kill_left(source: Source) -> None:
    Path("cut/seed=0").mkdir(parents=True)
    (run,) = sweep(source, "cut", **SMALL).runs
    assert run.status == "complete"


def test_a_run_of_another_process_is_waited_for(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("shared").mkdir()
    held = locked(Path("shared/.seed=0.lock"))
    held.__enter__()
    lines: list[str] = []

    def sleep(seconds: float) -> None:
        lines.append("waits")
        held.__exit__(None, None, None)

    monkeypatch.setattr(sys.modules["pyro_dvae.sweeps.sweep"].time, "sleep", sleep)
    found = sweep(source, "shared", seeds=2, tell=lines.append, **SMALL)
    starts = [line for line in lines if "complete" not in line]
    assert starts == ["seed=1: starts", "waits", "seed=0: starts"]
    assert len(found.runs) == 2


def test_a_run_that_diverges_is_left_out(source: Source) -> None:
    rates = {"learning_rate": [1e-3, 1e38]}
    found = sweep(source, "rates", rates, **{**SMALL, "averaging": 0.0})
    assert [run.config.learning_rate for run in found.runs] == [1e-3]
    assert list(found.left_out) == ["learning_rate=1e+38,seed=0"]


@pytest.mark.slow
def test_more_epochs_train_the_runs_further(source: Source) -> None:
    sweep(source, "more", **SMALL)
    (run,) = sweep(source, "more", **{**SMALL, "epochs": 3}).runs
    assert [record.epoch for record in run.metrics] == [1, 2, 3]


@pytest.mark.slow
def test_a_folder_of_another_sweep_is_refused(source: Source) -> None:
    sweep(source, "mine", **SMALL)
    with pytest.raises(ValueError, match=r"seed=0 with hidden=\(4,\), and not \(5,\)"):
        sweep(source, "mine", **{**SMALL, "hidden": (5,)})


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"vary": {"seed": [1, 2]}}, "got seed, of which seeds=5 takes five"),
        ({"vary": {"split_seed": [1, 2]}}, "got split_seed. Choose from"),
        ({"vary": {"rate": [1]}}, "got rate. Choose from"),
        ({"vary": {"estimator": []}}, "one value or more of estimator"),
        ({"vary": {"estimator": "rloo"}}, "one value or more of estimator; got 'rloo'"),
        ({"vary": {"estimator": ["rloo", "rloo"]}}, "values of estimator that differ"),
        ({"vary": {"estimator": ["rloo", "nope"]}}, "got 'nope'"),
        ({"vary": {"likelihood": ["bernoulli", "categorical:1"]}}, "levels of at least 2"),
        ({"vary": {"learning_rate": Range(0.1, 1)}}, "single values of learning_rate"),
        ({"vary": {"estimator": Range(0, 1)}, "trials": 2}, "which is no number"),
        ({"vary": {"num_latents": Range(1.5, 3)}, "trials": 2}, "whole numbers as the ends"),
        ({"vary": {"temperature": Range(0.5, 1)}, "trials": 2}, "no temperature for the rloo"),
        ({"trials": 2}, "settings to vary for a search"),
        ({"vary": BOTH, "trials": 0}, "at least 1 trial; got 0"),
        ({"storage": "sqlite:///x.db"}, "a storage for a search alone"),
        ({"vary": BOTH, "estimator": "rloo"}, "got both of estimator"),
        ({"seeds": 0}, "one seed or more"),
        ({"seeds": [1, 1]}, "all different"),
        ({"vary": BOTH, "trials": 1, "validation": 0}, "validation data for a search"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_made(
    source: Source, arguments: dict[str, Any], told: str
) -> None:
    if "trials" in arguments:
        pytest.importorskip("optuna")
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        sweep(source, "bad", arguments.pop("vary", None), **{**SMALL, **arguments})
    assert told in str(error.value)
    assert not Path("bad").exists()


@pytest.mark.parametrize("ends", [(1, 1), (2, 1), (0, float("inf")), (float("nan"), 1)])
def test_ranges_have_two_ends(ends: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="the smaller first"):
        Range(*ends)
    with pytest.raises(ValueError, match="above 0"):
        Range(0, 1, log=True)


def test_a_search_without_optuna_is_refused(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'pyro-dvae\[sweep\]'"):
        sweep(source, "bad", BOTH, trials=2, **SMALL)
    assert not Path("bad").exists()


def test_names_of_folders_are_short_and_differ() -> None:
    assert folder_name({"learning_rate": 1e-4, "hidden": (8, 4)}, 2) == (
        "learning_rate=0.0001,hidden=8,4,seed=2"
    )
    one, other = (folder_name({"prior": f"a{mark}b"}, 0) for mark in ":/")
    assert one != other
    assert "/" not in other
    assert len(folder_name({"encoder": "x" * 1000}, 0)) < 130


def test_points_of_ranges_are_their_ends() -> None:
    ranges = {"num_latents": Range(1, 4), "beta": [0.5, 1.0]}
    pairs = [(1, 0.5), (1, 1.0), (4, 0.5), (4, 1.0)]
    assert [tuple(point.values()) for point in points(ranges)] == pairs


def assert_same(one: Path, other: Path) -> None:
    for name in (WEIGHTS, STATE):
        ours, theirs = (read_tensors(run / name, "")[0] for run in (one, other))
        assert ours.keys() == theirs.keys()
        for key, value in ours.items():
            assert torch.equal(value, theirs[key]), key


def test_a_sweep_of_nothing_has_no_groups() -> None:
    assert Sweep(Path("none"), (), ()).groups() == []


def test_lists_are_the_same_settings_when_a_sweep_is_taken_up(source: Source) -> None:
    vary = {"hidden": [[4], [5]]}
    shared = {name: value for name, value in SMALL.items() if name not in vary}
    with pytest.raises(Stop):
        sweep(source, "lists", vary, check=stop_after(2), **shared)
    assert resume_run("lists/hidden=4,seed=0", hidden=[4]).config.hidden == (4,)
    for _ in range(2):
        found = sweep(source, "lists", vary, **shared)
        assert [run.config.hidden for run in found.runs] == [(4,), (5,)]
    with pytest.raises(ValueError, match=r"got hidden=4,seed=0 with batch_size=16, and not 8\."):
        sweep(source, "lists", vary, **{**shared, "batch_size": 8})
