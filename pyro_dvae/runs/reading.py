"""How the files of a run's data are read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple


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
    for name in ("columns", "drop", "nominal"):
        if given.get(name) is not None:
            given[name] = tuple(given[name])
    return given


def absolute(path: str | Path) -> str:
    """The absolute path, with ``~`` expanded."""
    return str(Path(os.path.expanduser(path)).resolve())
