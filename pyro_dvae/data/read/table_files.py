"""Tables of numbers in CSV, TSV and Parquet files, which pandas reads."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pyro_dvae.data.read.arrays import torch_dtype
from pyro_dvae.data.read.errors import DataError, reading, refuse_too_large, shorten
from pyro_dvae.data.read.labels import Labels, number_classes
from pyro_dvae.data.read.rows import TensorRows

TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")

MOST_COLUMNS = 2**16
"""The most columns of a table: pandas takes a tenth of a millisecond per column."""
_CELL_BYTES = 24
"""Bytes per cell while a table is read, as measured: twice 8 bytes, and the text."""
_LOOK = 2**24
"""Bytes at the start of a text file that are looked at before the whole is read."""

Column = str | int
"""A column's name, or its number, counted from 0."""


class TableRows(TensorRows):
    """Rows of a table.

    Args:
        values: (N, C) numbers.
        columns: The names of the C columns.
        labels: (N,) whole numbers and the names of the classes; None if there are no labels.
        notice: A line on how the header was read, for people; None if there is nothing to say.
        repeated: The names that more than one column has.
    """

    def __init__(
        self,
        values: NDArray[Any],
        columns: Sequence[str],
        labels: Labels | None = None,
        notice: str | None = None,
        repeated: Sequence[str] = (),
    ) -> None:
        super().__init__(torch.from_numpy(values), *(labels or (None, None)))
        self.columns, self.notice, self.repeated = tuple(columns), notice, tuple(repeated)


def table_file(
    path: Path,
    columns: Sequence[Column] | None = None,
    labels: Column | None = None,
    header: bool | None = None,
) -> TableRows:
    """Read a table; nothing in the file is executed.

    A cell is missing, and becomes NaN, if it is empty or says ``NA``, ``NaN``, ``null``, ...

    Args:
        path: A ``.csv`` file with commas, a ``.tsv`` file with tabs, or a ``.parquet`` file.
        columns: The columns to take; ``"3-7"`` is a range of column numbers. None takes all
            columns but that of the labels.
        labels: The column of the labels, which are whole numbers or names; None for no labels.
        header: Whether the first line of a ``.csv`` or ``.tsv`` file holds the names of the
            columns. None decides by the cells: the line is a header if its cells are text, if
            some text stands above a number, or if the cells are 0, 1, 2, ...

    Returns:
        The rows, of the narrowest dtype that holds every column.

    Raises:
        DataError: If the file is damaged, if there is no such column, or if a column that is taken
            holds anything but numbers.
    """
    is_parquet = path.suffix.lower() == ".parquet"
    if is_parquet and header is not None:
        raise DataError(
            f"Expected header=None with {path}, which has names; got {header}. Leave it out."
        )
    with reading(path, "a whole table of numbers"):
        if is_parquet:
            names, frame, classes, notice = _read_parquet(path, labels)
        else:
            names, frame, classes, notice = _read_text(path, labels, header)
        taken = _taken(names, columns, labels, path)
        if not len(frame):
            raise DataError(f"Expected at least one row in {path}; got none. Add data.")
        values = _values(frame, taken, names, path)
        values = values.astype(torch_dtype(values, f"the data in {path}"), copy=False)
        numbered = None if classes is None else number_classes(classes, str(path))
        count = Counter(names)
        repeated = dict.fromkeys(names[i] for i in taken if count[names[i]] > 1)
        if repeated:
            told = f"more than one column is called {shorten(list(repeated))}"
            notice = f"{notice}; {told}" if notice else told
        return TableRows(values, [names[i] for i in taken], numbered, notice, tuple(repeated))


_Table = tuple[list[str], Any, NDArray[Any] | None, str | None]
"""Names of all columns, the data frame, the labels as text, and a notice on the header."""


def _read_text(path: Path, labels: Column | None, header: bool | None) -> _Table:
    import pandas as pd  # type: ignore[import-untyped, unused-ignore]

    separator = "\t" if path.suffix.lower() == ".tsv" else ","
    _refuse_large_text(path, separator)

    def parse(**options: Any) -> Any:
        # pandas gets an open file, since it would take some file names for network addresses.
        with path.open(encoding="utf-8-sig", newline="") as file:
            return pd.read_csv(file, sep=separator, low_memory=False, **options)

    start = parse(header=None, nrows=2, dtype=object, keep_default_na=False).to_numpy().tolist()
    has_header, notice = _header(start) if header is None else (header, None)
    width = len(start[0])
    names = [cell.strip() for cell in start[0]] if has_header else [str(i) for i in range(width)]
    if width == 1 and (";" in names[0] or "\t" in names[0]):
        raise DataError(
            f"Expected columns with {'tabs' if separator != ',' else 'commas'} between in {path}; "
            f"got the line {names[0][:40]!r}. Save it as .csv with commas or .tsv with tabs."
        )
    whole: dict[str, Any] = {
        "header": 0 if has_header else None,
        "names": list(range(width)),
        "skip_blank_lines": width > 1,  # in a table of one column a blank line is a missing cell
    }
    if tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1):
        whole["float_precision"] = "round_trip"  # the default of later versions
    frame, classes = parse(**whole), None
    if labels is not None:
        its = [_find(names, labels, path)]
        text = parse(**whole, usecols=its, dtype=str, keep_default_na=False)  # "NA" is a name here
        classes = text.to_numpy(object)[:, 0]
    return names, frame, classes, notice


def _read_parquet(path: Path, labels: Column | None) -> _Table:
    try:
        import pyarrow  # type: ignore[import-untyped, unused-ignore]  # noqa: F401
        from pyarrow.parquet import ParquetFile  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise DataError(
            f"Expected the package pyarrow, to read {path}; got none. "
            "pip install 'pyro-dvae[parquet]', or save the table as .csv."
        ) from None
    import pandas as pd

    with path.open("rb") as file:
        stated = ParquetFile(file).metadata
        _refuse_large(path, stated.num_rows, stated.num_columns)
        file.seek(0)
        frame = pd.read_parquet(file, engine="pyarrow")
    names = [str(name) for name in frame.columns]
    if labels is None:
        return names, frame, None, None
    classes = frame.iloc[:, _find(names, labels, path)]
    numeric = classes.dtype.kind in "biuf"
    text = classes if numeric else classes.astype(object).where(classes.notna(), "").astype(str)
    return names, frame, text.to_numpy(None if numeric else str), None


def _refuse_large_text(path: Path, separator: str) -> None:
    """Refuse a text file with too many columns, or with more cells than fit into memory."""
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
    _refuse_large(path, path.stat().st_size * num_lines // max(1, some), cells)


def _refuse_large(path: Path, num_rows: int, num_columns: int) -> None:
    if num_columns > MOST_COLUMNS:
        raise DataError(
            f"Expected at most {MOST_COLUMNS:,} columns in {path}; got {num_columns:,}. Save the "
            "numbers as .npy, or fewer columns."
        )
    what = f"{path}, about {num_rows:,} rows of {num_columns:,} columns"
    refuse_too_large(what, num_rows * num_columns * _CELL_BYTES, "Save the numbers as .npy.")


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
        float(cell)
    except ValueError:
        return cell.strip().lower() in ("true", "false", "na", "n/a", "null", "none")
    return True


def _taken(
    names: list[str], columns: Sequence[Column] | None, labels: Column | None, path: Path
) -> list[int]:
    """The numbers of the columns to take."""
    if columns is not None:
        taken = [i for column in columns for i in _range(names, column, path)]
    else:
        label = None if labels is None else _find(names, labels, path)
        taken = [i for i in range(len(names)) if i != label]
        unnamed = [i for i in taken if not names[i]]
        if unnamed:
            raise DataError(
                f"Expected a name for every column in {path}; got none for column {unnamed[0]}, "
                "often the index of the rows. Name the columns to take, as columns=['a', 'b']."
            )
    if not taken or len(set(taken)) < len(taken):
        raise DataError(
            f"Expected different columns to take from {path}; got "
            f"{shorten([names[i] for i in taken]) or 'none'}. Name each once."
        )
    return taken


def _range(names: list[str], column: Column, path: Path) -> list[int]:
    first, dash, last = str(column).partition("-")
    if str(column) in names or not (dash and first.isdecimal() and last.isdecimal()):
        return [_find(names, column, path)]
    stop = _find(names, int(last), path) + 1
    return list(range(_find(names, int(first), path), stop))


def _find(names: list[str], column: Column, path: Path) -> int:
    text = str(column).strip()
    is_name = isinstance(column, str) and text in names
    if is_name and names.count(text) == 1:
        return names.index(text)
    if not is_name and text.isdecimal() and int(text) < len(names):
        return int(text)
    twice = "a name that occurs twice, " if is_name else ""
    raise DataError(
        f"Expected a column of {path}: {shorten(names, 8)}; got {twice}{text!r}. Name one, or its "
        "number, counted from 0."
    )


def _values(frame: Any, taken: list[int], names: list[str], path: Path) -> NDArray[Any]:
    """The columns as one array (N, C) of the narrowest dtype that holds them all."""
    whole = len(taken) == len(names) and taken == list(range(len(names)))
    some = frame if whole else frame.iloc[:, taken]
    dtypes = set(some.dtypes)
    if len(dtypes) == 1 and isinstance(dtype := dtypes.pop(), np.dtype) and dtype.kind in "biuf":
        # To convert column by column takes ten times as long.
        return np.require(some.to_numpy(), requirements=("C", "W"))
    arrays = [_numbers(frame.iloc[:, i], names[i], path) for i in taken]
    return np.stack(arrays, axis=1, dtype=np.result_type(*arrays))


def _numbers(column: Any, name: str, path: Path) -> NDArray[Any]:
    import pandas as pd

    missing = column.isna()
    if pd.api.types.is_bool_dtype(column.dtype) or pd.api.types.is_numeric_dtype(column.dtype):
        if isinstance(column.dtype, np.dtype):
            return np.asarray(column)
        # pandas has dtypes of its own for columns in which cells may be missing.
        if missing.any():
            return np.asarray(column.to_numpy("float64", na_value=np.nan))
        return np.asarray(column.to_numpy(column.dtype.numpy_dtype))
    if all(isinstance(value, bool) for value in column[~missing]):
        return np.asarray(column.astype("float64"))
    wrong = (pd.to_numeric(column.astype(str), errors="coerce").isna() & ~missing).to_numpy()
    row = int(wrong.argmax()) if wrong.any() else int(missing.argmin())
    raise DataError(
        f"Expected numbers in {path}; got {str(column.iloc[row])[:40]!r} in row {row} (counted "
        f"from 0), column {name!r}. Choose other columns with columns=..., use this one as the "
        f"labels with labels={name!r}, or write numbers in its place."
    )
