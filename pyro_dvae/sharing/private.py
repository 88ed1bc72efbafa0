"""What a run remembers of its data, without the paths of the machine that it lies on."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from pyro_dvae.runs import DataRecord

_BESIDE = ("labels", "group", "time")
"""What may name a file beside the data, or a column."""


def without_paths(record: DataRecord) -> DataRecord:
    """The same record, with the names of files in place of their paths.

    `record.moved_to(data_dir=...)` finds the files again by their names, in one folder.

    Args:
        record: what a run remembers of its data.
    """
    moved: dict[str, Any] = {
        name: _beside(value)
        for name, value in record.reading._asdict().items()
        if name in _BESIDE and isinstance(value, str)
    }
    parts = {part: vars(record.config)[part] for part in ("validation", "test")}
    files: dict[str, Any] = {
        part: last(value) for part, value in parts.items() if isinstance(value, str)
    }
    name = None if record.name is None else last(record.name)
    source, stage = record.source, record.second_stage
    return replace(
        record,
        config=replace(record.config, **files),
        name=name,
        source=name if source is not None and _is_path(source) else source,
        path=None if record.path is None else last(record.path),
        data_dir=None,
        reading=record.reading._replace(**moved),
        second_stage=None if stage is None else stage._replace(run=last(stage.run)),
    )


def last(path: str) -> str:
    """The last name of a path of any system; it leads to no other folder."""
    names = [name for name in re.split(r"[\\/]", path) if name not in ("", ".", "..", "~")]
    return names[-1] if names else "data"


def _beside(text: str) -> str:
    """The name of a file beside the data, with what stands behind a colon; a column as it is."""
    head, colon, column = text.partition(":")
    if PureWindowsPath(text).drive:
        head, colon, column = text, "", ""
    # A relative path without ".." may be the name of a column, such as km/h.
    leaves = ".." in re.split(r"[\\/]", head) or head.startswith("~")
    is_path = PurePosixPath(head).is_absolute() or PureWindowsPath(head).anchor or leaves
    return f"{last(head)}{colon}{column}" if is_path else text


def _is_path(text: str) -> bool:
    return bool(re.search(r"[\\/]", text)) or last(text) != text
