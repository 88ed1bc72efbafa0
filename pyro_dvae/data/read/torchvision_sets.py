"""Named data sets of torchvision, which are found in a folder or downloaded into the cache."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pyro_dvae.data.read.datasets import DatasetRows
from pyro_dvae.data.read.download import data_folders, fetch
from pyro_dvae.data.read.errors import DataError, reason
from pyro_dvae.data.read.idx import IDX_FILES, find_idx, read_pair
from pyro_dvae.data.read.rows import Rows, Source, TensorRows

_DEBIAN = Path("/usr/share/datasets")
"""The folder into which packages of Debian put data sets."""


class _Set(NamedTuple):
    """How torchvision names a data set and its parts."""

    cls: str
    """The name of the class in ``torchvision.datasets``."""
    train: Mapping[str, Any]
    """The arguments of the class for the training part."""
    test: Mapping[str, Any]
    """The arguments of the class for the test part."""
    files: Mapping[str, str] | None = None
    """What a file holds -> its name; None if the set does not come as IDX files."""
    notice: str | None = None
    """A line to show people, or None."""


def _emnist(split: str) -> _Set:
    files = {
        f"{part}_{kind}": f"emnist-{split}-{part}-{kind}-idx{rank}-ubyte"
        for part in ("train", "test")
        for kind, rank in (("images", 3), ("labels", 1))
    }
    train, test = ({"split": split, "train": train} for train in (True, False))
    notice = f"EMNIST, split {split}; its images lie on their sides, as it stores them"
    return _Set("EMNIST", train, test, files, notice)


_TRAIN, _TEST = {"train": True}, {"train": False}
_SETS = {
    "fashion-mnist": _Set("FashionMNIST", _TRAIN, _TEST, IDX_FILES),
    "kmnist": _Set("KMNIST", _TRAIN, _TEST, IDX_FILES),
    "emnist": _emnist("balanced"),
    **{f"emnist-{split}": _emnist(split) for split in ("letters", "digits", "byclass", "bymerge")},
    "qmnist": _Set("QMNIST", {"what": "train"}, {"what": "test"}),
    "omniglot": _Set("Omniglot", {"background": True}, {"background": False}),
    "cifar10": _Set("CIFAR10", _TRAIN, _TEST),
    "cifar100": _Set("CIFAR100", _TRAIN, _TEST),
    "svhn": _Set("SVHN", {"split": "train"}, {"split": "test"}),
    "usps": _Set("USPS", _TRAIN, _TEST),
}
TORCHVISION_SETS = tuple(_SETS)


def torchvision_set(name: str, data_dir: Path | None = None) -> Source:
    """Open a data set of torchvision.

    Args:
        name: One of ``TORCHVISION_SETS``; ``"emnist"`` is its balanced split.
        data_dir: The one folder to take the data set from. Its files lie as torchvision puts them,
            or the IDX files lie at the top or in a folder with the name of the set. None looks in
            the folder that ``PDVAE_DATA_DIR`` names, in the cache, and in ``/usr/share/datasets``;
            if the set is in none of them, it is downloaded into the cache.

    Returns:
        The training and the test data.

    Raises:
        DataError: If the data set cannot be had, or a file is damaged.
    """
    its = _SETS[name]
    find = _find_torchvision if its.files is None else _find_idx
    folders = [*data_folders(), _DEBIAN] if data_dir is None else [data_dir]
    for folder in folders:
        found = find(name, its, folder, data_dir is not None)
        if found is not None:
            return Source(name, str(folder), *found, its.notice)
    failure = "nothing was downloaded"
    if data_dir is None:
        cache = data_folders()[-1]
        failures = [fetch(its.cls, cache, **part) for part in (its.train, its.test)]
        found = None if any(failures) else find(name, its, cache, False)
        if found is not None:
            return Source(name, str(cache), *found, its.notice)
        failure = failures[0] or failures[1] or "the download left nothing"
    where = " or ".join(map(str, folders))
    names = "" if its.files is None else f" ({', '.join(its.files.values())}, plain or .gz)"
    raise DataError(
        f"Expected {name} in {where}; got no such files, and {failure}. Put them{names} into a "
        'folder and pass data_dir="FOLDER".'
    )


_Found = tuple[Rows, Rows] | None


def _find_idx(name: str, its: _Set, folder: Path, asked: bool) -> _Found:
    files = dict(its.files or {})
    # Several sets have files of the same names, so the top of a folder counts only if the user
    # named that folder.
    layouts = [f"{its.cls}/raw", name, *(["."] if asked else [])]
    paths = find_idx(folder, layouts, files)
    if len(paths) < len(files):
        return None
    from torchvision import datasets  # type: ignore[import-untyped, unused-ignore]

    cls = vars(datasets)[its.cls]
    split = its.train.get("split")
    classes = tuple(cls.classes if split is None else cls.classes_split_dict[split])
    parts = []
    for part in ("train", "test"):
        x, y = read_pair(paths[f"{part}_images"], paths[f"{part}_labels"])
        parts.append(TensorRows(torch.from_numpy(x), torch.from_numpy(y), classes))
    return parts[0], parts[1]


def _find_torchvision(name: str, its: _Set, folder: Path, asked: bool) -> _Found:
    from torchvision import datasets

    cls: Callable[..., Any] = vars(datasets)[its.cls]
    try:
        # CIFAR's files are pickles. torchvision opens them only if their checksums are right.
        train, test = (DatasetRows(cls(str(folder), **part)) for part in (its.train, its.test))
        return _in_memory(train), _in_memory(test)
    except ModuleNotFoundError as error:
        raise DataError(
            f"Expected the package {error.name}, to read {name}; got none. "
            f"pip install {error.name}."
        ) from error
    except RuntimeError as error:
        if asked:
            raise DataError(
                f"Expected {name} as torchvision lays it out in {folder}; got none "
                f"({reason(error)}). Check the folder."
            ) from error
        return None


def _in_memory(rows: DatasetRows) -> TensorRows:
    return TensorRows(
        rows.read(torch.arange(len(rows), device="cpu")), rows.labels, rows.label_names
    )
