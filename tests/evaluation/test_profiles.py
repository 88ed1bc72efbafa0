"""`profile` against counts by hand, on tables whose q(z|x) is given."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from zoo import make_vae

from pyro_dvae import (
    Bernoulli,
    Categorical,
    DiscreteVAE,
    LogisticMixture,
    Masked,
    Mixed,
    MLPDecoder,
    Normal,
    Profile,
    UniformPrior,
    evaluate,
    profile,
)

NAN = math.nan


class _Known(nn.Module):
    """Looks log q(z|x) up by the number of the row, which is the first column of x."""

    def __init__(self, q: Tensor) -> None:
        super().__init__()
        self.log_q = q.log()

    def forward(self, x: Tensor) -> Tensor:
        return self.log_q[x[:, 0].long()]


def known(q: Any) -> tuple[DiscreteVAE, Tensor]:
    """A model with q(z_d=k|x_n) = q[n, d, k], and its rows."""
    q = torch.tensor(q, dtype=torch.float64)
    size = tuple(q.shape[1:])
    vae = DiscreteVAE(_Known(q), MLPDecoder((1,), *size, (3,)), UniformPrior(*size), Normal((1,)))
    return vae.double(), torch.arange(len(q), dtype=torch.float64)[:, None]


SURE = [[[1.0, 0.0, 0.0]], [[1.0, 0.0, 0.0]], [[0.0, 1.0, 0.0]], [[0.0, 1.0, 0.0]]]
"""Rows 0 and 1 have category 0, rows 2 and 3 category 1, none category 2."""
HALF = [[[0.5, 0.5, 0.0]], [[1.0, 0.0, 0.0]], [[0.0, 1.0, 0.0]], [[0.25, 0.75, 0.0]]]
HAND = [
    # q, the column, its levels -> means of the categories 0 and 1, rows with a value, sd of all
    (SURE, [1.0, 3.0, 5.0, 7.0], None, [[2.0], [6.0]], [[2.0], [2.0]], [math.sqrt(5)]),
    (SURE, [1.0, NAN, 5.0, 6.0], None, [[1.0], [5.5]], [[1.0], [2.0]], [math.sqrt(14 / 3)]),
    (SURE, [NAN, NAN, 5.0, 7.0], None, [[NAN], [6.0]], [[0.0], [2.0]], [1.0]),
    (SURE, [4.0, 4.0, 4.0, 4.0], None, [[4.0], [4.0]], [[2.0], [2.0]], [0.0]),
    (SURE, [0, 1, 1, 1], "fm", [[0.5, 0.5], [0, 1]], [[2.0] * 2] * 2, [math.sqrt(3) / 4] * 2),
    (SURE, [0, NAN, 1, 0], "fm", [[1, 0], [0.5, 0.5]], [[1.0] * 2, [2.0] * 2], [2**0.5 / 3] * 2),
    (HALF, [1.0, 3.0, 5.0, 7.0], None, [[3.0], [43 / 9]], [[1.75], [2.25]], [math.sqrt(5)]),
]


@pytest.mark.parametrize(("q", "column", "levels", "means", "weights", "spread"), HAND)
def test_means_and_frequencies_are_those_counted_by_hand(
    q: Any, column: Any, levels: Any, means: Any, weights: Any, spread: Any
) -> None:
    vae, x = known(q)
    values = torch.tensor(column, dtype=torch.float64)[:, None]
    names = {} if levels is None else {"a": levels}
    found = profile(vae, x, values=values, columns=["a"], levels=names)
    expected = torch.tensor([means], dtype=torch.float64)
    torch.testing.assert_close(found.means[:, :2], expected, equal_nan=True)
    torch.testing.assert_close(found.weights[0, :2], torch.tensor(weights, dtype=torch.float64))
    torch.testing.assert_close(found.spread, torch.tensor(spread, dtype=torch.float64))
    torch.testing.assert_close(found.sizes, torch.tensor(q).double().sum(0))
    assert found.used.tolist() == [[True, True, False]]
    whole = torch.tensor([float(v) for v in column]).nanmean().item()
    assert found.whole[-1].item() == pytest.approx(whole)
    difference = (expected - found.whole) / found.spread
    difference[expected == found.whole.expand_as(expected)] = 0  # also where all rows are alike
    torch.testing.assert_close(found.differences[:, :2], difference, equal_nan=True)
    lifts = expected / found.whole if levels else torch.full_like(expected, NAN)
    torch.testing.assert_close(found.lifts[:, :2], lifts, equal_nan=True)


def test_classes_are_cross_tabulated() -> None:
    q = [[[1.0, 0.0], [0.5, 0.5]]] * 3 + [[[0.0, 1.0], [0.5, 0.5]]] * 3
    vae, x = known(q)
    labels = torch.tensor([0, 0, 1, 1, 1, -1])  # the last is not known
    found = profile(vae, x, labels, class_names=["cat", "dog", "emu"])
    first, second = [[2.0, 1.0, 0.0], [0.0, 2.0, 0.0]], [[1.0, 1.5, 0.0]] * 2
    assert found.class_counts is not None
    assert found.class_information is not None
    assert found.class_counts.tolist() == [first, second]
    # p log p / (p p) of the cells (2, 1, 2) / 5, whose margins are (3, 2) / 5 and (2, 3) / 5
    told = 0.4 * math.log(0.4 / 0.24) + 0.2 * math.log(0.2 / 0.36) + 0.4 * math.log(0.4 / 0.24)
    assert found.class_information.tolist() == pytest.approx([told, 0], abs=1e-12)
    entropy = -0.4 * math.log(0.4) - 0.6 * math.log(0.6)
    assert found.class_entropy == pytest.approx(entropy)
    lines = [line for line in found.lines() if line["column"] == "label"]
    told_of = [(line["latent"], line["category"], line["level"], line["count"]) for line in lines]
    assert told_of[:4] == [
        ("z1", 0, "cat", 2.0),
        ("z1", 0, "dog", 1.0),
        ("z1", 0, "emu", 0.0),
        ("z1", 1, "cat", 0.0),
    ]
    assert (lines[0]["value"], lines[0]["whole"]) == pytest.approx((2 / 3, 2 / 5))
    assert lines[0]["lift"] == pytest.approx(5 / 3)
    assert lines[2]["lift"] is None  # no row is an emu
    assert "  rows per label (of 5 with one)  cat  dog  emu" in str(found).split("\n")
    nobody = profile(vae, x, torch.full((6,), -1), class_names=["cat"])
    assert nobody.class_information is nobody.class_entropy is None
    assert all(line["column"] != "label" for line in nobody.lines())
    assert profile(vae, x).class_counts is None


def test_the_information_is_that_of_the_evaluation() -> None:
    vae = make_vae()
    x = torch.bernoulli(torch.full((50, *vae.sample(1).shape[1:]), 0.5))
    found = profile(vae, x)
    expected = evaluate(vae, x).information_per_latent
    assert found.information.tolist() == pytest.approx(expected, abs=1e-10)
    assert found.sizes.sum(-1).tolist() == pytest.approx([50] * len(expected))


def test_typical_rows_are_those_that_the_guide_is_surest_of() -> None:
    tiny = 1e-20  # 1 - tiny is 1
    q = [[[0.6, 0.4]], [[1 - tiny, tiny]], [[1.0, tiny / 10]], [[0.2, 0.8]], [[0.1, 0.9]]]
    vae, x = known(q)
    found = profile(vae, x, num_typical=2)
    assert found.typical[:, 0].T.tolist() == [[2, 1], [4, 3]]
    assert found.typical_rows(0, 0) == ["2", "1"]
    named = profile(vae, x, row_names="abcde", num_typical=9)
    assert named.typical_rows(0, 1) == ["e", "d"]
    assert profile(vae, x, num_typical=0).typical_rows(0, 1) == []


def test_blocks_of_rows_give_what_all_rows_give(monkeypatch: pytest.MonkeyPatch) -> None:
    q = torch.rand(23, 2, 3).softmax(-1).tolist()
    vae, x = known(q)
    values, labels = torch.randn(23, 4), torch.arange(23) % 3
    whole = profile(vae, x, labels, values=values)
    monkeypatch.setattr("pyro_dvae.evaluation.blocks.ROWS", 5)
    parts = profile(vae, x, labels, values=values)
    for name in ("sizes", "means", "weights", "information", "typical", "class_counts"):
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name))


LEVELS = [
    # likelihood, the column -> what describes it
    (Bernoulli(), [0.0, 1.0, 1.0], ["x0=0", "x0=1"]),
    (Categorical(3), [0.0, 1.0, NAN], ["x0=0", "x0=1", "x0=2"]),
    (Categorical(17), [0.0, 1.0, 2.0], ["x0"]),
    (LogisticMixture(256), [0.0, 1.0, 2.0], ["x0"]),
    (Normal((1,)), [0.0, 1.0, 2.0], ["x0"]),
    (Mixed([(Categorical(3), 1)]), [0.0, 1.0, 2.0], ["x0=0", "x0=1", "x0=2"]),
    (Bernoulli(), [0.0, 255.0, 255.0], ["x0"]),  # before it became a bit
]


@pytest.mark.parametrize(("likelihood", "column", "features"), LEVELS)
def test_levels_are_told_by_the_likelihood(
    likelihood: Any, column: list[float], features: list[str]
) -> None:
    values = torch.tensor(column, dtype=torch.float64)[:, None]
    vae, x = known(SURE[:3])
    vae.likelihood = Masked(likelihood)
    x = torch.zeros_like(x)
    found = profile(vae, x, values=values)
    assert [str(feature) for feature in found.features] == features


def test_the_text_says_what_sets_each_category_apart() -> None:
    q = [[[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]] * 40 + [[[0.0, 1.0, 0.0], [0.5, 0.5, 0.0]]] * 60
    vae, x = known(q)
    mass = torch.cat([torch.full((40,), 2.0), torch.full((60,), 7.0)])
    island = torch.tensor([0.0, 1.0]).repeat(50)
    island[:40] = 1
    labels = (torch.arange(100) >= 40).long()
    found = profile(
        vae,
        x,
        labels,
        values=torch.stack([mass, torch.arange(100) % 2, island], 1),
        columns=["mass", "even", "island"],
        levels={"island": ["Dream", "Biscoe"]},
        class_names=["Adelie", "Gentoo"],
    )
    assert str(found).split("\n") == [
        "Profile of 100 rows. A row counts for a category by its probability q(z|x). In brackets: "
        "all rows.",
        "sd: the difference in standard deviations of all rows. x: how many times as often.",
        "Typical rows are those with the highest q(z|x), by name, or by number from 0.",
        "",
        "z1 tells 0.67 nats about a row, and 0.67 of 0.67 nats about label",
        "  category 0: 40 rows (40 %): mass 2 (5, -1.2 sd); island=Biscoe 100 % (70 %, x 1.4)",
        "    typical rows: 0, 1, 2",
        "  category 1: 60 rows (60 %): mass 7 (5, +0.8 sd); island=Dream 50 % (30 %, x 1.7)",
        "    typical rows: 40, 41, 42",
        "  unused categories: 2",
        "  rows per label  Adelie  Gentoo",
        "  category 0        40.0     0.0",
        "  category 1         0.0    60.0",
        "",
        "z2 tells nothing about a row: less than 0.01 nats",
    ]
    assert found.distinctive(0, 2) == []
    few = profile(*known(q[:1] + q[40:44]), values=mass[[0, 40, 41, 42, 43]][:, None])
    assert few.distinctive(0, 0) == [0]  # 1 row is 2 sd off: as much as 2 / sqrt(1)
    none = profile(*known(q[:1] + q[40:43]), values=mass[[0, 40, 41, 42]][:, None])
    assert none.distinctive(0, 0) == []  # it is 1.73 off


def test_many_categories_and_classes_are_cut() -> None:
    q = torch.eye(40).unsqueeze(1).repeat(2, 1, 1)
    q = torch.cat([q, q[7:]])  # the last 33 categories have three rows, the first 7 two
    vae, x = known(q.tolist())
    found = profile(vae, x, torch.arange(len(x)) % 20)
    assert found.largest(0) == [*range(7, 39)]
    assert found.largest(0, 34) == [0, *range(7, 40)]
    lines = str(found).split("\n")
    assert sum(line.startswith("  category 8") for line in lines) == 2  # and its classes
    assert "  and 8 more categories with fewer rows" in lines
    many = profile(vae, x, torch.arange(len(x)) % 21)
    assert not any(line.startswith("  rows per label") for line in str(many).split("\n"))


def test_a_column_of_one_number_sets_nothing_apart() -> None:
    vae, x = known(SURE * 3)
    found = profile(vae, x, values=torch.full((12, 1), 0.1, dtype=torch.float64) * 3)
    assert found.spread.tolist() == [0]
    assert found.differences[0, :2].tolist() == [[0], [0]]


def test_lines_are_a_table_without_nan() -> None:
    vae, x = known(SURE)
    values = torch.tensor([[1.0, NAN], [3.0, NAN], [5.0, 0.0], [7.0, 1.0]])
    found = profile(vae, x, values=values, columns=["a", "b"], levels={"b": "fm"})
    frame = found.to_frame().astype(object).where(lambda cells: cells.notna(), None)
    assert len(frame) == 2 * 3 + 1
    assert frame["rows"].tolist() == [2.0] * 6 + [0.0]
    assert frame["column"].tolist() == ["a", "b", "b"] * 2 + [None]
    assert frame["count"].tolist()[:6] == [2, 0, 0, 2, 1, 1]
    assert frame["typical_rows"].tolist() == ["0 1"] * 3 + ["2 3"] * 3 + [None]
    content = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert content["lines"] == list(found.lines())
    assert content["lines"][1]["value"] is None  # no row of category 0 has a value
    assert content["lines"][-1]["category"] == 2


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"values": torch.zeros(3, 1)}, r"values of shape \(4, V\)"),
    ({"columns": ["a", "b"]}, "Expected 1 columns; got 2"),
    ({"row_names": ["a"]}, "Expected 4 row_names; got 1"),
    ({"labels": torch.zeros(3, dtype=torch.int64)}, "labels as 4 integers"),
    ({"labels": torch.arange(4), "class_names": ["a"]}, "labels below 1"),
    ({"num_typical": -1}, "num_typical"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG)
def test_arguments_that_do_not_fit_are_refused(arguments: dict[str, Any], message: str) -> None:
    vae, x = known(SURE)
    with pytest.raises(ValueError, match=message):
        profile(vae, x, **arguments)


def test_images_are_refused() -> None:
    vae, _ = known(SURE)
    with pytest.raises(ValueError, match=r"Expected rows \(N, P\)"):
        profile(vae, torch.zeros(4, 2, 2))


def test_a_profile_is_frozen() -> None:
    vae, x = known(SURE)
    found = profile(vae, x)
    assert isinstance(found, Profile)
    with pytest.raises(AttributeError):
        found.num_data = 3  # type: ignore[misc]
