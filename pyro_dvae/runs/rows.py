"""Further data, read and prepared as a run's own data were."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor

from pyro_dvae.data import (
    PARTS,
    DataError,
    Preparation,
    Rows,
    ServedRows,
    Splits,
    all_numbers,
    as_rows,
    check_shape,
    class_labels,
    complaint,
    number_by,
    open_source,
    partial_labels,
    refuse_gaps,
    refuse_unseen,
    scan,
)
from pyro_dvae.displays import html_fields
from pyro_dvae.likelihoods import Masked
from pyro_dvae.likelihoods.names import masked
from pyro_dvae.runs.config import Config, preparation_of

if TYPE_CHECKING:
    from pyro_dvae.runs.record import DataRecord
    from pyro_dvae.vae import DiscreteVAE

_TABLE = ("columns", "labels", "ids", "dates", "levels")
_TEXT = (*_TABLE, "header")
_TAKEN = {".npz": ("key", "labels"), ".csv": _TEXT, ".tsv": _TEXT, ".parquet": _TABLE}
"""Suffix of a file -> which of the run's settings of reading apply to it."""


class PreparedRows(NamedTuple):
    """N data as a run's model takes them."""

    x: Tensor | ServedRows
    """(N, *event_shape), float32, what the likelihood takes. Slices of it are tensors; the rows of
    a file are read when a slice asks for them."""
    stored: Rows
    """The same data as they are stored."""
    labels: Tensor | None
    """(N,) int64, the classes 0, 1, ... of the run."""
    name: str
    """What people call these data."""

    def _repr_html_(self) -> str:
        """What it holds, as a table for a notebook."""
        return html_fields(self, f"PreparedRows: {len(self.x)} data")


def model_labels(config: Config, labels: Tensor | None, where: str) -> Tensor | None:
    """The labels that a run's model takes; None where it takes none.

    Args:
        config: the run's settings.
        labels: (N,) int64, the labels of the data; or None.
        where: whose labels they are, for messages.

    Raises:
        ValueError: the model takes labels, and there are none, or one that it does not know.
    """
    if config.alpha is not None and labels is not None:
        return partial_labels(labels, config.num_categories, where)
    if not config.num_classes:
        return None
    if labels is None:
        raise DataError(
            f"Expected labels for {where}, which the model is conditional on; got none. Use data "
            "that hold them as the run's do."
        )
    return class_labels(labels, config.num_classes, where)


def model_batch(
    config: Config, splits: Splits, part: str, device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """A part of a run's data with the labels that its model takes, on a device.

    Args:
        config: the run's settings.
        splits: its data.
        part: "train", "validation" or "test".
        device: the model's.

    Returns:
        x (N, *event_shape), what the likelihood takes, and labels (N,) or None.

    Raises:
        ValueError: there is no such part, or the model takes labels and does not get them.
    """
    kept = {"validation": splits.validation, "test": splits.test}.get(part)
    x = splits.part(part).x if kept is None else kept
    labels = model_labels(config, splits.stored[part].labels, f"the {part} part")
    return x.to(device), None if labels is None else labels.to(device)


def prepared_rows(
    vae: DiscreteVAE,
    data: DataRecord,
    event_shape: tuple[int, ...],
    what: Any,
    *,
    labels: Any,
    data_dir: str | Path | None,
    key: str | None,
    labelled: bool,
    gaps: bool = False,
) -> PreparedRows:
    """What `Run.rows` returns; the arguments are explained there."""
    config = data.config
    if not isinstance(what, (str, Path)):
        for name, value in {"key": key, "data_dir": data_dir}.items():
            if value is not None:
                raise ValueError(
                    f"Expected {name}=... with a file or a part of the data; got it with values. "
                    "Leave it out."
                )
        values = _in_order(what, data.columns)
        is_table = data.columns is not None and hasattr(values, "iloc")
        names = {"levels": data.levels, "dates": data.reading.dates} if is_table else {}
        rows = number_by(as_rows(values, labels, **names), data.label_names)
        return _served(vae, data, event_shape, rows, "the values", gaps)
    if labels is not None:
        raise ValueError(f"Expected labels=... with values; got them with {what}. Leave them out.")
    if isinstance(what, str) and what in PARTS:
        if key is not None:
            raise ValueError(
                f"Expected key=... with a .npz file; got it with {what}. Leave it out."
            )
        splits = data.moved_to(data_dir=data_dir).splits()
        part = splits.part(what)
        return PreparedRows(
            part.x, splits.stored[what], part.labels, f"the {what} part of {data.name}"
        )
    if data_dir is not None:
        raise ValueError(
            f"Expected data_dir=... with a part of the run's data; got {what}. Leave it out."
        )
    if isinstance(what, str) and not Path(what).suffix and not os.path.exists(what):
        raise ValueError(f"Expected {', '.join(PARTS)}, or a file; got {what[:80]!r}. Name one.")
    rows = open_file(data, what, key, labelled and config.num_classes > 0)
    return _served(vae, data, event_shape, rows, str(what), gaps)


def _in_order(values: Any, columns: Sequence[str] | None) -> Any:
    """A table of pandas with the run's columns, in their order; other values as they are."""
    if columns is None or not hasattr(values, "iloc"):
        return values
    missing = [name for name in columns if name not in values.columns]
    if missing:
        raise DataError(
            f"Expected the run's columns, {', '.join(columns[:8])}, in the table; got none named "
            f"{missing[0]!r}. Name the columns as in the run's data."
        )
    return values[list(columns)]


def _served(
    vae: DiscreteVAE,
    data: DataRecord,
    event_shape: tuple[int, ...],
    rows: Rows,
    name: str,
    gaps: bool,
) -> PreparedRows:
    """Rows that the model has not seen yet, checked and served."""
    config = data.config
    found = scan(rows)
    wrong = complaint(found, trained=True)
    if wrong is not None:
        raise DataError(f"{name}: {wrong}")
    check_shape((len(rows), *rows.event_shape), event_shape)
    preparation = preparation_of(config, event_shape)
    if gaps and not preparation.takes_missing:
        preparation = _with_gaps(preparation)
    try:
        preparation.refuse_missing(found.extent)
    except DataError as error:
        raise DataError(f"{name}: {error}") from None
    refuse_unseen(rows, preparation, vae.likelihood, name, data.columns)
    x = ServedRows(rows, preparation, config.split_seed, found.extent)
    return PreparedRows(x, rows, rows.labels, name)


def _with_gaps(preparation: Preparation) -> Preparation:
    """The same preparation of data with missing values."""
    its = preparation.likelihood
    binarize = "dynamic" if preparation.binarize == "static" else preparation.binarize
    likelihood = masked(its) if isinstance(its, str) else Masked(its)
    return replace(preparation, likelihood=likelihood, binarize=binarize)


def open_file(data: DataRecord, path: str | Path, key: str | None, labelled: bool) -> Rows:
    """What `DataRecord.open_file` returns; the arguments are explained there."""
    suffix = Path(path).suffix.lower()
    taken = ("size", "channels") if os.path.isdir(path) else _TAKEN.get(suffix, ())
    its_own = {**data.reading._asdict(), "columns": data.columns, "levels": data.levels or None}
    options: dict[str, Any] = {name: its_own[name] for name in taken}
    if key is not None:
        options["key"] = key  # `open_source` refuses it where it does not apply
    labels = options.get("labels")
    if isinstance(labels, str) and Path(labels).is_absolute():
        labels = options["labels"] = None  # a file with the labels of the run's own rows
    rows, refusal = _first_that_opens(path, options)
    if refusal is not None:
        told = str(refusal)
        if "as labels in" not in told and "a label for some" not in told:
            told = f"Expected labels, {labels!r}, in {path}; got none. Add them."
        elif not labelled:
            warnings.warn(f"The labels are left out: {told}", stacklevel=3)
        if labelled:
            raise DataError(told) from None
    # A column whose name is a number would be found by that number.
    is_named = data.reading.header or not all_numbers(data.columns or ())
    if data.columns and rows.columns and rows.columns != data.columns and is_named:
        raise DataError(
            f"Expected the run's columns, {', '.join(data.columns[:8])}, in {path}; got "
            f"{', '.join(rows.columns[:8])}. Name the columns as in the run's data."
        )
    rows = _numbered(rows, data.label_names)
    unknown = (rows.label_names or ())[len(data.label_names or ()) :]
    if labelled and unknown:
        expected = ", ".join((data.label_names or ("whole numbers",))[:20])
        raise DataError(
            f"Expected {expected} as labels in {path}, as in the run's data; got "
            f"{', '.join(unknown[:5])}. Leave such rows out, or name the classes as there."
        )
    if labelled and rows.labels is not None:
        refuse_gaps(rows.labels, str(path))
    return rows


def _numbered(rows: Rows, names: Sequence[str] | None) -> Rows:
    """The rows with the numbers that the run has for their classes."""
    own = rows.label_names
    if names is not None or rows.labels is None or not own or not all_numbers(own):
        return number_by(rows, names)
    view: Any = copy(rows)  # the run's classes are numbers, and so are the names of these
    named = torch.tensor([int(name) for name in own])
    view.labels = torch.where(rows.labels < 0, rows.labels, named[rows.labels.clamp(min=0)])
    view.label_names = None
    return cast(Rows, view)


def _first_that_opens(path: str | Path, options: dict[str, Any]) -> tuple[Rows, DataError | None]:
    """Open a file, without the names of its rows or their labels where it lacks them.

    Returns:
        The rows, and what was wrong with the labels where they are left out.
    """
    refusal: DataError | None = None
    for left_out in ((), ("ids",), ("labels",), ("ids", "labels")):
        if any(options.get(name) is None for name in left_out):
            continue
        some = {name: value for name, value in options.items() if name not in left_out}
        try:
            return open_source(path, **some).train, refusal if "labels" in left_out else None
        except DataError as error:
            refusal = refusal or error
    assert refusal is not None
    raise refusal
