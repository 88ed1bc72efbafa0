from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pdvae_cli import train
from pdvae_cli.main import main

from pyro_dvae import Trainer, load_run
from pyro_dvae.runs import read_config, read_evaluation, run_trainer
from pyro_dvae.runs.log import read_metrics
from pyro_dvae.runs.record import SecondStage

Run = Callable[..., tuple[int, str, str]]

SMALL = ["--data=mnist-sample", "--hidden=8", "--latents=2", "--categories=3", "--device=cpu"]
SMALL += ["--batch-size=1000", "--epochs=2"]
STAGE = ["fit-prior", "base", "--device=cpu", "--epochs=2", "--batch-size=1000", "--lr=0.01"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run."""
    folder = tmp_path_factory.mktemp("runs") / "base"
    torch.set_default_dtype(torch.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PDVAE_DATA_DIR", raising=False)
        patch.setattr(train, "_draw", lambda *_, **__: None)
        with pytest.raises(SystemExit) as stop:
            main(["fit", str(folder), *SMALL])
    assert not stop.value.code
    return folder


@pytest.fixture
def pdvae(pdvae: Run, base: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command beside a run "base". No pictures."""
    shutil.copytree(base, "base")
    monkeypatch.setattr(train, "_draw", lambda *_, **__: None)
    return pdvae


@pytest.mark.slow
def test_a_new_run_that_every_command_takes(pdvae: Run) -> None:
    before = {path.name: path.read_bytes() for path in Path("base").iterdir()}
    status, out, err = pdvae(*STAGE, "--prior", "autoregressive:8", "--seed", "3")
    assert (status, err) == (0, "")
    assert {path.name: path.read_bytes() for path in Path("base").iterdir()} == before
    folder = Path("base-autoregressive-8-1")
    first, new = load_run(Path("base")), load_run(folder)
    assert new.config.prior == "autoregressive:8"
    assert (new.config.epochs, new.config.seed) == (2, first.config.seed)
    stage = SecondStage(str(Path("base").resolve()), first.epoch, 3)
    assert new.data == replace(first.data, second_stage=stage)
    ours, theirs = new.vae.state_dict(), first.vae.state_dict()
    fixed = [name for name in ours if not name.startswith("prior.")]
    assert fixed
    assert all(torch.equal(ours[name], theirs[name]) for name in fixed)
    assert [line["epoch"] for line in read_metrics(folder)] == [1, 2]
    elbos = [read_evaluation(path)["test"]["elbo"] for path in (Path("base"), folder)]
    assert elbos[1] > elbos[0]
    told = f"test ELBO {elbos[0]:.2f} with prior uniform, {elbos[1]:.2f} with autoregressive:8"
    assert told in out

    assert pdvae("sample", str(folder), "-n", "4", "-o", "grid.png")[0] == 0
    status, out, _ = pdvae("evaluate", str(folder), "--iw-samples=0", "--json")
    assert json.loads(out)["elbo"] == pytest.approx(elbos[1])
    assert pdvae("score", str(folder))[0] == 0
    status, out, _ = pdvae("info", str(folder))
    assert status == 0
    assert "complete, 2 of 2 epochs" in out
    assert "autoregressive:8" in pdvae("compare", "base", str(folder))[1]
    status, _, err = pdvae("fit", "--resume", str(folder))
    assert status == 2
    # And a stage after the stage, in a folder that is named.
    assert pdvae("fit-prior", str(folder), "again", *STAGE[2:], "--prior=learned")[0] == 0
    stage = read_config(Path("again")).data.second_stage
    assert stage is not None
    assert stage.run == str(folder.resolve())


def test_labels_of_the_data_for_a_conditional_prior(pdvae: Run) -> None:
    assert pdvae(*STAGE, "new", "--prior=conditional:8")[0] == 0
    assert load_run(Path("new")).config.num_classes == 10
    assert pdvae("evaluate", "new", "--iw-samples=0")[0] == 0


def test_a_new_run_whose_guide_is_nearer(pdvae: Run) -> None:
    status, out, err = pdvae("fit-guide", "base", *STAGE[2:])
    assert (status, err) == (0, "")
    first, new = load_run("base"), load_run("base-guide-1")
    stage = SecondStage(str(Path("base").resolve()), first.epoch, 0, "guide")
    assert new.data == replace(first.data, second_stage=stage)
    ours, theirs = new.vae.state_dict(), first.vae.state_dict()
    fixed = [name for name in ours if not name.startswith("encoder.")]
    assert fixed
    assert all(torch.equal(ours[name], theirs[name]) for name in fixed)
    before, after = (read_evaluation(Path(name))["test"] for name in ("base", "base-guide-1"))
    assert after["elbo"] > before["elbo"]
    assert after["log_marginal"] == pytest.approx(before["log_marginal"])
    assert f"test ELBO {before['elbo']:.2f} before, {after['elbo']:.2f} after" in out
    assert pdvae("fit", "--resume", "base-guide-1")[0] == 2


def test_refuses_before_anything_is_made(pdvae: Run) -> None:
    refused = {
        "--prior=uniform": "Expected a prior with weights to fit; got UniformPrior",
        "--prior=nope": "Expected prior to be one of uniform, ",
        "base": "Expected a new or empty run folder; got base",
        "--lr=0": "Expected a positive, finite learning rate; got 0.0",
        "--epochs=-1": "Expected epochs of at least 0; got -1",
    }
    before = sorted(Path().rglob("*"))
    for option, message in refused.items():
        status, out, err = pdvae(*STAGE, option)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert message in err
    assert sorted(Path().rglob("*")) == before


def test_ctrl_c_keeps_the_best_prior(pdvae: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    take, left = Trainer._take_step, [7]

    def counted(self: Trainer, index: torch.Tensor) -> None:
        take(self, index)
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Trainer, "_take_step", counted)
    status, _, err = pdvae(*STAGE, "new")
    assert status == 130
    assert "stopped in epoch 2; the best prior so far is in new" in err
    run = load_run(Path("new"))
    assert run.epoch == 1
    assert pdvae("info", "new")[1].count("unfinished, 1 of 2 epochs") == 1


def test_a_full_disk_is_told_in_one_line(pdvae: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(run_trainer, "append_metrics", full)
    status, _, err = pdvae(*STAGE, "new")
    assert (status, err.count("\n")) == (1, 1)
    assert "No space left on device. What was saved before stays in new." in err
    assert load_run(Path("new")).epoch == 0
