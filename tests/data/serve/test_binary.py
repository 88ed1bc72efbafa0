"""Tests of binarization."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pyro_dvae.data import BINARIZATIONS, BinaryImages, BlockData, Preparation, TensorRows


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class TestBinaryImages:
    pixels = torch.arange(256, dtype=torch.uint8).repeat(3, 1).view(3, 16, 16)

    @pytest.mark.parametrize("policy", BINARIZATIONS)
    def test_shapes_and_values(self, policy: str) -> None:
        images = BinaryImages(self.pixels, policy)
        assert len(images) == 3
        assert images.event_shape == (16, 16)
        assert images.device == torch.device("cpu")
        for batch, size in [
            (images.batch(torch.tensor([2, 0]), generator()), 2),
            (images.fixed(0), 3),
        ]:
            assert batch.dtype == torch.float32
            assert batch.shape == (size, 16, 16)
            assert set(batch.unique().tolist()) == {0.0, 1.0}
            assert (batch[self.pixels[:size] == 0] == 0).all()
            assert (batch[self.pixels[:size] == 255] == 1).all()

    @pytest.mark.parametrize("policy", ["dynamic", "static"])
    def test_frequencies(self, policy: str) -> None:
        num = 4000
        pixels = torch.arange(256, dtype=torch.uint8).repeat(num, 1)
        images = BinaryImages(pixels, policy, seed=1)
        frequency = images.batch(torch.arange(num), generator(2)).to(torch.float64).mean(0)
        probability = torch.arange(256, dtype=torch.float64) / 255
        error = (probability * (1 - probability) / num).sqrt()
        assert ((frequency - probability).abs() <= 4.5 * error).all()

    def test_dynamic_redraws_from_the_generator(self) -> None:
        images = BinaryImages(self.pixels)
        index = torch.arange(3)
        source = generator(5)
        first, second = images.batch(index, source), images.batch(index, source)
        assert not torch.equal(first, second)
        assert not torch.equal(first[0], first[1])
        assert torch.equal(first, images.batch(index, generator(5)))

    @pytest.mark.parametrize("policy", ["static", "threshold"])
    def test_other_policies_leave_the_generator(self, policy: str) -> None:
        source = generator()
        before = source.get_state()
        BinaryImages(self.pixels, policy).batch(torch.arange(3), source)
        assert torch.equal(source.get_state(), before)

    def test_static_is_drawn_once(self) -> None:
        images = BinaryImages(self.pixels, "static", seed=3)
        whole = images.fixed(0)
        assert torch.equal(whole, images.fixed(1))
        assert torch.equal(whole, images.batch(torch.arange(3), generator(9)))
        assert torch.equal(whole, BinaryImages(self.pixels, "static", seed=3).fixed(0))
        assert not torch.equal(whole, BinaryImages(self.pixels, "static", seed=4).fixed(0))
        assert not torch.equal(whole[0], whole[1])

    def test_static_subset_keeps_the_draw(self) -> None:
        images = BinaryImages(self.pixels, "static")
        index = torch.tensor([2, 1])
        subset = images.subset(index)
        assert torch.equal(subset.fixed(0), images.fixed(0)[index])
        assert len(images) == 3

    def test_threshold(self) -> None:
        images = BinaryImages(self.pixels, "threshold")
        assert torch.equal(images.fixed(0), (self.pixels >= 128).to(torch.float32))

    def test_fixed_is_reproducible(self) -> None:
        images = BinaryImages(self.pixels)
        assert torch.equal(images.fixed(7), images.fixed(7))
        assert not torch.equal(images.fixed(7), images.fixed(8))

    @pytest.mark.parametrize("policy", BINARIZATIONS)
    def test_to_keeps_the_images(self, policy: str) -> None:
        images = BinaryImages(self.pixels, policy)
        assert torch.equal(images.to("cpu").fixed(0), images.fixed(0))
        assert images.to("meta").device.type == "meta"

    @pytest.mark.parametrize("policy", BINARIZATIONS)
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    def test_draws_do_not_depend_on_the_device(self, policy: str) -> None:
        here, there = (BinaryImages(self.pixels.to(d), policy) for d in ("cpu", "cuda"))
        assert there.fixed(0).device.type == "cuda"
        assert torch.equal(there.fixed(0).cpu(), here.fixed(0))
        assert torch.equal(here.to("cuda").fixed(0).cpu(), here.fixed(0))
        source = torch.Generator("cuda").manual_seed(0)
        index = torch.arange(3, device="cuda")
        assert there.batch(index, source).device.type == "cuda"

    @pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
    def test_wrong_dtype(self, dtype: torch.dtype) -> None:
        with pytest.raises(ValueError, match=f"Expected uint8 pixels; got {dtype}"):
            BinaryImages(self.pixels.to(dtype))

    def test_unknown_policy(self) -> None:
        with pytest.raises(ValueError, match=r"'dynamic', 'static', 'threshold'.*got 'fuzzy'"):
            BinaryImages(self.pixels, "fuzzy")


@pytest.mark.parametrize(
    "make",
    [
        lambda bits, labels: BinaryImages(bits, "none", labels=labels),
        lambda bits, labels: BlockData(
            TensorRows(bits), Preparation("none"), labels=labels, block_bytes=30, window=2
        ),
    ],
    ids=["in memory", "in blocks"],
)
def test_each_row_is_served_with_its_own_label(make: Callable[[Tensor, Tensor], Any]) -> None:
    labels = torch.arange(40)
    bits = (labels[:, None] >> torch.arange(6) & 1).to(torch.uint8)  # each row says its number
    data = make(bits, labels)
    for part in (data, data.subset(torch.arange(3, 31, 3))):
        order = (
            torch.randperm(len(part)) if isinstance(part, BinaryImages) else part.order(generator())
        )
        served = []
        for index in order.split(7):
            x, given = part.batch(index, generator())
            assert torch.equal((x.long() << torch.arange(6)).sum(1), given)
            served += given.tolist()
        assert len(set(served)) == len(part)
