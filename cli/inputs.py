"""The data that commands work on: those of a run, found again and checked, or a file's."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .options import fail
from .reading import READING

_TABLE = ("columns", "labels")
_TEXT = (*_TABLE, "header")
_TAKEN = {".npz": ("key", "labels"), ".csv": _TEXT, ".tsv": _TEXT, ".parquet": _TABLE}
"""What a file of another kind than the run's takes of how these were read."""

if TYPE_CHECKING:
    from pyro_dvae import Config
    from pyro_dvae.data import Rows, Source, Splits


def placed(facts: dict[str, Any], data: str | None, data_dir: Path | None) -> dict[str, Any]:
    """What a run remembers, with where its data are now.

    Args:
        facts: what it remembered.
        data: as the user named them; None if that has not changed.
        data_dir: the folder that they lie in; None if that has not changed.
    """
    from pyro_dvae.data import DATA_SETS, TORCHVISION_SETS

    facts = dict(facts)
    if data is not None and data not in DATA_SETS + TORCHVISION_SETS:
        facts["path"] = _absolute(data)
    elif data is not None:
        facts["name"] = data
        facts.pop("path", None)
    elif data_dir is not None and "path" in facts:
        facts["path"] = _absolute(data_dir / Path(facts["path"]).name)
        data_dir = None
    if data_dir is not None:
        facts["data_dir"] = _absolute(data_dir)
    return facts


def remembered(options: dict[str, Any]) -> dict[str, Any]:
    """How data are read, for a run to remember."""
    labels = options["labels"]
    if labels is not None and os.path.isfile(os.path.expanduser(labels)):
        options = {**options, "labels": _absolute(labels)}
    return {"options": {name: value for name, value in options.items() if value is not None}}


def reading_of(facts: dict[str, Any]) -> dict[str, Any]:
    """How a run's data were read, as `open_source` takes it."""
    options = facts.get("options", {})
    if not isinstance(options, dict) or not options.keys() <= set(READING):
        raise ValueError(
            f"Expected how the run's data are read; got {options!r}. Restore the run's config.json."
        )
    size = options.get("size")
    return {**dict.fromkeys(READING), **options, "size": None if size is None else tuple(size)}


def data_facts(
    facts: dict[str, Any], source: Source, splits: Splits, config: Config
) -> dict[str, Any]:
    """What a run remembers of its data.

    Args:
        facts: how they were read, and where they are.
        source: the data.
        splits: the parts.
        config: the run's settings.
    """
    from pyro_dvae.data import fingerprint

    return {
        **facts,
        "name": source.name,
        "source": source.where,
        "fingerprint": fingerprint(source),
        "binarize": config.binarize,
        "num_train": len(splits.train),
        "num_validation": 0 if splits.validation is None else len(splits.validation),
        "num_test": 0 if splits.test is None else len(splits.test),
        **names_of(source),
        "held_out": _held_out_files(splits, config),
    }


def names_of(source: Source) -> dict[str, list[str] | None]:
    """The names of columns and classes, by which further files are read."""
    columns, labels = getattr(source.train, "columns", None), source.train.label_names
    return {
        "columns": None if columns is None else list(columns),
        "label_names": None if labels is None else list(labels),
    }


def run_source(facts: dict[str, Any]) -> Source:
    """The data of a run.

    Args:
        facts: what it remembers of them, `placed` where they are now.

    Raises:
        ValueError: they are not there, or have changed.
    """
    from pyro_dvae.data import fingerprint, number_by, open_source

    its_name, where = facts.get("name"), str(facts.get("source"))
    if its_name is None and "path" not in facts:  # a name left out would be that of MNIST
        raise ValueError(
            "Expected the name or the path of the run's data; got neither. Restore the run's "
            "config.json."
        )
    data_dir = facts.get("data_dir")
    if data_dir is None and its_name == "mnist" and "path" not in facts and Path(where).is_dir():
        data_dir = where
    source = open_source(facts.get("path", its_name), data_dir=data_dir, **reading_of(facts))
    names = facts.get("label_names")
    test = None if source.test is None else number_by(source.test, names)
    source = source._replace(train=number_by(source.train, names), test=test)
    found = fingerprint(source)
    its_own = facts.get("fingerprint", found)  # which runs of format 1 do not know
    if found != its_own:
        raise ValueError(
            f"Expected the run's data, {its_name} from {where} (fingerprint {its_own}); got "
            f"{source.name} from {source.where} ({found}). Name the run's with --data and "
            "--data-dir."
        )
    return source


def run_splits(
    config: Config,
    facts: dict[str, Any],
    data_dir: Path | None = None,
    source: Source | None = None,
) -> Splits:
    """The parts that a run trained, validated and tested on.

    Args:
        config: the run's settings.
        facts: what it remembers of its data.
        data_dir: the folder that they lie in now, if that is another one.
        source: the data, where they are open.

    Raises:
        ValueError: its data are not there, or have changed.
    """
    from pyro_dvae.data import Preparation, make_splits, refuse_unlike

    if source is None:
        source = run_source(placed(facts, None, data_dir))
    preparation = Preparation(config.binarize, config.range, config.likelihood)
    if source.test is not None:
        refuse_unlike("test data", source.test, source.train, preparation)
        if config.test is not None:
            fail(
                "Expected no --test for data with a test part of their own, "
                f"{len(source.test)} rows; got {config.test}. Leave it out."
            )
    kept: dict[str, Any] = {"validation": config.validation, "test": config.test}
    for part, amount in kept.items():
        if isinstance(amount, str):
            kept[part] = open_file(amount, facts, labelled=config.num_classes > 0)
            refuse_unlike(f"{part} data in {amount}", kept[part], source.train, preparation)
    splits = make_splits(
        source,
        binarize=config.binarize,
        range=config.range,
        likelihood=config.likelihood,
        num_classes=config.num_classes,
        seed=config.seed,
        **kept,
    )
    for part, found in _held_out_files(splits, config).items():
        its_own = facts.get("held_out", {}).get(part, found)
        if found != its_own:
            raise ValueError(
                f"Expected the run's {part} data, {getattr(config, part)} (fingerprint "
                f"{its_own}); got others there ({found}). Restore the file."
            )
    return splits


def open_file(
    path: str | Path, facts: dict[str, Any], key: str | None = None, *, labelled: bool = False
) -> Rows:
    """A file's rows, read as a run's data were: its columns, its size of images, its classes.

    Args:
        path: the file.
        facts: what the run remembers of its data.
        key: of a `.npz`, where that is another one.
        labelled: whether the model cannot do without labels.

    Raises:
        ValueError: it cannot be read so.
    """
    from pyro_dvae.data import DataError, all_numbers, number_by, open_source

    its_own = {**reading_of(facts), "columns": facts.get("columns")}
    suffix = Path(path).suffix.lower()
    taken = ("size", "channels") if os.path.isdir(path) else _TAKEN.get(suffix, ())
    options = {name: its_own[name] for name in taken}
    if key is not None:
        options["key"] = key  # where it has no place it is refused
    labels = options.pop("labels", None)
    if labels is not None and Path(labels).is_absolute():
        labels = None  # a file of them, for the run's own rows
    try:
        rows = open_source(path, labels=labels, **options).train
    except DataError as complaint:
        try:  # new data may have no labels
            rows = open_source(path, **options).train
        except DataError:
            raise complaint from None
        told = str(complaint)
        if "a label for each row" not in told and "as labels in" not in told:
            told = f"Expected labels, {labels!r}, in {path}; got none. Add them."
        elif not labelled:
            print(f"labels left out: {told}", file=sys.stderr)
        if labelled:
            raise DataError(told) from None
    its_columns, found = its_own["columns"], getattr(rows, "columns", None)
    is_named = its_own["header"] or not all_numbers(its_columns or [])
    if its_columns and found and list(found) != list(its_columns) and is_named:
        raise DataError(  # a name that is a number would find the column of this number
            f"Expected the run's columns, {', '.join(its_columns[:8])}, in {path}; got "
            f"{', '.join(found[:8])}. Name the columns as in the run's data."
        )
    names = facts.get("label_names")
    if labelled and names is None and rows.label_names is not None:
        raise DataError(
            f"Expected whole numbers as labels in {path}, as in the run's data; got "
            f"{', '.join(rows.label_names[:5])}. Number the classes."
        )
    return number_by(rows, names)


def _absolute(path: str | Path) -> str:
    return str(Path(os.path.expanduser(path)).resolve())


def _held_out_files(splits: Splits, config: Config) -> dict[str, str]:
    """The fingerprints of parts that have files of their own."""
    from pyro_dvae.data import Source, fingerprint

    return {
        part: fingerprint(Source(part, "", splits.stored[part], None, None))
        for part in ("validation", "test")
        if isinstance(getattr(config, part), str)
    }
