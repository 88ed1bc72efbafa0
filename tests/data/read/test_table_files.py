"""Tests of tables: what is a header, a column, a label, a gap."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pyro_dvae.data import DataError
from pyro_dvae.data.read import errors
from pyro_dvae.data.read.rows import SubsetRows, ids_in, levels_in
from pyro_dvae.data.read.table_files import table_file
from pyro_dvae.data.read.table_rows import TableRows


def table(folder: Path, text: str, name: str = "x.csv", **options: Any) -> TableRows:
    path = folder / name
    path.write_bytes(text.encode())
    return table_file(path, **options)


def values_of(rows: TableRows) -> list[list[float]]:
    return rows.read(torch.arange(len(rows))).tolist()


@pytest.mark.parametrize(
    ("text", "columns", "values", "notice"),
    [
        ("a,b\n1,2\n3,4\n", ("a", "b"), [[1, 2], [3, 4]], None),
        ("\ufeffa, b c \r\n1,2\r\n3,4", ("a", "b c"), [[1, 2], [3, 4]], None),
        ('"a,1","b""\nc"\n1,2\n', ("a,1", 'b"\nc'), [[1, 2]], None),
        ("1,2\n3,4\n", ("0", "1"), [[1, 2], [3, 4]], "no header line"),
        ("0,1\n5,6\n", ("0", "1"), [[5, 6]], "the numbers 0 to 1, is read as the header"),
        ("y,0,1\n5,6,7\n", ("y", "0", "1"), [[5, 6, 7]], None),
        ("5.5,2\n6.5,NA\n", ("0", "1"), [[5.5, 2], [6.5, np.nan]], "no header line"),
        ("NA,2\n6.5,1\n", ("0", "1"), [[np.nan, 2], [6.5, 1]], "no header line"),
        ("1,2\n", ("0", "1"), [[1, 2]], "no header line"),
        ("a\n1\n\n2\n", ("a",), [[1], [np.nan], [2]], None),
        ("a,b\n1,2\n\n3,4\n\n", ("a", "b"), [[1, 2], [3, 4]], None),
        ("a,b\n1\n2,3\n", ("a", "b"), [[1, np.nan], [2, 3]], None),
        ("a,b\n1,2\n3\n", ("a", "b"), [[1, 2], [3, np.nan]], None),
        ("a,b\n 1 , 2e3\n", ("a", "b"), [[1, 2000]], None),
        ("größe,名\n1,inf\n", ("größe", "名"), [[1, np.inf]], None),
        ("a,b\nTrue,False\nfalse,true\n", ("a", "b"), [[1, 0], [0, 1]], None),
        ("a,b\nTrue,5\n,6\n", ("a", "b"), [[1, 5], [np.nan, 6]], None),
        ("a,b\n,1\n,2\n", ("a", "b"), [[np.nan, 1], [np.nan, 2]], None),
    ],
)
def test_what_a_table_holds(
    tmp_path: Path, text: str, columns: Any, values: Any, notice: str | None
) -> None:
    rows = table(tmp_path, text)
    assert rows.columns == columns
    np.testing.assert_array_equal(values_of(rows), values)
    assert notice is None or notice in (rows.notice or "")
    assert (rows.notice is None) == (notice is None)


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("a,b\n1,2\n", torch.int64),
        ("a,b\n1,2.5\n", torch.float64),
        ("a,b\n1,\n2,3\n", torch.float64),
        ("a,b\nTrue,False\n", torch.bool),
        ("a,b\nTrue,2\n", torch.int64),
    ],
)
def test_dtype(tmp_path: Path, text: str, dtype: torch.dtype) -> None:
    assert table(tmp_path, text).dtype == dtype


LONG = "who,x\n" + "".join(f"n{i},{i % 3}\n" for i in range(40))
TEXT = "id,x,7,kind,x\n10,1,2,b,3\n11,4,5,NA,6\n12,7,8,b,9\n"


@pytest.mark.parametrize(
    ("columns", "names", "first"),
    [
        (["id", "7"], ("id", "7"), [10, 2]),
        ([1, 4], ("x", "x"), [1, 3]),
        (["4", "0"], ("x", "id"), [3, 10]),
        (["0-2"], ("id", "x", "7"), [10, 1, 2]),
        (["2", "4-4"], ("7", "x"), [2, 3]),
        ([2], ("7",), [2]),
        ([" id "], ("id",), [10]),
    ],
)
def test_columns(tmp_path: Path, columns: Any, names: Any, first: Any) -> None:
    rows = table(tmp_path, TEXT, columns=columns)
    assert rows.columns == names
    assert values_of(rows)[0] == first


def test_labels(tmp_path: Path) -> None:
    rows = table(tmp_path, TEXT, labels="kind")
    assert rows.columns == ("id", "x", "7", "x")
    assert rows.label_names == ("NA", "b")
    assert rows.labels is not None
    assert rows.labels.tolist() == [1, 0, 1]
    rows = table(tmp_path, TEXT, labels=0, columns=["7"])
    assert (rows.columns, rows.label_names) == (("7",), None)
    assert rows.labels is not None
    assert rows.labels.tolist() == [10, 11, 12]


@pytest.mark.parametrize(
    ("text", "options", "match"),
    [
        ("", {}, r"a whole table of numbers or names; got .*\(No columns to parse from file\)"),
        ("a,b\n", {}, "at least one row in .*; got none"),
        ('a,b\n"1,234",2\n?,3\n', {}, r"numbers in column 'a' of .*; got '\?' in row 1"),
        ("a,b\n1,2\n3,?\n", {}, r"numbers in column 'b' of .*; got '\?' in row 1 .* with nominal"),
        ("a,b\n1,2,\n3,4,\n", {}, "Expected 2 fields in line 2, saw 3"),
        ("a,b\n1,2\n4,5,6\n", {}, "Expected 2 fields in line 3, saw 3"),
        ("a,b\n1,2,3\n4,5,6\n", {}, "Expected 2 fields in line 2, saw 3"),
        (",a\n0,1\n0,2\n", {}, r"none for column 0. Leave it out with drop=\[0\], or .* columns="),
        (",a,\n0,1,3\n1,2,4\n", {}, r"none for column 2"),
        ("a;b\n1;2;3\n", {}, "lines of as many cells, .*; got the line 'a;b'"),
        ("a\tb\n1\n", {}, "Save it as .csv with commas or .tsv with tabs"),
        ("a,b\n1,99999999999999999999\n", {}, "got '99999999999999999999' in row 0"),
        ("a,b\n1,18446744073709551615\n", {"columns": ["b"]}, "got dtype uint64"),
        ("a,b\n2020-01-01,2\n", {}, r"got dates \(2020-01-01\) in column 'a'. Leave .* dates=True"),
        ("a,b\n3.4.2020,2\n", {"dates": True}, "as 2024-12-31 .*; got '3.4.2020', whose day and"),
        (
            "a,b\n2020-13-01,2\n",
            {"dates": True},
            "dates in column 'a' .*; got '2020-13-01' in row 0",
        ),
        (
            LONG,
            {},
            r"got 40 different texts in 40 rows in column 'who'. Leave it .* drop=\['who'\].$",
        ),
        (LONG, {"columns": ["who"]}, "No other column is left"),
        (
            "a,b\n1,2\n",
            {"levels": {"a": ("0", "2")}},
            "Expected 0, 2 in column 'a' .*; got '1' in row 1",
        ),
        ("a,b\n1,2\n", {"columns": ["c"]}, r"a column of .*: a, b; got 'c'. Name one"),
        ("a,b\n1,2\n", {"columns": [2]}, "got '2'"),
        ("a,b\n1,2\n", {"columns": [-1]}, "got '-1'"),
        ("a,b\n1,2\n", {"columns": ["0-5"]}, "got '5'"),
        ("a,b\n1,2\n", {"columns": []}, "different columns to take from .*; got none"),
        ("a,b\n1,2\n", {"columns": ["a", "0"]}, "got a, a. Name each once"),
        ("a,b\n1,2\n", {"columns": ["a"], "labels": "c"}, "a column of .*; got 'c'"),
        ("a\nx\n", {"labels": "a"}, "different columns to take .*; got none"),
        ("1,1,u\n3,4,5\n", {"columns": ["1"]}, "got a name that occurs twice, '1'"),
        (TEXT, {"columns": ["x"]}, "got a name that occurs twice, 'x'"),
        ("a,b\n1,0.5\n", {"labels": "b"}, "whole numbers or names as labels in .*; got 0.5"),
        ("\0\1\2\n\0", {}, "Expected "),
    ],
)
def test_refused(tmp_path: Path, text: str, options: Any, match: str) -> None:
    with pytest.raises(DataError, match=match) as error:
        table(tmp_path, text, **options)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize(
    ("text", "header", "columns", "num_rows", "notice"),
    [
        (
            "2001,2002\n1,0\n",
            None,
            ("0", "1"),
            2,
            "if the first line, 2001, 2002, is one, pass header=True",
        ),
        ("2001,2002\n1,0\n", True, ("2001", "2002"), 1, None),
        ("2001,2002\n1,0\n", False, ("0", "1"), 2, None),
        ("0,1\n1,0\n", None, ("0", "1"), 1, "if it is data, pass header=False"),
        ("0,1\n1,0\n", False, ("0", "1"), 2, None),
        ("a,a,b\n1,0,1\n", None, ("a", "a", "b"), 1, "more than one column is called a"),
        ("1,1\n1,0\n", True, ("1", "1"), 1, "more than one column is called 1"),
    ],
)
def test_how_the_header_is_taken_is_told_and_can_be_said(
    tmp_path: Path,
    text: str,
    header: bool | None,
    columns: tuple[str, ...],
    num_rows: int,
    notice: str | None,
) -> None:
    rows = table(tmp_path, text, header=header)
    assert (rows.columns, len(rows)) == (columns, num_rows)
    assert (rows.notice is None) == (notice is None)
    assert notice is None or notice in (rows.notice or "")
    assert rows.repeated == tuple(sorted({name for name in columns if columns.count(name) > 1}))


def test_no_column_of_a_name_that_the_file_has_twice(tmp_path: Path) -> None:
    assert table(tmp_path, TEXT, columns=["id", "7"]).repeated == ()
    assert table(tmp_path, TEXT, columns=["id", 1]).repeated == ("x",)


def test_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = ",".join(["1"] * 70_000) + "\n"
    with pytest.raises(DataError, match=r"at most 65,536 columns in .*; got 70,000\. Save"):
        table(tmp_path, wide * 2)
    with pytest.raises(DataError, match=r"a line of at most 16 MiB in .*; got one of more"):
        table(tmp_path, "a" * 2**24)
    monkeypatch.setattr(errors, "available_memory", lambda: 10**6)
    assert len(table(tmp_path, "a,b\n" + "1,2\n" * 10_000)) == 10_000
    with pytest.raises(DataError, match=r"x\.csv, about 30,0\d\d rows of 2 columns, which takes"):
        table(tmp_path, "a,b\n" + "1,2\n" * 30_000)
    pytest.importorskip("pyarrow")
    path = tmp_path / "x.parquet"
    pd.DataFrame({"a": np.zeros(50_000)}).to_parquet(path)
    assert path.stat().st_size < 10_000
    with pytest.raises(DataError, match=r"x\.parquet, about 50,000 rows of 1 columns, which takes"):
        table_file(path)


def test_a_row_without_a_label_has_the_label_minus_1(tmp_path: Path) -> None:
    rows = table(tmp_path, "a,b\n1,\n2,u\n", labels="b")
    assert rows.labels is not None
    assert (rows.labels.tolist(), rows.label_names) == ([-1, 0], ("u",))


def test_tabs(tmp_path: Path) -> None:
    assert values_of(table(tmp_path, "a\tb\n1\t2\n", "x.TSV")) == [[1, 2]]
    assert values_of(table(tmp_path, "a;b\n1;2\n", "x.tsv")) == [[1, 2]]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "x.csv").write_bytes("größe,b\n1,é\n2,o\n".encode(encoding))
    rows = table_file(tmp_path / "x.csv")
    assert rows.columns == ("größe", "b")
    assert rows.levels == {"b": ("o", "é")}
    assert ("Windows-1252" in (rows.notice or "")) == (encoding == "cp1252")


@pytest.mark.parametrize(
    ("text", "values", "notice"),
    [
        ("a;b\n1,5;2\n-2;3\n", [[1.5, 2], [-2, 3]], "semicolons; numbers .* a decimal comma in a$"),
        (
            "a;b\n1.234,5;1.234\n6;7\n",
            [[1234.5, 1234], [6, 7]],
            "a decimal comma in a and points between thousands in b$",
        ),
        ("a;b\n1,5;1.234\n6;2.000\n", [[1.5, 1234], [6, 2000]], "points between thousands in b$"),
        ("a;b\n1;1.234\n6;2.000\n", [[1, 1.234], [6, 2]], "separated by semicolons$"),
        ("a;b\n1,5;1.2345\n6;2.000\n", [[1.5, 1.2345], [6, 2]], "a decimal comma in a$"),
        ("a;b\n1.234,5;1.5\n6;7\n", [[1234.5, 1.5], [6, 7]], "a decimal comma in a$"),
        ("a;b\n1,5;\n1,25;2\n", [[1.5, np.nan], [1.25, 2]], "a decimal comma in a$"),
        ('a,b\n"1,234",5\n"1,234,567.5",6\n', [[1234, 5], [1234567.5, 6]], "thousands in a$"),
        ('a,b\n"1,5",5\n"0,25",6\n', [[1.5, 5], [0.25, 6]], "a decimal comma in a$"),
        ("a|b\n1|2\n", [[1, 2]], "separated by bars$"),
        ("a\tb\n1\t2\n", [[1, 2]], "separated by tabs$"),
    ],
)
def test_separators_and_commas(
    tmp_path: Path, text: str, values: list[list[float]], notice: str
) -> None:
    rows = table(tmp_path, text)
    np.testing.assert_array_equal(values_of(rows), values)
    assert re.search(notice, rows.notice or "")


@pytest.mark.parametrize(
    ("text", "options", "columns", "ids", "notice"),
    [
        (",a\n0,1\n1,2\n", {}, ("a",), None, "column 0 counts the rows"),
        ("Id,a\n1,1\n2,2\n", {}, ("a",), None, "column 0, 'Id', counts the rows, and"),
        ("id,a\n1,1\n3,2\n", {}, ("id", "a"), None, None),
        (",a\nu,1\nv,2\n", {}, ("a",), ("u", "v"), "column 0 has no name, and is left out"),
        (",a\nu,1\nv,2\n", {"columns": ["a"]}, ("a",), ("u", "v"), None),
        ("a,b\n1,x\n2,y\n", {"ids": "b"}, ("a",), ("x", "y"), None),
        ("a,b\n1,x\n2,y\n", {"drop": ["b"]}, ("a",), None, None),
        ("a,b,c\n1,2,3\n2,3,4\n", {"columns": ["0-2"], "drop": [1]}, ("a", "c"), None, None),
    ],
)
def test_the_index_and_columns_that_are_left_out(
    tmp_path: Path, text: str, options: Any, columns: Any, ids: Any, notice: str | None
) -> None:
    rows = table(tmp_path, text, **options)
    assert (rows.columns, rows.ids) == (columns, ids)
    assert ids_in(SubsetRows(rows, torch.tensor([1]))) == (None if ids is None else ids[1:])
    assert (rows.notice is None) == (notice is None)
    assert notice is None or notice in (rows.notice or "")


NAMES = "a,b,c,d\n10, red,True,2020-01-01\n9,blue,False,2020/01/02\n9,red,True,1970-01-01 12:00\n"


@pytest.mark.parametrize(
    ("options", "values", "levels"),
    [
        (
            {"drop": ["d"]},
            [[10, 1, 1], [9, 0, 0], [9, 1, 1]],
            {"b": ("blue", "red"), "c": ("False", "True")},
        ),
        ({"columns": ["a"], "nominal": ["a"]}, [[1], [0], [0]], {"a": ("9", "10")}),
        ({"columns": ["d"], "dates": True}, [[18262], [18263], [0.5]], {}),
        ({"columns": ["b"], "other": True}, [[1], [0], [1]], {"b": ("blue", "red", "(other)")}),
        (
            {"columns": ["b", "c"], "levels": {"b": ("red", "(other)"), "c": ("False", "True")}},
            [[0, 1], [1, 0], [0, 1]],
            {"b": ("red", "(other)"), "c": ("False", "True")},
        ),
        ({"columns": ["a"], "levels": {"a": ("10", "9")}}, [[0], [1], [1]], {"a": ("10", "9")}),
    ],
)
def test_levels_bits_and_dates(tmp_path: Path, options: Any, values: Any, levels: Any) -> None:
    rows = table(tmp_path, NAMES, **options)
    assert values_of(rows) == values
    assert rows.levels == levels
    assert levels_in(SubsetRows(rows, torch.tensor([1]))) == levels


def test_a_level_may_look_like_a_number_and_a_cell_may_be_missing(tmp_path: Path) -> None:
    rows = table(tmp_path, "a,b\n01,x\n1,\n", levels={"a": ("01", "1")})
    np.testing.assert_array_equal(values_of(rows), [[0, 0], [1, np.nan]])


def test_names_are_no_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = "s3: 数 ü.csv"
    assert values_of(table(tmp_path, "a\n1\n", name)) == [[1]]
    assert values_of(table_file(Path(name))) == [[1]]


NUMBERS = st.sampled_from(["?", "i8", "f8"]).flatmap(
    lambda dtype: hnp.arrays(
        dtype,
        hnp.array_shapes(min_dims=2, max_dims=2, max_side=5),
        elements={"allow_nan": False} if dtype == "f8" else None,
    )
)


@given(NUMBERS, st.booleans())
@settings(max_examples=60, deadline=None)
def test_what_pandas_writes_comes_back(array: np.ndarray[Any, Any], header: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for suffix in ("csv", "parquet"):
            path = Path(folder) / f"x.{suffix}"
            frame = pd.DataFrame(array, columns=[f"c{i}" for i in range(array.shape[1])])
            if suffix == "csv":
                frame.to_csv(path, index=False, header=header)
                # Without a header these are what one looks like.
                is_numbers = (array[0] == np.arange(array.shape[1])).all() and array.dtype != bool
                if not header and is_numbers and array.shape[1] > 1:
                    continue
            else:
                pytest.importorskip("pyarrow")
                frame.to_parquet(path)
            values = table_file(path).read(torch.arange(len(array))).numpy()
            assert values.dtype == array.dtype
            np.testing.assert_array_equal(values, array)


class TestParquet:
    @pytest.fixture(autouse=True)
    def _pyarrow(self) -> None:
        pytest.importorskip("pyarrow")

    def save(self, folder: Path, **columns: Any) -> Path:
        pd.DataFrame(columns).to_parquet(folder / "x.parquet")
        return folder / "x.parquet"

    def test_gaps_and_labels(self, tmp_path: Path) -> None:
        path = self.save(
            tmp_path,
            a=pd.array([1, None, 3], "Int64"),
            b=pd.array([True, False, True], "boolean"),
            c=np.array([1, 2, 3], np.float32),
            kind=pd.Categorical(["u", "v", "u"]),
        )
        rows = table_file(path, labels="kind")
        assert (rows.columns, rows.label_names) == (("a", "b", "c"), ("u", "v"))
        np.testing.assert_array_equal(values_of(rows), [[1, 1, 1], [np.nan, 0, 2], [3, 1, 3]])
        assert table_file(path, columns=["c"]).dtype == torch.float32
        assert table_file(path, columns=["b"]).dtype == torch.bool
        labels = table_file(path, columns=["c"], labels="b").labels
        assert labels is not None
        assert labels.tolist() == [1, 0, 1]

    @pytest.mark.parametrize(
        ("column", "options", "match"),
        [
            (
                ["u", "v"],
                {"dates": True, "levels": {"y": ("v",)}},
                "Expected v in .*; got 'u' in row 1",
            ),
            ([[1, 2], [3, 4]], {}, r"Expected numbers or names in column 'y' .*; got '\[1 2\]'"),
            ([1.5, 2.5], {"labels": "y"}, "got 1.5, 2.5"),
        ],
    )
    def test_refused(self, tmp_path: Path, column: Any, options: Any, match: str) -> None:
        with pytest.raises(DataError, match=match):
            table_file(self.save(tmp_path, x=[1, 2], y=column), **options)

    def test_damaged(self, tmp_path: Path) -> None:
        whole = self.save(tmp_path, x=[1, 2, 3]).read_bytes()
        for content in (
            b"",
            whole[:-1],
            whole[4:],
            b"PAR1" * 9,
            whole[:50] + b"\0" + whole[51:-60],
        ):
            (tmp_path / "x.parquet").write_bytes(content)
            with pytest.raises(
                DataError, match="Expected a whole table of numbers or names"
            ) as error:
                table_file(tmp_path / "x.parquet")
            assert "\n" not in str(error.value)


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "x.parquet").touch()
    with pytest.raises(
        DataError, match=r"the package pyarrow, .*pip install 'pyro-dvae\[parquet\]'"
    ):
        table_file(tmp_path / "x.parquet")
