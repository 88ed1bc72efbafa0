"""Splits that do not leak: copies, groups and times stay on one side."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from pyro_dvae import BinaryImages
from pyro_dvae.data import (
    BlockData,
    DataError,
    Preparation,
    Source,
    Splits,
    TensorRows,
    make_splits,
    open_source,
)
from pyro_dvae.data.serve import splits as splits_module
from pyro_dvae.data.serve.allocate import allocate, allocate_latest, joined
from pyro_dvae.data.serve.divide import divide, kept_together


class Data(NamedTuple):
    """Data with copies, and how `make_splits` shall divide them."""

    source: Source
    options: dict[str, Any]


def _reals(num: int = 120, copies: int = 40, seed: int = 0) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(num - copies, 3, generator=source, dtype=torch.float64)
    x = torch.cat([x, x[torch.randint(num - copies, (copies,), generator=source)]])
    return x[torch.randperm(num, generator=source)]


def _images() -> Tensor:
    source = torch.Generator().manual_seed(0)
    icons = torch.randint(256, (30, 5, 5), generator=source).byte()
    return icons[torch.randint(30, (100,), generator=source)]


def _source(values: Tensor, labels: Tensor | None = None, **order: Any) -> Source:
    return Source("mine", "here", TensorRows(values, labels), None, None, **order)


TABLE: dict[str, Callable[[], Data]] = {
    "reals": lambda: Data(_source(_reals()), {"likelihood": "normal"}),
    "labels": lambda: Data(_source(_reals(), torch.arange(120) % 3), {"likelihood": "normal"}),
    "images": lambda: Data(_source(_images()), {}),
    "numbers of rows": lambda: Data(
        _source(_reals()), {"likelihood": "normal", "validation": 7, "test": 13}
    ),
    "bits": lambda: Data(_source(torch.eye(40).repeat(3, 1) > 0), {"group_copies": True}),
    "groups": lambda: Data(
        _source(_reals(copies=5), groups=torch.arange(120) // 5), {"likelihood": "normal"}
    ),
}


def _split(data: Data, **options: Any) -> Splits:
    given: dict[str, Any] = {"validation": 0.1, "test": 0.2, "seed": 0, **data.options, **options}
    likelihood = given.setdefault("likelihood", "bernoulli")
    bits = data.source.train.dtype == torch.bool
    binarize = "none" if likelihood == "normal" or bits else "static"
    return make_splits(data.source, binarize=binarize, **given)


def _sets(splits: Splits) -> list[set[bytes]]:
    """The different rows of each part."""
    values = [rows.read(torch.arange(len(rows))) for rows in splits.stored.values()]
    return [{row.numpy().tobytes() for row in x} for x in values]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", TABLE)
def test_no_row_stands_on_both_sides(name: str, seed: int) -> None:
    data = TABLE[name]()
    splits = _split(data, seed=seed)
    train, validation, test = _sets(splits)
    assert train.isdisjoint(validation | test)
    assert validation.isdisjoint(test)
    sizes = [len(rows) for rows in splits.stored.values()]
    assert sum(sizes) == len(data.source.train)
    assert min(sizes) > 0
    assert splits.num_copies == len(data.source.train) - len(train | validation | test)
    assert splits.num_shared() == {"validation": 0, "test": 0}


@pytest.mark.parametrize("name", ["reals", "labels", "images"])
def test_copies_can_be_parted_as_before(name: str) -> None:
    data = TABLE[name]()
    splits = _split(data, group_copies=False)
    labels = data.source.train.labels
    expected = allocate(len(data.source.train), 0.1, 0.2, 0, labels)
    assert torch.equal(splits.train_rows, expected[0])
    assert torch.equal(splits.validation_rows, expected[1])
    train, validation, test = _sets(splits)
    shared = splits.num_shared()
    assert splits.num_copies is None
    assert (shared["validation"] > 0) == bool(train & validation)
    assert (shared["test"] > 0) == bool(train & test)


def test_parts_are_as_large_as_asked_for_where_single_rows_fill_them() -> None:
    splits = _split(TABLE["reals"]())
    assert [len(rows) for rows in splits.stored.values()] == [84, 12, 24]


def test_rows_that_are_equal_by_chance_may_be_parted() -> None:
    bits = torch.arange(200)[:, None] >> torch.arange(3) & 1
    source = _source(bits.bool())
    splits = make_splits(source, binarize="none", validation=0.1, test=0.2, seed=0)
    assert splits.num_copies is None
    assert splits.num_shared()["test"] == 40


@pytest.mark.parametrize("seed", range(3))
def test_data_without_copies_are_split_as_before(seed: int) -> None:
    x = _reals(copies=0)
    for labels in (None, torch.arange(120) % 3):
        splits = _split(Data(_source(x, labels), {"likelihood": "normal"}), seed=seed)
        expected = allocate(120, 0.1, 0.2, seed, labels)
        assert torch.equal(splits.train_rows, expected[0])
        assert torch.equal(splits.validation_rows, expected[1])


def test_data_that_are_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = _split(TABLE["images"]())
    np.save(tmp_path / "x.npy", _images().numpy())
    monkeypatch.setattr(splits_module, "IN_MEMORY", 10)
    splits = _split(Data(open_source(tmp_path / "x.npy"), {}))
    assert isinstance(splits.train, BlockData)
    assert torch.equal(splits.train_rows, held.train_rows)


class TestGroups:
    @given(
        st.lists(st.integers(0, 12), min_size=4, max_size=60),
        st.integers(0, 8),
        st.integers(0, 8),
        st.integers(0, 5),
        st.booleans(),
    )
    @settings(deadline=None)
    def test_are_whole(
        self, groups: list[int], validation: int, test: int, seed: int, labelled: bool
    ) -> None:
        numbers = torch.tensor(groups).unique(return_inverse=True)[1]
        labels = torch.arange(len(groups)) % 2 if labelled else None
        given = (len(groups), validation, test, seed, labels, numbers)
        few = int(numbers.max()) + 1 <= (validation > 0) + (test > 0)
        if few or validation + test >= len(groups):
            with pytest.raises(ValueError, match="Expected"):
                allocate(*given)
            return
        with suppress(ValueError):  # which says that no group is left to train on
            self._check(allocate(*given), numbers, (validation, test))

    def _check(self, parts: tuple[Tensor, ...], groups: Tensor, wanted: tuple[int, int]) -> None:
        assert torch.equal(torch.cat(parts).sort().values, torch.arange(len(groups)))
        found = [set(groups[part].tolist()) for part in parts]
        assert sum(map(len, found)) == len(set(groups.tolist()))
        for part, num in zip(parts[1:], wanted, strict=True):
            assert (len(part) > 0) == (num > 0)
            assert len(part) <= max(num, int(groups.bincount()[groups[part]].max()) if num else 0)

    def test_size_of_a_group_does_not_decide_its_part(self) -> None:
        # Half of the rows are in groups of 1, half in groups of 5; either gives its share.
        groups = torch.cat([torch.arange(300), 300 + torch.arange(300) // 5])
        large = [
            float((groups[allocate(600, 0, 120, seed, None, groups)[2]] >= 300).double().mean())
            for seed in range(200)
        ]
        error = np.std(large) / np.sqrt(len(large))
        assert abs(np.mean(large) - 0.5) < 4.5 * error + 5 / 120  # a part may end within a group

    def test_classes_keep_their_shares(self) -> None:
        groups = torch.arange(600) // 3
        labels = groups % 4
        for part, num in zip(allocate(600, 60, 120, 1, labels, groups)[1:], (60, 120), strict=True):
            assert labels[part].bincount().tolist() == [num // 4] * 4 or len(part) == num
            assert (labels[part].bincount() - num / 4).abs().max() <= 3

    def test_too_few_are_refused(self) -> None:
        groups = torch.tensor([0] * 5 + [1] * 5)
        with pytest.raises(ValueError, match="at least 3 groups of rows, for each part one; got 2"):
            allocate(10, 2, 2, 0, None, groups)
        with pytest.raises(ValueError, match="a group of rows to train on beside 2 rows"):
            allocate(12, 2, 1, 0, None, torch.tensor([0, 1, *[2] * 10]))

    def test_are_joined_by_copies(self) -> None:
        groups, copies = torch.tensor([0, 0, 1, 2, 2, 3]), torch.tensor([0, 1, 1, 2, 3, 4])
        assert joined(groups, copies).tolist() == [0, 0, 0, 1, 1, 2]
        chain = torch.arange(40) // 2
        assert joined(chain, (torch.arange(40) + 1) // 2).tolist() == [0] * 40


class TestTimes:
    @given(
        st.lists(st.integers(0, 9), min_size=3, max_size=50),
        st.integers(0, 8),
        st.integers(0, 8),
    )
    @example([0, 0, 1, 2], 1, 2)  # one row is for testing, so that one is left for validation
    @settings(deadline=None)
    def test_the_latest_rows_are_kept_apart(
        self, times: list[int], validation: int, test: int
    ) -> None:
        t = torch.tensor(times, dtype=torch.float64)
        if validation + test >= len(t):
            with pytest.raises(ValueError, match="in both parts"):
                allocate_latest(t, validation, test)
            return
        if len(t.unique()) <= (validation > 0) + (test > 0) and validation + test:
            with pytest.raises(ValueError, match="a change of time"):
                allocate_latest(t, validation, test)
            return
        parts = allocate_latest(t, validation, test)
        assert torch.equal(torch.cat(parts).sort().values, torch.arange(len(t)))
        known = [t[part] for part in parts if len(part)]
        for earlier, later in pairwise(known):
            assert earlier.max() < later.min()  # so ties stay together
        for part, wanted in zip(parts[1:], (validation, test), strict=True):
            assert (len(part) > 0) == (wanted > 0)

    def test_a_part_ends_at_the_nearest_change(self) -> None:
        times = torch.tensor([0.0, 1, 1, 1, 2, 2, 3, 3, 3, 3])
        for wanted, got in {1: 4, 3: 4, 4: 4, 5: 6, 6: 6, 7: 6, 8: 9, 9: 9}.items():
            assert len(allocate_latest(times, 0, wanted)[2]) == got

    def test_without_times_the_last_rows_are_meant(self) -> None:
        splits = _split(Data(_source(_reals()), {"likelihood": "normal"}), split="last")
        assert splits.train_rows.tolist() == list(range(84))
        assert splits.validation_rows.tolist() == list(range(84, 96))

    def test_one_time_is_refused(self) -> None:
        with pytest.raises(ValueError, match="a change of time where the parts begin; got 9 rows"):
            allocate_latest(torch.zeros(9), 2, 2)

    def test_groups_are_not_divided_by_time(self) -> None:
        source = _source(_reals(), groups=torch.arange(120) // 4, times=torch.arange(120.0))
        with pytest.raises(DataError, match="Expected groups of rows, or rows in the order"):
            divide(source, 0.1, 0.1, 0)

    def test_copies_that_join_most_groups_are_refused(self) -> None:
        x = _reals(copies=0)
        x[::6] = 0  # each group of five has a blank row, or its neighbour has
        source = _source(x, groups=torch.arange(120) // 5)
        with pytest.raises(DataError, match="join groups of at most 5 rows to one of 100"):
            divide(source, 0.1, 0.1, 0)
        parts = divide(source, 0.1, 0.1, 0, group_copies=False)
        assert [len(part) for part in parts[:3]] == [100, 10, 10]

    def test_unknown_split(self) -> None:
        with pytest.raises(ValueError, match="Expected split to be one of random, last; got 'x'"):
            divide(_source(_reals()), 0.1, 0.1, 0, split="x")


class TestOtherRows:
    def test_rows_that_are_in_other_parts_are_counted_and_dropped(self) -> None:
        x = _reals(copies=0)
        test = torch.cat([x[:17], x[:3], _reals(30, 0, seed=1)])
        source = _source(x)._replace(test=TensorRows(test))
        data = Data(source, {"likelihood": "normal", "test": None, "validation": 20})
        splits = _split(data)
        seen = sum(int((x[splits.train_rows] == row).all(1).any()) for row in test)
        assert splits.num_shared()["test"] == seen > 0
        assert splits.num_dropped == 0
        splits = _split(data, drop_copies=True)
        assert splits.num_dropped == 17
        assert splits.num_shared()["test"] == 0
        kept = torch.cat([splits.train_rows, splits.validation_rows]).sort().values
        assert torch.equal(kept, torch.arange(17, 120))

    def test_all_dropped(self) -> None:
        x = _reals(copies=0)
        source = _source(x)._replace(test=TensorRows(x))
        with pytest.raises(DataError, match="Expected training rows that are in no other part"):
            _split(Data(source, {"likelihood": "normal", "test": None}), drop_copies=True)


def test_served_data_know_their_copies() -> None:
    images = _images()
    expected = kept_together(images)
    assert expected is not None
    assert int(expected.max()) < 30
    assert torch.equal(BinaryImages(images).groups_of_copies(), expected)
    blocks = BlockData(TensorRows(images), Preparation("static"))
    assert torch.equal(blocks.groups_of_copies(), expected)
    some = blocks.subset(torch.arange(50)).groups_of_copies()
    assert torch.equal(some, expected[:50].unique(return_inverse=True)[1])


ODD = ["2024-02-01"] * 3 + ["1.2.2024"] * 57


def _frame() -> pd.DataFrame:
    days = pd.date_range("2024-01-01", periods=60)[::-1]
    writers = [f"w{i // 4}" for i in range(60)]
    return pd.DataFrame(
        {"x": np.arange(60.0), "writer": writers, "day": days, "n": range(60, 0, -1)}
    )


class TestColumns:
    """`open_source` with groups and times."""

    @pytest.mark.parametrize("suffix", [".csv", ""])
    def test_groups_and_times_of_a_table(self, suffix: str, tmp_path: Any) -> None:
        data: Any = _frame()
        if suffix:
            data = tmp_path / "t.csv"
            _frame().to_csv(data, index=False)
        source = open_source(data, group="writer", drop=["day", "n"])
        assert source.train.columns == ("x",)
        assert source.groups is not None
        pairs = set(zip(source.groups.tolist(), _frame()["writer"], strict=True))
        assert len(pairs) == 15
        assert source.times is None
        for time in ("day", "n"):
            source = open_source(data, time=time, columns=["x"])
            assert source.times is not None
            assert torch.equal(source.times.argsort(), torch.arange(59, -1, -1))
            splits = make_splits(
                source, binarize="none", likelihood="normal", validation=5, test=7, seed=0
            )
            assert splits.part("test").values.flatten().tolist() == list(range(7))
            assert splits.validation_rows.tolist() == list(range(7, 12))
        assert open_source(data, time="n", columns=["x", "n"]).train.columns == ("x", "n")

    def test_groups_and_times_of_values(self, tmp_path: Any) -> None:
        x, groups = np.random.default_rng(0).normal(size=(6, 2)), np.array(list("aabbcc"))
        source = open_source(x, group=groups)
        assert source.groups is not None
        assert source.groups.tolist() == [0, 0, 1, 1, 2, 2]
        source = open_source(x, time=np.arange(6))
        assert source.times is not None
        assert source.times.tolist() == list(range(6))
        assert source.arguments == {}
        np.savez(tmp_path / "x.npz", x=x, who=groups)
        source = open_source(tmp_path / "x.npz", key="x", group="who")
        assert source.groups is not None
        assert source.groups.tolist() == [0, 0, 1, 1, 2, 2]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"group": "none"}, "Expected a column of the table"),
            ({"group": list("ab")}, r"Expected group=... with one value per row, 60; got 2"),
            (
                {"group": "writer", "time": "day"},
                "Expected groups of rows, or rows in the or",
            ),
            ({"time": "odd"}, "got '1.2.2024', whose day and month cannot be told apart, in row 3"),
            ({"time": "writer"}, "Expected dates written as 2024-12-31 in column 'writer'"),
        ],
    )
    def test_what_is_refused(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(DataError, match=message):
            open_source(_frame().assign(odd=ODD), columns=["x"], **options)

    @pytest.mark.parametrize("name", ["group", "time"])
    def test_gaps_are_refused(self, name: str) -> None:
        frame = _frame().astype({"n": float})
        frame.loc[7:8, "n"] = np.nan
        message = f"Expected a {name} for each row in column 'n' of the table; got none in row 7"
        with pytest.raises(DataError, match=message):
            open_source(frame, columns=["x"], **{name: "n"})
