"""Equal rows: their hashes, their groups, and whether they arise by chance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pyro_dvae.data import as_rows
from pyro_dvae.data.read.copies import equal_by_chance, found_among, groups_of_copies

SMALL = hnp.arrays(
    "i2", hnp.array_shapes(min_dims=1, max_dims=3, max_side=5), elements=st.integers(0, 2)
)


@given(SMALL)
@settings(deadline=None)
def test_groups_are_those_of_numpy(array: np.ndarray[Any, Any]) -> None:
    groups = groups_of_copies(as_rows(array)).numpy()
    _, expected = np.unique(array.reshape(len(array), -1), axis=0, return_inverse=True)
    pairs = set(zip(groups.tolist(), expected.reshape(-1).tolist(), strict=True))
    assert len(pairs) == groups.max() + 1 == expected.max() + 1


def test_equal_numbers_have_one_hash_whatever_their_bits() -> None:
    rows = torch.tensor([[0.0, torch.nan], [-0.0, -torch.nan], [1.0, 0.0]])
    groups = groups_of_copies(as_rows(rows))
    assert groups[0] == groups[1] != groups[2]


def test_rows_are_found_among_others_of_another_type() -> None:
    rows = as_rows(torch.tensor([[1.5, 2.0], [0.1, 2.0], [3.0, 4.0]], dtype=torch.float64))
    others = as_rows(torch.tensor([[3.0, 4.0], [1.5, 2.0], [0.1, 2.0]], dtype=torch.float32))
    assert found_among(rows, others).tolist() == [True, False, True]  # 0.1 is rounded
    assert found_among(others, others).all()


def _draw(name: str) -> np.ndarray[Any, Any]:
    source = np.random.default_rng(0)
    if name == "icons":  # few of many pixels differ
        icons = (source.random((50, 16, 16)) < 0.1).astype(np.uint8) * 255
        return icons[source.integers(0, 50, 200)]
    if name == "reals":
        return np.tile(source.normal(size=(40, 2)), (3, 1))
    if name == "one row":
        return np.zeros((30, 5))
    if name == "bits":
        return source.integers(0, 2, (100, 3))
    if name == "names":  # of three columns
        return source.integers(0, 6, (200, 3))
    return (source.random((300, 40)) < 0.02).astype(int)  # counts of rare words


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("icons", False),
        ("reals", False),
        ("one row", True),
        ("bits", True),
        ("names", True),
        ("rare", True),
    ],
)
def test_rows_of_few_values_are_equal_by_chance(name: str, expected: bool) -> None:
    rows = as_rows(_draw(name))
    groups = groups_of_copies(rows)
    assert int(groups.max()) + 1 < len(rows)
    assert equal_by_chance(rows, groups) is expected


@pytest.mark.parametrize("num_columns", [1, 2, 3])
@pytest.mark.parametrize("num_values", [2, 7])
def test_pairs_that_are_expected_by_chance_are_counted(num_columns: int, num_values: int) -> None:
    # Uniform columns: n (n - 1) / 2 pairs, each equal with probability num_values^-num_columns.
    source = np.random.default_rng(1)
    for num in (4, 10, 30, 100):
        array = source.integers(0, num_values, (num, num_columns))
        array = np.unique(array, axis=0)
        if len(array) >= 10:
            shares = [np.unique(x, return_counts=True)[1] / len(x) for x in array.T]
            pairs = len(array) * (len(array) - 1) / 2 * np.prod([(p**2).sum() for p in shares])
            rows = as_rows(array)
            assert equal_by_chance(rows, torch.arange(len(array))) == (pairs >= 1)
