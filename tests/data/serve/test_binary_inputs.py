"""Tests of making a user's arrays the zeros and ones of a run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import pyro_dvae.data.serve.inputs as inputs
from pyro_dvae.data import (
    BINARIZATIONS,
    DataError,
    Images,
    Preparation,
    ServedRows,
    TensorRows,
    binary_inputs,
    extent,
    load_array,
    make_splits,
)


class TestBinaryInputs:
    grey = torch.randint(
        256, (9, 3, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    bits = (grey > 99).to(torch.uint8)

    @pytest.mark.parametrize("policy", BINARIZATIONS)
    def test_grey_values_become_what_a_run_tests_on(self, policy: str) -> None:
        labels = torch.zeros(9, dtype=torch.int64)
        images = Images("tiny", self.grey.flip(0), self.grey, labels, labels, "here", None)
        splits = make_splits(images, binarize=policy, validation=0.3, seed=4)
        x = binary_inputs(self.grey, (3, 5), policy, 4)
        assert x.dtype == torch.float32
        assert torch.equal(x, splits.test)

    def test_dynamic_follows_the_seed_and_leaves_the_global_stream(self) -> None:
        before = torch.get_rng_state()
        first, same, other = (binary_inputs(self.grey, (3, 5), "dynamic", s) for s in (0, 0, 1))
        assert torch.equal(first, same)
        assert not torch.equal(first, other)
        assert torch.equal(torch.get_rng_state(), before)

    @pytest.mark.parametrize("policy", BINARIZATIONS)
    @pytest.mark.parametrize(
        "dtype",
        [torch.bool, torch.uint8, torch.int64, torch.float16, torch.float32, torch.float64],
    )
    def test_zeros_and_ones_stay(self, policy: str, dtype: torch.dtype) -> None:
        x = binary_inputs(self.bits.to(dtype), (3, 5), policy, 0)
        assert x.dtype == torch.float32
        assert torch.equal(x, self.bits.to(torch.float32))

    def test_negative_zero_is_zero(self) -> None:
        assert not torch.signbit(binary_inputs(torch.tensor([[-0.0]]), (1,), "dynamic", 0)).any()

    @pytest.mark.parametrize("values", [grey, bits, bits.to(torch.float64)])
    def test_strides_do_not_matter(self, values: Tensor) -> None:
        turned = values.transpose(0, 2)[:, :, ::2]
        assert not turned.is_contiguous()
        x = binary_inputs(turned, (3, 5), "static", 2)
        assert torch.equal(x, binary_inputs(turned.contiguous(), (3, 5), "static", 2))

    @pytest.mark.parametrize("order", ["C", "F"])
    @pytest.mark.parametrize("dtype", ["u1", ">i4", ">f4", "<f8"])
    def test_from_a_file(self, tmp_path: Path, dtype: str, order: Any) -> None:
        array = np.array(self.bits.numpy(), dtype, order=order)
        np.save(tmp_path / "x.npy", array)
        values, _ = load_array(tmp_path / "x.npy")
        assert torch.equal(binary_inputs(values, (3, 5), "dynamic", 0), self.bits.float())

    @pytest.mark.parametrize(
        ("values", "match"),
        [
            (
                torch.tensor([[0.0, 0.5]]),
                r"got torch\.float32 values 0 to 0\.5\. Rescale the values",
            ),
            (torch.tensor([[0.0, 255.0]]), r"got torch\.float32 values 0 to 255"),
            (torch.tensor([[-1.0, 1.0]]).double(), r"got torch\.float64 values -1 to 1"),
            (torch.tensor([[0, 255]]), r"got torch\.int64 values 0 to 255"),
            (torch.tensor([[0.0, torch.inf]]), r"got torch\.float32 values 0 to inf"),
        ],
    )
    def test_other_values_are_refused(self, values: Tensor, match: str) -> None:
        start = r"Expected uint8 values 0 to 255, or only zeros and ones; "
        with pytest.raises(DataError, match=start + match) as error:
            binary_inputs(values.to(values.dtype), (2,), "dynamic", 0)
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize(
        ("shape", "event_shape", "match"),
        [
            ((3, 5), (3, 5), r"shape \(N, 3, 5\) with N > 0; got \(3, 5\)\. Add a leading axis"),
            ((9, 15), (3, 5), r"shape \(N, 3, 5\) with N > 0; got \(9, 15\)\. Reshape or resize"),
            ((9, 5, 3), (3, 5), r"got \(9, 5, 3\)\. Reshape"),
            ((0, 3, 5), (3, 5), r"got \(0, 3, 5\)\. Pass at least one"),
            ((2, 9, 3, 5), (3, 5), r"got \(2, 9, 3, 5\)"),
            ((7,), (7,), r"shape \(N, 7\) with N > 0; got \(7,\)\. Add a leading axis"),
            ((), (3, 5), r"got \(\)"),
        ],
    )
    def test_other_shapes_are_refused(
        self, shape: tuple[int, ...], event_shape: tuple[int, ...], match: str
    ) -> None:
        with pytest.raises(DataError, match=match) as error:
            binary_inputs(torch.zeros(shape), event_shape, "dynamic", 0)
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize("values", [grey, bits])
    def test_unknown_policy(self, values: Tensor) -> None:
        with pytest.raises(ValueError, match=r"binarisation to be one of dynamic.*got 'fuzzy'"):
            binary_inputs(values, (3, 5), "fuzzy", 0)

    @pytest.mark.parametrize(
        ("policy", "scale", "likelihood"),
        [
            *((policy, 1.0, "bernoulli") for policy in BINARIZATIONS),
            *((policy, 0.5, "bernoulli") for policy in BINARIZATIONS),
            ("dynamic", 0.0, "bernoulli"),
            ("none", 1.0, "continuous-bernoulli"),
            ("none", 0.5, "categorical:9"),
            ("none", 1.0, "poisson"),
        ],
    )
    def test_slices_are_those_of_all_at_once(
        self, policy: str, scale: float, likelihood: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(inputs, "_BLOCK_NUMBERS", 30)  # two rows are skipped at once
        values = self.grey.clone() if scale else self.bits.clone()
        values[:2] = self.bits[:2]  # a block of zeros and ones is no reason to refuse grey values
        span = (0.0, 1.0 / scale * 255) if 0 < scale < 1 else None
        x = binary_inputs(values, (3, 5), policy, 4, span, likelihood)
        rows = TensorRows(values)
        served = ServedRows(rows, Preparation(policy, span, likelihood), 4, extent(rows))
        assert torch.equal(torch.cat([served[i : i + 2] for i in range(0, 9, 2)]), x)
        for start, stop in ((5, 7), (7, 9), (0, 2), (8, 20), (3, 4), (9, 9)):
            assert torch.equal(served[start:stop], x[start:stop])
        double = served.to(torch.empty(0, dtype=torch.float64))[:]
        assert torch.equal(double, x.double())
        assert double.dtype == torch.float64
