"""How the files of a run's data are read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pyro_dvae.data.read.beside import file_beside


class Reading(NamedTuple):
    """How files are read: the arguments of `open_source` with these names."""

    key: str | None = None
    columns: tuple[str | int, ...] | None = None
    labels: str | int | None = None
    header: bool | None = None
    size: tuple[int, int] | None = None
    channels: int | None = None
    drop: tuple[str | int, ...] | None = None
    ids: str | int | None = None
    nominal: tuple[str | int, ...] | None = None
    dates: bool | None = None
    other: bool | None = None
    group: str | int | None = None
    time: str | int | None = None


AS_IT_IS = Reading()


def reading_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the arguments of `open_source` that `Reading` holds, in the form that it has them.

    Args:
        arguments: by name; those that are left out are left out of the result too.
    """
    given = {name: value for name, value in arguments.items() if name in Reading._fields}
    labels = given.get("labels")
    if isinstance(labels, (str, Path)) and os.path.isfile(os.path.expanduser(labels)):
        given["labels"] = absolute(labels)
    for name in ("group", "time"):
        beside = file_beside(given.get(name))
        if beside is not None:
            path, column = beside
            given[name] = str(path) if column is None else f"{path}:{column}"
    for name in ("columns", "drop", "nominal"):
        if given.get(name) is not None:
            given[name] = tuple(given[name])
    return given


def beside_in(reading: Reading, folder: str | Path) -> Reading:
    """How files are read where those beside the data have moved to a folder together with them.

    Args:
        reading: how they were read.
        folder: where the data are now.
    """
    moved: dict[str, Any] = {}
    for name in ("labels", "group", "time"):
        path, colon, column = str(reading._asdict()[name]).partition(":")
        there = Path(folder) / Path(path).name
        is_path = os.path.isabs(path) or Path(path).suffix  # shared runs have the name alone
        if is_path and not os.path.exists(path) and there.is_file():
            moved[name] = f"{absolute(there)}{colon}{column}"
    return reading._replace(**moved)


def held_out_in(settings: Mapping[str, Any], folder: str | Path) -> dict[str, Any]:
    """The files of held-out data that have moved to a folder together with the data.

    Args:
        settings: name -> value, of which `validation` and `test` may be paths.
        folder: where the data are now.
    """
    moved: dict[str, Any] = {}
    for part in ("validation", "test"):
        there = Path(folder) / Path(str(settings[part])).name
        is_path = isinstance(settings[part], str) and not os.path.exists(settings[part])
        if is_path and there.is_file():
            moved[part] = absolute(there)
    return moved


def absolute(path: str | Path) -> str:
    """The absolute path, with ``~`` expanded."""
    return str(Path(os.path.expanduser(path)).resolve())
