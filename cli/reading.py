"""Options that say how a user's data are read. Nothing here imports torch."""

from __future__ import annotations

import csv
from typing import Annotated, Any

import typer

from .errors import fail

KeyOption = Annotated[
    str | None, typer.Option(help="The name of the array in a .npz file, where it holds several.")
]
ColumnsOption = Annotated[
    str | None,
    typer.Option(
        help="Columns of a table, by names or by numbers from 0: a,b,7-9. If left out: all."
    ),
]
HeaderOption = Annotated[
    bool | None,
    typer.Option(
        "--header/--no-header",
        help="Whether the first line of a .csv or .tsv file names the columns. If left out: its "
        "cells tell.",
    ),
]
LabelsOption = Annotated[
    str | None,
    typer.Option(help="The column of a table, or the array of a .npz file, that holds the labels."),
]
SizeOption = Annotated[
    str | None, typer.Option(metavar="HxW", help="Resize images to this height and width.")
]
ChannelsOption = Annotated[
    int | None, typer.Option(help="Convert images to grey (1 channel) or to RGB (3 channels).")
]

READING = ("key", "columns", "labels", "header", "size", "channels")
"""The names of these options, which are those of the arguments of `open_source`."""


def reading(values: dict[str, Any]) -> dict[str, Any]:
    """The options of a command that say how data are read, as `open_source` takes them."""
    columns, size, channels = values["columns"], values["size"], values["channels"]
    if channels not in (None, 1, 3):
        fail(f"Expected --channels 1 or 3; got {channels}. Choose one.")
    return {
        "key": values["key"],
        "columns": None if columns is None else _names(columns),
        "labels": values["labels"],
        "header": values["header"],
        "size": None if size is None else _size(size),
        "channels": channels,
    }


def number_range(text: str | None) -> tuple[float, float] | None:
    """The two numbers in LOW,HIGH; None for None."""
    if text is None:
        return None
    try:
        low, high = map(float, text.split(","))
        return low, high
    except ValueError:
        fail(f"Expected --range as LOW,HIGH; got {text!r}. Use 0,1, say.")


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
            "which is not there. Use 0.05, say."
        )
    return str(Path(path).resolve())


def _names(text: str) -> list[str]:
    """Names with commas between them. A name that holds a comma is in quotes, as in a CSV."""
    return [name.strip() for name in next(csv.reader([text], skipinitialspace=True), [])]


def _size(text: str) -> tuple[int, int]:
    height, by, width = text.lower().partition("x")
    if not (by and height.isdecimal() and width.isdecimal() and int(height) and int(width)):
        fail(f"Expected --size as HEIGHTxWIDTH; got {text!r}. Use 28x28, say.")
    return int(height), int(width)
