"""Tables with gaps through `pdvae fit`, and through the commands that follow."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from pdvae_cli import train

from pyro_dvae import impute, load_run, predict
from pyro_dvae.data import open_source

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


def rows_of(path: str) -> list[list[str]]:
    with open(path, newline="") as file:
        return list(csv.reader(file))


def test_missing_cells_are_filled_in(pdvae: Run, run: tuple[int, str, str]) -> None:
    penguins("holes.csv", 30, 0.4, 5)
    status, out, err = pdvae("impute", "run", "--input=holes.csv", "-o", "filled.csv")
    assert (status, err) == (0, "")
    before, after = rows_of("holes.csv"), rows_of("filled.csv")
    assert after[0] == before[0] == ["island", "sex", "mass", "flipper"]
    num = 0
    for old, new in zip(before[1:], after[1:], strict=True):
        for column, (was, now) in enumerate(zip(old, new, strict=True)):
            num += was == ""
            assert now in (ISLANDS, ["f", "m"])[column] if column < 2 else float(now) > 0
            assert was in ("", now) or float(was) == float(now)
    assert out.startswith(
        f"filled.csv: {num} of 120 values of 30 rows of holes.csv filled in, by means and most "
        "probable categories; exact, over all 3^2 codes; run, weights of epoch "
    )
    loaded = load_run("run")
    rows = loaded.rows("holes.csv")
    whole = impute(loaded.vae, rows.x[:]).double()
    again = open_source("filled.csv", levels=loaded.data.levels).train.read(torch.arange(30))
    torch.testing.assert_close(again, whole, rtol=1e-6, atol=0)
    options = ["--draws", "--seed=3", "--force"]
    assert pdvae("impute", "run", "--input=holes.csv", "-o", "drawn.npy", *options)[0] == 0
    drawn = np.load("drawn.npy")
    expected = impute(loaded.vae, rows.x[:], draws=True, seed=3)
    np.testing.assert_allclose(drawn, expected, rtol=1e-6)
    status, _, err = pdvae("impute", "run", "--input=filled.csv", "-o", "again.csv")
    assert (status, err) == (
        2,
        "pdvae: Expected missing values in filled.csv; got none. There is nothing to fill in.\n",
    )


def test_a_part_of_the_runs_own_data(pdvae: Run, run: tuple[int, str, str]) -> None:
    assert pdvae("impute", "run", "--data=train", "-o", "filled.csv")[0] == 0
    header, *rows = rows_of("filled.csv")
    assert header == ["row", "island", "sex", "mass", "flipper"]
    original = rows_of("birds.csv")[1:]
    for row in rows:
        for was, now in zip(original[int(row[0])], row[1:], strict=True):
            assert was in ("", now) or float(was) == float(now)


def test_a_run_of_complete_rows_fills_in_too(pdvae: Run) -> None:
    penguins("whole.csv", share=0)
    penguins("holes.csv", 20, 0.5)
    assert pdvae("fit", "run", "--data=whole.csv", "--likelihood=mixed", *SMALL)[0] == 0
    assert pdvae("impute", "run", "--input=holes.csv", "-o", "filled.csv")[0] == 0
    assert "" not in [cell for row in rows_of("filled.csv") for cell in row]
    assert pdvae("predict", "run", "--column=mass", "--input=holes.csv")[0] == 0
    np.save("x.npy", np.random.default_rng(0).random((40, 3)))
    gaps = np.load("x.npy")[:5]
    gaps[:, 1] = np.nan
    np.save("gaps.npy", gaps)
    options = ["--data=x.npy", "--likelihood=continuous-bernoulli", "--range=-1,3", *SMALL]
    assert pdvae("fit", "unit", *options)[0] == 0
    assert pdvae("impute", "unit", "--input=gaps.npy", "-o", "filled.npy")[0] == 0
    filled = np.load("filled.npy")
    np.testing.assert_array_equal(filled[:, [0, 2]], gaps[:, [0, 2]])
    assert ((filled > -1) & (filled < 3)).all()
    vae = load_run("unit").vae
    means = impute(vae, torch.from_numpy((gaps + 1) / 4)).double()
    np.testing.assert_allclose(filled[:, 1], 4 * means[:, 1] - 1, rtol=1e-5)


def test_a_column_is_predicted(pdvae: Run, run: tuple[int, str, str]) -> None:
    status, out, err = pdvae("predict", "run", "--column=island", "--input=train", "-o", "p.csv")
    assert (status, err) == (0, "")
    loaded = load_run("run")
    rows = loaded.rows("train")
    x = rows.x[: len(rows.x)]
    found = predict(loaded.vae, x, 0)
    nothing = torch.full_like(x, torch.nan)
    nothing[:, 0] = x[:, 0]
    alone = predict(loaded.vae, nothing, 0)
    assert out.startswith(
        f"p.csv: island of {len(x)} rows of the train part of birds.csv, given the other columns: "
        f"accuracy {found.accuracy:.4f}, log score {found.log_score:.4f} nats/row; without them: "
        f"accuracy {alone.accuracy:.4f}, log score {alone.log_score:.4f} nats/row; exact, over"
    )
    header, *lines = rows_of("p.csv")
    assert header == ["row", "value", "predicted", "log_p", *(f"p({name})" for name in ISLANDS)]
    assert found.probabilities is not None
    for line, value, p, best in zip(
        lines, found.values.tolist(), found.probabilities.tolist(), found.best.tolist(), strict=True
    ):
        assert line[1] == ("" if value != value else ISLANDS[int(value)])
        assert line[2] == ISLANDS[best]
        np.testing.assert_allclose([float(cell) for cell in line[4:]], p, rtol=1e-6)
        assert line[3] == "" or abs(float(line[3]) - np.log(p[int(value)])) < 1e-5
    status, out, _ = pdvae("predict", "run", "--column=3", "--json")
    content = json.loads(out)
    test = predict(loaded.vae, loaded.rows("test").x[:], 3)
    assert content["column"] == "flipper"
    assert content["given_the_others"]["log_score"] == pytest.approx(test.log_score)
    assert content["given_the_others"]["error"] == pytest.approx(test.error)
    assert content["given_the_others"]["accuracy"] is None
    status, _, err = pdvae("predict", "run", "--column=species")
    assert status == 2
    assert "Expected a column of run: island, sex, mass, flipper; got 'species'." in err


def test_a_column_that_is_not_there_yet(pdvae: Run, run: tuple[int, str, str]) -> None:
    Path("new.csv").write_text("island,sex,mass,flipper\n,m,4.01,200.5\n,f,5,250\n")
    status, out, err = pdvae("predict", "run", "--column=island", "--input=new.csv", "-o", "p.csv")
    assert (status, err) == (0, "")
    assert "no value to compare with" in out
    assert [line[0] for line in rows_of("p.csv")[1:]] == ["", ""]
    out = pdvae("predict", "run", "--column=island", "--input=new.csv", "--json")[1]
    assert json.loads(out)["given_nothing"] == {"accuracy": None, "error": None, "log_score": None}


def test_too_many_codes_are_drawn(pdvae: Run) -> None:
    penguins("birds.csv")
    options = ["--data=birds.csv", "--likelihood=mixed", *SMALL, "--latents=12"]
    assert pdvae("fit", "run", *options)[0] == 0
    status, out, _ = pdvae("impute", "run", "-o", "filled.csv", "--iw-samples=50")
    assert status == 0
    assert "over 50 weighted codes per datum" in out
