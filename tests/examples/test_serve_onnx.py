"""An exported model runs where PyTorch cannot be imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zoo
from PIL import Image

from pyro_dvae import (
    Bernoulli,
    DiscreteVAE,
    LearnedPrior,
    MLPDecoder,
    MLPEncoder,
    export_run,
    load_run,
    save_run,
)

SCRIPT = Path(__file__).parents[2] / "examples/serve_onnx.py"
WITHOUT_TORCH = """
import runpy, sys
for name in ("torch", "pyro", "pyro_dvae", "pdvae_cli"):
    sys.modules[name] = None  # to import it fails
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
EVENT, D, K = (28, 28), 3, 4


def serve(folder: Path, *options: str) -> str:
    command = [sys.executable, "-W", "error", "-c", WITHOUT_TORCH, str(SCRIPT), *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["independent", "one by one"])
def test_serving_needs_no_torch(kind: str, tmp_path: Path) -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name, reason="the onnx extra is not installed")
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(0)
    parts: tuple[Any, ...] = (zoo._drawn(LearnedPrior(D, K)), Bernoulli())
    vae = DiscreteVAE(MLPEncoder(EVENT, D, K, (16,)), MLPDecoder(EVENT, D, K, (16,)), *parts)
    if kind == "one by one":
        from pyro_dvae import AutoregressivePrior

        vae.prior = zoo._drawn(AutoregressivePrior(D, K, 5))
    save_run(tmp_path / "run", vae.eval(), binarize="threshold")
    run = load_run(tmp_path / "run")
    export_run(run, tmp_path / "exported")
    values = np.random.default_rng(0).integers(0, 256, (20, *EVENT), np.uint8)
    np.save(tmp_path / "images.npy", values)
    out = serve(tmp_path, "exported", "--data=images.npy", "-o", "out.png")
    assert "20 codes" in out
    codes = np.loadtxt(tmp_path / "codes.csv", int, delimiter=",", skiprows=1)
    assert np.array_equal(codes, run.encode(values).numpy())
    samples = torch.from_numpy(np.load(tmp_path / "samples.npy"))
    every = torch.cartesian_prod(*[torch.arange(K)] * D)
    with torch.no_grad():  # each is the mean at one of the codes
        means = run.vae.decode(torch.nn.functional.one_hot(every, K).float()).mean
    gaps = (samples.unsqueeze(1) - means).abs().amax((-2, -1)).min(1).values
    assert gaps.max() < 1e-5
    with Image.open(tmp_path / "out.png") as picture:
        assert picture.size == (3 * 12 * 32, 3 * 3 * 32)
