"""Runs that stop, break and continue, through the command line."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pdvae_cli import train

from pyro_dvae import Trainer, load_run
from pyro_dvae.runs import run_trainer
from pyro_dvae.runs.checkpoints import STATE, WEIGHTS, read_state
from pyro_dvae.runs.log import read_metrics
from pyro_dvae.runs.storage import only_writer, read_tensors
from pyro_dvae.training import steps
from pyro_dvae.training.compiled import CompiledBackward, torch_compiles

Run = Callable[..., tuple[int, str, str]]

SMALL = ["--data=d.npy", "--hidden=8", "--latents=2", "--categories=3", "--device=cpu"]
SMALL += ["--batch-size=51", "--estimator=rloo"]
"""A training of five steps per epoch, which takes some hundredths of a second."""
DRAW = train._draw


@pytest.fixture
def pdvae(pdvae: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command beside 300 grey images of 8 x 8. No pictures."""
    np.save("d.npy", np.random.default_rng(0).integers(0, 256, (300, 8, 8), np.uint8))
    monkeypatch.setattr(train, "_draw", lambda *_, **__: None)
    return pdvae


def same_end(first: Path, second: Path) -> None:
    for name in (WEIGHTS, STATE):
        ours, theirs = (read_tensors(folder / name, "a run")[0] for folder in (first, second))
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    lines, others = (
        [{**line, "seconds": 0} for line in read_metrics(folder)] for folder in (first, second)
    )
    assert lines == others


def do_at_step(monkeypatch: pytest.MonkeyPatch, step: int, action: Callable[[], Any]) -> None:
    """Run an action after the nth step of the process."""
    take, left = Trainer._take_step, [step]

    def counted(self: Trainer, index: torch.Tensor) -> None:
        take(self, index)
        left[0] -= 1
        if left[0] == 0:
            action()

    monkeypatch.setattr(Trainer, "_take_step", counted)


def test_two_epochs_and_two_more_are_four(pdvae: Run) -> None:
    assert pdvae("fit", "whole", *SMALL, "--epochs=4", "--log-every=2")[0] == 0
    assert pdvae("fit", "parts", *SMALL, "--epochs=2")[0] == 0
    status, out, err = pdvae("fit", "--resume", "parts", "--epochs", "4", "--lr", "0.003")
    assert (status, err) == (0, "")
    assert "continuing after epoch 2, step 0 of 5\nepoch 3/4:" in out
    for name in (WEIGHTS, STATE):
        ours, theirs = (read_tensors(Path(f) / name, "a run")[0] for f in ("whole", "parts"))
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert json.loads(Path("parts/config.json").read_text())["config"]["epochs"] == 4
    steps = [line["step"] for line in read_metrics(Path("whole")) if "step" in line]
    assert steps == [2, 4] * 4

    status, out, _ = pdvae("fit", "--resume", "parts")
    assert status == 0
    assert "epoch 5" not in out
    status, _, err = pdvae("fit", "--resume", "parts", "--epochs", "3")
    assert status == 2
    assert "at least the 4 epochs that parts has; got 3. Raise" in err


def test_bfloat16_is_a_setting(pdvae: Run) -> None:
    """Of the steps alone, and of the run: it goes on as it began."""
    for name, *options in (("plain",), ("whole", "--bfloat16"), ("parts", "--bfloat16")):
        epochs = 1 if name == "parts" else 2
        assert pdvae("fit", name, *SMALL, f"--epochs={epochs}", *options)[0] == 0
    assert pdvae("fit", "--resume", "parts", "--epochs=2")[0] == 0
    plain, whole, parts = (
        read_tensors(Path(folder) / WEIGHTS, "a run")[0] for folder in ("plain", "whole", "parts")
    )
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    assert all(value.dtype == plain[name].dtype for name, value in whole.items())
    assert not all(torch.equal(whole[name], plain[name]) for name in whole)


@pytest.mark.skipif(not torch_compiles(), reason="this torch is too old")
class TestCompile:
    """The gradient from one graph, asked for or where the run is long."""

    @pytest.fixture(autouse=True)
    def fast_backend(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(CompiledBackward, "backend", "aot_eager")

    @pytest.mark.slow
    def test_two_epochs_and_two_more_are_four(self, pdvae: Run) -> None:
        assert pdvae("fit", "whole", *SMALL, "--epochs=4", "--compile")[0] == 0
        assert pdvae("fit", "parts", *SMALL, "--epochs=2", "--compile")[0] == 0
        assert pdvae("fit", "--resume", "parts", "--epochs", "4")[0] == 0
        for name in (WEIGHTS, STATE):
            ours, theirs = (read_tensors(Path(f) / name, "a run")[0] for f in ("whole", "parts"))
            assert all(torch.equal(ours[key], theirs[key]) for key in ours)

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ([], True),
            (["--epochs=1"], False),
            (["--no-compile"], False),
            (["--estimator=gumbel-softmax"], True),
            (["--estimator=reinmax-rao"], False),
            (["--estimator=marginal"], False),
            (["--prior=autoregressive"], False),
        ],
    )
    def test_long_runs_are(
        self, pdvae: Run, monkeypatch: pytest.MonkeyPatch, options: list[str], expected: bool
    ) -> None:
        monkeypatch.setattr(steps, "LONG_RUN", 10)  # of 5 steps an epoch
        assert pdvae("fit", "run", *SMALL, "--epochs=2", *options)[0] == 0
        config = json.loads(Path("run/config.json").read_text())["config"]
        assert config["compile"] is expected

    @pytest.mark.parametrize("options", [["--estimator=exact"], ["--guide=autoregressive"]])
    def test_refused_before_a_folder_is_made(self, pdvae: Run, options: list[str]) -> None:
        status, _, err = pdvae("fit", "run", *SMALL, "--compile", *options)
        assert status == 2
        assert err.startswith("pdvae: Expected a model and an ELBO whose step compiles; got ")
        assert not Path("run").exists()

    @pytest.mark.filterwarnings("default:The training step")
    def test_a_line_says_that_it_failed(self, pdvae: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(CompiledBackward, "backend", "no such backend")
        status, _, err = pdvae("fit", "run", *SMALL, "--epochs=1", "--compile")
        assert status == 0
        assert err.startswith("pdvae: The training step could not be compiled (")
        assert err.count("\n") == 1


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize(("step", "estimator"), [(1, "rloo"), (5, "rloo"), (8, "rloo"), (8, "jsa")])
def test_a_signal_finishes_the_step_and_saves(
    pdvae: Run,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    status: int,
    step: int,
    estimator: str,
) -> None:
    settings = [*SMALL, "--epochs=3", f"--estimator={estimator}"]
    assert pdvae("fit", "whole", *settings)[0] == 0
    with monkeypatch.context() as patch:
        do_at_step(patch, step, lambda: os.kill(os.getpid(), number))
        code, _, err = pdvae("fit", "stopped", *settings)
    assert code == status
    assert "finishing the step and saving" in err
    assert f"step {(step - 1) % 5 + 1} of 5, and saved. Continue with pdvae fit --resume" in err
    assert read_state(Path("stopped")).progress["step"] == (step - 1) % 5 + 1
    assert pdvae("fit", "--resume", "stopped")[0] == 0
    same_end(Path("whole"), Path("stopped"))


PICTURES = {"elbo.png", "latents.png", "reconstructions.png", "samples.png"}


@pytest.mark.parametrize("step", [3, 8])
def test_an_interrupted_run_leaves_pictures(
    pdvae: Run, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setattr(train, "_draw", DRAW)
    do_at_step(monkeypatch, step, lambda: os.kill(os.getpid(), signal.SIGINT))
    assert pdvae("fit", "run", *SMALL, "--epochs=3")[0] == 130
    drawn = {path.name for path in Path("run").glob("*.png")}
    assert drawn == (PICTURES if step > 5 else set())  # of the first epoch, if it is complete


@pytest.mark.slow
def test_pictures_of_the_best_epochs_leave_the_training_as_it_is(
    pdvae: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pdvae("fit", "without", *SMALL, "--epochs=2")[0] == 0
    drawn = []

    def draw(*arguments: Any, quiet: bool = False) -> None:
        drawn.append(quiet)
        DRAW(*arguments, quiet=quiet)

    monkeypatch.setattr(train, "_draw", draw)
    monkeypatch.setattr(train, "_SHARE", 1e9)
    assert pdvae("fit", "with", *SMALL, "--epochs=2")[0] == 0
    best = [record for record in load_run(Path("with")).metrics if record.is_best]
    assert drawn == [True] * len(best) + [False]
    same_end(Path("without"), Path("with"))
    drawn.clear()
    monkeypatch.setattr(train, "_SHARE", 1e-9)  # there is no time
    assert pdvae("fit", "again", *SMALL, "--epochs=2")[0] == 0
    assert drawn == [False]


def test_a_second_signal_stops_at_once(pdvae: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        do_at_step(patch, 8, twice)
        status, _, err = pdvae("fit", "run", *SMALL, "--epochs=3")
    assert status == 130
    assert "interrupted at once; continue from the last save with pdvae fit --resume run" in err
    assert (read_state(Path("run")).progress["epoch"], load_run(Path("run")).epoch) == (1, 1)
    assert signal.signal(signal.SIGTERM, before) is signal.SIG_IGN
    assert pdvae("fit", "--resume", "run")[0] == 0


@pytest.mark.parametrize("save", ["first", "middle", "last"])
def test_a_full_disk_is_an_error_and_the_last_good_files_stay(
    pdvae: Run, monkeypatch: pytest.MonkeyPatch, save: str
) -> None:
    assert pdvae("fit", "whole", *SMALL, "--epochs=3")[0] == 0
    fsync, calls = os.fsync, [0]

    def counting(descriptor: int) -> None:
        calls[0] += 1
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", counting)
    assert pdvae("fit", "counted", *SMALL, "--epochs=3")[0] == 0
    full_at = {"first": 1, "middle": calls[0] // 2, "last": calls[0] - 1}[save]
    calls[0] = 0

    def full(descriptor: int) -> None:
        calls[0] += 1
        if calls[0] >= full_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        status, _, err = pdvae("fit", "run", *SMALL, "--epochs=3")
    assert status == 1
    assert err.count("\n") == 1
    assert "Cannot write run" in err
    assert "No space left on device" in err
    assert "MiB free" in err or "metrics.jsonl" in err
    assert not list(Path("run").glob("*.part"))
    if save == "first":
        assert calls[0] == full_at
        assert not (Path("run") / WEIGHTS).exists()
    else:
        load_run(Path("run"))
        assert pdvae("fit", "--resume", "run")[0] == 0
        same_end(Path("whole"), Path("run"))


def test_metrics_that_ran_ahead_of_the_state_are_dropped(
    pdvae: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pdvae("fit", "whole", *SMALL, "--epochs=3")[0] == 0
    write, calls = run_trainer.write_state, [0]

    def failing(*arguments: Any) -> None:
        calls[0] += 1
        if calls[0] == 3:  # the first is that before epoch 1
            raise OSError("No space left on device")
        write(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(run_trainer, "write_state", failing)
        assert pdvae("fit", "run", *SMALL, "--epochs=3")[0] == 1
    assert [line["epoch"] for line in read_metrics(Path("run"))] == [1, 2]
    assert read_state(Path("run")).progress["epoch"] == 1
    assert pdvae("fit", "--resume", "run")[0] == 0
    same_end(Path("whole"), Path("run"))


def test_numbers_that_are_not_finite_end_the_run(pdvae: Run) -> None:
    status, _, err = pdvae("fit", "run", *SMALL, "--epochs=2", "--lr=1e30")
    assert status == 1
    assert err.count("\n") == 1
    assert "NaN or infinity in the " in err
    assert "at step 2 of 5 of epoch 1" in err
    assert "Lower the learning rate" in err
    assert "last good weights stay in run" in err
    assert all(value.isfinite().all() for value in load_run(Path("run")).vae.state_dict().values())


def test_a_weight_that_overflows_is_never_written(
    pdvae: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the last step of an epoch no other step would notice."""
    take = Trainer._take_step

    def spoil(self: Trainer, index: torch.Tensor) -> None:
        take(self, index)
        if self.step == 5 and self.epoch == 1:
            with torch.no_grad():
                next(self.vae.parameters())[0, 0] = float("nan")

    monkeypatch.setattr(Trainer, "_take_step", spoil)
    status, _, err = pdvae("fit", "run", *SMALL, "--epochs=3")
    assert status == 1
    assert "got NaN or infinity in" in err
    assert read_state(Path("run")).progress["epoch"] == 1
    assert all(value.isfinite().all() for value in load_run(Path("run")).vae.state_dict().values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lr=0.1"], "--lr 0.1 (the run's: 0.003)"),
        (["--estimator=vimco"], "--estimator vimco (the run's: rloo)"),
        (["--particles=7", "--seed=1"], "--particles 7 (the run's: 4), --seed 1 (the run's: 0)"),
        (["--patience=0"], "no --patience (the run's: 300)"),
        (["--hidden=9"], "--hidden 9 (the run's: (8,))"),
        (["--estimator=sgd"], "--estimator sgd (the run's: rloo)"),
        (["again"], "new run folder or --resume; got both"),
        (["--log-every=-1"], "--log-every of at least 0"),
    ],
)
def test_a_setting_that_contradicts_the_run(pdvae: Run, arguments: list[str], message: str) -> None:
    assert pdvae("fit", "run", *SMALL, "--epochs=1")[0] == 0
    before = {path.name: path.read_bytes() for path in Path("run").iterdir()}
    status, out, err = pdvae("fit", "--resume", "run", *arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert {path.name: path.read_bytes() for path in Path("run").iterdir()} == before


def test_other_data_are_refused(pdvae: Run) -> None:
    assert pdvae("fit", "run", *SMALL, "--epochs=1")[0] == 0
    config = json.loads(Path("run/config.json").read_text())
    config["data"]["fingerprint"] = "0" * 16
    Path("run/config.json").write_text(json.dumps(config))
    status, _, err = pdvae("fit", "--resume", "run", "--epochs=2")
    assert status == 2
    assert "Expected the run's data, d.npy" in err


def test_one_process_a_folder(pdvae: Run) -> None:
    assert pdvae("fit", "run", *SMALL, "--epochs=1")[0] == 0
    with only_writer(Path("run")):
        status, _, err = pdvae("fit", "--resume", "run", "--epochs=2")
    assert status == 2
    assert "nobody else trains in; got run" in err


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        (STATE, lambda path: path.unlink()),
        (STATE, lambda path: os.truncate(path, 99)),
        (STATE, lambda path: path.write_bytes((path.parent / WEIGHTS).read_bytes())),
        ("config.json", lambda path: path.write_text("{}")),
        ("config.json", lambda path: path.unlink()),
    ],
)
def test_a_damaged_run_is_not_continued(pdvae: Run, name: str, damage: Any) -> None:
    assert pdvae("fit", "run", *SMALL, "--epochs=1")[0] == 0
    damage(Path("run") / name)
    status, out, err = pdvae("fit", "--resume", "run", "--epochs=2")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "Expected" in err


def test_tensorboard(pdvae: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "torch.utils.tensorboard", None)
        status, _, err = pdvae("fit", "without", *SMALL, "--epochs=1", "--tensorboard")
    assert (status, err.count("\n")) == (2, 1)
    assert "pip install 'pyro-dvae[tensorboard]'" in err
    assert not Path("without").exists()
    pytest.importorskip("tensorboard", reason="the tensorboard extra is not installed")
    assert pdvae("fit", "run", *SMALL, "--epochs=2", "--tensorboard", "--log-every=2")[0] == 0
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator("run/tensorboard").Reload()
    logged = [event.value for event in events.Scalars("ELBO/validation")]
    lines = [line for line in read_metrics(Path("run")) if "step" not in line]
    assert logged == pytest.approx([line["validation_elbo"] for line in lines])
    assert [event.step for event in events.Scalars("ELBO/steps")] == [2, 4, 7, 9]


@pytest.mark.slow
def test_killed_at_thirty_moments_every_run_resumes_to_the_same_weights(tmp_path: Path) -> None:
    script = Path(__file__).with_name("kill_runs.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, script, tmp_path],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("resumed to the same weights") == 30
    assert done.stdout.count("killed at save call") >= 5
