"""`pdvae score` by every score, and what it explains of a row."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from pdvae_cli.main import main

from pyro_dvae import load_run
from pyro_dvae.data import SubsetRows
from pyro_dvae.defaults import ANOMALY_SCORE
from pyro_dvae.evaluation import AnomalyScore, anomaly_scores, explain
from pyro_dvae.runs.beside import training_data

Run = Callable[..., tuple[int, str, str]]
NAMES = ["island", "sex", "mass", "bill"]


def write_table(path: str, num: int, seed: int) -> None:
    """Two kinds of birds: mass and bill go with the island."""
    source = np.random.default_rng(seed)
    kind, sex = source.integers(2, size=(2, num))
    mass, bill = (source.normal(4 + 2 * kind + sex * 0.1, 0.2) for _ in range(2))
    lines = [
        f"{'AB'[k]},{'mf'[s]},{m:.3f},{b:.3f}"
        for k, s, m, b in zip(kind, sex, mass, bill, strict=True)
    ]
    Path(path).write_text("\n".join([",".join(NAMES), *lines]) + "\n")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a table, one of images and one of counts, in a folder."""
    torch.set_default_dtype(torch.float32)
    folder = tmp_path_factory.mktemp("scores")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_table("birds.csv", 300, 0)
        np.save("counts.npy", np.random.default_rng(0).integers(5, size=(60, 3)))
        grey = np.random.default_rng(0).integers(0, 256, (60, 8, 8), np.uint8)
        np.save("images.npy", grey)
        small = ["--hidden=8", "--latents=2", "--categories=3"]
        for options in (
            ["birds", "--data=birds.csv", "--likelihood=mixed", "--epochs=25", "--lr=0.02", *small],
            ["images", "--data=images.npy", "--epochs=1", *small],
            ["words", "--data=counts.npy", "--likelihood=multinomial", "--epochs=1", *small],
        ):
            with pytest.raises(SystemExit) as stop:
                main(["fit", *options])
            assert not stop.value.code
    return folder


@pytest.fixture
def pdvae(pdvae: Run, trained: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command beside copies of these runs."""
    shutil.copytree(trained, ".", dirs_exist_ok=True)
    capsys.readouterr()
    return pdvae


@pytest.mark.parametrize("by", [*get_args(AnomalyScore), None])
def test_scores_are_those_of_the_library(pdvae: Run, by: AnomalyScore | None) -> None:
    options = [] if by is None else ["--by", by]
    status, out, err = pdvae("score", "birds", *options, "-o", "s.csv", "--seed", 3)
    assert (status, err) == (0, "")
    run = load_run("birds")
    splits, rows = run.data.splits(), run.rows("test")
    expected = anomaly_scores(
        run.vae,
        rows.x[:],
        by or ANOMALY_SCORE,
        train=training_data(splits, 0),
        validation=splits.validation,
        seed=3,
    )
    header, *lines = Path("s.csv").read_text().splitlines()
    assert header == "rank,index,row,score"
    table = np.array([line.split(",") for line in lines], float)
    np.testing.assert_allclose(table[:, 3], np.sort(expected), rtol=1e-5, atol=1e-5)
    assert (table[:, 2] == rows.stored.index[table[:, 1].astype(int)].numpy()).all()
    assert f"{by or ANOMALY_SCORE} score of {len(lines)} rows" in out
    found = run.score("test", by=by, seed=3)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    status, out, _ = pdvae("score", "birds", *options, "--json", "--top", 1, "--seed", 3)
    content = json.loads(out)
    assert (content["by"], content["bound"]) == (by or ANOMALY_SCORE, None)
    assert content["mean"] == pytest.approx(float(expected.mean()), rel=1e-5)


def test_a_likelihood_of_dependent_elements(pdvae: Run) -> None:
    status, out, _ = pdvae("score", "words", "--top", 2)
    assert (status, out.startswith("log-prob score of")) == (0, True)
    status, _, err = pdvae("score", "words", "--by", "conditional")
    assert (status, err.count("\n")) == (2, 1)
    assert "the surprise of single elements; got Multinomial" in err
    row = int(load_run("words").rows("test").stored.index[0])
    status, _, err = pdvae("score", "words", "--explain", row)
    assert (status, err.count("\n")) == (2, 1)
    assert "got Multinomial" in err


def test_a_row_of_a_table_is_explained(pdvae: Run) -> None:
    """A bird with the mass of the other island."""
    Path("odd.csv").write_text(",".join(NAMES) + "\nA,m,4.0,4.0\nA,f,6.05,4.1\n")
    status, out, err = pdvae("score", "birds", "--data", "odd.csv", "--explain", "1")
    assert (status, err) == (0, "")
    first, head, *lines = out.splitlines()
    assert first.startswith("row 1 of odd.csv, -log p(element | all others), in nats")
    assert head.split() == ["column", "observed", "expected", "surprise"]
    cells = {line.split()[0]: line.split()[1:] for line in lines}
    assert set(cells) == set(NAMES)
    assert lines[0].startswith("mass")
    assert cells["mass"][0] == "6.05"
    assert abs(float(cells["mass"][1]) - 4) < 1
    assert cells["island"][:2] == ["A", "A"]
    run = load_run("birds")
    values = explain(run.vae, run.rows("odd.csv").x[1:2]).values[0]
    surprises = sorted((float(row[2]) for row in cells.values()), reverse=True)
    np.testing.assert_allclose(surprises, values.sort(descending=True).values, atol=0.006)
    assert f"their sum is {values.sum():.2f}" in first

    options = ["--data", "odd.csv", "--explain", "1", "--top", "2"]
    status, out, _ = pdvae("score", "birds", *options, "-o", "why.csv", "--json")
    content = json.loads(out)
    assert content["elements"][0]["element"] == "mass"
    assert len(content["elements"]) == 2
    header, *rows = Path("why.csv").read_text().splitlines()
    assert header == "element,observed,expected,surprise"
    assert len(rows) == 4
    status, _, err = pdvae("score", "birds", *options, "-o", "why.png")
    assert (status, err.count("\n")) == (2, 1)
    assert "Expected a .csv file for a row of a table" in err


def test_rows_are_those_of_the_runs_data(pdvae: Run) -> None:
    rows = load_run("birds").rows("test").stored.index.tolist()
    status, out, _ = pdvae("score", "birds", "--explain", rows[4])
    assert (status, out.startswith(f"row {rows[4]} of the test part")) == (0, True)
    other = next(row for row in range(300) if row not in rows)
    status, _, err = pdvae("score", "birds", "--explain", other)
    assert (status, err.count("\n")) == (2, 1)
    assert f"Expected a row of the test part of birds.csv, {rows[0]}, " in err


def test_an_image_is_explained(pdvae: Run) -> None:
    run = load_run("images")
    rows = run.rows("test")
    assert isinstance(rows.stored, SubsetRows)
    row = int(rows.stored.index[3])
    status, out, err = pdvae("score", "images", "--explain", row, "-o", "map.png", "--top", 4)
    assert (status, err) == (0, "")
    assert out.startswith(f"map.png: row {row} of the test part of images.npy")
    assert imread("map.png").shape[1] > 800
    found = explain(run.vae, rows.x[3:4])
    place = divmod(int(found.values[0].argmax()), 8)
    line = out.splitlines()[2].split()
    assert line[0] == f"{place[0]},{place[1]}"
    assert float(line[1]) == 1 - float(line[2])
    assert float(line[3]) == pytest.approx(found.values.max().item(), abs=0.006)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--by", "ratio", "--bound", "elbo"], "Expected --by or --bound; got --by ratio"),
        (["--explain", "1", "--bound", "elbo"], "Expected --explain alone"),
        (["--explain", "1", "-o", "a.txt"], "Expected an output .csv or .png"),
        (["--by", "best"], "--by"),
    ],
)
def test_refusals(pdvae: Run, options: list[str], message: str) -> None:
    status, out, err = pdvae("score", "birds", *options)
    assert (status, out) == (2, "")
    assert message in err


def test_a_bound_or_a_score(pdvae: Run) -> None:
    run = load_run("birds")
    with pytest.raises(ValueError, match="Expected a bound or a score"):
        run.score("test", "elbo", by="ratio")
