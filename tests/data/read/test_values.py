"""Tests of tables, dicts and data sets that a program holds."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import Dataset

from pyro_dvae.data import DataError, Rows, as_rows, open_source, with_categories
from pyro_dvae.data.read.rows import ids_in, levels_in

TABLE = pd.DataFrame(
    {
        "id": [1, 2, 3],
        "island": ["Dream", "Biscoe", "Dream"],
        "mass": [3.5, 4.25, 5.0],
        "adult": [True, False, True],
        "size": pd.Categorical(["small", "large", "small"], ["small", "large"], ordered=True),
    }
)


def values_of(rows: Rows) -> list[Any]:
    return rows.read(torch.arange(len(rows))).tolist()


def test_a_table_of_pandas() -> None:
    rows: Any = as_rows(TABLE, drop=["id"])
    assert rows.columns == ("island", "mass", "adult", "size")
    assert values_of(rows) == [[1, 3.5, 1, 0], [0, 4.25, 0, 1], [1, 5.0, 1, 0]]
    assert levels_in(rows)["size"] == ("small", "large")
    assert rows.ordered == {"size"}
    assert rows.dtype == torch.float64
    assert values_of(pickle.loads(pickle.dumps(rows))) == values_of(rows)
    assert as_rows(TABLE, drop=["island", "size"]).columns == ("id", "mass", "adult")


@pytest.mark.parametrize("labels", ["island", ["b", "a", "b"], np.array([1, 0, 1])])
def test_labels_of_a_table(labels: Any) -> None:
    rows = as_rows(TABLE, labels)
    assert rows.labels is not None
    assert rows.labels.tolist() == [1, 0, 1]
    assert rows.columns is not None
    assert ("island" in rows.columns) == (not isinstance(labels, str))
    source = with_categories(open_source(TABLE, labels=labels), {"mass": "categorical"})
    assert levels_in(source.train)["mass"] == ("3.5", "4.25", "5")
    assert source.train.labels is not None
    assert source.train.labels.tolist() == [1, 0, 1]
    assert ("labels" in source.arguments) == isinstance(labels, str)


def test_the_index_of_a_table_names_the_rows() -> None:
    assert ids_in(as_rows(TABLE)) is None
    assert ids_in(as_rows(TABLE.set_index("id"))) == ("1", "2", "3")
    assert ids_in(as_rows(TABLE, ids="island")) == ("Dream", "Biscoe", "Dream")


BUNCH = {
    "data": np.arange(6.0).reshape(3, 2),
    "target": np.array([0, 1, 0]),
    "target_names": np.array(["no", "yes"]),
    "feature_names": ["a", "b"],
}


@pytest.mark.parametrize(
    ("data", "columns", "names", "labels"),
    [
        (BUNCH, ("a", "b"), ("no", "yes"), [0, 1, 0]),
        (
            {**BUNCH, "data": pd.DataFrame(BUNCH["data"], columns=["c", "d"])},
            ("c", "d"),
            ("no", "yes"),
            [0, 1, 0],
        ),
        ({**BUNCH, "target": np.array([0.5, 1, 2])}, ("a", "b"), None, None),
        ({"data": BUNCH["data"], "target": [3, 1, 2]}, None, None, None),
        ({"image": [[[0, 1]], [[1, 1]]], "label": [1, 0]}, None, None, [1, 0]),
        ({"a": ["u", "v"], "b": [1.5, 2]}, ("a", "b"), None, None),
        ({"x": [1.5, 2.5], "y": [0, 1]}, ("x", "y"), None, None),
    ],
)
def test_dicts(data: Any, columns: Any, names: Any, labels: Any) -> None:
    rows = as_rows(data)
    assert (rows.columns, rows.label_names) == (columns, names)
    assert (None if rows.labels is None else rows.labels.tolist()) == labels


class _HuggingFace:
    """What the data sets of Hugging Face have that tells them."""

    def __init__(self, items: list[dict[str, Any]], **features: Any) -> None:
        self.items, self.features = items, features

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.items[index]

    def to_pandas(self) -> pd.DataFrame:
        return pd.DataFrame(self.items)


def feature(kind: str, **known: Any) -> Any:
    return type(kind, (SimpleNamespace,), {})(**known)


def test_a_data_set_of_hugging_face() -> None:
    images = [{"label": i % 2, "image": np.full((2, 3), i, np.uint8)} for i in range(4)]
    classes = feature("ClassLabel", names=["cat", "dog"])
    rows = as_rows(_HuggingFace(images, label=classes, image=feature("Image")))
    assert (rows.event_shape, rows.dtype) == ((2, 3), torch.uint8)
    assert rows.labels is not None
    assert (rows.labels.tolist(), rows.label_names) == ([0, 1, 0, 1], ("cat", "dog"))
    assert rows.read(torch.tensor([3]))[0, 0].tolist() == [3, 3, 3]
    table = [{"a": "u", "b": 1.5}, {"a": "v", "b": 2.5}]
    rows = as_rows(_HuggingFace(table, a=feature("Value"), b=feature("Value")), labels="a")
    assert (rows.columns, rows.label_names) == (("b",), ("u", "v"))


class _Dicts(Dataset[Any]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"pixel_values": torch.full((2, 2), index), "label": torch.tensor(index)}


def test_a_data_set_of_dicts() -> None:
    rows = as_rows(_Dicts())
    assert values_of(rows)[2] == [[2, 2], [2, 2]]
    assert rows.labels is not None
    assert rows.labels.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("take", "message"),
    [
        (lambda: as_rows(np.zeros((2, 3)), drop=["a"]), "Expected drop with a table; got it with"),
        (lambda: as_rows(TABLE, labels="sex"), "a column of the table: .*; got 'sex'"),
        (lambda: as_rows(TABLE, labels=[1, 2]), r"labels of shape \(3,\)"),
        (lambda: as_rows({"a": [1, 2], "b": [1]}), "a dict of columns, as long as one another"),
        (lambda: open_source(TABLE, key="a"), r"Expected key=... with .npz; got it with values of"),
        (lambda: open_source(TABLE, header=True), "header=.* got it with values of a program"),
    ],
)
def test_refused(take: Any, message: str) -> None:
    with pytest.raises(DataError, match=message) as error:
        take()
    assert "\n" not in str(error.value)
