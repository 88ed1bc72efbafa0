"""The cells of a table's column as numbers: levels by name, bits, dates, or as they are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyro_dvae.data.read.errors import DataError, shorten

BITS = ("False", "True")
"""The levels of a column of bits."""
OTHER = "(other)"
"""The level of all names that have no level of their own."""
MOST_NAMES = 1_000
"""The most levels of a column."""
_FEW_NAMES = 16
"""So many different names are levels however few the rows are."""

_DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([ T]\d.*)?")
_ISO_DATE = re.compile(r"\d{4}[-/]\d{1,2}[-/]\d{1,2}([ T]\d.*)?")


class Cells(NamedTuple):
    """The N cells of a column."""

    values: NDArray[Any]
    """(N,) numbers, NaN where a cell is missing; the numbers of the levels where there are some."""
    levels: tuple[str, ...] | None = None
    """The names of the levels 0, 1, ...; None where the cells are numbers."""
    is_ordered: bool = False
    """Whether the levels have an order that means something, as those of pandas may."""


class UnsuitableError(DataError):
    """A column is left out best: it holds dates, or names of which hardly two are equal.

    The message says what it holds, for `refuse_unsuitable`.
    """


def read_cells(
    column: Any,
    where: str,
    *,
    levels: Sequence[str] | None = None,
    as_levels: bool = False,
    dates: bool = False,
    other: bool = False,
) -> Cells:
    """Read a column of a data frame.

    Numbers stay as they are, and so do bits. Text and pandas categories become levels.

    Args:
        column: A pandas Series.
        where: The column and its file, for messages: "column 'island' of penguins.csv".
        levels: The names of the levels that a model was trained on; None to find them.
        as_levels: Whether numbers become levels too.
        dates: Whether dates become days since 1970-01-01.
        other: Whether the column gets a level more, `OTHER`, for names that come later.

    Raises:
        DataError: If a cell is neither a number nor a level.
        UnsuitableError: If the column should be left out.
    """
    import pandas as pd  # type: ignore[import-untyped, unused-ignore]

    missing = column.isna().to_numpy()
    is_numeric = pd.api.types.is_numeric_dtype(column.dtype)  # which bits are too
    is_bool = pd.api.types.is_bool_dtype(column.dtype)
    if levels is not None and not (tuple(levels) == BITS and is_numeric and not is_bool):
        return Cells(_numbered(texts_of(column), missing, levels, where), tuple(levels))
    if isinstance(column.dtype, pd.CategoricalDtype):
        found = texts_of(column.cat.categories.to_series()).tolist()
        cells = _levelled(texts_of(column), missing, found, other, where)
        return cells._replace(is_ordered=bool(column.cat.ordered))
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        return Cells(_days(column, where, dates))
    if is_bool or (not is_numeric and all(isinstance(x, bool) for x in column[~missing])):
        numbers = np.asarray(column.astype("float64" if missing.any() else bool))
        return Cells(numbers, None if missing.all() else BITS)
    if is_numeric and not as_levels:
        return Cells(_numbers(column, missing), None if levels is None else tuple(levels))
    strange = [x for x in column[~missing] if not isinstance(x, str | int | float | np.generic)]
    if strange and not is_numeric and not isinstance(strange[0], date):
        raise DataError(
            f"Expected numbers or names in {where}; got {str(strange[0])[:40]!r}, a "
            f"{type(strange[0]).__name__}. Leave the column out, or write one number or name into "
            "each cell."
        )
    texts = texts_of(column)
    missing = missing | (texts == "")
    if not is_numeric:
        if not missing.all() and all(_DATE.fullmatch(text) for text in texts[~missing]):
            return Cells(_days(column.where(~missing), where, dates))
        if not as_levels:
            _refuse_almost_numbers(texts, missing, where)
    found = sorted(set(texts[~missing]), key=_order)
    num = len(texts) - int(missing.sum())
    if len(found) > _FEW_NAMES and (len(found) > MOST_NAMES or len(found) > num / 2):
        raise UnsuitableError(f"{len(found):,} different texts in {num:,} rows")
    return _levelled(texts, missing, found, other, where)


def texts_of(column: Any) -> NDArray[Any]:
    """The text of each cell, (N,), without blanks around it; a whole number has no point."""
    import pandas as pd

    if isinstance(column.dtype, pd.CategoricalDtype):
        names = texts_of(column.cat.categories.to_series())
        return np.array([*names, ""], object)[column.cat.codes]  # the code of a missing cell is -1
    if column.dtype.kind == "f":
        return np.array([f"{x:.0f}" if x == x // 1 else repr(x) for x in column.tolist()], object)
    return np.array([str(x).strip() for x in column.tolist()], object)


def _order(text: str) -> tuple[float, str]:
    """Numbers come in the order of their size, before names."""
    try:
        return float(text), ""
    except ValueError:
        return np.inf, text


def _levelled(
    texts: NDArray[Any], missing: NDArray[Any], found: list[str], other: bool, where: str
) -> Cells:
    levels = [*found, OTHER] if other and OTHER not in found else found
    return Cells(_numbered(texts, missing, levels, where), tuple(levels))


def _numbered(
    texts: NDArray[Any], missing: NDArray[Any], levels: Sequence[str], where: str
) -> NDArray[Any]:
    """The number of each level; NaN where a cell is missing."""
    number = {name: i for i, name in enumerate(levels)}
    unknown = number.get(OTHER, -1)
    codes = np.array([number.get(_plain(text, number), unknown) for text in texts], np.int64)
    missing = missing | ((texts == "") & ~np.isin("", list(levels)))
    wrong = (codes < 0) & ~missing
    if wrong.any():
        row = int(wrong.argmax())
        rows = f", and in {wrong.sum() - 1:,} more rows" if wrong.sum() > 1 else ""
        raise DataError(
            f"Expected {shorten(list(levels), 12)} in {where}, as the model was trained on; got "
            f"{texts[row][:40]!r} in row {row + 1} (the first is row 1){rows}. Correct such rows "
            "or leave them out, or train a model with other=True, which gives such names a level."
        )
    return np.where(missing, np.nan, codes) if missing.any() else codes


def _plain(text: str, known: Mapping[str, int]) -> str:
    """The name of a level: "2007" for "2007.0", unless that is a level itself."""
    if text not in known and _is_number(text) and float(text) % 1 == 0:
        return f"{float(text):.0f}"
    return text


def _numbers(column: Any, missing: NDArray[Any]) -> NDArray[Any]:
    if isinstance(column.dtype, np.dtype):
        return np.asarray(column)
    # pandas has dtypes of its own for columns in which cells may be missing.
    if missing.any():
        return np.asarray(column.to_numpy("float64", na_value=np.nan))
    return np.asarray(column.to_numpy(column.dtype.numpy_dtype))


def _days(column: Any, where: str, dates: bool) -> NDArray[Any]:
    if not dates:
        raise UnsuitableError(f"dates ({_first(column)})")
    return days_of(column, where)


def _first(column: Any) -> str:
    return str(column.dropna().iloc[0])[:40] if column.notna().any() else "none"


def days_of(column: Any, where: str) -> NDArray[Any]:
    """Dates as days since 1970-01-01, (N,) float64; NaN where a cell is missing.

    Args:
        column: A pandas Series of dates, or of their texts.
        where: The column, for messages.

    Raises:
        DataError: If a cell is no date, or its day and month cannot be told apart.
    """
    import pandas as pd

    missing = column.isna().to_numpy()
    if not pd.api.types.is_datetime64_any_dtype(column.dtype):
        texts = column.astype(str).str.strip().str.replace("/", "-")
        is_date = [_ISO_DATE.fullmatch(text) is not None for text in texts]
        others = np.flatnonzero(~(missing | is_date))
        if len(others):
            told = str(column.iloc[others[0]]).strip()[:40]
            why = ", whose day and month cannot be told apart," * bool(_DATE.fullmatch(told))
            raise DataError(
                f"Expected dates written as 2024-12-31 in {where}; got {told!r}{why} in row "
                f"{others[0]} (counted from 0). Rewrite such cells, or leave the column out with "
                "drop=..."
            )
        column = pd.to_datetime(texts.where(~missing), errors="coerce", format="mixed", utc=True)
        wrong = column.isna().to_numpy() & ~missing
        if wrong.any():
            row = int(wrong.argmax())
            raise DataError(
                f"Expected dates in {where}; got {texts.iloc[row][:40]!r} in row {row} (counted "
                "from 0). Correct it."
            )
    zone = column.dtype.tz if isinstance(column.dtype, pd.DatetimeTZDtype) else None
    start = pd.Timestamp("1970-01-01", tz=zone)
    return np.asarray((column - start) / pd.Timedelta(days=1), np.float64)


def _refuse_almost_numbers(texts: NDArray[Any], missing: NDArray[Any], where: str) -> None:
    """Refuse a column of numbers in which some cells are something else, a question mark say."""
    is_number = np.array([_is_number(text.replace(",", "")) for text in texts]) & ~missing
    others = ~(is_number | missing)
    if is_number.sum() < max(1, others.sum()):
        return
    row = int(others.argmax()) if others.any() else int(is_number.argmax())
    raise DataError(
        f"Expected numbers in {where}; got {texts[row][:40]!r} in row {row} (counted from 0). "
        "Write a number there, or leave the cell empty if it is missing; or take all cells as "
        "names with nominal=..."
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def refuse_unsuitable(unsuitable: dict[str, str], num_others: int, where: str) -> None:
    """Refuse all columns of a table from which no model can learn, in one line.

    Args:
        unsuitable: Name of a column -> what it holds.
        num_others: How many other columns are taken.
        where: The table.
    """
    if not unsuitable:
        return
    held = [f"{what} in column {name!r}" for name, what in unsuitable.items()]
    them = "it" if len(held) == 1 else "them"
    dates = any(what.startswith("dates") for what in unsuitable.values())
    days = ", or take dates as days since 1970-01-01 with dates=True" if dates else ""
    left = "" if num_others else " No other column is left."
    raise DataError(
        f"Expected numbers, or names that recur, in {where}; got {shorten(held)}. Leave {them} out "
        f"with drop={list(unsuitable)}{days}.{left}"
    )
