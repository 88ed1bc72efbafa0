"""Tests of the kinds of columns that are found in tables."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from pyro_dvae.data import (
    DataError,
    Source,
    TensorRows,
    as_rows,
    column_kinds,
    describe,
    describe_kinds,
    given_kinds,
    mixed_spec,
    open_source,
    scan,
    suggest,
    with_categories,
)
from pyro_dvae.data.read.table_files import TableOptions, frame_rows
from pyro_dvae.data.read.table_rows import TableRows
from pyro_dvae.runs import resolve_settings

SOURCE = np.random.default_rng(0)
COLUMNS: dict[str, tuple[Any, str]] = {
    "bits": (SOURCE.integers(0, 2, 300), "bernoulli"),
    "all 0": (np.zeros(300), "bernoulli"),
    "all 1": (np.ones(300), "bernoulli"),
    "all 7": (np.full(300, 7), "normal"),
    "classes": (SOURCE.integers(0, 3, 300), "categorical:3"),
    "ratings": (SOURCE.integers(1, 8, 300), "categorical:7"),
    "years": (SOURCE.integers(2007, 2010, 300), "categorical:3"),
    "cylinders": (SOURCE.choice([3, 4, 6, 8], 300), "categorical:4"),
    "temperatures": (SOURCE.choice([-10, 0, 10], 300), "categorical:3"),
    "children": (SOURCE.poisson(0.5, 300), "negative-binomial"),
    "siblings": (np.repeat([0, 1, 2, 3, 4, 5, 8], [204, 72, 9, 5, 6, 2, 2]), "negative-binomial"),
    "visits": (SOURCE.negative_binomial(1, 0.1, 300), "negative-binomial"),
    "calls": (SOURCE.poisson(12, 300), "negative-binomial"),
    "inhabitants": (np.exp(SOURCE.normal(8, 1.5, 300)).round(), "negative-binomial"),
    "body mass": (SOURCE.normal(4200, 800, 300).round(-1), "normal"),
    "age": (SOURCE.normal(47, 16, 300).clip(18).round(), "normal"),
    "length": (SOURCE.normal(size=300), "normal"),
    "changes": (SOURCE.normal(0, 30, 300).round(), "normal"),
    "gaps": (np.where(SOURCE.random(300) < 0.1, np.nan, np.arange(300) % 2), "bernoulli"),
    "gaps alone": (np.full(300, np.nan), "normal"),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_kinds_of_numbers(name: str) -> None:
    values, likelihood = COLUMNS[name]
    assert column_kinds(as_rows(values[:, None]))[0].likelihood == likelihood


def test_few_rows_tell_no_categories() -> None:
    values = np.arange(12)[:, None] % 3
    assert column_kinds(as_rows(np.tile(values, (2, 1))))[0].numbers == (0, 1, 2)
    assert column_kinds(as_rows(values))[0].numbers is None


def test_all_rows_count_for_the_least_and_the_greatest() -> None:
    values = torch.zeros(30_000, 1)
    values[1] = 0.5
    assert column_kinds(TensorRows(values))[0].likelihood == "normal"


def penguins(num: int = 60) -> pd.DataFrame:
    i = np.arange(num)
    return pd.DataFrame(
        {
            "island": np.array(["Biscoe", "Dream", "Torgersen"])[i % 3],
            "sex": np.array(["f", "m"])[i % 2],
            "size": pd.Categorical(
                np.array(["small", "large", "huge"])[i % 3],
                ["small", "large", "huge"],
                ordered=True,
            ),
            "year": 2007 + i % 3,
            "mass": SOURCE.normal(4200, 800, num).round(),
            "one": "same",
        }
    )


def rows_of(frame: pd.DataFrame) -> TableRows:
    return frame_rows(frame, "the table", TableOptions())


def test_a_spec_of_columns_of_names_and_numbers() -> None:
    rows = rows_of(penguins())
    source = with_categories(Source("birds", "memory", rows, None, None), {})
    assert isinstance(source.train, TableRows)
    assert source.train.levels["year"] == ("2007", "2008", "2009")
    assert source.train.levels["size"] == ("small", "large", "huge")
    assert source.train.ordered == {"size"}
    spec = mixed_spec(source.train)
    assert spec == "mixed:categorical:3,bernoulli,ordinal:3,categorical:3,normal,bernoulli"
    assert describe_kinds(source.train.columns, spec, source.train.levels) == (
        "island categorical (Biscoe, Dream, Torgersen), sex bernoulli (f, m), size ordinal (small, "
        "large, huge), year categorical (2007, 2008, 2009), mass normal, one bernoulli (same)"
    )
    with pytest.raises(DataError, match="Expected rows of columns for the mixed likelihood"):
        mixed_spec(TensorRows(torch.zeros(2, 3, 3)))


@pytest.mark.parametrize(
    ("spec", "given"),
    [
        ("mixed", {}),
        ("mixed:a=normal,b=ordinal", {"a": "normal", "b": "ordinal"}),
        ('mixed:"a, b=c"=laplace:0.5', {"a, b=c": "laplace:0.5"}),
        ("mixed:normal*3", None),
        ("normal", None),
    ],
)
def test_kinds_that_are_given(spec: str, given: dict[str, str] | None) -> None:
    assert given_kinds(spec) == given


def test_given_kinds_take_the_place_of_those_found() -> None:
    rows = rows_of(penguins())
    given = {"year": "ordinal", "island": "ordinal", "mass": "laplace", "sex": "categorical"}
    source = with_categories(Source("birds", "memory", rows, None, None), given)
    spec = mixed_spec(source.train, given)
    assert spec == "mixed:ordinal:3,categorical:2,ordinal:3*2,laplace,bernoulli"
    plain = with_categories(Source("birds", "memory", rows, None, None), {"year": "normal"})
    assert plain.train is rows
    with pytest.raises(ValueError, match=r"Expected column to be .*; got 'yaer'"):
        mixed_spec(rows, {"yaer": "normal"})


def test_a_scan_shows_the_kind_of_each_column_and_what_to_try(tmp_path: Path) -> None:
    penguins().to_csv(tmp_path / "x.csv", index=False)
    found = scan(open_source(tmp_path / "x.csv").train)
    lines = "\n".join(describe(found))
    assert "island  categorical:3  Biscoe, Dream, Torgersen\n" in lines
    assert "year    categorical:3  2007, 2008, 2009\n" in lines
    assert "normal                does not fit: column 'island' holds names" in lines
    fit = suggest(found)
    assert fit is not None
    assert fit.text == 'likelihood="mixed"'


@pytest.mark.parametrize(
    ("rows", "columns", "gap", "likelihood"),
    [
        (120, 8, False, "correlated-normal"),
        (120, 7, False, "normal"),
        (119, 8, False, "normal"),
        (120, 8, True, "normal"),
    ],
)
def test_many_real_columns_are_taken_as_correlated(
    rows: int, columns: int, gap: bool, likelihood: str
) -> None:
    x = np.random.default_rng(0).normal(size=(rows, columns))
    x[3, 2] = np.nan if gap else 0.5
    names = [f"column {j}" for j in range(columns)]
    fit = suggest(scan(rows_of(pd.DataFrame(x, columns=names))))
    assert fit is not None
    assert fit.likelihood == likelihood


def test_real_columns_of_a_mixed_table_are_taken_as_correlated(tmp_path: Path) -> None:
    """Those beside each other; `resolve_settings` takes what is suggested."""
    x = np.random.default_rng(0).normal(size=(150, 10))
    x[:, 1] = x[:, 1] > 0
    names = ["age", "sex", *(f"blood {j}" for j in range(8))]
    pd.DataFrame(x, columns=names).to_csv(tmp_path / "x.csv", index=False)
    source = open_source(tmp_path / "x.csv")
    fit = suggest(scan(source.train))
    assert fit is not None
    assert fit.settings is not None
    given = ",".join(f"blood {j}=correlated-normal" for j in range(8))
    assert fit.settings == {"likelihood": f"mixed:{given}"}
    config = resolve_settings(source, **fit.settings)
    assert config.likelihood == "mixed:normal,bernoulli,correlated-normal*8"
    names[5] = "blood, 3"
    pd.DataFrame(x, columns=names).to_csv(tmp_path / "y.csv", index=False)
    fit = suggest(scan(open_source(tmp_path / "y.csv").train))
    assert fit is not None
    assert fit.settings == {"likelihood": "mixed"}


@pytest.mark.parametrize(
    ("values", "likelihood"),
    [
        ({"a": [0, 1, 1], "b": ["u", "v", "u"]}, "bernoulli"),
        ({"a": [0.5, 1.5, 2], "b": [1.0, 2, 2.5]}, "normal"),
        ({"a": ["u", "v", "w"], "b": ["u", "v", "w"]}, "mixed"),
        ({"a": ["u", "v", "w"], "b": [1.0, 2, 2.5]}, "mixed"),
        ({"a": [0.5, None, 1.5]}, "normal"),
        ({"a": [0.5, math.inf, 1.5]}, None),
        (np.zeros((2, 3), bool), "bernoulli"),
        (np.full((2, 3), 200, np.uint8), "bernoulli"),
        (np.full((2, 3, 3), 0.25), "continuous-bernoulli"),
        (np.full((2, 3, 3), 25), "negative-binomial"),
        (np.full((2, 3, 3), -2.5), "normal"),
    ],
)
def test_what_to_try_first(values: Any, likelihood: str | None) -> None:
    rows = rows_of(pd.DataFrame(values)) if isinstance(values, dict) else as_rows(values)
    fit = suggest(scan(rows))
    assert (None if fit is None else fit.likelihood) == likelihood
