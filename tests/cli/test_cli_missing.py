"""Tables with gaps through `pdvae fit`, and through the commands that follow."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from pdvae_cli import train

from pyro_dvae import load_run

Run = Callable[..., tuple[int, str, str]]

SMALL = ["--hidden=8", "--latents=2", "--categories=3", "--device=cpu", "--epochs=2"]
SMALL += ["--batch-size=16"]
ISLANDS = ["Biscoe", "Dream", "Torgersen"]


@pytest.fixture(autouse=True)
def _no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "_draw", lambda *_: None)


def penguins(path: str, num: int = 90, share: float = 0.3, seed: int = 0) -> None:
    """Island, sex, mass and flipper, which the island tells; a share of the cells is empty."""
    source = np.random.default_rng(seed)
    lines = ["island,sex,mass,flipper"]
    for _ in range(num):
        island = int(source.integers(3))
        mass = 3 + island + 0.1 * source.normal()
        cells = [ISLANDS[island], "mf"[source.integers(2)], f"{mass:.3f}", f"{50 * mass:.1f}"]
        gaps = source.random(4) < share
        lines.append(",".join("" if gap else cell for cell, gap in zip(cells, gaps, strict=True)))
    Path(path).write_text("\n".join(lines) + "\n")


@pytest.fixture
def run(pdvae: Run) -> tuple[int, str, str]:
    penguins("birds.csv")
    return pdvae("fit", "run", "--data=birds.csv", "--likelihood=mixed", *SMALL)


def test_a_table_with_gaps_trains_and_says_so(pdvae: Run, run: tuple[int, str, str]) -> None:
    status, out, err = run
    assert status == 0
    rows = load_run("run").data.open().train
    missing = int(rows.read(torch.arange(len(rows))).isnan().sum())
    share = f"{100 * missing / 360:.2g} %"
    assert f"\n{missing} of 360 values ({share}) are missing: the" in out + err
    assert (
        "columns: island categorical (Biscoe, Dream, Torgersen), sex bernoulli (f, m)" in out + err
    )
    assert f"{missing} values missing, none infinite" in out
    assert "nats per observed value, of which a row has" in out
    loaded = load_run("run")
    assert loaded.config.likelihood == "masked:mixed:categorical:3,bernoulli,normal*2"
    assert loaded.evaluation["test"].observed_elements is not None
    assert pdvae("fit", "--resume=run", "--epochs=3")[0] == 0
    assert pdvae("evaluate", "run")[0] == 0
    penguins("whole.csv", 20, 0, 1)
    penguins("holes.csv", 20, 0.5, 2)
    for name in ("whole.csv", "holes.csv"):
        assert pdvae("score", "run", f"--data={name}", "-o", f"{name}.scores.csv")[0] == 0
        assert pdvae("encode", "run", f"--data={name}", "-o", f"{name}.codes.csv")[0] == 0


def test_a_run_of_whole_rows_refuses_gaps(pdvae: Run) -> None:
    penguins("whole.csv", share=0)
    penguins("holes.csv", share=0.5)
    options = ["--likelihood=mixed", *SMALL]
    assert pdvae("fit", "run", "--data=whole.csv", *options)[0] == 0
    assert load_run("run").config.likelihood.startswith("mixed:")
    status, _, err = pdvae("score", "run", "--data=holes.csv")
    assert (status, err.count("\n")) == (2, 1)
    assert "Expected no missing values for the mixed:categorical:3,bernoulli,normal*2" in err
    assert "Use --likelihood masked:mixed:categorical:3,bernoulli,normal*2, which leaves" in err
    status, _, err = pdvae("fit", "--data=whole.csv", "--test=holes.csv", *options)
    assert (status, err.count("\n")) == (2, 1)
    assert "no missing values" in err
    options[0] = "--likelihood=masked:mixed"
    assert pdvae("fit", "other", "--data=whole.csv", "--test=holes.csv", *options)[0] == 0
    assert pdvae("score", "other", "--data=holes.csv")[0] == 0


def test_pdvae_data_tells_of_gaps(pdvae: Run) -> None:
    penguins("birds.csv")
    status, out, _ = pdvae("data", "birds.csv")
    assert status == 0
    assert "fits with --likelihood masked:mixed" in out
    Path("counts.csv").write_text("a,b\n1,2\n,3\n9,\n")
    status, out, _ = pdvae("data", "counts.csv")
    assert status == 0
    assert re.search(r"^poisson +fits with --likelihood masked:poisson: ", out, re.MULTILINE)
    assert re.search(r"^multinomial +does not fit: values are missing$", out, re.MULTILINE)


@pytest.mark.parametrize(
    "options",
    [["--estimator=nvil"], ["--estimator=relax"], ["--prior=vamp:3"], ["--estimator=marginal"]],
)
def test_parts_that_look_at_the_data(pdvae: Run, options: list[str]) -> None:
    penguins("birds.csv")
    assert pdvae("fit", "run", "--data=birds.csv", "--likelihood=mixed", *SMALL, *options)[0] == 0
    assert pdvae("evaluate", "run")[0] == 0


def test_images_with_gaps(pdvae: Run) -> None:
    source = np.random.default_rng(0)
    x = source.random((40, 6, 6))
    np.save("x.npy", np.where(source.random(x.shape) < 0.2, np.nan, x))
    options = ["--data=x.npy", "--likelihood=continuous-bernoulli", "--network=conv", *SMALL]
    assert pdvae("fit", "run", *options)[0] == 0
    assert load_run("run").config.likelihood == "masked:continuous-bernoulli"
    assert pdvae("evaluate", "run")[0] == 0
