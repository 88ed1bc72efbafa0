"""What a scan found, in words."""

from __future__ import annotations

from pyro_dvae.data.look.scan import MAX_DISTINCT, ColumnScan, Scan
from pyro_dvae.data.read.errors import shorten

_SHOWN = 10
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
        ("type", _MEANING.get(scan.dtype, f"{scan.dtype}, read as it is: no range is assumed")),
        ("values", f"{span}, {distinct} distinct"),
        ("missing", _bad(scan) or "none, and none infinite"),
        ("duplicates", _duplicates(scan)),
    ]
    if scan.images is not None:
        stored = [f"{image}, first {image.first}" for image in scan.images]
        lines.append(("images", shorten(stored, _SHOWN)))
    if scan.columns is not None:
        lines.append(("columns", shorten([_column(c) for c in scan.columns], _SHOWN)))
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


def complaint(scan: Scan) -> str | None:
    """Say in one line why no model can be trained on the data; None if one can."""
    if not scan.num_bad:
        return None
    return f"Expected finite numbers; got {_bad(scan)}. Drop or replace such values."


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


def _column(column: ColumnScan) -> str:
    span = "none finite" if column.low is None else f"{column.low:g} to {column.high:g}"
    span = span if column.levels is None else f"is {shorten(list(column.levels), 4)}"
    return f"{column.name} {span}" + (f" ({column.num_missing} missing)" * (column.num_missing > 0))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + "s" * (number != 1)
