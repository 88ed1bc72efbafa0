from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from pdvae_cli import train

from pyro_dvae import evaluate, load_images, load_run
from pyro_dvae.data import BinaryImages

Run = Callable[..., tuple[int, str, str]]


SMALL = ("--data", "mnist-sample", "--batch-size", "1000", "--latents", "2", "--categories", "3")
SMALL += ("--hidden", "16")
TINY = ("--data", "d.npy", *SMALL[2:])
"""Beside the fixture `tiny`; where the data do not matter, it takes a quarter of the time."""


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "_draw", lambda *_, **__: None)


@pytest.fixture
def tiny(pdvae: Run) -> Run:
    """Run the command beside 300 grey images of 8 x 8."""
    np.save("d.npy", np.random.default_rng(0).integers(0, 256, (300, 8, 8), np.uint8))
    return pdvae


def test_fit_then_sample(pdvae: Run) -> None:
    status, out, err = pdvae("fit", "--epochs", "2", *SMALL)
    assert (status, err) == (0, "")
    folder = Path("runs/mnist-sample-d2k3-snapshot-1")
    assert sorted(path.name for path in folder.iterdir()) == [
        ".evaluation.json.lock",
        ".lock",
        "config.json",
        "elbo.png",
        "evaluation.json",
        "last.safetensors",
        "latents.png",
        "metrics.jsonl",
        "reconstructions.png",
        "samples.png",
        "weights.safetensors",
    ]
    assert out.count("\nepoch ") == 2
    assert "dynamic binarisation" in out
    for figure in folder.glob("*.png"):
        assert imread(figure).std() > 0.01

    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2]
    test = json.loads((folder / "evaluation.json").read_text())["test"]
    run = load_run(folder)
    pixels = load_images("mnist-sample").test
    scores = evaluate(run.vae, BinaryImages(pixels, "dynamic").fixed(0))
    for name in ("elbo", "log_marginal", "entropy", "log_likelihood"):
        assert getattr(scores, name) == pytest.approx(test[name], abs=1e-3)
    assert f"test ELBO {test['elbo']:.2f} nats/image (exact; dynamic binarisation" in out
    assert f"log p(x) {test['log_marginal']:.2f}" in out

    status, out, err = pdvae("sample", "-n", "6", "-o", "grid.png")
    assert (status, err) == (0, "")
    assert "6 means of p(x|z) of runs/mnist-sample-d2k3-snapshot-1, seed 0" in out
    means = imread("grid.png")
    status, _, err = pdvae("sample", "-o", "grid.png")
    assert (status, err.count("\n")) == (2, 1)
    assert "Use --force" in err
    status, out, _ = pdvae("sample", str(folder), "-n", "6", "--draws", "--force", "-o", "grid.png")
    assert status == 0
    assert "6 draws from p(x|z)" in out
    assert not np.array_equal(imread("grid.png"), means)


@pytest.mark.usefixtures("no_pictures")
def test_same_seed_same_weights(tiny: Run) -> None:
    for name in ("a", "b"):
        assert tiny("fit", name, "--epochs", "1", "--seed", "3", *TINY)[0] == 0
    assert Path("a/weights.safetensors").read_bytes() == Path("b/weights.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("estimator", "said"),
    [
        ("trace", "ELBO train -"),
        ("relax", "ELBO train -"),
        ("gumbel-softmax", "ELBO (train surrogate) -"),
        ("marginal", "ELBO (train log p(x)) -"),
    ],
)
@pytest.mark.usefixtures("no_pictures")
def test_estimators_say_what_their_value_is(tiny: Run, estimator: str, said: str) -> None:
    status, out, _ = tiny("fit", "run", "--epochs", "1", "--estimator", estimator, *TINY)
    assert status == 0
    assert f", {estimator} with 1 particles" in out
    assert said in out


@pytest.mark.usefixtures("no_pictures")
def test_gradients(pdvae: Run) -> None:
    np.save("d.npy", np.random.default_rng(0).integers(0, 256, (30, 6, 6), np.uint8))
    names = "rloo,reinmax,exact,trace,marginal"
    options = ["--estimators", names, "--draws", "20", "--batch-size", "10", "--data", "d.npy"]
    fresh = ["gradients", "--fresh", "--latents", "2", "--categories", "3", *options]
    status, out, err = pdvae(*fresh, "--plot", "gradients.png")
    assert (status, err) == (0, "")
    assert "fresh model, 10 images of d.npy, 20 draws; reference: enumeration" in out
    assert all(out.count(f"\n{name} ") == 2 for name in names.split(","))
    assert imread("gradients.png").std() > 0.01
    status, _, err = pdvae(*fresh, "--plot", "gradients.png")
    assert (status, err.count("\n")) == (2, 1)

    pdvae("fit", "--epochs", "1", "--data", "d.npy", *SMALL[2:])
    status, out, _ = pdvae("gradients", *options[:-2], "--json")
    assert status == 0
    content = json.loads(out)
    assert content["model"] == "runs/d-d2k3-marginal-1"
    assert [row["estimator"] for row in content["rows"][::2]] == names.split(",")
    (exact,) = (row for row in content["rows"][1::2] if row["estimator"] == "exact")
    assert exact["bias"]["value"] == pytest.approx(0, abs=1e-4)
    assert exact["cosine"]["value"] == pytest.approx(1, abs=1e-4)


@pytest.mark.usefixtures("no_pictures")
def test_patience(tiny: Run) -> None:
    arguments = ["fit", "run", "--epochs", "30", "--patience", "1", "--lr", "0.3", *TINY]
    arguments += ["--annealing", "1"]  # while beta falls, nothing stops
    status, out, _ = tiny(*arguments)
    assert status == 0
    assert "stopped: no better validation ELBO for 1 epochs" in out

    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    best = max(lines, key=lambda line: line["validation_elbo"])
    run = load_run(Path("run"))
    assert run.epoch == best["epoch"] == len(lines) - 1
    test = json.loads(Path("run/evaluation.json").read_text())["test"]
    x = run.data.splits().test
    assert x is not None
    scores = evaluate(run.vae, x)
    assert (test["epoch"], test["elbo"]) == (run.epoch, pytest.approx(scores.elbo, rel=1e-6))


def test_version(pdvae: Run) -> None:
    from pyro_dvae import __version__

    assert pdvae("--version") == (0, f"pdvae {__version__}\n", "")


def test_every_command_has_an_example(pdvae: Run) -> None:
    for command in ("fit", "sample", "gradients"):
        status, out, _ = pdvae(command, "--help")
        assert status == 0
        assert f"Example: pdvae {command}" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "--estimator", "sgd"], "estimator to be one of trace, reinforce, nvil"),
        (["fit", "--latents", "0"], "latents of at least 1; got 0"),
        (["fit", "--categories", "1"], "categories of at least 2; got 1"),
        (["fit", "--epochs", "-1"], "epochs of at least 0; got -1"),
        (["fit", "--epochs", "many"], "--epochs"),
        (["fit", "--lr", "nan"], "learning rate; got nan"),
        (["fit", "--particles", "1"], "particles of at least 2; got 1"),
        (["fit", "--estimator", "exact", "--latents", "9"], "got K^D = 8^9 = 134217728"),
        (["fit", "--binarize", "maybe"], "binarisation to be one of"),
        (
            ["fit", "--validation", "1.5"],
            "fraction between 0 and 1, a number of rows, or a file; got 1.5",
        ),
        (["fit", "--data", "imagenet"], "imagenet"),
        (["fit", "--data-dir", "nowhere"], "nowhere"),
        (["fit", "--device", "tpu"], "--device"),
        (["fit", "--nonsense"], "--nonsense"),
        (["fit", "file/below", "--data", "mnist-sample"], "run folder that can be written"),
        (["fit", "full", "--data", "mnist-sample"], "new or empty run folder"),
        (["fit", "--temperature", "1"], "Expected no temperature for the rloo estimator; got 1.0"),
        (["fit", "--estimator", "reinmax", "--temperature", "0"], "finite temperature; got 0.0"),
        (["fit", "--decoder-particles", "5"], "got --decoder-particles 5. Change one of them."),
        (["gradients", "--fresh", "full"], "a run or --fresh; got both, full"),
        (["gradients"], "run below runs/; got none"),
        (["gradients", "--fresh", "--draws", "5"], "Invalid value for '--draws'"),
        (["gradients", "--fresh", "--estimators", "rloo,sgd"], "got 'sgd'"),
        (["sample"], "run below runs/; got none"),
        (["sample", "nowhere"], "run folder with a config.json; got nowhere"),
        (["sample", "-n", "0"], "at least 1 image"),
        (["sample", "-o", "nowhere/grid.png"], "folder to write into"),
        (["sample", "-o", "full"], "got the folder full"),
        (["nonsense"], "nonsense"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(pdvae: Run, arguments: list[str], message: str) -> None:
    Path("file").touch()
    Path("full").mkdir()
    Path("full/file").touch()
    status, out, err = pdvae(*arguments)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert message in err
    assert not Path("runs").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_device_that_is_not_there(pdvae: Run) -> None:
    status, _, err = pdvae("fit", "--device", "cuda")
    assert status == 2
    assert err == "pdvae: Expected a device that is there; got cuda. Use --device auto.\n"


@pytest.mark.parametrize(
    "content",
    [b"", b"no IDX file at all", gzip.compress(b"\0" * 900, mtime=0)[:20], b"\x1f\x8b\x08"],
)
def test_damaged_data_is_one_line(pdvae: Run, content: bytes) -> None:
    Path("data").mkdir()
    for name in (
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    ):
        Path(f"data/{name}.gz").write_bytes(content)
    status, _, err = pdvae("fit", "--data-dir", "data")
    assert (status, err.count("\n")) == (2, 1)
    assert "train-images-idx3-ubyte.gz" in err
