"""The example that fills missing values in, beside the methods of scikit-learn."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from hostile import Hostile
from test_examples import load, run

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

LEVELS = [0, 3, 2, 0]


def table(num: int = 200) -> np.ndarray:
    source = np.random.default_rng(0)
    names = [source.integers(3, size=num), source.integers(2, size=num)]
    return np.column_stack([source.normal(5, 2, num), *names, source.normal(0, 1, num)])


def test_the_code_of_a_table_can_be_undone() -> None:
    example = load("missing_values")
    x = table()
    coded = example.Coded(x, LEVELS)
    assert coded.code(x).shape == (200, 1 + 2 + 1 + 1)
    np.testing.assert_allclose(coded.decode(coded.code(x)), x)
    np.testing.assert_allclose(coded.code(x)[:, [0, -1]].std(0), 1)
    gaps = example.with_gaps(x, 0.3, np.random.default_rng(1))
    assert (np.isnan(coded.code(gaps)).sum(1) >= np.isnan(gaps).sum(1)).all()


def test_cells_go_missing_at_random() -> None:
    example = load("missing_values")
    x = table(3000)
    for share in (0.1, 0.5):
        gaps = np.isnan(example.with_gaps(x, share, np.random.default_rng(0)))
        kept = share * (1 - 1 / 4)  # one cell of each row stays
        error = math.sqrt(kept * (1 - kept) / 3000)
        assert (abs(gaps.mean(0) - kept) <= 4.5 * error).all()
        assert not gaps.all(1).any()


def test_errors_are_of_the_missing_cells_alone() -> None:
    example = load("missing_values")
    true, gaps = table(4), np.zeros((4, 4), bool)
    whole, spread = true.copy(), np.array([2.0, 1, 1, 4])
    gaps[0] = gaps[1, 0] = True
    whole[0] += [2, 1, 0, -8]
    whole[3] += 100
    real, wrong = example.errors(whole, true, gaps, LEVELS, spread)
    assert real == pytest.approx(math.sqrt((1 + 0 + 4) / 3))
    assert wrong == 0.5


def test_simple_imputation_takes_means_and_the_most_frequent() -> None:
    example = load("missing_values")
    x = example.with_gaps(table(), 0.2, np.random.default_rng(2))
    filled = example.imputed(x, x, LEVELS)
    assert {*filled} == {"column means", "nearest neighbours", "iterative"}
    gaps = np.isnan(x)
    for whole in filled.values():
        np.testing.assert_allclose(whole[~gaps], x[~gaps])
    simple = filled["column means"]
    np.testing.assert_allclose(simple[gaps[:, 0], 0], np.nanmean(x[:, 0]))
    frequent = np.bincount(x[~gaps[:, 1], 1].astype(int)).argmax()
    assert (simple[gaps[:, 1], 1] == frequent).all()


@pytest.mark.slow
def test_it_prints_both_tables(tmp_path: Path, hostile_server: Hostile) -> None:
    options = ["--only", "wine", "--shares", "0.3", "--seeds", "2", "--epochs", "3"]
    out = run(hostile_server, "missing_values", *options, cwd=tmp_path)
    numbers = re.findall(r"(-?\d+\.\d{3}) ± \d+\.\d{3}", out)
    assert len(numbers) == 2 * (4 + 2)
    assert "discrete VAE" in out
    assert "logistic regression" in out
    assert (tmp_path / "missing_values.png").stat().st_size > 5_000
