"""Tests of rows: what is read is what is stored, in the order asked for."""

from __future__ import annotations

import mmap
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from pyro_dvae.data import DataError, Rows, SubsetRows, TensorRows, as_rows
from pyro_dvae.data.read.array_rows import ArrayRows, array_file
from pyro_dvae.data.read.labels import number_classes

DTYPES = ["?", "u1", "i1", "<i2", ">i2", "<u2", ">u4", ">i8", "<f2", ">f4", "<f8", ">f8"]


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """Any array (N, ...) of numbers, in any byte order and memory layout."""
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=4, max_side=4))
    array = draw(hnp.arrays(draw(st.sampled_from(DTYPES)), shape))
    layout = draw(st.sampled_from(["C", "F", "strided"]))
    if layout == "strided":
        return np.repeat(array, 2, 0)[::2]
    return np.asarray(array, order=layout)


@given(arrays(), st.data())
@settings(max_examples=150, deadline=None)
def test_rows_of_any_array_and_of_its_file(
    array: np.ndarray[Any, Any], data: st.DataObject
) -> None:
    index = torch.tensor(data.draw(st.lists(st.integers(0, len(array) - 1), max_size=6)))
    index = index.to(torch.int64)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.npy"
        np.save(path, array)
        for rows in (as_rows(array), array_file(path)):
            assert (len(rows), rows.event_shape) == (len(array), array.shape[1:])
            values = rows.read(index)
            assert values.dtype == rows.dtype
            wider = {"uint16": "int32", "uint32": "int64"}
            assert str(rows.dtype) == f"torch.{wider.get(array.dtype.name, array.dtype.name)}"
            np.testing.assert_array_equal(values.numpy(), array[index.numpy()])
            subset = SubsetRows(rows, index)
            back = torch.arange(len(index)).flip(0)
            np.testing.assert_array_equal(subset.read(back).numpy(), array[index.numpy()][::-1])


def test_the_caller_may_write_into_what_was_read(tmp_path: Path) -> None:
    array = np.zeros((3, 2))
    np.save(tmp_path / "x.npy", array)
    for rows in (as_rows(array), array_file(tmp_path / "x.npy")):
        rows.read(torch.arange(3)).fill_(1)
        assert rows.read(torch.arange(3)).sum() == 0
    assert array.sum() == 0


@pytest.mark.skipif(not hasattr(mmap, "MADV_DONTNEED"), reason="pages cannot be let go here")
def test_a_mapped_file_does_not_stay_resident(tmp_path: Path) -> None:
    def resident() -> int:
        status = Path("/proc/self/status").read_text().splitlines()
        return sum(int(line.split()[1]) for line in status if line.startswith("RssFile")) // 1024

    if not Path("/proc/self/status").exists():
        pytest.skip("no /proc here")
    np.save(tmp_path / "x.npy", np.ones((2**11, 2**17), np.uint8))  # 256 MiB
    rows = array_file(tmp_path / "x.npy")
    before = resident()
    for index in torch.arange(len(rows)).split(8):
        assert rows.read(index).sum() == index.numel() * 2**17
    assert resident() - before < 100


def test_in_memory() -> None:
    x, y = torch.arange(6).reshape(3, 2), torch.tensor([2, 0, 2])
    rows = TensorRows(x, y, ("a", "b", "c"))
    assert (len(rows), rows.event_shape, rows.dtype) == (3, (2,), torch.int64)
    subset = SubsetRows(rows, torch.tensor([2, 0]))
    assert (len(subset), subset.event_shape, subset.dtype) == (2, (2,), torch.int64)
    assert subset.read(torch.tensor([1, 1])).tolist() == [[0, 1], [0, 1]]
    assert subset.labels is not None
    assert subset.labels.tolist() == [2, 2]
    assert subset.label_names == ("a", "b", "c")
    assert SubsetRows(TensorRows(x), torch.tensor([0])).labels is None
    with pytest.raises(DataError, match=r"\(3,\), one for each row; got \(2,\)\. Give as many"):
        TensorRows(x, y[:2])
    with pytest.raises(DataError, match=r"Expected whole numbers as labels; got torch.float64"):
        TensorRows(x, torch.tensor([0.5, 1, 2]))
    for none in (torch.zeros(0, 2), torch.zeros(2, 0), torch.tensor(1)):
        with pytest.raises(DataError, match=r"\(N, \.\.\.\) with N > 0; got shape"):
            TensorRows(none)


class Pairs(Dataset[Any]):
    """Items of any kind."""

    def __init__(self, items: list[Any], classes: list[str] | None = None) -> None:
        self.items, self.classes = items, classes

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> Any:
        return self.items[i]


class Stream(IterableDataset[Any]):
    """A data set without numbers."""

    def __iter__(self) -> Any:
        return iter([1])


class TestAsRows:
    @pytest.mark.parametrize(
        ("data", "shape", "dtype"),
        [
            (torch.zeros(2, 3, requires_grad=True), (3,), torch.float32),
            (torch.zeros(2, 3, dtype=torch.bfloat16), (3,), torch.bfloat16),
            ([[1, 2], [3, 4]], (2,), torch.int64),
            (np.ma.masked_array([1.0, 2.0], [False, False]), (), torch.float64),
            (TensorDataset(torch.zeros(2, 5), torch.arange(2)), (5,), torch.float32),
            (Pairs([np.zeros((2, 2), np.uint8)] * 2), (2, 2), torch.uint8),
            (Pairs([(Image.new("RGB", (4, 3)), 1)] * 2), (3, 3, 4), torch.uint8),
            (Pairs([(Image.new("1", (4, 3)), 1)] * 2), (3, 4), torch.bool),
            (Pairs([[torch.zeros(1), "no number"]] * 2), (1,), torch.float32),
        ],
    )
    def test_kinds(self, data: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        rows = as_rows(data)
        assert (len(rows), rows.event_shape, rows.dtype) == (2, shape, dtype)
        values = rows.read(torch.tensor([1, 0, 1]))
        assert (values.shape, values.dtype) == ((3, *shape), dtype)
        assert not values.requires_grad
        assert as_rows(rows) is rows

    def test_labels(self) -> None:
        rows = as_rows(np.zeros((3, 2)), ["b", "a", "b"])
        assert rows.label_names == ("a", "b")
        assert rows.labels is not None
        assert rows.labels.tolist() == [1, 0, 1]
        items = Pairs(
            [(torch.zeros(1), torch.tensor(float(i % 2))) for i in range(3)], ["no", "yes"]
        )
        for rows in (as_rows(items), as_rows(torch.zeros(3, 1), torch.tensor([0, 1, 0]))):
            assert rows.labels is not None
            assert rows.labels.tolist() == [0, 1, 0]
        assert as_rows(items).label_names == ("no", "yes")
        regression = Pairs([(torch.zeros(1), 0.5)] * 2, ["unused"])
        assert as_rows(regression).labels is None
        assert as_rows(regression).label_names is None

    @pytest.mark.parametrize(
        ("data", "match"),
        [
            ([[1, 2], [3]], "Expected a tensor, an array or a data set"),
            (["a", "b"], "Expected numbers as the data; got dtype <U1"),
            (np.array([1 + 1j]), "got dtype complex128"),
            (np.array([2**63], np.uint64), "got dtype uint64"),
            (torch.tensor([1j]), r"a dense tensor of real numbers; got torch\.complex"),
            (torch.eye(2).to_sparse(), "got torch.float32, torch.sparse_coo"),
            (None, "got dtype object"),
            (Pairs([]), "at least one item in a Pairs; got none"),
            (Pairs(["text"]), "image from a Pairs; got item 0 "),
            (Pairs([{}]), "got item 0 "),
            (Stream(), "with a length and items by number; got a Stream"),
        ],
    )
    def test_no_data(self, data: Any, match: str) -> None:
        with pytest.raises(DataError, match=match) as error:
            as_rows(data)
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize(
        ("second", "match"),
        [
            ((torch.zeros(3), 0), r"shape \(2,\) .* got \(3,\) and torch.float32 as item 1"),
            ((torch.zeros(2, dtype=torch.uint8), 0), "got .* torch.uint8 as item 1"),
        ],
    )
    def test_items_that_differ(self, second: Any, match: str) -> None:
        rows: Rows = as_rows(Pairs([(torch.zeros(2, dtype=torch.float32), 0), second]))
        with pytest.raises(DataError, match=match):
            rows.read(torch.tensor([0, 1]))

    def test_a_label_that_is_missing(self) -> None:
        with pytest.raises(DataError, match=r"label of every item .* none for item 1"):
            _ = as_rows(Pairs([(torch.zeros(2), 0), (torch.zeros(2), 0.5)])).labels


class TestNumberClasses:
    @pytest.mark.parametrize(
        ("values", "numbers", "names"),
        [
            ([3, 5, 3], [3, 5, 3], None),
            ([True, False], [1, 0], None),
            ([1.0, -2.0], [1, -2], None),
            (["7", " 1.0"], [7, 1], None),
            (["b", "a ", "10"], [2, 1, 0], ("10", "a", "b")),
            (["b", " ", "a"], [1, -1, 0], ("a", "b")),
            (["7", "", "1"], [7, -1, 1], None),
            ([np.nan, 1], [-1, 1], None),
            (["NA", "é"], [0, 1], ("NA", "é")),
            ([b"x", b"y"], [0, 1], ("x", "y")),
        ],
    )
    def test_numbers_and_names(self, values: Any, numbers: Any, names: Any) -> None:
        labels, found = number_classes(np.array(values), "here")
        assert (labels.tolist(), found, labels.dtype) == (numbers, names, torch.int64)

    @pytest.mark.parametrize(
        ("values", "match"),
        [
            ([0.5, 1, 2.25], "whole numbers or names as labels in here; got 0.5, 2.25. Number"),
            ([np.nan, 0.5], "got 0.5"),
            (["", " "], "a label for some of the rows in here; got none at all"),
            ([[1], [2]], r"got int64 of shape \(2, 1\)"),
            ([1j], "got complex128"),
        ],
    )
    def test_no_labels(self, values: Any, match: str) -> None:
        with pytest.raises(DataError, match=match):
            number_classes(np.array(values), "here")


def test_array_rows_need_a_label_each() -> None:
    with pytest.raises(DataError, match=r"Expected labels of shape \(2,\)"):
        ArrayRows(np.zeros((2, 1)), (torch.zeros(3, dtype=torch.int64), None))
