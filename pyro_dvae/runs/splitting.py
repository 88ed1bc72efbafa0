"""How a run's data were split: what the run remembers of it, and in words."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from pyro_dvae.data import Source, Splits, SubsetRows
from pyro_dvae.data.read.beside import file_beside

if TYPE_CHECKING:
    from pyro_dvae.runs.record import DataRecord


class SplitRecord(NamedTuple):
    """How the rows of the data were divided into parts."""

    rows: str
    """A fingerprint of the numbers of the rows of each part."""
    num_copies: int | None
    """The number of rows that are equal to an earlier one, where each group of them is in one part;
    None where it was not counted."""
    num_groups: int | None
    """The number of groups that the data name; None where they name none."""
    num_dropped: int
    """The number of training rows left out because they are in other data too."""
    num_shared: Mapping[str, int]
    """Part ("validation" or "test") -> how many of its rows are equal to a training row."""


def split_record(source: Source, splits: Splits) -> SplitRecord:
    """What a run remembers of how its rows were divided.

    Args:
        source: the data.
        splits: their parts.
    """
    groups = source.groups
    return SplitRecord(
        fingerprint_of_rows(splits),
        splits.num_copies,
        None if groups is None else int(groups.max()) + 1,
        splits.num_dropped,
        splits.num_shared(),
    )


def fingerprint_of_rows(splits: Splits) -> str:
    """A text that is equal for equal numbers of the rows in each part of the source's own rows."""
    digest = hashlib.sha256()
    for part, rows in splits.stored.items():
        if isinstance(rows, SubsetRows):
            digest.update(f"{part} {len(rows)};".encode())
            digest.update(rows.index.numpy().data)
    return digest.hexdigest()[:16]


def describe_split(data: DataRecord) -> list[str]:
    """How the rows of a run were kept apart, in lines for people.

    Args:
        data: the record of the run's data.
    """
    config, split = data.config, data.split
    is_last = config.split == "last"
    lines = [] if is_last else [f"at random, split_seed={config.split_seed}"]
    lines += split_notes(data)
    if split is not None and not _is_told(data):
        num = sum(split.num_shared.values())
        lines += [f"{_rows(num, 'is', 'are')} equal to a training row"] * (num > 0)
    return lines


def split_notes(data: DataRecord) -> list[str]:
    """What a user should know of the split, one line each; none where there is nothing to know.

    Args:
        data: the record of a run's data.
    """
    split, lines = data.split, []
    if data.config.split == "last":
        time = data.reading.time
        by = "last rows" if time is None else f"rows of the latest {_called(time, 'times')}"
        lines.append(f"the {by} are kept apart")
    if split is None:
        return lines
    if split.num_groups is not None:
        group = data.reading.group
        by = "" if group is None else f" of {_called(group)}"
        lines.append(f"each of the {split.num_groups:,} groups{by} is kept in one part")
    if split.num_copies:
        rows = _rows(split.num_copies, "repeats others", "repeat others")
        lines.append(f"{rows}; each group of copies is kept in one part")
    if split.num_dropped:
        rows = _rows(split.num_dropped, "that is", "that are")
        lines.append(f"{rows} in other validation or test data too: left out")
    if _is_told(data):
        lines += [_shared(data, split, part) for part, num in split.num_shared.items() if num]
    return lines


def _called(given: str | int, nameless: str = "") -> str:
    """What a column is called, or a file beside the data, whose values have perhaps no name."""
    beside = file_beside(given)
    if beside is None:
        return str(given)
    path, column = beside
    return f"{column or nameless} in {path.name}" if column or nameless else path.name


def _is_told(data: DataRecord) -> bool:
    """Whether a user should know of rows that are equal to training rows.

    It is not so where rows of such values are equal by chance, or the user parts copies.
    """
    return bool(data.config.group_copies) or data.config.split == "last"


def _shared(data: DataRecord, split: SplitRecord, part: str) -> str:
    """That rows of a part are in the training part too, and what to do."""
    total = {"validation": data.num_validation, "test": data.num_test}[part]
    text = f"{split.num_shared[part]:,} of the {total:,} {part} rows are in the training data too"
    chosen = {"validation": data.config.validation, "test": data.config.test}[part]
    if isinstance(chosen, (int, float)):  # of the same rows
        return f"{text}: values recur in the order of the rows"
    return f"{text}: drop_copies=True leaves such rows out of training"


def _rows(number: int, one: str, more: str) -> str:
    return f"{number:,} row {one}" if number == 1 else f"{number:,} rows {more}"
