"""Tests of the scan: every value is looked at, whatever the blocks."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from pyro_dvae.data import (
    Extent,
    Preparation,
    Rows,
    TensorRows,
    as_rows,
    choose,
    complaint,
    describe,
    load_images,
    open_source,
    scan,
)
from pyro_dvae.data.look.fits import fits

scan_module = __import__("sys").modules["pyro_dvae.data.look.scan"]


def line(rows: Rows, subject: str) -> str:
    """What the description says of a subject."""
    lines = dict(text.split(maxsplit=1) for text in describe(scan(rows)))
    return lines[subject]


ARRAYS = st.sampled_from(["?", "u1", "i2", "i8", "f2", "f4", "f8"]).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=1, max_dims=3, max_side=4))
)


@given(ARRAYS, st.integers(1, 40))
@example(np.array([1.79e308]), 1)
@example(np.array([-0.9e308, 0.89e308]), 1)
@settings(max_examples=150, deadline=None)
def test_against_numpy(array: np.ndarray[Any, Any], block_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan_module, "_BLOCK_BYTES", block_bytes)
        found = scan(as_rows(array))
    bad = ~np.isfinite(array)
    finite = array[~bad].astype(np.float64)
    assert (found.num_data, found.event_shape) == (len(array), array.shape[1:])
    assert found.dtype == array.dtype.name
    assert found.num_missing == np.isnan(array).sum()
    assert found.num_infinite == np.isinf(array).sum()
    assert found.num_bad == bad.sum()
    assert found.first_bad == (tuple(np.argwhere(bad)[0]) if bad.any() else None)
    assert found.low == (finite.min() if finite.size else None)
    assert found.high == (finite.max() if finite.size else None)
    assert found.num_distinct == len(np.unique(array[~bad]))
    seen: dict[bytes, int] = {}
    plain = array if array.dtype == bool else array + array.dtype.type(0)  # no negative zeros
    repeats = [
        (i, seen[row.tobytes()])
        for i, row in enumerate(plain)
        if seen.setdefault(row.tobytes(), i) != i
    ]
    assert found.num_duplicates == len(repeats)
    assert found.first_duplicate == (repeats[0] if repeats else None)
    assert (complaint(found) is None) == bool(finite.size and not np.isinf(array).any())
    assert json.loads(json.dumps(asdict(found), allow_nan=False))["num_data"] == len(array)
    assert all("\n" not in text for text in describe(found))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.float32])
def test_distinct_values_are_counted_to_256(dtype: torch.dtype) -> None:
    values = torch.arange(1000).to(dtype) if dtype != torch.uint8 else torch.arange(256).to(dtype)
    assert scan(TensorRows(values[:256].repeat(3))).num_distinct == 256
    if dtype != torch.uint8:
        assert scan(TensorRows(values[:257])).num_distinct is None
        assert "0 to 256, more than 256 distinct" in line(TensorRows(values[:257]), "values")


def test_what_lies_in_later_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "_BLOCK_BYTES", 24)
    values = torch.zeros(9, 3)
    values[7, 2] = torch.inf
    values[8, 0] = -torch.inf
    found = scan(TensorRows(values))
    assert (found.first_bad, found.num_missing, found.num_infinite) == ((7, 2), 0, 2)
    assert "got 2 infinite, the first in row 7, place 2" in (complaint(found) or "")


def test_the_first_duplicate_of_many() -> None:
    values = np.random.default_rng(0).permutation(np.arange(1000) % 990)
    found = scan(as_rows(values))
    later = [i for i in range(1000) if values[i] in values[:i]]
    assert found.num_duplicates == len(later) == 10
    assert found.first_duplicate == (later[0], values.tolist().index(values[later[0]]))


def test_nothing_finite() -> None:
    rows = TensorRows(torch.full((2, 3), torch.nan))
    found = scan(rows)
    assert (found.low, found.high, found.num_distinct, found.num_missing) == (None, None, 0, 6)
    assert not found.fits[0].fits
    assert line(rows, "values") == "none finite, 0 distinct"
    assert "6 missing (NaN), the first in row 0, place 0 (counted from 0)" in line(rows, "missing")


def test_the_first_gap_has_row_and_column(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\n1,2\n3,-inf\n,6\n")
    rows = open_source(tmp_path / "x.csv").train
    assert complaint(scan(rows)) == (
        "Expected finite numbers; got 1 missing (NaN) and 1 infinite, the first in row 1, column "
        "'b' (counted from 0). Drop or replace such values."
    )
    assert line(rows, "columns").split() == ["a", "normal", "1", "to", "3", "(1", "missing)"]
    assert scan(rows).first_bad == (1, 1)


def test_classes() -> None:
    images = load_images("mnist-sample")
    rows = TensorRows(images.train, images.train_labels)
    assert scan(rows).classes == {str(i): int((images.train_labels == i).sum()) for i in range(10)}
    rows = TensorRows(torch.arange(5), torch.tensor([1, 0, 1, 7, 1]), ("no", "yes"))
    assert scan(rows).classes == {"no": 1, "yes": 3, "7": 1}
    assert line(rows, "classes") == "3 of 1 to 3: no (1), yes (3), 7 (1)"
    rows = TensorRows(torch.arange(4), torch.tensor([5, 3, 3, 5]))
    assert line(rows, "classes") == "2 of 2 each: 3 (2), 5 (2)"
    assert scan(TensorRows(torch.arange(2))).classes is None


def test_images_are_listed_as_stored(tmp_path: Path) -> None:
    for i in range(3):
        Image.new("RGB", (4, 3 + i // 2)).save(tmp_path / f"{i}.png")
    rows = open_source(tmp_path, size=(2, 2)).train
    assert line(rows, "data") == "3 rows of 3 x 2 x 2"
    assert line(rows, "images") == "2 of 3 x 4 RGB, first 0.png, 1 of 4 x 4 RGB, first 2.png"
    assert line(rows, "duplicates") == "2 rows equal to an earlier one, the first row 1 to row 0"
    images = json.loads(json.dumps(asdict(scan(rows))))["images"]
    assert images[1] == {
        "mode": "RGB",
        "height": 4,
        "width": 4,
        "num_images": 1,
        "first": "2.png",
    }


@pytest.mark.parametrize(
    ("values", "data", "said"),
    [
        (torch.zeros(1, dtype=torch.uint8), "1 row of a single number", "brightness from 0 to 255"),
        (torch.zeros(2, 5, dtype=torch.bool), "2 rows of 5", "bool, read as zeros and ones"),
        (torch.zeros(1200, 2, 1), "1,200 rows of 2 x 1", "float32, read as it is: no range is"),
        (torch.zeros(2, 9, 8, 3), "2 rows of 9 x 8 x 3; channels come first here, so trans", ""),
    ],
)
def test_types_are_told_apart(values: torch.Tensor, data: str, said: str) -> None:
    assert line(TensorRows(values), "data").startswith(data)
    assert said in line(TensorRows(values), "type")


@pytest.mark.parametrize(
    ("values", "settings"),
    [
        (torch.tensor([True, False]), None),
        (torch.tensor([0.0, 1.0]), None),
        (torch.tensor([0, 1], dtype=torch.uint8), None),
        (torch.tensor([1, 1]), None),
        (torch.tensor([0, 2], dtype=torch.uint8), {"range": (0, 2)}),
        (torch.tensor([0.25, 0.5]), {"range": (0, 1)}),
        (torch.tensor([0, 200]), {"range": (0, 255)}),
        (torch.tensor([0, 60000]), {"range": (0, 65535)}),
        (torch.tensor([-3, 70000]), {"range": (-3, 70000)}),
        (torch.tensor([1.26, 14.14]), {"range": (1.2, 14.2)}),
        (torch.tensor([-0.333, 0.333], dtype=torch.float64), {"range": (-0.333, 0.333)}),
        (torch.tensor([5.5, 5.5]), {"range": (0, 5.5)}),
        (torch.tensor([-2, -2]), {"range": (-2, 0)}),
    ],
)
def test_what_bernoulli_takes(values: torch.Tensor, settings: dict[str, Any] | None) -> None:
    fit = scan(TensorRows(values)).fits[0]
    assert (fit.likelihood, fit.fits, fit.settings) == ("bernoulli", True, settings)
    text = str(settings).strip("{}").replace("'binarize': ", "binarize=").replace("'", '"')
    told = (
        "fits: every" if settings is None else f"fits with {text}: ".replace('"range": ', "range=")
    )
    assert line(TensorRows(values), "bernoulli").startswith(told)


NUMBERS = st.floats(-1e300, 1e300) | st.floats(-1e9, 1e9) | st.integers(-(10**12), 10**12)


def test_values_that_no_range_can_hold() -> None:
    fit = scan(TensorRows(torch.tensor([-1e308, 1e308]))).fits[0]
    assert not fit.fits
    assert fit.reason == "the values are further apart than floats can tell"


@given(
    st.lists(
        st.floats(-1e300, 1e300) | st.floats(-1e9, 1e9) | st.integers(-(10**12), 10**12),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([torch.float64, torch.int64]),
)
@settings(max_examples=200, deadline=None)
def test_the_settings_named_do_work(values: list[float], dtype: torch.dtype) -> None:
    data = torch.tensor(values, dtype=torch.float64)
    data = data.clamp(-(2.0**62), 2.0**62).to(dtype) if dtype == torch.int64 else data
    low, high = float(data.min()), float(data.max())
    found = Extent(dtype, low, high, bool(((data == 0) | (data == 1)).all()))
    fit = fits(found, ())[0]
    assert fit.fits
    assert isinstance(choose(found, **(fit.settings or {})), Preparation)
