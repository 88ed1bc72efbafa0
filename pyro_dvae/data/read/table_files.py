"""Tables: CSV, TSV and Parquet files, and data frames, which pandas reads."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyro_dvae.data.read.arrays import torch_dtype
from pyro_dvae.data.read.cells import (
    BITS,
    UnsuitableError,
    read_cells,
    refuse_unsuitable,
    texts_of,
)
from pyro_dvae.data.read.errors import DataError, reading, shorten
from pyro_dvae.data.read.groups import number_groups, times_of
from pyro_dvae.data.read.labels import number_classes
from pyro_dvae.data.read.rows import NO_LEVELS, Levels
from pyro_dvae.data.read.table_rows import Column, TableRows
from pyro_dvae.data.read.text_tables import counts_rows, read_text, refuse_large

TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")

_INDEX_NAME = re.compile(r"(index|row|row_?names|unnamed: 0|.*id)?", re.IGNORECASE)
"""The names of columns that may count the rows."""


class TableOptions(NamedTuple):
    """Which columns of a table are taken, and as what; `open_source` explains each."""

    columns: Sequence[Column] | None = None
    drop: Sequence[Column] | None = None
    labels: Column | None = None
    ids: Column | None = None
    group: Column | None = None
    time: Column | None = None
    nominal: Sequence[Column] | None = None
    dates: bool | None = None
    other: bool | None = None
    levels: Levels = NO_LEVELS


def table_file(path: Path, header: bool | None = None, **options: Any) -> TableRows:
    """Read a table; nothing in the file is executed.

    A cell is missing, and becomes NaN, if it is empty or says ``NA``, ``NaN``, ``null``, ...

    Args:
        path: A ``.csv`` or ``.tsv`` file, whose separator, decimal comma and encoding are found,
            or a ``.parquet`` file.
        header: Whether the first line of a ``.csv`` or ``.tsv`` file holds the names of the
            columns. None decides by the cells: the line is a header if its cells are text, if
            some text stands above a number, or if the cells are 0, 1, 2, ...
        **options: Those of `TableOptions`.

    Returns:
        The rows, of the narrowest dtype that holds every column.

    Raises:
        DataError: If the file is damaged, if there is no such column, or if a column that is taken
            holds neither numbers nor names that recur.
    """
    chosen = TableOptions(**options)
    is_parquet = path.suffix.lower() == ".parquet"
    if is_parquet and header is not None:
        raise DataError(
            f"Expected header=None with {path}, which has names; got {header}. Leave it out."
        )
    with reading(path, "a whole table of numbers or names"):
        if is_parquet:
            rows = frame_rows(read_parquet(path), str(path), chosen, is_file=True)
            rows.reread = partial(_reread_file, path, None, options)
            return rows
        as_text = [name for name, levels in chosen.levels.items() if levels != BITS]
        table = read_text(path, header, as_text)
        names, frame, notices, text = table
        rows = _rows(names, frame, str(path), chosen, notices, text, _index(names, frame))
        rows.reread = partial(_reread_file, path, header, options)
        return rows


def frame_rows(frame: Any, where: str, chosen: TableOptions, *, is_file: bool = False) -> TableRows:
    """Take a data frame of pandas as rows.

    Args:
        frame: The data frame. The names of its index are the names of the rows, where it has some.
        where: What messages call it.
        chosen: Which columns are taken, and as what.
        is_file: Whether a column that counts the rows is left out, as in files.

    Raises:
        DataError: As `table_file`.
    """
    import pandas as pd  # type: ignore[import-untyped, unused-ignore]

    counts = isinstance(frame.index, pd.RangeIndex) and frame.index.name is None
    named = frame.index.nlevels == 1 and not counts
    ids = tuple(map(str, frame.index)) if named and frame.index.is_unique else None
    names = [str(name) for name in frame.columns]
    index = _index(names, frame) if is_file else None
    rows = _rows(names, frame, where, chosen, [], lambda i: _text(frame.iloc[:, i]), index, ids)
    rows.reread = partial(_reread_frame, frame, where, chosen)
    return rows


def _reread_file(
    path: Path, header: bool | None, options: dict[str, Any], nominal: Sequence[Column]
) -> TableRows:
    nominal = [*(options.get("nominal") or ()), *nominal]
    return table_file(path, header, **{**options, "nominal": nominal})


def _reread_frame(
    frame: Any, where: str, chosen: TableOptions, nominal: Sequence[Column]
) -> TableRows:
    nominal = [*(chosen.nominal or ()), *nominal]
    return frame_rows(frame, where, chosen._replace(nominal=nominal))


def _text(column: Any) -> Any:
    """The labels of a column: numbers, or texts."""
    if column.dtype.kind in "biuf":
        return column
    return column.astype(object).where(column.notna(), "").astype(str)


def _rows(
    names: list[str],
    frame: Any,
    where: str,
    chosen: TableOptions,
    notices: list[str],
    text: Any,
    index: int | None,
    ids: tuple[str, ...] | None = None,
) -> TableRows:
    """The columns that are asked for, as numbers."""
    if not len(frame):
        raise DataError(f"Expected at least one row in {where}; got none. Add data.")
    taken = _taken(names, chosen, index, where)
    if index is not None and index not in taken:
        column, counts = frame.iloc[:, index], counts_rows(frame.iloc[:, index])
        ids = ids if counts else tuple(texts_of(column))
        if chosen.columns is None:
            called = f", {names[index]!r}," if names[index] else ""
            told = "counts the rows" if counts else "has no name"
            notices = [*notices, f"column {index}{called} {told}, and is left out as their index"]
    if chosen.ids is not None:
        ids = tuple(texts_of(frame.iloc[:, _find(names, chosen.ids, where)]))
    values, levels, ordered = _values(frame, taken, names, chosen, where)
    values = values.astype(torch_dtype(values, f"the data in {where}"), copy=False)
    numbered = None
    if chosen.labels is not None:
        classes = text(_find(names, chosen.labels, where)).to_numpy()
        numbered = number_classes(
            classes if classes.dtype.kind in "biuf" else classes.astype(str), where
        )
    count = Counter(names)
    repeated = dict.fromkeys(names[i] for i in taken if count[names[i]] > 1)
    if repeated:
        notices = [*notices, f"more than one column is called {shorten(list(repeated))}"]
    notice = "; ".join(notices) or None
    columns = [names[i] for i in taken]
    rows = TableRows(values, columns, numbered, notice, tuple(repeated), levels, ordered, ids)
    if chosen.group is not None:
        column = frame.iloc[:, _find(names, chosen.group, where)]
        rows.groups = number_groups(column, f"column {chosen.group!r} of {where}")
    if chosen.time is not None:
        column = frame.iloc[:, _find(names, chosen.time, where)]
        rows.times = times_of(column, f"column {chosen.time!r} of {where}")
    return rows


def read_parquet(path: Path) -> Any:
    """Read a ``.parquet`` file as a data frame of pandas."""
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
        refuse_large(path, stated.num_rows, stated.num_columns)
        file.seek(0)
        return pd.read_parquet(file, engine="pyarrow")


def _index(names: list[str], frame: Any) -> int | None:
    """The column that is the index of the rows: it counts them, or it has no name."""
    unnamed = [i for i, name in enumerate(names) if not name]
    for i, name in enumerate(names):
        if _INDEX_NAME.fullmatch(name) and counts_rows(frame.iloc[:, i]):
            return i
    if len(unnamed) == 1 and len(names) > 1 and frame.iloc[:, unnamed[0]].is_unique:
        return unnamed[0]
    return None


def _taken(names: list[str], chosen: TableOptions, index: int | None, where: str) -> list[int]:
    """The numbers of the columns to take."""

    def found(columns: Sequence[Column] | None) -> list[int]:
        return [i for column in columns or () for i in _range(names, column, where)]

    left = found(chosen.drop) + found(
        [
            column
            for column in (chosen.labels, chosen.ids, chosen.group, chosen.time)
            if column is not None
        ]
    )
    if chosen.columns is not None:
        taken = [i for i in found(chosen.columns) if i not in found(chosen.drop)]
    else:
        taken = [i for i in range(len(names)) if i not in left and i != index]
        unnamed = [i for i in taken if not names[i]]
        if unnamed:
            raise DataError(
                f"Expected a name for every column in {where}; got none for column {unnamed[0]}. "
                f"Leave it out with drop={unnamed}, or name the columns to take, as "
                "columns=['a', 'b']."
            )
    if not taken or len(set(taken)) < len(taken):
        raise DataError(
            f"Expected different columns to take from {where}; got "
            f"{shorten([names[i] for i in taken]) or 'none'}. Name each once."
        )
    return taken


def _range(names: list[str], column: Column, where: str) -> list[int]:
    first, dash, last = str(column).partition("-")
    if str(column) in names or not (dash and first.isdecimal() and last.isdecimal()):
        return [_find(names, column, where)]
    stop = _find(names, int(last), where) + 1
    return list(range(_find(names, int(first), where), stop))


def _find(names: list[str], column: Column, where: str) -> int:
    text = str(column).strip()
    is_name = isinstance(column, str) and text in names
    if is_name and names.count(text) == 1:
        return names.index(text)
    if not is_name and text.isdecimal() and int(text) < len(names):
        return int(text)
    twice = "a name that occurs twice, " if is_name else ""
    raise DataError(
        f"Expected a column of {where}: {shorten(names, 8)}; got {twice}{text!r}. Name one, or its "
        "number, counted from 0."
    )


def _values(
    frame: Any, taken: list[int], names: list[str], chosen: TableOptions, where: str
) -> tuple[NDArray[Any], dict[str, tuple[str, ...]], list[str]]:
    """The columns as one array (N, C) of the narrowest dtype that holds them all, their levels."""
    nominal = {_find(names, column, where) for column in chosen.nominal or ()}
    whole = len(taken) == len(names) and taken == list(range(len(names)))
    some = frame if whole else frame.iloc[:, taken]
    dtypes = set(some.dtypes)
    one = dtypes.pop() if len(dtypes) == 1 else None
    plain = not nominal and not any(names[i] in chosen.levels for i in taken)
    if plain and isinstance(one, np.dtype) and one.kind in "iuf":
        # To convert column by column takes ten times as long.
        return np.require(some.to_numpy(), requirements=("C", "W")), {}, []
    arrays, levels, ordered, unsuitable = [], {}, [], {}
    for i in taken:
        try:
            cells = read_cells(
                frame.iloc[:, i],
                f"column {names[i]!r} of {where}",
                levels=chosen.levels.get(names[i]),
                as_levels=i in nominal,
                dates=bool(chosen.dates),
                other=bool(chosen.other),
            )
        except UnsuitableError as told:
            unsuitable[names[i]] = str(told)
            continue
        arrays.append(cells.values)
        if cells.levels is not None:
            levels[names[i]] = cells.levels
            ordered += [names[i]] if cells.is_ordered else []
    refuse_unsuitable(unsuitable, len(arrays), where)
    return np.stack(arrays, axis=1, dtype=np.result_type(*arrays)), levels, ordered
