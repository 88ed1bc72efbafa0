"""Missing values on their way to a likelihood."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from pyro_dvae import Masked, Normal
from pyro_dvae.data import (
    BlockData,
    DataError,
    Extent,
    Preparation,
    PreparedData,
    TensorRows,
    choose,
    complaint,
    extent,
    mixed_spec,
    open_source,
    scan,
)
from pyro_dvae.data.look.report import describe_missing
from pyro_dvae.data.serve.inputs import ServedRows

NAN = math.nan
BITS = torch.tensor([[0.0, 1], [NAN, 1], [1, NAN], [0, 0]])
GREY = torch.tensor([[0.0, 0.25], [NAN, 0.75], [0.5, NAN], [1, 0]])
LEVELS = torch.tensor([[0.0, 3], [NAN, 2], [1, NAN], [2, 1]])


@pytest.mark.parametrize(
    ("values", "likelihood", "binarize", "range", "expected"),
    [
        (BITS, "bernoulli", None, None, BITS),
        (BITS, "bernoulli", "threshold", (0, 1), BITS),
        (
            GREY,
            "bernoulli",
            "threshold",
            (0, 1),
            (2 * GREY).floor().clamp(max=1),
        ),
        (10 * GREY - 5, "continuous-bernoulli", None, (-5, 5), GREY),
        (GREY, "categorical:4", None, (0, 1), (GREY * 4).floor().clamp(max=3)),
        (LEVELS, "categorical", None, None, LEVELS),
        (LEVELS, "poisson", None, None, LEVELS),
        (10 * GREY, "normal", None, None, 10 * GREY),
    ],
)
def test_a_missing_value_stays_missing(
    values: Tensor, likelihood: str, binarize: str | None, range: tuple[float, float] | None,
    expected: Tensor,
) -> None:  # fmt: skip
    rows = TensorRows(values)
    found = extent(rows)
    assert found.has_missing
    with pytest.raises(DataError, match=rf"no missing values.*likelihood=\"masked:{likelihood}"):
        choose(found, binarize, range, likelihood)
    preparation = choose(found, binarize, range, f"masked:{likelihood}")
    assert preparation.name.startswith(f"masked:{likelihood}")
    served = [
        PreparedData(values, preparation).fixed(0),
        PreparedData(values, preparation, found=found).batch(torch.arange(4), torch.Generator()),
        BlockData(rows, preparation, block_bytes=16).fixed(0),
        ServedRows(rows, preparation, 0, found)[:],
    ]
    for x in served:
        assert isinstance(x, Tensor)
        torch.testing.assert_close(x, expected.float(), equal_nan=True)


def test_bits_are_drawn_beside_gaps() -> None:
    preparation = Preparation("dynamic", (0, 1), "masked:bernoulli")
    values = GREY.repeat(4000, 1)
    x = PreparedData(values, preparation).fixed(0)
    assert torch.equal(x.isnan(), values.isnan())
    error = math.sqrt(0.25 / 4000)
    means = x.reshape(4000, 4, 2).mean(0)
    assert ((means - GREY).abs().nan_to_num(0) <= 4.5 * error).all()
    with pytest.raises(ValueError, match=r"another binarisation.*got static"):
        Preparation("static", (0, 1), "masked:bernoulli")


def test_a_likelihood_of_ones_own_takes_gaps_where_it_says_so() -> None:
    found = extent(TensorRows(GREY))
    assert choose(found, likelihood=Masked(Normal())).takes_missing
    with pytest.raises(DataError, match=r"Use Masked\(Normal\(\.\.\.\)\)"):
        choose(found, likelihood=Normal())


def test_what_is_found_is_of_the_values_that_are_there() -> None:
    assert extent(TensorRows(BITS)) == Extent(torch.float32, 0, 1, True, True, True)
    found = scan(TensorRows(LEVELS))
    assert found.extent == extent(TensorRows(LEVELS))
    assert complaint(found) is None
    assert describe_missing(found) == (
        "2 of 8 values (25 %) are missing: the likelihood leaves them out, and the encoder sees "
        "which they are"
    )
    columns = torch.cat([BITS, LEVELS, GREY], 1).repeat(20, 1)
    assert mixed_spec(TensorRows(columns)) == ("mixed:bernoulli*2,categorical:3*2,normal*2")
    with pytest.raises(DataError, match="got nan alone"):
        extent(TensorRows(torch.full((3, 2), NAN)))
    with pytest.raises(DataError, match="finite values; got 0 to inf"):
        extent(TensorRows(torch.tensor([[0, NAN], [1, math.inf]])))


def test_a_column_that_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("a,b,c\n1,,3\n2,,4\n")
    assert complaint(scan(open_source(path).train)) == (
        "Expected finite numbers in each column; got none in column 'b'. Leave it out with "
        "drop=['b']."
    )
    np.save(tmp_path / "x.npy", np.full((3, 2), np.nan))
    assert "6 missing" in str(complaint(scan(open_source(tmp_path / "x.npy").train)))
