"""The example that trains on real data, beside simple models."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hostile import Hostile
from test_examples import EXAMPLES, run
from zoo import make_vae, tiny_data

from pyro_dvae import profile

pytest.importorskip("sklearn", reason="scikit-learn is not installed")
pytest.importorskip("pandas", reason="pandas is not installed")


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("real_data")  # whose dataclasses look their module up


def table(example: ModuleType, num: int = 60) -> Any:
    """A column of names, bits, levels of which one is rare, and correlated numbers."""
    source = np.random.default_rng(0)
    names, bits = source.integers(3, size=num), source.integers(2, size=num)
    levels, real = (np.arange(num) == 7) + 2.0 * (np.arange(num) % 2), source.normal(size=num)
    return example.RealData(
        np.column_stack([names, bits, levels, real]),
        ["level", "bit", "level", "real"],
        {},
        ["island", "sex", "level", "mass"],
        words={"island": ["Biscoe", "Dream", "Torgersen"]},
    )


def test_every_level_of_a_test_row_is_trained_on(example: ModuleType) -> None:
    data = table(example)
    parts = [example.divide(data, seed) for seed in (1, 1, 2)]
    for train, test in parts:
        assert sorted([*train, *test]) == list(range(60))
        assert len(test) == 12
        for column in range(3):
            assert set(data.x[test, column]) <= set(data.x[train, column])
    assert (parts[0][1] == parts[1][1]).all()
    assert set(parts[0][1]) != set(parts[2][1])


def test_a_file_has_the_names_that_a_user_has(example: ModuleType, tmp_path: Path) -> None:
    data = table(example)
    path = example.write(tmp_path, "train", data, np.arange(60))
    lines = path.read_text().splitlines()
    assert lines[0] == "island,sex,level,mass"
    assert [line.split(",")[0] for line in lines[1:]] == [
        data.words["island"][int(level)] for level in data.x[:, 0]
    ]
    assert example.suggested(path) == {"likelihood": "mixed"}
    real = example.RealData(
        np.random.default_rng(0).normal(size=(135, 9)), ["real"] * 9, {}, [*"abcdefghi"]
    )
    path = example.write(tmp_path, "real", real, np.arange(135))
    assert example.suggested(path) == {"likelihood": "correlated-normal"}


def test_the_error_of_a_difference(example: ModuleType) -> None:
    """Of rows that differ between the seeds, and of rows that do not."""

    def results(gains: list[list[float]], split: int | None) -> list[Any]:
        named = {"name": "x", "likelihood": "normal", "ours": 0.0, "bound": "log p(x)"}
        rest = {"codes_used": 1, "active": "1/1", "epochs": 1, "seconds": 1.0}
        pure = {"purity": None, "k_means": None, "peers": {"mixture": (0.0, 4, 1.0)}}
        return [
            example.Result(
                seed=seed,
                split=None if split is None else split + seed,
                rows={"ours": gain, "mixture": [0.0] * len(gain)},
                **named,
                **rest,
                **pure,
            )
            for seed, gain in enumerate(gains)
        ]

    gains = [[1.0, 2, 3], [2.0, 4, 6]]
    assert example.difference(results(gains, 5), "mixture") == pytest.approx((3, 1))  # over seeds
    near = [[1.0, 2, 6], [2.0, 4, 3]]
    over_rows = np.std([1, 2, 6, 2, 4, 3], ddof=1) / np.sqrt(6)
    assert example.difference(results(near, 5), "mixture") == pytest.approx((3, over_rows))
    both = np.hypot(np.std([1.5, 3, 4.5], ddof=1) / np.sqrt(3), 1)
    assert example.difference(results(gains, None), "mixture") == pytest.approx((3, both))
    assert "| +3.00 ± 1.00 | ahead |" in example.summary(results(gains, 5))
    assert "| -3.00 ± 1.00 | behind |" in example.summary(
        results([[-gain for gain in seed] for seed in gains], 5)
    )


@pytest.mark.slow
def test_wine(tmp_path: Path, hostile_server: Hostile) -> None:
    options = ("--only", "wine", "--seeds", "1", "--settings", '{"epochs": 60}')
    heads, _, wine = (
        [cell.strip() for cell in line.split("|")]
        for line in run(hostile_server, "real_data", *options, cwd=tmp_path).splitlines()
    )
    figures = dict(zip(heads, wine, strict=True))
    assert figures["data"] == "wine"
    assert float(figures["test log p(x), nats per row"]) > -22  # 22.6 by independent columns
    assert figures["all simple models"].startswith("independent columns -2")
    assert (tmp_path / "real_data.png").stat().st_size > 5_000


def test_posteriors_are_compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    example = importlib.import_module("posteriors")
    vae = make_vae("learned")
    parts = {"train": tiny_data(60), "test": tiny_data(20)}
    labels = {part: x[:, 0].long().numpy() for part, x in parts.items()}
    figures = example.measured(vae, parts, labels, 0)
    log_p, encoder = figures["log_marginal"], figures["encoder_elbo"]
    assert log_p - encoder == pytest.approx(figures["family_gap"] + figures["encoder_gap"])
    assert encoder < figures["ELBO 1"] <= figures["ELBO 5"] <= log_p
    with torch.no_grad():
        codes = vae.decode(vae.mode(parts["test"])).log_prob(parts["test"]).mean().item()
    assert figures["log p(x|code) encoder"] == pytest.approx(codes)
    assert figures["log p(x|code) exact"] > codes
    told = profile(vae, torch.cat([*parts.values()]), np.concatenate([*labels.values()]))
    joint = told.class_counts / 80
    assert joint is not None
    terms = joint * (joint / (joint.sum(1, keepdim=True) * joint.sum(2, keepdim=True))).log()
    assert figures["information encoder"] == pytest.approx(terms.sum().item())
    cells = example.line("bits", [figures, figures]).split(" | ")
    assert cells[:2] == ["| bits", f"{encoder:.2f} ± 0.00"]
    assert len(cells) == len(example.HEADS.split(" | "))
    example.draw({"bits": [figures, figures]}, tmp_path / "posteriors.png")
    assert (tmp_path / "posteriors.png").stat().st_size > 5_000
