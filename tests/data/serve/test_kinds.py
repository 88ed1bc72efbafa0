"""Tests of what other likelihoods than the Bernoulli take, and how stored values become it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from pyro_dvae import Config
from pyro_dvae.data import (
    BlockData,
    DataError,
    Preparation,
    PreparedData,
    Source,
    TensorRows,
    binary_inputs,
    choose,
    class_labels,
    describe_kind,
    make_splits,
    mixed_spec,
    scan,
)
from pyro_dvae.data.look.fits import LIKELIHOODS
from pyro_dvae.data.read.extent import extent_of
from pyro_dvae.data.serve.kinds import KINDS
from pyro_dvae.runs.parts import LIKELIHOODS as BUILDERS

GREY = torch.arange(256, dtype=torch.uint8).reshape(64, 4)
COUNTS = torch.tensor([[0, 3], [70, 2]])
REALS = torch.tensor([[-1.5, 2.0], [0.5, 7.0]], dtype=torch.float64)
UNIT = torch.tensor([[0.25, 0.5], [0.75, 0.125]])


def served(values: Tensor, likelihood: str, range: tuple[float, float] | None = None) -> Tensor:
    preparation = choose(extent_of(values), None, range, likelihood)
    assert preparation.binarize == "none"
    return PreparedData(values, preparation).fixed(0)


def test_every_likelihood_of_the_command_line_has_a_kind() -> None:
    assert KINDS.keys() == BUILDERS.keys() == LIKELIHOODS.keys()


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
        ("continuous-bernoulli", REALS, None, "in \\[0, 1\\].*--likelihood normal or laplace"),
        ("continuous-bernoulli", GREY % 2, None, "Use --likelihood bernoulli, or --range 0,255"),
        ("continuous-bernoulli", REALS, (0, 5), "within the range 0,5"),
        ("beta", torch.tensor([0.0, 0.5]), None, "in \\(0, 1\\)"),
        ("beta", torch.tensor([0.0, 0.5]), (0, 1), "its ends excluded"),
        ("categorical:5", COUNTS, None, "whole numbers 0 to 4.*--range LOW,HIGH"),
        ("categorical", REALS, None, "--likelihood normal"),
        ("poisson", UNIT, None, "whole numbers from 0.*continuous-bernoulli"),
        ("poisson", -COUNTS, None, "--likelihood normal or laplace"),
        ("negative-binomial", torch.tensor([2**25]), None, "2\\^24"),
        ("poisson", COUNTS, (0, 99), "Leave --range out"),
        ("normal", REALS, (0, 9), "Leave --range out"),
        ("normal", REALS * 1e300, None, "that float32 holds"),
        ("bernoulli", COUNTS, None, "Or --likelihood poisson or negative-binomial"),
        ("bernoulli", REALS, None, "Or --likelihood normal or laplace"),
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


def test_fits_name_options_that_work() -> None:
    for values in (GREY, COUNTS, REALS, UNIT, GREY % 2, torch.tensor([[3, -5]])):
        found = scan(TensorRows(values))
        assert [fit.likelihood for fit in found.fits] == list(KINDS)
        for fit in found.fits[1:]:
            if fit.fits:
                assert fit.options is not None
                name, _, range = fit.options.removeprefix("--likelihood ").partition(" --range ")
                limits = tuple(map(float, range.split(","))) if range else None
                choose(extent_of(values), None, limits, name)  # type: ignore[arg-type]
            else:
                assert fit.reason


def test_words_tell_how_values_were_made() -> None:
    assert describe_kind("continuous-bernoulli", torch.uint8, None) == "values v / 255"
    assert describe_kind("beta", "uint8", None) == "values (v + 1/2) / 256"
    assert describe_kind("categorical:16", "uint8", (0, 256)).startswith("levels floor(16 v / 256)")
    assert describe_kind("normal", "float64", None) == "values as stored"


def test_mixed_reads_the_kinds_off_the_columns() -> None:
    columns = [[0, 1, 1], [2, 0, 1], [90, 3, 4], [-1, 2, 5], [0.5, 1, 2], [0, 0, 0], [0, 0, 0]]
    rows = TensorRows(torch.tensor(columns, dtype=torch.float64).T)
    spec = mixed_spec(rows)
    assert spec == "mixed:bernoulli,categorical:3,negative-binomial,normal*4"
    with pytest.raises(DataError, match="Expected rows of columns for the mixed likelihood"):
        mixed_spec(TensorRows(torch.zeros(2, 3, 3)))


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
            ([-1, 1], 0, "got -1 to 1"),
            ([0, 123456], 0, "Number the classes from 0"),
        ],
    )
    def test_others_are_refused(
        self, labels: list[int] | None, num_classes: int, message: str
    ) -> None:
        tensor = None if labels is None else torch.from_numpy(np.array(labels))
        with pytest.raises(DataError, match=message):
            class_labels(tensor, num_classes, "it")
