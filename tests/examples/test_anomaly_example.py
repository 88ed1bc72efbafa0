"""The example that looks for a class that was held out of the training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hostile import Hostile
from test_examples import EXAMPLES, load, run

pytest.importorskip("sklearn", reason="scikit-learn is not installed")
pytest.importorskip("pandas", reason="pandas is not installed")


@pytest.fixture(autouse=True)
def beside_the_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


def test_the_area_by_hand() -> None:
    """Of four pairs, three are in order and one is a tie."""
    example = load("anomaly")
    assert example.auroc(np.array([2.0, 3.0]), np.array([1.0, 2.0])) == 3.5 / 4
    scores = np.random.default_rng(0).normal(size=(2, 50))
    pairs = [(a < b) + (a == b) / 2 for a in scores[1] for b in scores[0]]
    assert example.auroc(*scores) == pytest.approx(np.mean(pairs))


def test_no_row_of_the_class_is_trained_on() -> None:
    example, sets = load("anomaly"), load("real_sets")
    labels = np.arange(100) % 3
    data = sets.RealData(np.zeros((100, 2)), ["real"] * 2, {}, labels=labels)
    train, usual, unusual = example.parts(data, 1, seed=0, images=1)
    assert sorted([*train, *usual, *unusual]) == list(range(100))
    assert (labels[unusual] == 1).all()
    assert (labels[np.concatenate([train, usual])] != 1).all()
    assert len(usual) == 13


def test_no_model_sees_the_column_of_the_class(monkeypatch: pytest.MonkeyPatch) -> None:
    example, sets = load("anomaly"), load("real_sets")
    x = np.array([[1.5, 0.0, 7.0], [2.5, 1.0, 8.0], [3.5, 0.0, 9.0]])
    names, kinds = ["Weight", "Origin", "Power"], ["real", "level", "real"]
    cars = sets.RealData(x, kinds, {}, names, words={"Origin": ["Europe", "Japan"]})
    monkeypatch.setitem(example.DATA, "cars", lambda _: cars)
    found = example.with_classes("cars", None)
    assert (found.names, found.kinds) == (["Weight", "Power"], ["real", "real"])
    assert found.x.tolist() == x[:, [0, 2]].tolist()
    assert found.labels.tolist() == ["Europe", "Japan", "Europe"]


def test_a_score_that_a_likelihood_does_not_have_is_left_out() -> None:
    cells = load("anomaly").cells
    assert cells([[0.5, np.nan]]) == ["0.500", ""]
    assert cells([[0.5, np.nan], [0.7, np.nan]]) == ["0.600 ± 0.100", ""]


@pytest.mark.slow
def test_wine(tmp_path: Path, hostile_server: Hostile) -> None:
    out = run(
        hostile_server, "anomaly", "--only", "wine", "--seeds", "1", "--epochs", "40", cwd=tmp_path
    )
    heads, _, wine, *_ = ([cell.strip() for cell in line.split("|")] for line in out.splitlines())
    figures = dict(zip(heads, wine, strict=True))
    assert figures["data, class held out"] == "wine, 2"
    for name in ("log-prob", "ratio", "conditional", "isolation forest", "Gaussian mixture"):
        assert 0.6 < float(figures[name]) <= 1
    assert (tmp_path / "anomaly.png").stat().st_size > 5_000
