"""MNIST, or the bundled sample of it."""

from collections.abc import Mapping
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_dvae.data.read.download import data_folders, fetch
from pyro_dvae.data.read.errors import DataError
from pyro_dvae.data.read.idx import IDX_FILES, find_idx, read_idx
from pyro_dvae.displays import html_images, shape_of

DATA_SETS = ("mnist", "mnist-sample")
_SHOWN = 12
"""The number of images that a notebook shows."""
_LAYOUTS = ("MNIST/raw", "mnist", ".")

_SAMPLE = "bundled sample (5,000 training and 1,000 test images)"
_HOW_TO_GET = (
    "For the full set put its four IDX files (train-images-idx3-ubyte, ..., plain or .gz) in a "
    'folder and pass data_dir="FOLDER", or set PDVAE_DATA_DIR.'
)


class Images(NamedTuple):
    """Images and labels of a data set, split into a training and a test part."""

    name: str
    train: Tensor
    """(N, 28, 28) uint8."""
    test: Tensor
    """(M, 28, 28) uint8."""
    train_labels: Tensor
    """(N,) int64."""
    test_labels: Tensor
    """(M,) int64."""
    source: str
    """Where the data came from, for people."""
    notice: str | None
    """A line to show people, or None."""

    def __repr__(self) -> str:
        return (
            f"Images {self.name!r}: train {shape_of(self.train)}, test {shape_of(self.test)}, with "
            f"labels; {self.source}"
        )

    def _repr_html_(self) -> str:
        """The first images beside the text, for a notebook."""
        strip = html_images(self.train[:_SHOWN], "the first images of the training data")
        return f"<div><p>{escape(repr(self))}</p>{strip}</div>"


def load_images(
    name: str | None = None, data_dir: Path | str | None = None, *, download: bool = True
) -> Images:
    """Load MNIST, or the bundled sample of it.

    >>> from pyro_dvae import load_images
    >>> load_images("mnist-sample").train.shape
    torch.Size([5000, 28, 28])

    Args:
        name: ``"mnist"``, ``"mnist-sample"`` (which ignores ``data_dir``), or None. None loads
            MNIST if it can be had; otherwise it loads the sample, with a ``notice`` that says so.
        data_dir: The one folder to take MNIST from. None looks in the folder that the environment
            variable ``PDVAE_DATA_DIR`` names, and then in the user's cache. In such a folder the
            four IDX files, plain or gzipped, lie in ``MNIST/raw/``, in ``mnist/``, or at the top.
        download: Whether to download MNIST into the cache if it is in none of the folders.

    Returns:
        The images.

    Raises:
        DataError: If the name is unknown, if a file is damaged, if ``data_dir`` does not hold
            MNIST, or if ``"mnist"`` was asked for and cannot be had.
    """
    if name not in (None, *DATA_SETS):
        raise DataError(f"Expected a data set in {DATA_SETS}; got {name!r}. Pass one of these.")
    if name == "mnist-sample":
        return _load_sample(notice=None)
    if data_dir is not None:
        return _load_mnist(Path(data_dir).expanduser())

    folders = data_folders()
    cache = folders[-1]
    for folder in folders:
        if len(find_idx(folder, _LAYOUTS)) == len(IDX_FILES):
            return _load_mnist(folder)

    failure = fetch("MNIST", cache) if download else "downloading is turned off"
    if failure is None:
        return _load_mnist(cache)
    places = " or ".join(map(str, folders))
    if name is None:
        notice = f"MNIST is not in {places}, and {failure}; using the {_SAMPLE}. {_HOW_TO_GET}"
        return _load_sample(notice)
    raise DataError(
        f"Expected MNIST in {places}; got no such files, and {failure}. {_HOW_TO_GET} "
        f"Or use mnist-sample, the {_SAMPLE}."
    )


def _load_mnist(folder: Path) -> Images:
    paths = find_idx(folder, _LAYOUTS)
    missing = [name for key, name in IDX_FILES.items() if key not in paths]
    if missing:
        got = f"no {', '.join(missing)}" if folder.is_dir() else "no such folder"
        raise DataError(f"Expected the MNIST files in {folder}; got {got}. {_HOW_TO_GET}")
    arrays = {key: read_idx(path) for key, path in paths.items()}
    for images, labels in (("train_images", "train_labels"), ("test_images", "test_labels")):
        count, shape = arrays[labels].size, arrays[images].shape
        if count == 0 or arrays[labels].ndim != 1 or shape != (count, 28, 28):
            raise DataError(
                f"Expected images of shape (N, 28, 28) with N > 0 labels; got {shape} in "
                f"{paths[images]} with {arrays[labels].shape} in {paths[labels]}. Replace them."
            )
    return _to_images("mnist", arrays, str(folder), notice=None)


def _load_sample(notice: str | None) -> Images:
    asset = files("pyro_dvae") / "assets" / "mnist_sample.npz"
    with asset.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        return _to_images("mnist-sample", arrays, "bundled sample", notice)


def _to_images(
    name: str, arrays: Mapping[str, NDArray[np.uint8]], source: str, notice: str | None
) -> Images:
    train, test = torch.from_numpy(arrays["train_images"]), torch.from_numpy(arrays["test_images"])
    train_labels = torch.from_numpy(arrays["train_labels"]).to(torch.int64)
    test_labels = torch.from_numpy(arrays["test_labels"]).to(torch.int64)
    return Images(name, train, test, train_labels, test_labels, source, notice)
