"""Tests of the parts that a run trains, validates and tests on."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pyro_dvae.data import (
    BINARIZATIONS,
    PARTS,
    BinaryImages,
    BlockData,
    DataError,
    Images,
    PreparedData,
    Source,
    Splits,
    TensorRows,
    make_splits,
    open_source,
    split,
)
from pyro_dvae.data.serve import splits as splits_module
from pyro_dvae.data.serve.allocate import allocate


class TestSplit:
    @pytest.mark.parametrize(
        ("num_data", "fraction", "num_validation"),
        [(10, 0.2, 2), (100, 0.25, 25), (2, 0.5, 1), (60000, 1 / 6, 10000)],
    )
    def test_laws(self, num_data: int, fraction: float, num_validation: int) -> None:
        train, validation = split(num_data, fraction, seed=0)
        assert train.dtype == validation.dtype == torch.int64
        assert len(validation) == num_validation
        assert torch.equal(train, train.sort().values)
        assert torch.equal(validation, validation.sort().values)
        assert torch.equal(torch.cat([train, validation]).sort().values, torch.arange(num_data))

    def test_seed(self) -> None:
        def validation(seed: int) -> Any:
            return split(1000, 0.1, seed)[1].tolist()

        assert validation(1) == validation(1)
        assert validation(1) != validation(2)
        assert validation(1) != list(range(100))

    @pytest.mark.parametrize(
        ("num_data", "fraction"),
        [
            *((10, fraction) for fraction in (0.0, 1.0, -0.5, 1.5, math.nan, 0.01, 0.99)),
            (1, 0.5),
            (0, 0.5),
        ],
    )
    def test_empty_parts(self, num_data: int, fraction: float) -> None:
        with pytest.raises(ValueError, match=f"in both parts; got {fraction} of {num_data} data"):
            split(num_data, fraction, seed=0)


def tiny_images(num_train: int = 20, num_test: int = 7) -> Images:
    def pixels(num: int, seed: int) -> Tensor:
        source = torch.Generator().manual_seed(seed)
        return torch.randint(256, (num, 3, 5), dtype=torch.uint8, generator=source)

    labels = torch.arange(num_train), 100 + torch.arange(num_test)
    return Images("tiny", pixels(num_train, 1), pixels(num_test, 2), *labels, "here", None)


class TestMakeSplits:
    def splits(self, policy: str = "dynamic", *, seed: int = 3, **counts: int) -> Splits:
        images = tiny_images(**counts)
        return make_splits(images, binarize=policy, validation=0.2, seed=seed)

    @pytest.mark.parametrize("policy", BINARIZATIONS)
    def test_are_what_fit_has_always_used(self, policy: str) -> None:
        images, splits = tiny_images(), self.splits(policy)
        train_rows, validation_rows = split(20, 0.2, 3)
        pixels = BinaryImages(images.train, policy, seed=3)
        assert torch.equal(splits.train.fixed(8), pixels.subset(train_rows).fixed(8))
        assert torch.equal(splits.validation, pixels.subset(validation_rows).fixed(3))
        assert torch.equal(splits.test, BinaryImages(images.test, policy, seed=3).fixed(3))
        assert torch.equal(splits.train_rows, train_rows)
        assert torch.equal(splits.validation_rows, validation_rows)

    def test_of_today_are_those_of_every_later_version(self) -> None:
        splits = self.splits()
        weights = torch.arange(15, dtype=torch.float32).view(3, 5)
        sums = [(splits.part(name).x * weights).sum().item() for name in PARTS]
        assert splits.validation_rows.tolist() == [3, 6, 7, 12]
        assert sums == [892, 260, 376]

    @pytest.mark.parametrize("name", PARTS)
    @pytest.mark.parametrize("policy", BINARIZATIONS)
    def test_part(self, name: str, policy: str) -> None:
        splits = self.splits(policy)
        x, grey, labels = splits.part(name)
        assert x.shape == grey.shape == ({"train": 16, "validation": 4, "test": 7}[name], 3, 5)
        assert (x.dtype, grey.dtype, labels.dtype) == (torch.float32, torch.uint8, torch.int64)
        assert (x[grey == 0] == 0).all()
        assert (x[grey == 255] == 1).all()
        if policy == "threshold":
            assert torch.equal(x, (grey >= 128).to(torch.float32))
        elif policy == "dynamic":
            assert torch.equal(x, BinaryImages(grey).fixed(3))
        images = tiny_images()
        source, first = (images.test, 100) if name == "test" else (images.train, 0)
        assert torch.equal(grey, source[labels - first])
        assert torch.equal(x, splits.part(name).x)

    def test_parts_of_training_images_are_disjoint(self) -> None:
        splits = self.splits()
        labels = torch.cat([splits.part("train").labels, splits.part("validation").labels])
        assert torch.equal(labels.sort().values, torch.arange(20))
        assert len(splits.train) == 16

    @pytest.mark.parametrize("policy", ["dynamic", "static"])
    def test_every_part_follows_the_seed(self, policy: str) -> None:
        parts = [self.splits(policy, seed=seed) for seed in (0, 0, 1)]
        for name in PARTS:
            first, same, other = (splits.part(name).x for splits in parts)
            assert torch.equal(first, same)
            assert not torch.equal(first, other)

    @pytest.mark.parametrize("policy", BINARIZATIONS)
    def test_global_stream_is_left_alone(self, policy: str) -> None:
        before = torch.get_rng_state()
        self.splits(policy).part("train")
        assert torch.equal(torch.get_rng_state(), before)

    def test_training_data_that_moved_serve_the_same_part(self) -> None:
        splits = self.splits()
        moved = splits._replace(train=splits.train.to("cpu"))
        assert torch.equal(moved.part("train").x, splits.part("train").x)

    def test_unknown_part(self) -> None:
        with pytest.raises(
            ValueError, match=r"part to be one of train, validation, test; got 'all'"
        ):
            self.splits().part("all")

    def test_unknown_policy(self) -> None:
        with pytest.raises(ValueError, match=r"dynamic, static, threshold, none; got 'fuzzy'"):
            self.splits("fuzzy")

    def test_empty_part(self) -> None:
        with pytest.raises(ValueError, match=r"in both parts; got 0\.2 of 2 data"):
            self.splits(num_train=2)


class TestAllot:
    @settings(deadline=None)
    @given(
        st.lists(st.integers(0, 4), min_size=3, max_size=80),
        st.one_of(st.integers(0, 20), st.floats(0.01, 0.45)),
        st.one_of(st.integers(0, 20), st.floats(0.01, 0.45)),
        st.integers(0, 3),
    )
    def test_laws(self, classes: list[int], validation: float, test: float, seed: int) -> None:
        num = len(classes)
        wanted = [
            round(num * amount) if 0 < amount < 1 else int(amount) for amount in (validation, test)
        ]
        empty = any(amount and not n for amount, n in zip((validation, test), wanted, strict=True))
        for labels in (None, torch.tensor(classes)):
            if sum(wanted) >= num or empty:
                with pytest.raises(ValueError, match="in both parts; got"):
                    allocate(num, validation, test, seed, labels)
                continue
            parts = allocate(num, validation, test, seed, labels)
            assert [len(part) for part in parts] == [num - sum(wanted), *wanted]
            assert torch.equal(torch.cat(parts).sort().values, torch.arange(num))
            assert all(torch.equal(part, part.sort().values) for part in parts)
            again = allocate(num, validation, test, seed, labels)
            assert all(torch.equal(a, b) for a, b in zip(parts, again, strict=True))

    @pytest.mark.parametrize("amount", [-1, -0.1, 1.5, math.nan, math.inf])
    def test_neither_fraction_nor_number(self, amount: float) -> None:
        for amounts in ((amount, 0), (0, amount)):
            with pytest.raises(ValueError, match=f"number of data for .*; got {amount}"):
                allocate(10, *amounts, 0)

    def test_is_split_where_nothing_is_kept_for_testing(self) -> None:
        parts = allocate(100, 0.2, 0, 5)
        assert all(torch.equal(a, b) for a, b in zip(parts, split(100, 0.2, 5), strict=False))

    @pytest.mark.parametrize("seed", range(5))
    def test_every_class_gives_its_share(self, seed: int) -> None:
        labels = torch.tensor([0] * 700 + [1] * 200 + [2] * 90 + [7] * 10)
        labels = labels[torch.randperm(1000, generator=torch.Generator().manual_seed(9))]
        for part, share in zip(
            allocate(1000, 100, 0.2, seed, labels), (0.7, 0.1, 0.2), strict=True
        ):
            counts = labels[part].bincount(minlength=8)
            for label, num in {0: 700, 1: 200, 2: 90, 7: 10}.items():
                assert abs(counts[label] - share * num) <= 1

    def test_classes_of_one_row_are_shared_out_at_random(self) -> None:
        rows = torch.stack([allocate(10, 3, 0, seed, torch.arange(10))[1] for seed in range(400)])
        counts = rows.flatten().bincount(minlength=10)
        assert (counts - 120).abs().max() < 4.5 * math.sqrt(400 * 0.3 * 0.7)

    def test_a_rare_class_stays_to_be_trained_on(self) -> None:
        labels = torch.tensor([0] * 50 + [1])
        assert 50 in allocate(51, 0.2, 0.2, 0, labels)[0]


class TestMakeSplitsOfASource:
    values = torch.randint(256, (40, 3), generator=torch.Generator().manual_seed(0)).byte()

    def source(self, name: str = "mine", test: bool = False) -> Source:
        rows = TensorRows(self.values, torch.arange(40) // 10)
        own = TensorRows(self.values[:5]) if test else None
        return Source(name, "here", rows, own, None)

    def test_is_stratified_and_mnist_is_not(self) -> None:
        options: dict[str, Any] = {"binarize": "static", "validation": 12, "seed": 0}
        splits = make_splits(self.source(), **options)
        assert splits.part("validation").labels is not None
        assert torch.equal(splits.validation_rows // 10, torch.arange(4).repeat_interleave(3))
        assert torch.equal(
            make_splits(self.source("mnist"), **options).validation_rows, split(40, 0.3, 0)[1]
        )

    def test_a_test_part_is_kept_apart(self) -> None:
        splits = make_splits(self.source(), binarize="threshold", validation=4, test=0.25, seed=1)
        assert splits.test is not None
        assert (len(splits.train), len(splits.test)) == (26, 10)
        stored = torch.cat([splits.part(part).values for part in PARTS])
        assert torch.equal(stored.unique(dim=0), self.values.unique(dim=0))
        for part in PARTS:
            assert torch.equal(splits.part(part).x, (splits.part(part).values >= 128).float())

    def test_nothing_is_kept_apart(self) -> None:
        splits = make_splits(self.source(), binarize="static", validation=0, seed=1)
        assert (splits.validation, splits.test, len(splits.train)) == (None, None, 40)
        with pytest.raises(DataError, match="got a run that keeps no test data"):
            splits.part("test")

    def test_other_rows_for_validation_and_testing(self) -> None:
        rows = TensorRows(self.values[:7].flip(0))
        splits = make_splits(
            self.source(test=True), binarize="threshold", validation=rows, test=rows, seed=1
        )
        assert len(splits.train) == 40
        assert torch.equal(splits.part("test").values, self.values[:7].flip(0))
        assert torch.equal(splits.part("validation").x, splits.part("test").x)

    @pytest.mark.parametrize("policy", ["dynamic", "threshold"])
    def test_data_read_in_blocks_are_the_same_data(
        self, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        np.save(tmp_path / "x.npy", self.values.numpy())
        options: dict[str, Any] = {"binarize": policy, "validation": 0.2, "test": 3, "seed": 2}
        held = make_splits(open_source(tmp_path / "x.npy"), **options)
        monkeypatch.setattr(splits_module, "IN_MEMORY", 10)
        read = make_splits(open_source(tmp_path / "x.npy"), **options)
        assert isinstance(held.train, PreparedData)
        assert isinstance(read.train, BlockData)
        for part in PARTS:
            for ours, theirs in zip(held.part(part)[:2], read.part(part)[:2], strict=True):
                assert torch.equal(ours, theirs)

    def test_a_part_larger_than_memory_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(splits_module, "IN_MEMORY", 10)
        monkeypatch.setattr(splits_module.os, "sysconf", lambda name: 4)  # 16 bytes of memory
        with pytest.raises(DataError, match=r"validation part that fits into memory; got 5 rows"):
            make_splits(self.source(), binarize="static", validation=5, seed=0)
