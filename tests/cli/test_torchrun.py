"""`torchrun -m pdvae_cli`: one command in two processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pdvae_cli import train
from pdvae_cli.reading import seconds
from pdvae_cli.signals import STOPPED, Signals

from pyro_dvae import load_run
from pyro_dvae.runs.log import read_metrics

SETTINGS = ["--latents=2", "--hidden=8", "--batch-size=100", "--estimator=rloo", "--seed=1"]
ENCODER = """
import os
from torch import nn

class Encoder(nn.Module):
    def __init__(self, num_latents, num_outputs):
        super().__init__()
        self.layer = nn.Linear(16, num_latents * num_outputs)
        self.calls, self.shape = 0, (num_latents, num_outputs)

    def forward(self, x):
        self.calls += self.training
        if self.calls > 8 and os.environ.get("RANK") == "1":
            raise OSError("row 17 cannot be read")
        return self.layer(x.flatten(1)).unflatten(1, self.shape)

def encoder(event_shape, num_latents, num_outputs):
    return Encoder(num_latents, num_outputs)
"""


TRACKER = """
class Own:
    def __init__(self, run):
        self.file = run.folder / "told.txt"
        self.tell("start")

    def tell(self, line):
        with self.file.open("a") as file:
            file.write(f"{line}\\n")

    def on_epoch(self, record):
        self.tell(record.epoch)

    def on_end(self, run):
        self.tell("end")
"""
SEVERAL = """
import contextlib, io, json, os, sys
from pdvae_cli.main import _run

for number, command in enumerate(json.loads(sys.argv[1])):
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(number)  # a group of its own
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = _run(command.split())
    with open(f"told-{number}-{os.environ['RANK']}.json", "w") as file:
        json.dump([status, out.getvalue(), err.getvalue()], file)
"""
COMMANDS = [
    "evaluate run --data=new.npy --no-exact --iw-samples=9 --refine=1 --ais=1 --ais-data=60",
    "evaluate run --data=new.npy --json",
    "score run --data=new.npy --bound=importance --iw-samples=7 -o importance.csv",
    "score run --data=new.npy -o log-prob.csv",
    "encode run --data=new.npy --refine=1 -o refined.csv",
    "encode run --data=new.npy --posterior=exact --probabilities -o exact.npz",
]


def _start(folder: Path, *arguments: str, restarts: int = 0) -> subprocess.Popen[str]:
    np.save(folder / "d.npy", np.random.default_rng(0).integers(0, 256, (500, 4, 4), np.uint8))
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return subprocess.Popen(
        [sys.executable, *launch, f"--max-restarts={restarts}", "-m", "pdvae_cli", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": "."},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What a command has printed, which must end in time."""
    try:
        return process.communicate(timeout=100)
    finally:
        process.kill()


@pytest.mark.slow
def test_a_process_that_fails_ends_all_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(ENCODER)
    own = ["--encoder=mine:encoder", "--data=d.npy", "--epochs=9"]
    process = _start(tmp_path, "fit", "run", *own, *SETTINGS)
    out, err = _ended(process)
    assert out.count("500 rows") == 1
    (line,) = [line for line in err.splitlines() if line.startswith("pdvae:")]
    assert "row 17 cannot be read" in line
    assert line.endswith("What was saved before stays in run.")
    assert "exitcode  : 1 " in err


@pytest.mark.slow
def test_a_killed_process_is_started_again(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(TRACKER)
    own = ["--data=d.npy", "--epochs=40", "--track=mine:Own"]
    process = _start(tmp_path, "fit", "run", *own, *SETTINGS, restarts=3)
    end = time.monotonic() + 100
    while not (tmp_path / "run" / "metrics.jsonl").exists() and time.monotonic() < end:
        time.sleep(0.05)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)
    out, _ = _ended(process)
    assert process.returncode == 0
    assert "continuing after epoch" in out
    assert [line["epoch"] for line in read_metrics(tmp_path / "run")] == list(range(1, 41))
    assert load_run(tmp_path / "run").epoch > 0
    told = (tmp_path / "run" / "told.txt").read_text().split()  # by process 0 alone
    assert told.count("start") == 2
    assert told[-2:] == ["40", "end"]
    assert len(set(told)) == len(told) - 1


@pytest.mark.slow
def test_figures_and_files_are_those_of_one_process(
    pdvae: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """700 data are blocks of 256, 256 and 188."""
    monkeypatch.setattr(train, "_draw", lambda *_, **__: None)
    rows = np.random.default_rng(1).integers(0, 256, (700, 4, 4), np.uint8)
    np.save(tmp_path / "d.npy", rows[:300])
    np.save(tmp_path / "new.npy", rows)
    assert pdvae("fit", "run", "--data=d.npy", "--epochs=2", *SETTINGS)[0] == 0
    alone = [pdvae(*command.split())[1] for command in COMMANDS]
    files = {path: path.read_bytes() for path in [*tmp_path.glob("*.csv"), tmp_path / "exact.npz"]}
    for path in files:
        path.unlink()
    (tmp_path / "several.py").write_text(SEVERAL)
    commands = [*COMMANDS, "score run --data=none.npy"]
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "several.py"]
    subprocess.run(
        [sys.executable, *launch, json.dumps(commands)],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},
        timeout=100,
        check=True,
    )
    told = [
        [json.loads((tmp_path / f"told-{number}-{rank}.json").read_text()) for rank in range(2)]
        for number in range(len(commands))
    ]
    for out, ((status, first, _), (other_status, second, _)) in zip(alone, told, strict=False):
        assert (status, other_status, first, second) == (0, 0, out, "")
    assert len(files) == 4
    for path, content in files.items():
        assert path.read_bytes() == content, path.name
    (status, _, first), (other_status, _, second) = told[-1]
    assert (status, other_status) == (2, 2)
    (line,) = (first + second).splitlines()
    assert "none.npy" in line


def test_only_some_commands_run_in_several_processes(
    pdvae: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "1", "WORLD_SIZE": "2", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    status, _, err = pdvae("sample", "run")
    assert status == 2
    assert "Expected one process for sample; got 2, which torchrun has started" in err


def test_a_run_folder_has_a_name_where_torchrun_restarts(
    pdvae: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    status, _, err = pdvae("fit", "--data=mnist-sample")
    assert status == 2
    assert "Expected the name of a run folder with torchrun --max-restarts" in err


@pytest.mark.parametrize(
    ("text", "value"), [("3:50:00", 13_800), ("1-00:00:01", 86_401), ("0:00:00", 0)]
)
def test_a_time_is_read_as_slurm_writes_it(text: str, value: int) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "10", "3:50", "-1:00:00", "1-2", "1:2:3:4", "a:b:c"])
def test_other_times_are_refused(text: str, pdvae: Any) -> None:
    status, _, err = pdvae("fit", f"--max-time={text}", "--data=mnist-sample")
    assert status == 2
    assert "Expected --max-time as H:MM:SS, or D-H:MM:SS" in err


def test_a_run_whose_time_is_over_goes_on(
    pdvae: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "_draw", lambda *_, **__: None)  # the pictures take most of the time
    np.save(tmp_path / "d.npy", np.random.default_rng(0).integers(0, 256, (300, 4, 4), np.uint8))
    settings = ["--data=d.npy", "--epochs=2", *SETTINGS]
    assert pdvae("fit", "whole", *settings)[0] == 0
    status, _, err = pdvae("fit", "run", *settings, "--max-time=0:00:00")
    assert status == STOPPED
    assert "stopped in epoch 1, step 1 of 3, and saved" in err
    assert pdvae("fit", "--resume=run")[0] == 0
    ours, whole = load_run("run").vae.state_dict(), load_run("whole").vae.state_dict()
    assert all(torch.equal(ours[name], whole[name]) for name in whole)


def test_a_warning_of_slurm_has_its_own_status(capsys: pytest.CaptureFixture[str]) -> None:
    with Signals() as signals:
        assert signals.status is None
        os.kill(os.getpid(), signal.SIGUSR1)
        assert signals.status == STOPPED
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.status == 128 + signal.SIGTERM
    assert capsys.readouterr().err.count("finishing the step and saving") == 2
