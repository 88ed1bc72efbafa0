"""The groups and the times of rows that are not in a column: in an array, a file, or folders."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from pyro_dvae.data.read.arrays import SUFFIXES, read_arrays
from pyro_dvae.data.read.cells import texts_of
from pyro_dvae.data.read.errors import DataError, reading, regular_file, shorten
from pyro_dvae.data.read.groups import number_groups, times_of
from pyro_dvae.data.read.rows import Source, ids_in
from pyro_dvae.data.read.table_files import TABLE_SUFFIXES, read_parquet
from pyro_dvae.data.read.table_rows import TableRows
from pyro_dvae.data.read.text_tables import read_text

FOLDER = "folder"
"""The group of an image that is the name of its folder."""
_FORMS = ", ".join(SUFFIXES + TABLE_SUFFIXES)


def file_beside(value: Any) -> tuple[Path, str | None] | None:
    """The file that a text names, and the column of it behind a colon: "visits.csv:patient".

    Returns:
        The file, by its absolute path, and the name of the column or None; None where the text
        names no file of one of the formats.
    """
    if not isinstance(value, (str, Path)):
        return None
    text = os.path.expanduser(str(value))
    head, _, column = text.rpartition(":")
    for path, its in ((text, None), (head, column)):
        is_path = os.path.isfile(path) or os.path.dirname(path)
        if Path(path).suffix.lower() in SUFFIXES + TABLE_SUFFIXES and is_path:
            return Path(path).resolve(), its
    return None


def with_order(source: Source, group: Any = None, time: Any = None) -> Source:
    """The data with the groups and the times of their training rows.

    Args:
        source: The data. Those of a table may have them from its columns.
        group: What says which rows belong together: one name or number per row, a file of them,
            "folder", or the name of an array of the ``.npz`` file of the data. None for none.
        time: What says when each row was measured, as for `group`.

    Raises:
        DataError: If there is not one value for each row, or there are both groups and times.
    """
    rows = source.train
    groups, times = (rows.groups, rows.times) if isinstance(rows, TableRows) else (None, None)
    if group is not None:
        groups = number_groups(*_values(source, group, "group"))
    if time is not None:
        times = times_of(*_values(source, time, "time"))
    if groups is not None and times is not None:
        raise DataError(
            "Expected groups of rows, or rows in the order of their time; got both. Leave "
            "group=... or time=... out."
        )
    return source._replace(groups=groups, times=times)


def _values(source: Source, given: Any, what: str) -> tuple[Any, str]:
    """One value per row, and where they are from, for messages."""
    num, beside = len(source.train), file_beside(given)
    if beside is not None:
        values, where = _of_file(source, *beside, what), str(given)
    elif not isinstance(given, (str, Path)):
        values, where = given, what
    elif source.where.lower().endswith(".npz"):
        with reading(source.where, f"an array {str(given)!r} of one {what} for each row"):
            values = np.asarray(read_arrays(Path(source.where), str(given))[0])
        where = f"{given!r} of {source.where}"
    elif given == FOLDER and what == "group" and _are_files(source):
        values = [PurePosixPath(name).parent.name for name in ids_in(source.train) or ()]
        where = f"the folders of {source.where}"
    else:
        or_folder = f', or "{FOLDER}"' if what == "group" and _are_files(source) else ""
        raise DataError(
            f"Expected {what}=... as a file with one {what} per row ({_FORMS}){or_folder}; got "
            f"{str(given)!r}, which is none. Check the path."
        )
    if hasattr(values, "__len__") and len(values) != num:
        raise DataError(
            f"Expected {what}=... with one value per row, {num}; got {len(values)}"
            f"{'' if beside is None else f' in {given}'}. Pass one for each row."
        )
    return values, where


def _are_files(source: Source) -> bool:
    """Whether each row is a file of its own, in a folder."""
    ids = ids_in(source.train)
    return ids is not None and os.path.isdir(source.where)


def _of_file(source: Source, path: Path, column: str | None, what: str) -> Any:
    """One value per row, of a file."""
    with reading(regular_file(path), f"a file with one {what} for each row"):
        if path.suffix.lower() in SUFFIXES:
            return np.asarray(read_arrays(path, column)[0])
        if path.suffix.lower() == ".parquet":
            frame = read_parquet(path)
            return _of_table([str(name) for name in frame.columns], frame, source, path, column)
        num, got, refusal = len(source.train), 0, None
        for header in (None, False) if column is None else (None,):
            names, frame, _, _ = read_text(path, header)
            try:
                values = _of_table(names, frame, source, path, column)
            except DataError as error:
                refusal = refusal or error
                continue
            # A first line of text is the first value, and no name, only if it occurs again.
            first_recurs = len(names) > 1 or int((values == values.iloc[0]).sum()) > 1
            if len(values) == num and (header is None or first_recurs):
                return values
            got = got or len(values)
        raise refusal or DataError(
            f"Expected {what}=... with one value per row, {num}; got {got} in {path}. "
            f"Write one line for each row, below a line that names the column."
        )


def _of_table(names: list[str], frame: Any, source: Source, path: Path, column: str | None) -> Any:
    """A column of a table, in the order of the data where another column names their rows."""
    ids = ids_in(source.train)
    key = None if ids is None or len(names) == 1 else _names_in(frame, ids, path)
    if key is None and len(names) > 1 and _are_files(source):
        raise DataError(
            f"Expected a column with the names of the images in {path}; got {shorten(names, 8)}, "
            f"of which none has {(ids or ('',))[0]!r}. Write the path of each image below "
            f"{source.where}."
        )
    others = [i for i in range(len(names)) if key is None or i != key[0]]
    if column is not None:
        others = [i for i in others if column in (names[i], str(i))]
    if len(others) != 1:
        got = "several" if column is None else f"no {column!r}"
        raise DataError(
            f"Expected one column of values in {path}, which has {shorten(names, 8)}; got {got}. "
            f"Name the column behind a colon, as in {path.name}:{names[-1]}."
        )
    values = frame.iloc[:, others[0]]
    return values if key is None else values.iloc[key[1]]


def _names_in(frame: Any, ids: tuple[str, ...], path: Path) -> tuple[int, list[int]] | None:
    """The column that names the rows, and where each row stands in it; None if there is none.

    Rows may be named by their path, or by the name of their file if no two have one.
    """
    files = tuple(PurePosixPath(name).name for name in ids)
    stems = tuple(PurePosixPath(name).stem for name in ids)
    for number in range(frame.shape[1]):
        texts = texts_of(frame.iloc[:, number]).tolist()
        places = {text: place for place, text in enumerate(texts)}
        for wanted in (ids, files, stems):
            missing = [name for name in wanted if name not in places]
            if len(set(wanted)) < len(wanted) or len(missing) > len(wanted) / 2:
                continue
            count = Counter(texts)
            twice = [name for name in wanted if count[name] > 1]
            if missing or twice:
                raise DataError(
                    f"Expected one line for each row in {path}; got "
                    f"{'none' if missing else 'several'} for {(missing or twice)[0]!r}, and so for "
                    f"{len(missing or twice):,} in all. Write one line for each."
                )
            return number, [places[name] for name in wanted]
    return None
