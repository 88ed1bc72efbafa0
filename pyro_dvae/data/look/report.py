"""What a scan found, in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from pyro_dvae.data.look.fits import Fit
from pyro_dvae.data.look.scan import MAX_DISTINCT, ColumnScan, Scan
from pyro_dvae.data.read.errors import shorten
from pyro_dvae.data.read.rows import Levels
from pyro_dvae.data.serve.ranges import is_dark
from pyro_dvae.likelihoods.names import kinds_of_columns, unmasked
from pyro_dvae.specs import name_and_argument

_SHOWN = 10
_CORRELATED_COLUMNS = 8
"""The least real columns for which correlated ones are suggested. They gain 15 nats per row for
30 columns of breast cancer, and lose 1 for 4 columns of the weather."""
_CORRELATED_ROWS = 15
"""The least rows per column for that: with 11, as for wine, they gain nothing."""
_MOST_COLUMNS = 40
_MEANING = {
    "uint8": "uint8, read as brightness from 0 to 255",
    "bool": "bool, read as zeros and ones",
}


def describe(scan: Scan) -> list[str]:
    """What a scan found, in lines for people.

    Args:
        scan: What was found.

    Returns:
        One line per subject; each begins with the subject.
    """
    shape = " x ".join(map(str, scan.event_shape)) or "a single number"
    hint = ""
    if len(scan.event_shape) == 3 and scan.event_shape[-1] in (1, 3, 4):
        hint = "; channels come first here, so transpose to (N, C, H, W) if the last axis is theirs"
    distinct = f"more than {MAX_DISTINCT}" if scan.num_distinct is None else scan.num_distinct
    span = "none finite" if scan.low is None else f"{scan.low:g} to {scan.high:g}"
    lines = [
        ("data", f"{_count(scan.num_data, 'row')} of {shape}{hint}"),
        ("type", _type(scan)),
        ("values", f"{span}, {distinct} distinct"),
        ("missing", _bad(scan) or "none, and none infinite"),
        ("duplicates", _duplicates(scan)),
    ]
    if scan.images is not None:
        stored = [f"{image}, first {image.first}" for image in scan.images]
        lines.append(("images", shorten(stored, _SHOWN)))
    if scan.columns is not None:
        shown = [_column(column) for column in scan.columns[:_MOST_COLUMNS]]
        more = len(scan.columns) - len(shown)
        shown += [("", "", f"and {more:,} more columns")] * (more > 0)
        widths = [max(map(len, part)) for part in list(zip(*shown, strict=True))[:2]]
        for i, (name, kind, text) in enumerate(shown):
            line = f"{name:{widths[0]}}  {kind:{widths[1]}}  {text}"
            lines.append(("" if i else "columns", line))
    if scan.classes is not None:
        least, most = min(scan.classes.values()), max(scan.classes.values())
        span = f"{least:,} each" if least == most else f"{least:,} to {most:,}"
        counts = [f"{name} ({count:,})" for name, count in scan.classes.items()]
        lines.append(("classes", f"{len(counts)} of {span}: {shorten(counts, _SHOWN)}"))
    for fit in scan.fits:
        verdict = f"fits with {fit.text}" if fit.settings else "fits"
        verdict = verdict if fit.fits else "does not fit"
        lines.append((fit.likelihood, f"{verdict}: {fit.reason}"))
    width = max(len(subject) for subject, _ in lines)
    return [f"{subject:{width}}  {text}" for subject, text in lines]


def suggest(scan: Scan) -> Fit | None:
    """The likelihood to try first on data; None if no model can be trained on them.

    For a table whose columns are of one kind it is the likelihood of this kind, and else the
    "mixed" one. Real columns are taken as correlated where there are at least 8, no value is
    missing, and there are at least 15 rows per column. In a mixed table these are the real columns
    that stand beside each other. For other data it is the Bernoulli
    likelihood where that takes them without a range, or where they are uint8, then one of numbers
    in [0, 1], of counts, and of real numbers.
    """
    if complaint(scan) is not None:
        return None
    fits = {fit.likelihood: fit for fit in scan.fits if fit.fits}
    if scan.columns is not None:
        kinds = {column.likelihood.partition(":")[0] for column in scan.columns}
        kind = kinds.pop() if len(kinds) == 1 else "mixed"
        names = _correlated(scan)
        if kind == "normal" and names:
            return fits.get("correlated-normal")
        fit = fits.get("mixed" if kind == "categorical" else kind)
        if fit is None or kind != "mixed" or not names:
            return fit
        kinds_named = ",".join(f"{name}=correlated-normal" for name in names)
        return replace(fit, settings={"likelihood": f"mixed:{kinds_named}"})
    bits = fits.get("bernoulli")
    if bits is not None and ("range" not in (bits.settings or {}) or scan.dtype == "uint8"):
        return bits
    for name in ("continuous-bernoulli", "negative-binomial", "normal"):
        fit = fits.get(name)
        if fit is not None and "range" not in (fit.settings or {}):
            return fit
    return None


def _correlated(scan: Scan) -> list[str]:
    """The real columns to take as correlated: those beside each other, if they are enough."""
    runs = groupby(scan.columns or (), lambda column: column.likelihood)
    blocks = [[column.name for column in run] for kind, run in runs if kind == "normal"]
    names = [name for block in blocks if len(block) > 1 for name in block]
    few = scan.num_data < _CORRELATED_ROWS * len(names)
    if scan.num_missing or len(names) < _CORRELATED_COLUMNS or few:
        return []
    return [] if any(set(name) & set(",=\"'\\") for name in names) else names


def complaint(scan: Scan, *, trained: bool = False) -> str | None:
    """Say in one line why no model can be trained on the data; None if one can.

    Args:
        scan: What was found.
        trained: Whether the model is trained already, so that columns may be empty.
    """
    if scan.num_infinite or (scan.low is None and not trained):
        return f"Expected finite numbers; got {_bad(scan)}. Drop or replace such values."
    empty = [column.name for column in scan.columns or () if column.low is None]
    if empty and not trained:
        return (
            f"Expected finite numbers in each column; got none in column {empty[0]!r}. Leave it "
            f"out with drop={empty}."
        )
    return None


def describe_missing(scan: Scan) -> str | None:
    """One line: how many values are missing, and what becomes of them; None if none are."""
    if not scan.num_missing:
        return None
    total = scan.num_data * math.prod(scan.event_shape)
    return (
        f"{scan.num_missing:,} of {total:,} values ({100 * scan.num_missing / total:.2g} %) are "
        "missing: the likelihood leaves them out, and the encoder sees which they are"
    )


def _type(scan: Scan) -> str:
    """What the type of the values means."""
    if scan.low is not None and is_dark(scan.extent):
        return "uint8, but too dark to be brightness from 0 to 255: name the range of the values"
    return _MEANING.get(scan.dtype, f"{scan.dtype}, read as it is: no range is assumed")


def _bad(scan: Scan) -> str:
    counts = {"missing (NaN)": scan.num_missing, "infinite": scan.num_infinite}
    found = " and ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    if scan.first_bad is None:
        return ""
    row, *place = scan.first_bad
    where = f"row {row}"
    if scan.columns is not None:
        where += f", column {scan.columns[place[0]].name!r}"
    elif place:
        where += f", place {', '.join(map(str, place))}"
    return f"{found}, the first in {where} (counted from 0)"


def _duplicates(scan: Scan) -> str:
    if scan.first_duplicate is None:
        return "none"
    later, earlier = scan.first_duplicate
    rows = _count(scan.num_duplicates, "row")
    return f"{rows} equal to an earlier one, the first row {later} to row {earlier}"


def _column(column: ColumnScan) -> tuple[str, str, str]:
    """The name of a column, the likelihood of its values, and its values."""
    levels = column.levels
    if levels is None and column.numbers is not None:
        levels = tuple(f"{number:g}" for number in column.numbers)
    span = "none finite" if column.low is None else f"{column.low:g} to {column.high:g}"
    span = span if levels is None else shorten(list(levels), 6)
    return (
        column.name,
        column.likelihood,
        span + (f" ({column.num_missing} missing)" * (column.num_missing > 0)),
    )


def describe_kinds(columns: Sequence[str], likelihood: str, levels: Levels) -> str:
    """The kind of each column of a table, for people: "island categorical (Biscoe, Dream)".

    Args:
        columns: The names of the columns.
        likelihood: A "mixed" likelihood, masked or not, that names the kind of each column.
        levels: The names of the levels of each column that holds names.
    """
    runs = kinds_of_columns(name_and_argument(unmasked(likelihood))[1])
    kinds = [kind for kind, number in runs for _ in range(number)]
    told = []
    for name, kind in zip(columns, kinds, strict=True):
        its = f" ({shorten(list(levels[name]), 4)})" if name in levels else ""
        told.append(f"{name} {kind.partition(':')[0] if its else kind}{its}")
    return shorten(told, _MOST_COLUMNS)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + "s" * (number != 1)
