"""`pdvae sweep`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from pdvae_cli.signals import STOPPED

from pyro_dvae.runs import inspect_run

Run = Callable[..., tuple[int, str, str]]
FIT = ["--data=t.csv", "--latents=2", "--categories=3", "--batch-size=16", "--epochs=1"]
FIT += ["--guide-epochs=0", "--val=8", "--test=8"]


@pytest.fixture(autouse=True)
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_default_dtype(torch.float32)
    values = np.random.default_rng(0).integers(0, 2, (48, 3))
    np.savetxt(tmp_path / "t.csv", values, "%d", ",", header="a,b,c", comments="")


def test_seeds_alone_are_mean_and_spread(pdvae: Run) -> None:
    status, out, err = pdvae("sweep", "-o", "five", "--seeds", "3", "--seed", "4", *FIT)
    assert (status, err) == (0, "")
    runs = [inspect_run(f"five/seed={seed}") for seed in (4, 5, 6)]
    elbos = [run.evaluation["test"].elbo for run in runs]
    lines = out.splitlines()
    start = lines.index("test ELBO, nats per row, best mean first")
    assert lines[start + 1].startswith("runs  seeds")
    counts = lines[start + 2].split()
    assert counts[:4] == ["3", "3", f"{np.mean(elbos):.3f}", f"{np.std(elbos, ddof=1):.3f}"]
    assert lines[-1] == "folder of the runs: five"


def test_values_are_read_as_fit_reads_them(pdvae: Run) -> None:
    vary = ["--vary", "hidden=8;4,3", "--vary", "lr=0.01"]
    status, out, err = pdvae("sweep", "-o", "both", *vary, *FIT)
    assert (status, err) == (0, "")
    names = ["hidden=8,learning_rate=0.01,seed=0", "hidden=4,3,learning_rate=0.01,seed=0"]
    widths = [inspect_run(f"both/{name}").config.hidden for name in names]
    assert widths == [(8,), (4, 3)]
    assert "hidden  lr    runs" in out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--vary", "lr"], "Expected --vary as OPTION=VALUES; got 'lr'."),
        (["--vary", "rate=1"], "Expected an option of fit in --vary; got 'rate'."),
        (["--vary", "lr=a..b"], "Expected --vary with two numbers LOW..HIGH; got 'lr=a..b'."),
        (["--vary", "lr=1..2:log2"], "Expected --vary LOW..HIGH or LOW..HIGH:log;"),
        (["--vary", "lr=2..1"], "Expected a range of two finite numbers, the smaller first;"),
        (["--vary", "lr=1..2"], "Expected single values of learning_rate where"),
        (["--vary", "lr=fast"], "Invalid value for '--lr':"),
        (["--vary", "estimator=rloo,nope"], "Expected estimator to be one of"),
        (["--vary", "compile=1"], "Expected an option with a value in --vary; got compile."),
        (["--vary", "lr=1", "--vary", "lr=2"], "Expected each option once in --vary;"),
        (["--storage", "sqlite:///x.db"], "Expected a storage for a search alone;"),
        (["--resume", "x"], "Expected the options of many runs; got resume of a single one."),
        (["--zzz", "x"], "No such option: --zzz."),
        (["--lr", "1", "--vary", "lr=1,2"], "Expected settings that vary or are fixed;"),
    ],
)
def test_bad_options_are_one_line(pdvae: Run, arguments: list[str], told: str) -> None:
    status, _, err = pdvae("sweep", "-o", "bad", *FIT, *arguments)
    assert status == 2
    assert err.startswith(f"pdvae: {told}")
    assert err.count("\n") == 1
    assert not Path("bad").exists()


@pytest.mark.slow
def test_a_sweep_whose_time_is_over_goes_on(pdvae: Run) -> None:
    command = ["sweep", "-o", "late", "--seeds", "2", *FIT]
    status, out, err = pdvae(*command, "--max-time=0:00:00")
    assert status == STOPPED
    assert err == "pdvae: stopped, and saved. Run the same command again to go on\n"
    assert "seed=0: starts" in out
    assert inspect_run("late/seed=0").status == "unfinished"
    status, out, err = pdvae(*command)
    assert (status, err) == (0, "")
    assert "seed=0: taken up again after epoch 0" in out
    assert {inspect_run(f"late/seed={seed}").status for seed in (0, 1)} == {"complete"}


@pytest.mark.slow
def test_two_processes_share_the_trials_of_a_search(pdvae: Run, tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna")
    command = ["sweep", "-o", "both", "--vary=lr=1e-3..1e-1:log", "--trials=4"]
    command += ["--storage=sqlite:///both.db", *FIT]
    other = subprocess.Popen(
        [sys.executable, "-m", "pdvae_cli", *command],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout is not None
    told = ""
    while "starts" not in told and (line := other.stdout.readline()):
        told += line
    status, out, _ = pdvae(*command)
    told += other.communicate(timeout=250)[0]
    assert (status, other.returncode) == (0, 0)
    study = optuna.load_study(study_name="both", storage=f"sqlite:///{tmp_path}/both.db")
    states = [trial.state.name for trial in study.trials]
    assert states[:4] == ["COMPLETE"] * 4
    assert set(states[4:]) <= {"FAIL"}  # of one who began the last trial at the same moment
    names = {f"trial={number:04d},seed=0" for number in range(4)}
    assert {path.name for path in (tmp_path / "both").glob("trial=*")} == names
    for name in names:  # one of the two has trained it, and both show it
        assert sum(f"{name}: starts" in each for each in (told, out)) == 1
    first, second = (each[each.index("test ELBO, nats per row") :] for each in (told, out))
    assert first == second
