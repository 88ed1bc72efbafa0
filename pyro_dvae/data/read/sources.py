"""Open the data of a user: a named data set, a file, or a folder."""

import difflib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pyro_dvae.data.read.array_rows import ArrayRows, array_file
from pyro_dvae.data.read.arrays import SUFFIXES, read_arrays
from pyro_dvae.data.read.beside import file_beside, with_order
from pyro_dvae.data.read.datasets import as_rows
from pyro_dvae.data.read.errors import DataError, reading, refuse_too_large, user_path
from pyro_dvae.data.read.extent import row_bytes
from pyro_dvae.data.read.folders import image_folder
from pyro_dvae.data.read.idx import IDX_FILES, find_idx, read_idx, read_pair
from pyro_dvae.data.read.labels import Labels, number_classes
from pyro_dvae.data.read.mnist import DATA_SETS, load_images
from pyro_dvae.data.read.rows import Levels, Rows, Source, TensorRows
from pyro_dvae.data.read.table_files import TABLE_SUFFIXES, TableOptions, table_file
from pyro_dvae.data.read.table_rows import Column
from pyro_dvae.data.read.torchvision_sets import TORCHVISION_SETS, torchvision_set

_ORDER = ("group", "time")
_OPTIONS = {
    "the name of a data set": ("data_dir", *_ORDER),
    ".npy": ("labels", *_ORDER),
    ".npz": ("key", "labels", *_ORDER),
    **dict.fromkeys(TABLE_SUFFIXES, (*TableOptions._fields, "header")),
    "an IDX file": ("labels", *_ORDER),
    "a folder of IDX files": _ORDER,
    "a folder of images": ("size", "channels", *_ORDER),
    "values of a program": TableOptions._fields,
}
"""Kind of data -> the options of `open_source` that it takes."""


def open_source(
    data: Any = None,
    *,
    data_dir: str | Path | None = None,
    key: str | None = None,
    columns: Sequence[Column] | None = None,
    drop: Sequence[Column] | None = None,
    labels: Column | Path | None = None,
    ids: Column | None = None,
    group: Any = None,
    time: Any = None,
    nominal: Sequence[Column] | None = None,
    dates: bool | None = None,
    other: bool | None = None,
    levels: Levels | None = None,
    header: bool | None = None,
    size: tuple[int, int] | None = None,
    channels: int | None = None,
) -> Source:
    """Open data by name or path.

    Nothing in a file is executed, and no value is changed unless ``size`` or ``channels`` ask for
    it.

    >>> from pyro_dvae.data import open_source
    >>> source = open_source("mnist-sample")
    >>> len(source.train), source.train.event_shape
    (5000, (28, 28))

    Args:
        data: A name or a path. Names are ``"mnist"``, ``"mnist-sample"`` and those in
            ``TORCHVISION_SETS``; None is MNIST, or else the bundled sample of it. A path leads to
            a ``.npy``, ``.npz``, ``.csv``, ``.tsv``, ``.parquet`` or IDX file, to a folder of
            MNIST's four IDX files, or to a folder of images. A name comes before a path of the
            same spelling: write ``./mnist`` for the folder. Or values that a program holds, a
            table of pandas say, of the kinds that `as_rows` takes.
        data_dir: The folder that holds the files of a named data set.
        key: The name of the array in a ``.npz`` file.
        columns: The columns of a table to take, by name or by number, counted from 0; ``"3-7"``
            is a range of numbers. None takes all columns but those of the labels, of the ids, and
            one that counts the rows.
        drop: The columns of a table to leave out.
        labels: Where the labels are: a column of a table, an array of a ``.npz`` file, or a file
            of its own with one label per row; for values, also one label per row.
        ids: The column of a table that names the rows.
        group: What says which rows belong together: the column of a table with the patient, say;
            an array of a ``.npz`` file; a file with one name or number per row; for images also
            ``"folder"``, the name of the folder of each; for values, one per row. A split keeps
            rows of one group in one part. The model does not see it. A table in a file may name
            the rows in another column; ``"visits.csv:patient"`` takes one of several columns.
        time: What says when each row was measured, as for ``group``: numbers, or dates. A split
            keeps the latest rows apart. The model sees it only if ``columns`` names it.
        nominal: The columns of a table whose numbers are names, such as 4, 6 and 8 cylinders.
        dates: Whether the dates in a table become numbers, days since 1970-01-01; else they are
            refused.
        other: Whether each column of names gets a level more, for names that come later.
        levels: Name of a column -> the names of its levels, where a model knows no others.
        header: Whether the first line of a ``.csv`` or ``.tsv`` file names the columns. None tells
            by the cells of that line.
        size: Height and width to resize images to, bilinearly and without keeping the proportions.
        channels: 1 to convert images to grey, 3 to convert them to RGB; transparent parts become
            white.

    Returns:
        The opened data.

    Raises:
        DataError: If there are no such data, if they are damaged or do not fit together, or if an
            option does not apply to them.
    """
    given: dict[str, Any] = {"data_dir": data_dir, "key": key, "columns": columns, "drop": drop}
    given |= {"labels": labels, "ids": ids, "nominal": nominal, "dates": dates}
    given |= {"group": group, "time": time}
    given |= {"other": other, "levels": levels, "header": header}
    given |= {"size": size, "channels": channels}
    options = {name: value for name, value in given.items() if value is not None}
    if channels not in (None, 1, 3):
        raise DataError(f"Expected 1 or 3 channels; got {channels}. Pass channels=1 or channels=3.")
    if size is not None and (len(size) != 2 or min(size) < 1):
        raise DataError(
            f"Expected a height and a width of at least 1; got {size}. Use size=(28, 28), say."
        )
    if data is not None and not isinstance(data, (str, Path)):
        return _of_values(data, options)
    if data is None or data in DATA_SETS + TORCHVISION_SETS:
        source = _named(None if data is None else str(data), options)
    else:
        source = _in_files(data, options)
    return source._replace(arguments={"data": data, **options})


def _of_values(data: Any, options: dict[str, Any]) -> Source:
    """Take values that a program holds; labels beside them are not among the arguments."""
    _check_options("values of a program", options)
    beside = {name: options[name] for name in ("labels", "group", "time") if name in options}
    named: dict[str, Any] = {
        name: value for name, value in beside.items() if isinstance(value, (str, int))
    }
    others = {name: value for name, value in options.items() if name not in beside}
    columns = {name: value for name, value in named.items() if name != "labels"}
    rows = as_rows(data, options.get("labels"), **others, **columns)
    source = Source("values", "memory", rows, None, None, {**others, **named})
    values = {name: value for name, value in beside.items() if name not in named}
    return with_order(source, values.get("group"), values.get("time"))


def _named(name: str | None, options: dict[str, Any]) -> Source:
    """Open a named data set; None is MNIST, or else the bundled sample of it."""
    _check_options("the name of a data set", options)
    folder = user_path(options["data_dir"]) if "data_dir" in options else None
    beside = {name: options[name] for name in _ORDER if name in options}
    if name is not None and name in TORCHVISION_SETS:
        return with_order(torchvision_set(name, folder), **beside)
    images = load_images(name, folder)
    train = TensorRows(images.train, images.train_labels)
    test = TensorRows(images.test, images.test_labels)
    return with_order(Source(images.name, images.source, train, test, images.notice), **beside)


def _in_files(data: str | Path, options: dict[str, Any]) -> Source:
    """Open the data in a file or a folder."""
    path, kind = _kind(data)
    _check_options(kind, options)
    beside = {
        name: options[name]
        for name in _ORDER
        if name in options and (kind not in TABLE_SUFFIXES or file_beside(options[name]))
    }
    options = {name: value for name, value in options.items() if name not in beside}
    labels = options.get("labels")
    labels = str(labels) if isinstance(labels, Path) else labels
    train: Rows
    test: Rows | None = None
    notice: str | None = None
    if kind == "a folder of images":
        train, test, notice = image_folder(
            path, size=options.get("size"), channels=options.get("channels")
        )
    elif kind == "a folder of IDX files":
        train, test = _idx_folder(path)
    elif kind == "an IDX file":
        train = _idx_file(path, labels)
    elif kind in TABLE_SUFFIXES:
        train = table = table_file(path, **{**options, **({"labels": labels} if labels else {})})
        notice = table.notice
    else:
        train = _array(path, options.get("key"), labels)
    for rows in (train,) if test is None else (train, test):
        shape = rows.event_shape  # a row is also looked at in double precision
        refuse_too_large(f"a row of shape {shape}", 16 * row_bytes(rows), "Cut the rows up.")
    source = Source(path.name or str(path), str(path), train, test, notice)
    return with_order(source, **beside)


def _kind(data: str | Path) -> tuple[Path, str]:
    """The path, and the kind of data that it leads to: a key of `_OPTIONS`."""
    path = user_path(data)
    names = DATA_SETS + TORCHVISION_SETS
    if not str(data).strip() or not path.exists():
        close = difflib.get_close_matches(str(data), names, 1) if isinstance(data, str) else []
        mend = f"Did you mean {close[0]}?" if close else "Check the path."
        raise DataError(
            f"Expected a file, a folder, or one of {', '.join(names)}; got {str(data)!r}, which "
            f"is not there. {mend}"
        )
    if path.is_dir():
        with reading(path, "a folder of data"):
            is_idx = {"train_images", "test_images"} & find_idx(path).keys()
            return path, "a folder of IDX files" if is_idx else "a folder of images"
    if not path.is_file():
        raise DataError(f"Expected a file or a folder; got {path}, which is neither. Name another.")
    suffix = path.suffix.lower()
    if suffix in SUFFIXES + TABLE_SUFFIXES:
        return path, suffix
    with reading(path, "a file of data"), path.open("rb") as file:
        start = file.read(3)
    if start[:2] == b"\x1f\x8b" or start == b"\0\0\x08":
        return path, "an IDX file"
    raise DataError(
        f"Expected {', '.join(SUFFIXES + TABLE_SUFFIXES)}, IDX, or a folder of images; got {path}"
        f"{', which is empty' if not start else ''}. Convert it to one of these."
    )


def _check_options(kind: str, options: dict[str, Any]) -> None:
    for name in options:
        if name not in _OPTIONS[kind]:
            users = [other for other, its in _OPTIONS.items() if name in its]
            raise DataError(
                f"Expected {name}=... with {' or '.join(users)}; got it with {kind}. Leave it out."
            )


def _idx_folder(folder: Path) -> tuple[Rows, Rows | None]:
    paths = find_idx(folder)
    parts = []
    for part in ("train", "test"):
        images, labels = (paths.get(f"{part}_{kind}") for kind in ("images", "labels"))
        if images is not None and labels is not None:
            x, y = read_pair(images, labels)
            parts.append(TensorRows(torch.from_numpy(x), torch.from_numpy(y)))
    if not parts or len(parts) * 2 < len(paths):
        missing = [name for kind, name in IDX_FILES.items() if kind not in paths]
        raise DataError(
            f"Expected images and labels of the same names in {folder}; got no "
            f"{', '.join(missing)}. Add the files, or pass one IDX file."
        )
    return parts[0], parts[1] if len(parts) > 1 else None


def _idx_file(path: Path, labels: Column | None) -> Rows:
    beside = path.with_name(path.name.replace("images-idx3", "labels-idx1"))
    if labels is None and beside != path:
        twins = [beside, beside.with_suffix(""), beside.with_name(f"{beside.name}.gz")]
        found = next((twin for twin in twins if twin.is_file()), None)
        if found is not None:
            x, y = read_pair(path, found)
            return TensorRows(torch.from_numpy(x), torch.from_numpy(y))
    return ArrayRows(read_idx(path), _label_file(labels), f"the data in {path}")


def _array(path: Path, key: str | None, labels: Column | None) -> Rows:
    is_key = labels is not None and not os.path.isfile(str(labels))
    if is_key and path.suffix.lower() == ".npz":
        return array_file(path, key, str(labels))
    return array_file(path, key, _label_file(labels))


def _label_file(labels: Column | None) -> Labels | None:
    """Read labels that are in a file of their own."""
    if labels is None:
        return None
    path, kind = _kind(str(labels))
    with reading(path, "a file of one label for each row"):
        if kind == "an IDX file":
            return number_classes(read_idx(path), str(path))
        if kind in SUFFIXES:
            return number_classes(np.asarray(read_arrays(path, None)[0]), str(path))
        raise DataError(
            f"Expected labels in a .npy, .npz or IDX file; got {path}. Save them as one of these."
        )
