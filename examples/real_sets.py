"""The twelve real data sets of `real_data.py`, from packages; each as a user would have it."""

from __future__ import annotations

import argparse
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped, unused-ignore]
import torch
from text_counts import count_all, docstrings_and_files

from pyro_dvae.data import open_source


@dataclass
class RealData:
    """A data set: its rows, and what a user says of it."""

    x: Any
    """(N, P) or (N, H, W) stored values."""
    kinds: Any
    """What the simple models take each column for: "real", "level" or "bit"; "words" for counts."""
    settings: dict[str, Any]
    """The settings that a user must name, such as `likelihood`, beside what `pdvae data` says."""
    names: list[str] | None = None
    labels: Any = None
    """(N,) classes, which no model sees."""
    num_test: int | None = None
    """The number of last rows that are the test rows; None for a split at random."""
    words: dict[str, list[str]] = field(default_factory=dict)
    """The names of the levels 0, 1, ... of each column that holds names in the user's file."""


def of_table(table: pd.DataFrame, kinds: dict[str, str], label: str | None = None) -> RealData:
    """A table with columns of several kinds; levels as 0, 1, ... in their sorted order."""
    rows = table[list(kinds)].dropna()
    words: dict[str, list[str]] = {}
    for name, kind in kinds.items():
        if kind != "real":
            levels = pd.Categorical(rows[name])
            if isinstance(levels.categories[0], str):
                words[name] = list(levels.categories)
            rows[name] = levels.codes
    rows = rows.astype(float)
    labels = None
    if label is not None:
        labels = pd.Categorical(table.loc[rows.index, label]).codes
    return RealData(rows.to_numpy(), list(kinds.values()), {}, list(kinds), labels, words=words)


def of_sklearn(name: str) -> Callable[[argparse.Namespace], RealData]:
    """A table of scikit-learn whose columns are all real."""

    def load(args: argparse.Namespace) -> RealData:
        import sklearn.datasets

        data = getattr(sklearn.datasets, f"load_{name}")()
        names = [str(column).replace(" ", "_") for column in data.feature_names]
        kinds = ["real"] * data.data.shape[1]
        return RealData(data.data, kinds, {}, names, data.target)

    return load


def diabetes(args: argparse.Namespace) -> RealData:
    """442 patients, their blood values, age and sex."""
    from sklearn.datasets import load_diabetes

    table = load_diabetes(as_frame=True, scaled=False).data
    return of_table(table, {name: "bit" if name == "sex" else "real" for name in table})


def penguins(args: argparse.Namespace) -> RealData:
    """333 penguins; the label is the species."""
    from palmerpenguins import load_penguins

    real = ("bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g")
    kinds = {"island": "level", **dict.fromkeys(real, "real"), "sex": "bit", "year": "level"}
    return of_table(load_penguins(), kinds, "species")


def cars(args: argparse.Namespace) -> RealData:
    """392 cars of the years 1970 to 1982."""
    from vega_datasets import data

    table = data.cars()
    table["Year"] = table["Year"].dt.year
    real = ("Miles_per_Gallon", "Displacement", "Horsepower", "Weight_in_lbs", "Acceleration")
    kinds = {**dict.fromkeys(real, "real"), "Cylinders": "level", "Year": "level"}
    return of_table(table, {**kinds, "Origin": "level"})


def weather(args: argparse.Namespace) -> RealData:
    """1,461 days in Seattle; the label is rain, sun, fog, drizzle or snow."""
    from vega_datasets import data

    names = ("precipitation", "temp_max", "temp_min", "wind")
    return of_table(data.seattle_weather(), dict.fromkeys(names, "real"), "weather")


def voters(args: argparse.Namespace) -> RealData:
    """944 voters of 1996, on scales of seven levels; the label is the vote."""
    from statsmodels.datasets import anes96

    names = ("TVnews", "selfLR", "ClinLR", "DoleLR", "PID", "educ", "income")
    return of_table(anes96.load_pandas().data, dict.fromkeys(names, "level"), "vote")


def affairs(args: argparse.Namespace) -> RealData:
    """6,366 married women of a survey; the label is whether they have had an affair."""
    from statsmodels.datasets import fair

    table = fair.load_pandas().data
    table["affair"] = table["affairs"] > 0
    names = [name for name in table if name not in ("affairs", "affair")]
    return of_table(table, dict.fromkeys(names, "level"), "affair")


def digits(args: argparse.Namespace) -> RealData:
    """1,797 digits of 8 x 8 pixels from 0 to 16."""
    from sklearn.datasets import load_digits

    data = load_digits()
    x = data.images.astype(np.uint8)
    return RealData(x, ["bit"] * 64, {"range": (0, 16)}, labels=data.target)


def words(args: argparse.Namespace) -> RealData:
    """The 600 most frequent words of 2,000 docstrings of Python's standard library."""
    return replace(words_of_files(args), labels=None)


def words_of_files(args: argparse.Namespace) -> RealData:
    """The same docstrings; the label is the name of the file that a docstring is from."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    texts, files = zip(*docstrings_and_files(folder, 2000), strict=True)
    counts = count_all(list(texts), 600)[0].numpy().astype(float)
    kept = counts.sum(1) >= 3
    labels = np.array(files)[kept]
    return RealData(counts[kept], "words", {"likelihood": "multinomial"}, labels=labels)


def of_images(name: str) -> Callable[[argparse.Namespace], RealData]:
    """10,000 training and 2,000 test images of 28 x 28 pixels."""

    def load(args: argparse.Namespace) -> RealData:
        source = open_source(Path(getattr(args, name)).resolve())
        assert source.test is not None
        parts = [(source.train, 10_000), (source.test, 2_000)]
        x = [rows.read(torch.arange(n)).numpy() for rows, n in parts]
        y = [rows.labels[:n].numpy() for rows, n in parts if rows.labels is not None]
        settings: dict[str, Any] = {}
        return RealData(
            np.concatenate(x), ["bit"] * 784, settings, None, np.concatenate(y), num_test=2_000
        )

    return load


DATA: dict[str, Callable[[argparse.Namespace], RealData]] = {
    "wine": of_sklearn("wine"),
    "breast-cancer": of_sklearn("breast_cancer"),
    "diabetes": diabetes,
    "penguins": penguins,
    "cars": cars,
    "weather": weather,
    "voters": voters,
    "affairs": affairs,
    "words": words,
    "digits": digits,
    "fashion": of_images("fashion"),
    "mnist": of_images("mnist"),
}
