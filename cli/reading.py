"""Turns the texts of options into values that the library takes. Nothing here imports torch."""

from __future__ import annotations

import csv
import math
from typing import Any

from .errors import fail

READING: tuple[str, ...] = ("key", "columns", "drop", "labels", "ids", "nominal", "dates")
READING += ("other", "header", "size", "channels", "group", "time")
"""The options that say how data are read, which `open_source` takes by the same names."""
_AS_THEY_ARE = ("labels", "ids", "group", "time", "dates", "other", "header")


def reading(values: dict[str, Any]) -> dict[str, Any]:
    """The options of a command that say how data are read, as `open_source` takes them."""
    size, channels = values["size"], values["channels"]
    lists = {name: values[name] for name in ("columns", "drop", "nominal")}
    if channels not in (None, 1, 3):
        fail(f"Expected --channels 1 or 3; got {channels}. Choose one.")
    return {
        "key": values["key"],
        **{name: None if text is None else _names(text) for name, text in lists.items()},
        **{name: values[name] for name in _AS_THEY_ARE},
        "size": None if size is None else _size(size),
        "channels": channels,
    }


def widths(text: str) -> tuple[int, ...]:
    """The numbers in a text such as "300,100"."""
    try:
        return tuple(int(width) for width in text.split(",") if width.strip())
    except ValueError:
        fail(f"Expected --hidden as numbers with commas between; got {text!r}. Try 300,100.")


def number_range(text: str | None) -> tuple[float, float] | None:
    """The two numbers in LOW,HIGH; None for None."""
    if text is None:
        return None
    try:
        low, high = map(float, text.split(","))
        return low, high
    except ValueError:
        fail(f"Expected --range as LOW,HIGH; got {text!r}. Try 0,1.")


def seconds(text: str | None) -> float:
    """The seconds in a time such as "3:50:00" or "1-12:00:00", as SLURM writes it."""
    if text is None:
        return math.inf
    days, by, clock = text.rpartition("-")
    parts = [days or "0", *clock.split(":")] if not by or days else []
    if len(parts) != 4 or not all(part.isdecimal() for part in parts):
        fail(f"Expected --max-time as H:MM:SS, or D-H:MM:SS; got {text!r}. Try 3:50:00.")
    day, hour, minute, second = map(int, parts)
    return ((day * 24 + hour) * 60 + minute) * 60 + second


def amount(option: str, text: str | None) -> float | str | None:
    """The fraction, the number of rows, or the absolute path of the file that a text names."""
    import os.path
    from pathlib import Path

    if text is None:
        return None
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            pass
    path = os.path.expanduser(text)  # a name that no file can have is not there either
    if not os.path.exists(path):
        fail(
            f"Expected {option} as a fraction, a number of rows, or a file; got {text[:80]!r}, "
            "which is not there. Try 0.05."
        )
    return str(Path(path).resolve())


def _names(text: str) -> list[str]:
    """Names with commas between them. A name that holds a comma is in quotes, as in a CSV."""
    return [name.strip() for name in next(csv.reader([text], skipinitialspace=True), [])]


def _size(text: str) -> tuple[int, int]:
    height, by, width = text.lower().partition("x")
    if not (by and height.isdecimal() and width.isdecimal() and int(height) and int(width)):
        fail(f"Expected --size as HEIGHTxWIDTH; got {text!r}. Try 28x28.")
    return int(height), int(width)
