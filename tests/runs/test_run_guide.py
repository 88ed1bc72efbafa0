"""The epochs of the guide in a run folder, which survive being killed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pyro_dvae import load_run
from pyro_dvae.data import open_source
from pyro_dvae.runs import (
    GUIDE_STATE,
    STATE,
    RunTrainer,
    inspect_run,
    read_config,
    resume_run,
    start_run,
)
from pyro_dvae.runs.checkpoints import WEIGHTS
from pyro_dvae.runs.storage import read_tensors

SMALL: dict[str, Any] = {"num_latents": 2, "num_categories": 3, "hidden": (4,), "batch_size": 16}


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_default_dtype(torch.float32)
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).integers(0, 2, (44, 3))
    np.savetxt("t.csv", rows, "%d", ",", header="a,b,c", comments="")


class Stop(Exception):
    """The end of a process that is killed."""


def new(folder: str, **settings: Any) -> RunTrainer:
    given = {"epochs": 2, "guide_epochs": 2, "validation": 8, "test": 4, **SMALL, **settings}
    return start_run(open_source("t.csv"), folder, **given)


def is_done(training: RunTrainer, most: int = 10**9) -> bool:
    """Train to the end, or until so many steps are taken and saved."""
    left = most

    def on_step(step: int, steps: int) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Stop

    with training:
        try:
            list(training.epochs(on_step=on_step))
        except Stop:
            training.save()
            return False
        training.finish()
    return True


def assert_same(folder: str, other: str) -> None:
    for name in (WEIGHTS, STATE, GUIDE_STATE):
        ours, theirs = (read_tensors(Path(run, name), "")[0] for run in (folder, other))
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    ours, theirs = inspect_run(folder), inspect_run(other)
    curves = [
        [(r.epoch, r.of_guide, r.validation_elbo, r.is_best) for r in run.metrics]
        for run in (ours, theirs)
    ]
    assert curves[0] == curves[1]
    assert (ours.epoch, ours.status) == (theirs.epoch, theirs.status) == (ours.epoch, "complete")
    assert ours.evaluation == theirs.evaluation


def test_stopped_after_any_step_it_comes_to_the_same_weights() -> None:
    assert is_done(new("whole"))  # 2 steps per epoch, so 8 steps
    assert [record.of_guide for record in inspect_run("whole").metrics] == [False] * 2 + [True] * 2
    for most in (3, 5, 6, 7):
        folder = f"stopped-{most}"
        assert not is_done(new(folder), most)
        assert inspect_run(folder).status == "unfinished"
        assert is_done(resume_run(folder))
        assert_same(folder, "whole")


def test_killed_before_its_state_is_written_it_comes_to_the_same_weights() -> None:
    assert is_done(new("whole"))
    assert is_done(new("killed"))
    Path("killed", GUIDE_STATE).unlink()
    assert is_done(resume_run("killed"))
    assert_same("killed", "whole")


def test_with_more_epochs_the_model_is_trained_further_and_then_the_guide() -> None:
    assert is_done(new("whole", epochs=4))
    assert is_done(new("more"))
    assert load_run("more").epoch > 2
    assert not is_done(resume_run("more", epochs=4), 1)
    assert not Path("more", GUIDE_STATE).exists()
    assert load_run("more").epoch <= 2  # the weights are those of the model again
    assert is_done(resume_run("more"))
    assert_same("more", "whole")


def test_a_run_from_before_has_none() -> None:
    assert is_done(new("run", guide_epochs=0))
    content = json.loads(Path("run/config.json").read_text())
    del content["config"]["guide_epochs"]
    Path("run/config.json").write_text(json.dumps(content))
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["of_guide"]
    Path("run/metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_config("run").config.guide_epochs == 0
    assert is_done(resume_run("run", epochs=3))
    run = load_run("run")
    assert [record.of_guide for record in run.metrics] == [False] * 3
    assert not Path("run", GUIDE_STATE).exists()
    with pytest.raises(ValueError, match=r"guide_epochs=2 \(the run's: 0\)"):
        resume_run("run", guide_epochs=2)
