"""Tests of the parts that a run trains, validates and tests on."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from pyro_dvae.data import BINARIZATIONS, PARTS, BinaryImages, Images, Splits, make_splits, split


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
        images = splits.images
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
        with pytest.raises(ValueError, match=r"'dynamic', 'static', 'threshold'.*got 'fuzzy'"):
            self.splits("fuzzy")

    def test_empty_part(self) -> None:
        with pytest.raises(ValueError, match=r"in both parts; got 0\.2 of 2 data"):
            self.splits(num_train=2)
