"""Tests of what is done to stored values before a likelihood takes them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pyro_dvae.data import (
    BINARIZATIONS,
    POLICIES,
    BinaryImages,
    BlockData,
    DataError,
    Extent,
    Preparation,
    SubsetRows,
    TensorRows,
    binary_inputs,
    choose,
    extent,
    refuse_unlike,
)
from pyro_dvae.data.read.extent import extent_of, in_blocks
from pyro_dvae.data.serve.bits import draw_bits, serve_bits


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def uint8(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(256, shape, dtype=torch.uint8, generator=stream(seed))


BITS = [torch.bool, torch.uint8, torch.int64, torch.float16, torch.float32, torch.float64]


class TestChoose:
    @pytest.mark.parametrize("dtype", BITS)
    @pytest.mark.parametrize("binarize", [None, "none"])
    def test_zeros_and_ones_pass_as_they_are(self, dtype: torch.dtype, binarize: Any) -> None:
        values = torch.tensor([[0, 1], [1, 1]]).to(dtype)
        preparation = choose(extent(TensorRows(values)), binarize)
        assert preparation == Preparation("none")
        x = serve_bits(preparation.keep(values), stream())
        assert torch.equal(x, torch.tensor([[0.0, 1.0], [1.0, 1.0]], dtype=torch.float32))

    @pytest.mark.parametrize("binarize", [None, *BINARIZATIONS])
    def test_bytes_go_through_the_policy(self, binarize: Any) -> None:
        values = uint8(5, 3)
        assert choose(extent_of(values), binarize) == Preparation(binarize or "dynamic")

    @pytest.mark.parametrize("binarize", BINARIZATIONS)
    @pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.float32, torch.float64])
    def test_a_range_takes_any_dtype(self, binarize: str, dtype: torch.dtype) -> None:
        found = extent_of(torch.tensor([0, 3, 16]).to(dtype))
        assert choose(found, binarize, (0, 16)) == Preparation(binarize, (0, 16))

    @pytest.mark.parametrize(
        ("values", "binarize", "range", "message"),
        [
            (
                [0.0, 0.5],
                None,
                None,
                r"got torch\.float64 .* 0 to 0\.5\. Use range=\(0, 1\)",
            ),
            ([0.0, 255.0], "dynamic", None, r"got torch\.float64 values 0 to 255\. Use range="),
            ([0, 255], "threshold", None, r"got torch\.int64 values 0 to 255"),
            ([-1.0, 1.0], "none", None, r"all 0 or 1 where nothing is binarised; got .* -1 to 1"),
            ([0.0, 1.0], "none", (0, 1), r"all 0 or 1 where nothing is binarised; got .* a range"),
            (
                [0.0, 2.0],
                None,
                (0, 1),
                r"within the range 0 to 1; got torch\.float64 .* 0 to 2",
            ),
            ([-0.1, 1.0], "static", (0, 1), r"within the range 0 to 1; got .* values -0\.1 to 1"),
            ([0, 1], "dynamic", None, r"no binarisation of zeros and ones; got .* and dynamic"),
            ([0, 1], "fuzzy", None, r"binarisation to be one of dynamic.*; got 'fuzzy'"),
            ([0.0, 0.5], None, (1, 0), r"of finite width, the lower number first; got 1 and 0"),
            (
                [0.0, 0.5],
                None,
                (0, math.inf),
                r"of finite width, the lower number first; got 0 and inf",
            ),
            ([0.0, 0.5], None, (0, math.nan), r"finite width"),
            ([0.0, 0.5], None, (-1e308, 1e308), r"finite width"),
            ([0.0, math.nan], None, (0, 1), r"no missing values for the bernoulli likelihood"),
        ],
    )
    def test_what_does_not_fit(
        self, values: list[float], binarize: Any, range: Any, message: str
    ) -> None:
        with pytest.raises(ValueError, match=message) as error:
            choose(extent_of(torch.tensor(values)), binarize, range)
        assert "\n" not in str(error.value)


class TestServe:
    @pytest.mark.parametrize("grey", [torch.arange(256).to(torch.uint8), torch.rand(256).float()])
    def test_is_the_draw(self, grey: torch.Tensor) -> None:
        """In floats, bit for bit; no black value is ever 1, no white one 0."""
        kept = grey.repeat(300)
        served = serve_bits(kept, stream(5))
        assert served.dtype == torch.float32
        assert torch.equal(served, draw_bits(kept, stream(5)).float())
        assert not served[kept == 0].any()
        assert served[kept == (255 if kept.dtype == torch.uint8 else 1)].all()

    @pytest.mark.parametrize("in_floats", [False, True])
    def test_is_bernoulli_of_every_brightness(self, in_floats: bool) -> None:
        """Chi-square over the values strictly between black and white, 254 of them."""
        num = 20_000
        grey = torch.arange(1, 255).to(torch.uint8)
        kept = (grey.double() / 255).float() if in_floats else grey
        white = serve_bits(kept.repeat(num, 1), stream(7)).double().sum(0)
        p = grey.double() / 255
        squares = (white - num * p).square() / (num * p * (1 - p))
        # A chi-square of n degrees of freedom has mean n and variance 2 n.
        assert abs(squares.sum() - 254) < 4.5 * math.sqrt(2 * 254)
        assert squares.max() < 4.5**2

    def test_range_maps_ends_to_certainty(self) -> None:
        kept = Preparation("dynamic", (-2, 3)).keep(torch.tensor([-2.0, 0.5, 3.0]).repeat(400, 1))
        x = serve_bits(kept, stream())
        assert x.dtype == torch.float32
        assert (x[:, 0] == 0).all()
        assert (x[:, 2] == 1).all()
        assert abs(x[:, 1].mean() - 0.5) < 4.5 * 0.5 / math.sqrt(400)

    @settings(deadline=None)
    @given(
        st.lists(st.floats(-1e6, 1e6, allow_nan=False), min_size=2, max_size=20),
        st.sampled_from([torch.float32, torch.float64]),
    )
    def test_brightness_is_affine(self, numbers: list[float], dtype: torch.dtype) -> None:
        values = torch.tensor(numbers, dtype=dtype)
        low, high = float(values.min()) - 1, float(values.max()) + 1
        kept = Preparation("dynamic", (low, high)).keep(values)
        assert kept.dtype == torch.float32
        assert ((kept >= 0) & (kept <= 1)).all()
        wanted = (values.double() - low) / (high - low)
        torch.testing.assert_close(kept.double(), wanted, rtol=0, atol=1e-7)
        bright = Preparation("threshold", (low, high)).keep(values)
        assert torch.equal(bright, wanted >= 0.5)

    @pytest.mark.parametrize("kind", [uint8(9, 4), torch.rand(9, 4, generator=stream())])
    def test_a_stream_gives_the_same_whatever_the_blocks(self, kind: Tensor) -> None:
        kept = kind if kind.dtype == torch.uint8 else kind.float()
        whole, blocks = stream(4), stream(4)
        parts = torch.cat([draw_bits(block, blocks) for block in kept.split([1, 3, 5])])
        assert torch.equal(draw_bits(kept, whole), parts)

    @pytest.mark.parametrize("policy", BINARIZATIONS)
    def test_a_range_of_255_is_what_bytes_stand_for(self, policy: str) -> None:
        values = torch.arange(256, dtype=torch.uint8).repeat(300, 1)
        means = [
            BinaryImages(values, policy, range=range).fixed(1).mean(0)
            for range in (None, (0.0, 255.0))
        ]
        if policy == "threshold":
            assert torch.equal(*means)
        else:
            assert (means[0] - means[1]).abs().max() < 6 * math.sqrt(0.5 / 300)

    @pytest.mark.parametrize(("policy", "range"), [("none", None), ("dynamic", (0.0, 1.0))])
    def test_values_that_do_not_fit_are_never_served(self, policy: str, range: Any) -> None:
        values = torch.tensor([[0, 1], [1, 2]])
        with pytest.raises(DataError, match=r"got torch\.int64 values 0 to 2"):
            BinaryImages(values, policy, range=range)
        with pytest.raises(DataError, match=r"got torch\.int64 values 0 to 2"):
            BlockData(TensorRows(values), Preparation(policy, range))


class TestBinaryInputs:
    def test_a_runs_range_is_applied_to_new_data(self) -> None:
        values = torch.tensor([[0.0, 1.0], [4.0, 2.0]])
        x = binary_inputs(values, (2,), "threshold", 0, (0, 4))
        assert x.tolist() == [[0, 0], [1, 1]]
        with pytest.raises(DataError, match=r"within the range 0 to 4; got .* values 1 to 5"):
            binary_inputs(values + 1, (2,), "threshold", 0, (0, 4))

    def test_a_run_of_bits_takes_bits_alone(self) -> None:
        bits = torch.tensor([[0, 1]], dtype=torch.int32)
        assert binary_inputs(bits, (2,), "none", 0).tolist() == [[0, 1]]
        with pytest.raises(DataError, match=r"all 0 or 1 where nothing is binarised; got .*uint8"):
            binary_inputs(uint8(3, 2), (2,), "none", 0)


class TestRefuseUnlike:
    like = TensorRows(uint8(6, 2, 3))

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            (uint8(4, 3, 2), r"torch\.uint8 of shape \(6, 2, 3\); got .* \(4, 3, 2\)"),
            (uint8(4, 2, 3).float(), r"got torch\.float32 of shape \(4, 2, 3\)"),
            (uint8(4, 2, 3) // 128, "got .* all 0 or 1"),
        ],
    )
    def test_bytes(self, values: Tensor, message: str) -> None:
        with pytest.raises(DataError, match=f"Expected the test data like .*{message}") as error:
            refuse_unlike("the test data", TensorRows(values), self.like, Preparation())
        assert "\n" not in str(error.value)

    def test_range(self) -> None:
        like, preparation = TensorRows(torch.rand(4, 3)), Preparation("dynamic", (0, 1))
        refuse_unlike("more", TensorRows(torch.rand(2, 3)), like, preparation)
        with pytest.raises(DataError, match="within the range 0 to 1"):
            refuse_unlike("more", TensorRows(torch.rand(2, 3) + 1), like, preparation)
        with pytest.raises(DataError, match="finite values; got nan"):
            refuse_unlike("more", TensorRows(torch.full((2, 3), math.nan)), like, preparation)


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 300))
def test_blocks_hold_every_row_once(num: int, width: int, size: int) -> None:
    rows = TensorRows(torch.zeros(num, width, dtype=torch.float32))
    blocks = in_blocks(rows, size)
    assert torch.equal(torch.cat(blocks), torch.arange(num))
    assert all(len(block) == 1 or len(block) * width * 4 <= size for block in blocks)


def test_extent_is_that_of_all_rows() -> None:
    values = uint8(50, 7)
    index = torch.arange(3, 30)
    found = extent(SubsetRows(TensorRows(values), index))
    low, high = values[index].min().item(), values[index].max().item()
    assert found == Extent(torch.uint8, low, high, False, True)
    assert set(POLICIES) == {*BINARIZATIONS, "none"}
