from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from pyro_dvae.data import DataError, load_array
from pyro_dvae.runs.tables import code_columns, read_codes, write_rows

CODES = torch.tensor([[0, 2], [1, 0], [2, 2], [1, 1], [0, 0]])
LABELS = torch.tensor([7, -1, 3, 3, 2**40])
FIRST = "index,label,z1,z2\n"


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("labels", [LABELS, None])
@pytest.mark.parametrize("suffix", [".csv", ".npz", ".NPZ", ".npy"])
def test_codes_come_back(tmp_path: Path, suffix: str, labels: Tensor | None, rows: int) -> None:
    path = tmp_path / f"codes{suffix}"
    write_rows(path, "codes", CODES.split(rows), len(CODES), labels=labels)
    codes, read_labels, places, _ = read_codes(path, 2, 3)
    assert torch.equal(codes, CODES)
    assert codes.dtype == torch.int64
    if labels is None or suffix == ".npy":
        assert read_labels is None
    else:
        assert torch.equal(read_labels, labels)
    assert (places is not None) == (suffix == ".csv")
    assert places is None or torch.equal(places, torch.arange(5))
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.uint8])
@pytest.mark.parametrize("shape", [(7, 3), (7, 2, 3), (7, 1, 4, 2)])
def test_arrays_are_those_of_numpy(
    tmp_path: Path, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    values = (100 * torch.rand(shape)).to(dtype)
    index = torch.arange(7).flip(0)
    blocks = values.mT.contiguous().mT.split(3)  # not contiguous
    write_rows(tmp_path / "a.npz", "images", blocks, 7, labels=index + 1, index=index)
    with np.load(tmp_path / "a.npz", allow_pickle=False) as arrays:
        assert arrays.files == ["images", "labels", "index"]
        assert arrays["images"].dtype == values.numpy().dtype
        np.testing.assert_array_equal(arrays["images"], values)
        np.testing.assert_array_equal(arrays["labels"], index + 1)
        np.testing.assert_array_equal(arrays["index"], index)
    assert torch.equal(load_array(tmp_path / "a.npz", "images").values, values)
    write_rows(tmp_path / "a.npy", "images", blocks, 7, labels=index)
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy", allow_pickle=False), values)


@pytest.mark.parametrize("suffix", [".csv", ".npz"])
def test_which_datum_a_row_is(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"codes{suffix}"
    names = ("a", "b, c", "a", '"d"', "a")
    others: dict[str, Any] = {
        "row": 10 * torch.arange(5),
        "id": ("u", "v", "w", "x", 'y"'),
        "label": names,
    }
    write_rows(path, "codes", CODES.split(2), 5, labels=LABELS, others=others)
    codes, labels, index, about = read_codes(path, 2, 3)
    assert torch.equal(codes, CODES)
    assert [*about] == ["row", "id"]
    assert torch.equal(torch.as_tensor(about["row"]), others["row"])
    assert about["id"] == others["id"]
    if suffix == ".csv":
        assert (labels, index.tolist() if index is not None else None) == (names, [*range(5)])
        table = pd.read_csv(path)
        assert [*table.columns] == ["index", "row", "id", "label", "z1", "z2"]
        assert table["id"].tolist() == ["u", "v", "w", "x", 'y"']
        assert table["row"].tolist() == [0, 10, 20, 30, 40]
    else:
        assert isinstance(labels, Tensor)
        assert torch.equal(labels, LABELS)
        with np.load(path, allow_pickle=False) as arrays:
            assert arrays.files == ["codes", "labels", "row", "id"]
            assert arrays["id"].tolist() == ["u", "v", "w", "x", 'y"']


def test_probabilities_in_a_csv_are_exact(tmp_path: Path) -> None:
    values = (20 * torch.randn(5, 2, 3, dtype=torch.float32)).softmax(-1)
    write_rows(tmp_path / "p.csv", "probabilities", values.split(2), 5)
    header, *lines = (tmp_path / "p.csv").read_text().splitlines()
    assert header == "index,z1_0,z1_1,z1_2,z2_0,z2_1,z2_2"
    table = np.array([line.split(",") for line in lines], float)
    np.testing.assert_array_equal(table[:, 0], range(5))
    assert torch.equal(torch.tensor(table[:, 1:], dtype=torch.float32), values.flatten(1))


@pytest.mark.parametrize("suffix", [".csv", ".npz", ".npy"])
def test_one_block_is_held_at_a_time(tmp_path: Path, suffix: str) -> None:
    alive: list[weakref.ref[Tensor]] = []

    def blocks() -> Iterator[Tensor]:
        for _ in range(10):
            # The first, the last and the one that is replaced by it.
            assert sum(block() is not None for block in alive) <= 3
            block = torch.zeros(3, 2, dtype=torch.int64)
            alive.append(weakref.ref(block))
            yield block

    write_rows(tmp_path / f"codes{suffix}", "codes", blocks(), 30)
    assert len(read_codes(tmp_path / f"codes{suffix}", 2, 3).codes) == 30


def test_columns_by_name(tmp_path: Path) -> None:
    assert code_columns((2,)) == ["z1", "z2"]
    path = tmp_path / "codes.csv"
    # As spreadsheets save them: a byte order mark, other line ends and order, blanks, empty lines.
    path.write_bytes(b"\xef\xbb\xbfz2, label,z1\r\n2, 7,0\r\n\r\n1,-5, 1\r\n\r\n")
    codes, labels, places, _ = read_codes(path, 2, 3)
    assert codes.tolist() == [[0, 2], [1, 1]]
    assert labels is not None
    assert labels.tolist() == [7, -5]
    assert places is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"",
            "and none but index, row, id and label beside them, in .*; got none",
        ),
        (FIRST.encode(), "at least one row in .*; got the header alone"),
        (b"z1\n0\n", "columns z1 to z2.*; got z1. Take"),
        (b"z1,z2,z3\n0,0,0\n", "got z1,z2,z3"),
        (b"z1,z1,z2\n0,0,0\n", "got z1,z1,z2"),
        (b"z1;z2\n0;0\n", "got z1;z2. Take codes of this model, .* with commas"),
        (b"0,1\n0,1\n", "got 0,1"),
        (b"index,z1_0,z1_1\n0,0.5,0.5\n", "got index,z1_0,z1_1. .* as category indices"),
        (b"z1,z2\n0,1\n0\n", "2 columns in .*; got 1 in line 3"),
        (b"z1,z2\n0,1,2\n", "2 columns in .*; got 3 in line 2"),
        (b"z1,z2\n0,1\n\n2,3\n", "categories 0 to 2 in .*; got '3' in line 4, column z2"),
        (b"z1,z2\n-1,1\n", "got '-1' in line 2, column z1"),
        (b"z1,z2\n0,nan\n", "got 'nan' in line 2, column z2"),
        (b"z1,z2\n0,\n", "got '' in line 2, column z2"),
        (b"z1,z2\n0,1.0\n", "got '1.0' in line 2, column z2"),
        (b"z1,z2\n0,0_1\n", "got '0_1' in line 2"),
        ("z1,z2\n0,\u0661\n".encode(), "in line 2, column z2"),
        (b"z1,z2\n0," + b"9" * 5000 + b"\n", "in line 2, column z2"),
        (b"index,z1,z2\n99999999999999999999,0,0\n", "whole numbers in .*, column index"),
        (b"z1,z2\n0,\xff\n", "Expected a CSV table of codes; got .*codec can't decode"),
        (b"z1,z2\n0,\x00\n", "line 2, column z2|line contains NUL"),
        (b"z1,z2\n0," + b"1" * 200_000 + b"\n", "field larger than field limit"),
    ],
)
def test_bad_csv(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "codes.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        read_codes(path, 2, 3)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.array([[0, 1], [0, 3]]), r"categories 0 to 2 .*; got 3 in row 1 \(counted from 0\), "),
        (np.array([[0, -1]], np.int8), "got -1 in row 0 .*, column z2"),
        (np.array([[0.0, 1.0]]), r"integers of shape \(N, 2\) .*; got torch.float64"),
        (np.array([[True, False]]), "got torch.bool"),
        (np.array([[0.0, np.nan]]), "NaN"),
        (np.zeros((4, 2, 3), np.float32), r"got torch.float32 of shape \(4, 2, 3\)"),
        (
            np.zeros((4, 3), int),
            r"integers of shape \(N, 2\) .*; got torch.int64 of shape \(4, 3\)",
        ),
        (np.zeros(2, int), r"of shape \(2,\)"),
        (np.zeros((0, 2), int), "at least one row"),
        (np.array([["a", "b"]]), "Expected numbers"),
        (np.array([[{}, None]]), "Expected a whole"),
    ],
)
def test_bad_array(tmp_path: Path, values: np.ndarray, message: str) -> None:
    np.savez(tmp_path / "codes.npz", codes=values)
    with pytest.raises(DataError, match=message) as error:
        read_codes(tmp_path / "codes.npz", 2, 3)
    assert "\n" not in str(error.value)


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"got .*codes.csv \(No such file or directory\)"):
        read_codes(tmp_path / "codes.csv", 2, 3)
    with pytest.raises(DataError, match=r"\.csv, \.npz or \.npy file of codes"):
        read_codes(tmp_path / "codes.txt", 2, 3)
    (tmp_path / "codes.csv").mkdir()
    with pytest.raises(DataError, match="Is a directory"):
        read_codes(tmp_path / "codes.csv", 2, 3)
    with pytest.raises(DataError, match="no key for the CSV"):
        read_codes(tmp_path / "codes.csv", 2, 3, "codes")


def test_several_arrays_need_a_key(tmp_path: Path) -> None:
    np.savez(tmp_path / "two.npz", a=CODES, b=CODES.flip(0), y=LABELS)
    with pytest.raises(DataError, match="Name one with key="):
        read_codes(tmp_path / "two.npz", 2, 3)
    codes, labels, *_ = read_codes(tmp_path / "two.npz", 2, 3, "b")
    assert torch.equal(codes, CODES.flip(0))
    assert torch.equal(labels, LABELS)


@pytest.mark.parametrize("suffix", [".csv", ".npz", ".npy"])
def test_a_failed_write_leaves_what_was_there(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"codes{suffix}"
    path.write_text("old")

    def blocks() -> Iterator[Tensor]:
        yield CODES
        raise OSError("No space left on device")

    with pytest.raises(OSError, match=r"Cannot write .*codes.*No space left"):
        write_rows(path, "codes", blocks(), 10)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
