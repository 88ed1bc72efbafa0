"""The range of stored values that is suggested, and data that need one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from pyro_dvae.data import RangeError, as_rows, choose, describe, extent, scan, suggest
from pyro_dvae.data.serve.ranges import usual_range

Run = Callable[..., tuple[int, str, str]]

DIGITS = np.arange(17)


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        (DIGITS, "uint8", (0, 16)),
        (DIGITS, "int16", (0, 16)),
        (DIGITS, "float64", (0, 16)),
        (DIGITS + 3, "uint8", (0, 19)),
        (DIGITS + 40, "uint8", (40, 56)),
        (DIGITS * 8, "uint8", (0, 255)),
        (DIGITS * 7, "uint8", (0, 112)),
        (DIGITS * 15, "int32", (0, 255)),
        (DIGITS * 256, "int32", (0, 4096)),  # 16-bit images of 12 bits
        (DIGITS * 4095, "int32", (0, 65535)),
        (DIGITS - 8, "int16", (-8, 8)),
        (DIGITS / 16, "float32", (0, 1)),
        (DIGITS / 320, "float32", (0, 1)),
        (DIGITS * 15.9375, "float32", (0, 255)),
        (DIGITS * 0, "uint8", (0, 255)),
    ],
)
def test_a_range_is_suggested(values: Any, dtype: str, expected: tuple[float, float]) -> None:
    assert usual_range(extent(as_rows(values.astype(dtype)))) == expected


@pytest.mark.parametrize(
    ("likelihood", "beyond"), [("bernoulli", 0), ("continuous-bernoulli", 0), ("beta", 0.5)]
)
@pytest.mark.parametrize("most", [2, 16, 127])
def test_values_that_would_all_be_dark_need_a_range(
    likelihood: str, beyond: float, most: int
) -> None:
    found = extent(as_rows(torch.arange(most + 1).byte()))
    expected = (-beyond, most + beyond)
    with pytest.raises(RangeError, match=r"would all be dark. Use range=\(") as error:
        choose(found, likelihood=likelihood)
    assert error.value.range == expected
    usual = (-beyond, 255 + beyond)
    assert f"or range={usual if beyond else (0, 255)} if" in str(error.value)
    for range in (expected, usual):
        assert choose(found, range=range, likelihood=likelihood).range == range


@pytest.mark.parametrize("likelihood", ["poisson", "normal", "categorical"])
def test_other_likelihoods_take_dark_values_as_they_are(likelihood: str) -> None:
    found = extent(as_rows(torch.arange(17).byte()))
    assert choose(found, likelihood=likelihood).range is None


@pytest.mark.parametrize("values", [[0, 1], [0, 128], [0, 255], [1, 200]])
def test_bits_and_brightness_need_none(values: list[int]) -> None:
    found = extent(as_rows(torch.tensor(values).byte()))
    assert choose(found).range is None


def test_numbers_of_another_type_need_one_too() -> None:
    with pytest.raises(RangeError, match=r"got torch.int16 values 0 to 16. Use range=\(0, 16\)"):
        choose(extent(as_rows(DIGITS.astype(np.int16))))


def test_the_look_at_dark_data_suggests_a_range() -> None:
    found = scan(as_rows(DIGITS.astype(np.uint8)))
    fit = suggest(found)
    assert fit is not None
    assert (fit.likelihood, fit.settings) == ("bernoulli", {"range": (0, 16)})
    assert any("uint8, but too dark to be brightness from 0 to 255" in x for x in describe(found))


def test_the_command_line_gives_the_command_to_paste(pdvae: Run) -> None:
    np.save("a b.npy", DIGITS.astype(np.uint8).repeat(30).reshape(-1, 6))
    status, out, err = pdvae("fit", "run", "--data", "a b.npy", "--epochs", "0")
    assert (status, out) == (2, "")
    command = "fit run --data 'a b.npy' --epochs 0 --range 0,16"
    assert err.endswith(f"To paste: pdvae {command}\n")
    status, out, _ = pdvae("data", "a b.npy")
    assert "to train: pdvae fit --data 'a b.npy' --range 0,16" in out
    status, _, err = pdvae(
        *["fit", "run", "--data", "a b.npy", "--epochs", "0", "--range", "0,16", "--hidden", "3"]
    )
    assert status == 0, err
