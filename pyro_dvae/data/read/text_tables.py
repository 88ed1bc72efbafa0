"""Tables in text files: what stands between cells, in numbers and in the first line."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pyro_dvae.data.read.errors import DataError, refuse_too_large, shorten

MOST_COLUMNS = 2**16
"""The most columns of a table: pandas takes a tenth of a millisecond per column."""
_CELL_BYTES = 24
"""Bytes per cell while a table is read, as measured: twice 8 bytes, and the text."""
_LOOK = 2**24
"""Bytes at the start of a text file that are looked at before the whole is read."""
_LINES = 20
"""Lines at the start that tell what separates cells."""
_SEPARATORS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}

_COMMA_THOUSANDS = re.compile(r"[-+]?(\d{1,3}(,\d{3})+|\d+)(\.\d*)?")
_COMMA_DECIMALS = re.compile(r"[-+]?(\d{1,3}(\.\d{3})+|\d+)(,\d+)?([eE][-+]?\d+)?")
_POINT_THOUSANDS = re.compile(r"[-+]?\d{1,3}(\.\d{3})*")


class TextTable(NamedTuple):
    """A text file, read."""

    names: list[str]
    """The names of the columns; their numbers where no line names them."""
    frame: Any
    """The cells, a data frame of pandas whose columns are called 0, 1, ..."""
    notices: list[str]
    """How the file was read, where that had to be found out, for people."""
    text: Any
    """A function of the number of a column, which returns its cells as text."""


def read_text(path: Path, header: bool | None, as_text: Sequence[str] = ()) -> TextTable:
    """Read a text file of cells.

    Args:
        path: The file, ``.csv`` or ``.tsv``.
        header: Whether the first line names the columns; None to tell by its cells.
        as_text: The names of columns whose cells stay text, though they may look like numbers.

    Raises:
        DataError: If the file is too large, or has no columns.
        Exception: Whatever pandas raises if the file is damaged.
    """
    import pandas as pd  # type: ignore[import-untyped, unused-ignore]

    encoding, separator, notices = _found(path)
    _refuse_large_text(path, separator)

    def parse(**options: Any) -> Any:
        # pandas gets an open file, since it would take some file names for network addresses.
        with path.open(encoding=encoding, newline="") as file:
            return pd.read_csv(file, sep=separator, low_memory=False, **options)

    start = parse(header=None, nrows=2, dtype=object, keep_default_na=False).to_numpy().tolist()
    has_header, notice = _header(start) if header is None else (header, None)
    notices += [] if notice is None else [notice]
    width = len(start[0])
    names = [cell.strip() for cell in start[0]] if has_header else [str(i) for i in range(width)]
    if width == 1 and any(mark in names[0] for mark in _SEPARATORS):
        raise DataError(
            f"Expected lines of as many cells, separated alike, in {path}; got the line "
            f"{names[0][:40]!r}. Save it as .csv with commas or .tsv with tabs."
        )
    whole: dict[str, Any] = {
        "header": 0 if has_header else None,
        "names": list(range(width)),
        "skip_blank_lines": width > 1,  # in a table of one column a blank line is a missing cell
    }
    if tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1):
        whole["float_precision"] = "round_trip"  # the default of later versions
    kept: dict[int, type] = {i: str for i, name in enumerate(names) if name in as_text}
    frame = parse(**whole, dtype=kept)

    def text(number: int) -> Any:
        # "NA" is a name here
        return parse(**whole, usecols=[number], dtype=str, keep_default_na=False)[number]

    notice = _read_commas(frame, names, separator, text, kept)
    return TextTable(names, frame, notices + ([] if notice is None else [notice]), text)


def refuse_large(path: Path, num_rows: int, num_columns: int) -> None:
    """Refuse a table with too many columns, or with more cells than fit into memory.

    Raises:
        DataError: If it is too large.
    """
    if num_columns > MOST_COLUMNS:
        raise DataError(
            f"Expected at most {MOST_COLUMNS:,} columns in {path}; got {num_columns:,}. Save the "
            "numbers as .npy, or fewer columns."
        )
    what = f"{path}, about {num_rows:,} rows of {num_columns:,} columns"
    refuse_too_large(what, num_rows * num_columns * _CELL_BYTES, "Save the numbers as .npy.")


def _refuse_large_text(path: Path, separator: str) -> None:
    with path.open("rb") as file:
        start = file.read(_LOOK)
    lines = start.splitlines(keepends=True) or [b""]
    cells = lines[0].count(separator.encode()) + 1
    if len(lines) == 1 and len(start) == _LOOK:
        raise DataError(
            f"Expected a line of at most {_LOOK // 2**20} MiB in {path}; got one of more. Save "
            "the numbers as .npy."
        )
    some = sum(len(line) for line in lines[1:-1]) or len(start)
    num_lines = len(lines[1:-1]) or 1
    refuse_large(path, path.stat().st_size * num_lines // max(1, some), cells)


def _found(path: Path) -> tuple[str, str, list[str]]:
    """The encoding, the separator, and notices on both where they are not the usual ones."""
    with path.open("rb") as file:
        start = file.read(_LOOK)
    notices = []
    encoding = "utf-8-sig"
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        encoding = "utf-16"
    else:
        if b"\0" in start:
            raise ValueError("it holds bytes 0, as no text does")
        try:
            start.decode()
        except UnicodeDecodeError as error:
            if error.end < len(start) - 4:  # else a character is cut in two
                encoding = "cp1252"
                notices = ["the text is not UTF-8, and is read as Windows-1252"]
    usual = "\t" if path.suffix.lower() == ".tsv" else ","
    lines = start[: 2**16].decode(encoding, "replace").splitlines(keepends=True)
    if len(start) > 2**16:
        lines = lines[:-1]  # the last one may be cut
    separator = _separator("".join(lines[:_LINES]), usual)
    if separator != usual:
        notices.append(f"the columns are separated by {_SEPARATORS[separator]}")
    return encoding, separator, notices


def _separator(start: str, usual: str) -> str:
    """What separates the cells: it cuts all lines into as many cells, two at least."""
    for separator in (usual, *_SEPARATORS):
        try:
            rows = list(csv.reader(io.StringIO(start, newline=""), delimiter=separator))
        except csv.Error:  # such as a cell that is too long
            continue
        widths = {len(row) for row in rows if row}
        if len(widths) == 1 and widths != {1}:
            return separator
    return usual


def _read_commas(
    frame: Any, names: list[str], separator: str, text: Any, kept: dict[int, type]
) -> str | None:
    """Turn cells such as ``1,5`` or ``1,234`` into numbers, in place; return a notice."""
    import pandas as pd

    read: dict[str, list[int]] = {"a decimal comma": [], "commas between thousands": []}
    read["points between thousands"] = []
    for i in frame.columns:
        column = frame[i]
        if i in kept or pd.api.types.is_numeric_dtype(column.dtype):
            continue
        cells = column.dropna().astype(str).str.strip()
        if not cells.str.contains(",", regex=False).any():
            continue
        thousands = cells.map(_COMMA_THOUSANDS.fullmatch).notna().all()
        decimal = cells.map(_COMMA_DECIMALS.fullmatch).notna().all()
        plain = column.astype(object).where(column.notna(), None).map(str, na_action="ignore")
        if thousands and (separator == "," or not decimal):
            frame[i] = pd.to_numeric(plain.str.replace(",", ""))
            read["commas between thousands"].append(i)
        elif decimal:
            frame[i] = pd.to_numeric(plain.str.replace(".", "").str.replace(",", "."))
            read["a decimal comma"].append(i)
    for i in frame.columns if read["a decimal comma"] else ():  # there 1.234 is a thousand
        column = frame[i]
        if column.dtype.kind != "f" or i in read["a decimal comma"]:
            continue
        if ((1000 * column).round(6) % 1).fillna(0).any() or not (column % 1).any():
            continue
        cells = text(i).str.strip()
        if cells[column.notna()].map(_POINT_THOUSANDS.fullmatch).notna().all():
            frame[i] = pd.to_numeric(cells.str.replace(".", ""), errors="coerce")
            read["points between thousands"].append(i)
    told = [f"{what} in {shorten([names[i] for i in its], 3)}" for what, its in read.items() if its]
    return f"numbers are read with {' and '.join(told)}" if told else None


def _header(start: list[list[str]]) -> tuple[bool, str | None]:
    """Whether the first line is a header, and a notice about it, or None."""
    first, second = start[0], start[-1]
    text = [bool(cell.strip()) and not _is_number(cell) for cell in first]
    if len(first) > 1 and [cell.strip() for cell in first] == [str(i) for i in range(len(first))]:
        return True, (
            f"the first line, the numbers 0 to {len(first) - 1}, is read as the header; if it is "
            "data, pass header=False"
        )
    above_number = any(t and _is_number(cell) for t, cell in zip(text, second, strict=True))
    if above_number or all(t or not cell.strip() for t, cell in zip(text, first, strict=True)):
        return True, None
    names = shorten([cell.strip() for cell in first], 3)
    return False, (
        f"no header line; the columns are called 0 to {len(first) - 1}; if the first line, "
        f"{names}, is one, pass header=True"
    )


def _is_number(cell: str) -> bool:
    try:
        float(cell.replace(",", "."))
    except ValueError:
        return cell.strip().lower() in ("true", "false", "na", "n/a", "null", "none")
    return True


def counts_rows(values: Any) -> bool:
    """Whether a column counts the rows, from 0 or from 1."""
    if values.dtype.kind not in "iu" or len(values) < 2:
        return False
    return values.iloc[0] in (0, 1) and bool((np.diff(values.to_numpy()) == 1).all())
