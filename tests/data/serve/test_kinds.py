"""Tests of what other likelihoods than the Bernoulli take, and how stored values become it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn

from pyro_dvae import Categorical, Config
from pyro_dvae.data import (
    BlockData,
    DataError,
    Preparation,
    PreparedData,
    ServedRows,
    Source,
    SubsetRows,
    TensorRows,
    binary_inputs,
    choose,
    class_labels,
    describe_kind,
    kind_of,
    levels_of,
    make_splits,
    scan,
)
from pyro_dvae.data.read.extent import extent_of
from pyro_dvae.likelihoods import LIKELIHOODS

GREY = torch.arange(256, dtype=torch.uint8).reshape(64, 4)
COUNTS = torch.tensor([[0, 3], [70, 2]])
REALS = torch.tensor([[-1.5, 2.0], [0.5, 7.0]], dtype=torch.float64)
UNIT = torch.tensor([[0.25, 0.5], [0.75, 0.125]])


def served(values: Tensor, likelihood: str, range: tuple[float, float] | None = None) -> Tensor:
    preparation = choose(extent_of(values), None, range, likelihood)
    assert preparation.binarize == "none"
    return PreparedData(values, preparation).fixed(0)


@pytest.mark.parametrize(
    ("likelihood", "values", "expected"),
    [
        ("continuous-bernoulli", GREY, GREY.float() / 255),
        ("continuous-bernoulli", UNIT, UNIT),
        ("beta", GREY, (GREY.float() + 0.5) / 256),
        ("categorical", GREY, GREY.float()),
        ("categorical:16", GREY, (GREY // 16).float()),
        ("categorical:10", GREY, (GREY.long() * 10 // 256).float()),
        ("logistic-mixture", GREY, GREY.float()),
        ("poisson", COUNTS, COUNTS.float()),
        ("multinomial", COUNTS, COUNTS.float()),
        ("normal", REALS, REALS.float()),
        ("laplace:0.5", GREY, GREY.float()),
    ],
)
def test_stored_values_become_those_of_the_likelihood(
    likelihood: str, values: Tensor, expected: Tensor
) -> None:
    x = served(values, likelihood)
    assert x.dtype == torch.float32
    torch.testing.assert_close(x, expected, rtol=0, atol=0)
    preparation = choose(extent_of(values), likelihood=likelihood)
    blocks = BlockData(TensorRows(values), preparation, block_bytes=8)
    assert torch.equal(blocks.fixed(3), x)
    again = binary_inputs(
        values, values.shape[1:], "none", 0, preparation.range, preparation.likelihood
    )
    assert torch.equal(again, x)


@pytest.mark.parametrize("likelihood", ["continuous-bernoulli", "beta"])
def test_some_rows_may_be_all_black(likelihood: str) -> None:
    """They are a part of grey data: no values to be judged by themselves."""
    values = GREY.clone()
    values[:16] = 0
    values[16:24] = 1
    rows, whole = TensorRows(values), served(values, likelihood)
    preparation = Preparation(likelihood=likelihood)
    for data in (
        BlockData(rows, preparation, block_bytes=8),
        BlockData(rows, preparation, found=extent_of(values)).to("cpu"),
        PreparedData(values, preparation),
    ):
        dark = torch.arange(24)
        assert torch.equal(data.batch(dark, torch.Generator()), whole[:24])  # type: ignore[arg-type]
        assert torch.equal(data.subset(dark).fixed(0), whole[:24])
        assert torch.equal(data.fixed(0), whole)
    some = PreparedData(values[:24], preparation, found=extent_of(values))
    assert torch.equal(some.fixed(0), whole[:24])
    served_rows = ServedRows(rows, preparation, 0, extent_of(values))
    assert torch.equal(served_rows[3:9], whole[3:9])
    with pytest.raises(DataError, match="all 0 or 1"):
        BlockData(TensorRows(values[:24]), preparation)


@pytest.mark.parametrize("in_memory", [2**28, 0])
def test_a_part_of_a_source_may_be_all_black(
    monkeypatch: pytest.MonkeyPatch, in_memory: int
) -> None:
    from pyro_dvae.data.serve import splits as module

    monkeypatch.setattr(module, "IN_MEMORY", in_memory)

    class Stored(TensorRows):
        """Rows that are not known to be in memory."""

    values = torch.zeros(40, 4, dtype=torch.uint8)
    values[7] = 200
    rows: Any = SubsetRows(Stored(values), torch.arange(40))
    source = Source("grey", "here", rows, None, None)
    splits = make_splits(
        source, binarize="none", likelihood="continuous-bernoulli", validation=9, test=9, seed=0
    )
    assert isinstance(splits.train, PreparedData if in_memory else BlockData)
    parts = [splits.part(name).x for name in ("train", "validation", "test")]
    assert sum(float(part.sum()) for part in parts) == pytest.approx(4 * 200 / 255)
    assert any(part.max() == 0 for part in parts)


class Counted(nn.Module):
    """A likelihood that a user wrote, of counts."""

    num_params, kind = 1, "counts"

    def forward(self, params: Tensor, event_dim: int) -> Any:
        return dist.Poisson(params.exp()).to_event(event_dim)


def test_a_users_likelihood_has_its_data_prepared() -> None:
    source = Source("counts", "here", TensorRows(COUNTS.repeat(9, 1)), None, None)
    splits = make_splits(source, binarize="none", likelihood=Counted(), validation=3, seed=0)
    assert splits.train.fixed(0).dtype == torch.float32
    assert choose(extent_of(COUNTS), likelihood=Counted()).describe("int64") == "values as stored"
    with pytest.raises(DataError, match="for the Counted likelihood"):
        choose(extent_of(REALS), likelihood=Counted())
    with pytest.raises(ValueError, match="no binarisation for the Counted likelihood; got static"):
        Preparation("static", None, Counted())
    assert kind_of(Counted()) == kind_of("poisson")
    levels = Categorical(4)
    assert levels_of(levels) == 4
    assert PreparedData(GREY // 64, Preparation(likelihood=levels)).fixed(0).max() == 3
    levels.kind = "colours"
    with pytest.raises(ValueError, match="kind of the likelihood Categorical to be one of bits"):
        Preparation(likelihood=levels)


def test_a_range_maps_to_the_unit_interval_and_to_levels() -> None:
    values = torch.tensor([[-2.0, 0.0, 1.9, 2.0]], dtype=torch.float64)
    expected = (values + 2) / 4
    torch.testing.assert_close(served(values, "continuous-bernoulli", (-2, 2)), expected.float())
    levels = served(values, "categorical:4", (-2, 2))
    assert levels.tolist() == [[0, 2, 3, 3]]


def test_levels_are_counted_where_they_are_not_named() -> None:
    assert choose(extent_of(torch.tensor([0, 4])), likelihood="categorical") == Preparation(
        "none", None, "categorical:5"
    )
    assert choose(extent_of(GREY), likelihood="categorical").likelihood == "categorical:256"


@pytest.mark.parametrize(
    ("likelihood", "values", "range", "message"),
    [
        ("continuous-bernoulli", REALS, None, 'in \\[0, 1\\].*"normal" or likelihood="laplace"'),
        (
            "continuous-bernoulli",
            GREY % 2,
            None,
            r'Use likelihood="bernoulli", or range=\(0, 255\)',
        ),
        ("continuous-bernoulli", REALS, (0, 5), "within the range 0 to 5"),
        ("beta", torch.tensor([0.0, 0.5]), None, "in \\(0, 1\\)"),
        ("beta", torch.tensor([0.0, 0.5]), (0, 1), "its ends excluded"),
        ("categorical:5", COUNTS, None, r"whole numbers 0 to 4.*range=\(LOW, HIGH\)"),
        ("categorical", REALS, None, 'likelihood="normal"'),
        ("poisson", UNIT, None, "whole numbers from 0.*continuous-bernoulli"),
        ("poisson", -COUNTS, None, 'likelihood="normal"'),
        ("negative-binomial", torch.tensor([2**25]), None, "2\\^24"),
        ("poisson", COUNTS, (0, 99), r"Leave range=\.\.\. out"),
        ("normal", REALS, (0, 9), r"Leave range=\.\.\. out"),
        ("normal", REALS * 1e300, None, "that float32 holds"),
        (
            "bernoulli",
            COUNTS,
            None,
            'likelihood="poisson" or likelihood="negative-binomial"',
        ),
        ("bernoulli", REALS, None, 'Or use likelihood="normal"'),
    ],
)
def test_other_values_are_refused_in_a_line(
    likelihood: str, values: Tensor, range: tuple[float, float] | None, message: str
) -> None:
    with pytest.raises(DataError, match=message) as caught:
        choose(extent_of(values), None, range, likelihood)
    assert "\n" not in str(caught.value)


def test_binarisation_and_other_likelihoods_exclude_one_another() -> None:
    with pytest.raises(ValueError, match="Expected no binarisation for the poisson likelihood"):
        choose(extent_of(COUNTS), "dynamic", None, "poisson")
    with pytest.raises(ValueError, match="no binarisation"):
        Config(likelihood="normal", binarize="static")
    assert Config(likelihood="normal").binarize == "none"
    assert Config().binarize == "dynamic"


def test_fits_name_settings_that_work() -> None:
    gaps = torch.tensor([[0.5, torch.nan], [0.1, 0.2]])
    for values in (GREY, COUNTS, REALS, UNIT, GREY % 2, torch.tensor([[3, -5]]), gaps, gaps // 1):
        found = scan(TensorRows(values))
        assert [*(fit.likelihood for fit in found.fits), "masked"] == list(LIKELIHOODS)
        for fit in found.fits[1:]:
            if fit.fits:
                assert fit.settings is not None
                choose(extent_of(values), **fit.settings)
            else:
                assert fit.reason


def test_words_tell_how_values_were_made() -> None:
    assert describe_kind("continuous-bernoulli", torch.uint8, None) == "values v / 255"
    assert describe_kind("beta", "uint8", None) == "values (v + 1/2) / 256"
    assert describe_kind("categorical:16", "uint8", (0, 256)).startswith("levels floor(16 v / 256)")
    assert describe_kind("normal", "float64", None) == "values as stored"


class TestLabels:
    values, labels = GREY, torch.arange(64) % 3

    def test_batches_carry_the_labels_of_their_rows(self) -> None:
        source = Source("d", "here", TensorRows(self.values, self.labels), None, None)
        splits = make_splits(
            source, binarize="none", likelihood="poisson", num_classes=3, validation=5, seed=0
        )
        index = torch.tensor([4, 0, 7])
        x, labels = splits.train.batch(index, torch.Generator())
        assert torch.equal(x, self.values[splits.train_rows[index]].float())
        assert torch.equal(labels, self.labels[splits.train_rows[index]])
        part = splits.part("validation")
        assert part.labels is not None
        assert len(part.labels) == 5
        plain = make_splits(source, binarize="none", likelihood="poisson", validation=5, seed=0)
        assert torch.equal(plain.train.batch(index, torch.Generator()), x)  # type: ignore[arg-type]

    def test_blocks_carry_them_too(self) -> None:
        data = BlockData(
            TensorRows(self.values),
            Preparation("none", None, "normal"),
            labels=self.labels,
            index=torch.arange(5, 60),
            block_bytes=16,
            window=3,
        )
        order = data.order(torch.Generator().manual_seed(0))
        for index in order.split(7):
            x, labels = data.batch(index, torch.Generator())
            assert torch.equal(x, self.values[index + 5].float())
            assert torch.equal(labels, self.labels[index + 5])

    @pytest.mark.parametrize(
        ("labels", "num_classes", "message"),
        [
            (None, 3, "Name them with labels="),
            ([0, 3], 3, "labels 0 to 2 for it; got 0 to 3"),
            ([-1, 1], 0, "a label for each row in it; got none, or a negative one, in row 0"),
            ([0, 123456], 0, "Number the classes from 0"),
        ],
    )
    def test_others_are_refused(
        self, labels: list[int] | None, num_classes: int, message: str
    ) -> None:
        tensor = None if labels is None else torch.from_numpy(np.array(labels))
        with pytest.raises(DataError, match=message):
            class_labels(tensor, num_classes, "it")
