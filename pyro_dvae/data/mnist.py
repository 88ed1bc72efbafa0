"""MNIST, or the bundled sample of it."""

import gzip
import hashlib
import io
import math
import os
import socket
import textwrap
import zlib
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from http.client import HTTPException
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

DATA_SETS = ("mnist", "mnist-sample")

_IDX_FILES = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
_SAMPLE = "bundled sample (5,000 training and 1,000 test images)"
_HOW_TO_GET = (
    "For the full set put its four IDX files (train-images-idx3-ubyte, ..., plain or .gz) in a "
    "folder and pass --data-dir, or set PDVAE_DATA_DIR."
)


class DataError(ValueError):
    """Data that the user asked for is missing or damaged; the message is one line."""


class Images(NamedTuple):
    """Images (uint8, shape (N, 28, 28)) and labels (int64, shape (N,)) of a data set.

    ``source`` tells people where the data came from; ``notice`` is a line to show them, or None.
    """

    name: str
    train: Tensor
    test: Tensor
    train_labels: Tensor
    test_labels: Tensor
    source: str
    notice: str | None


def load_images(
    name: str | None = None, data_dir: Path | str | None = None, *, download: bool = True
) -> Images:
    """Load MNIST, or the bundled sample of it.

    Args:
        name: ``"mnist"``, ``"mnist-sample"`` (which ignores ``data_dir``), or None: MNIST if it
            can be had, and else the sample with a ``notice`` that says so.
        data_dir: The one folder to take MNIST from. None: the folder that the environment
            variable ``PDVAE_DATA_DIR`` names, else the user's cache. In a folder the four IDX
            files, plain or gzipped, lie in ``MNIST/raw/``, in ``mnist/``, or at its top.
        download: Whether to download MNIST into the cache where it is in no folder.

    Returns:
        The images.

    Raises:
        DataError: If the name is unknown, if a file found is damaged, if ``data_dir`` does not
            hold MNIST, or if ``"mnist"`` was asked for and cannot be had.
    """
    if name not in (None, *DATA_SETS):
        raise DataError(f"Expected a data set in {DATA_SETS}; got {name!r}. Pass one of these.")
    if name == "mnist-sample":
        return _load_sample(notice=None)
    if data_dir is not None:
        return _load_mnist(Path(data_dir).expanduser())

    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "pyro_dvae"
    named = os.environ.get("PDVAE_DATA_DIR")
    folders = [Path(named).expanduser(), cache] if named else [cache]
    for folder in folders:
        if len(_find_mnist(folder)) == len(_IDX_FILES):
            return _load_mnist(folder)

    failure = _download_mnist(cache) if download else "downloading is turned off"
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


def fingerprint(images: Images) -> str:
    """Name the data by their content: the first 16 hex digits of a SHA-256.

    Args:
        images: Images and labels; where they came from does not count.

    Returns:
        The same string for the same dtypes, shapes and values, and else another one.
    """
    digest = hashlib.sha256()
    for part in (images.train, images.train_labels, images.test, images.test_labels):
        digest.update(f"{part.dtype} {tuple(part.shape)};".encode())
        digest.update(part.cpu().contiguous().numpy().data)
    return digest.hexdigest()[:16]


def read_idx(path: Path | str) -> NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes, plain or gzipped (whatever its name).

    Args:
        path: The file.

    Returns:
        A writable array of the shape that the file's header states.

    Raises:
        DataError: If the file cannot be read or is not a whole IDX file of unsigned bytes.
    """
    try:
        content = Path(path).read_bytes()
        if content.startswith(b"\x1f\x8b"):
            content = gzip.decompress(content)
        # The magic number is two zeros, the element type (8: unsigned byte) and the number of
        # dimensions; then come the dimensions, as big-endian 32-bit integers, and the elements.
        if len(content) < 4 or content[:3] != b"\0\0\x08":
            raise ValueError(f"its magic number is {content[:4]!r}, not 00 00 08 and a count")
        start = 4 + 4 * content[3]
        shape = tuple(int.from_bytes(content[i : i + 4], "big") for i in range(4, start, 4))
        size = start + math.prod(shape)
        if len(content) != size:
            raise ValueError(f"it has {len(content)} bytes, not {size} for its shape {shape}")
        return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(
            f"Expected a whole IDX file of unsigned bytes; got {path} ({error}). Replace the file."
        ) from error


def _find_mnist(folder: Path) -> dict[str, Path]:
    """Return those of the four files that the fullest layout has, plain before gzipped."""
    layouts = [
        {
            key: path
            for key, name in _IDX_FILES.items()
            for path in (folder / layout / f"{name}.gz", folder / layout / name)
            if path.is_file()
        }
        for layout in ("MNIST/raw", "mnist", ".")
    ]
    return max(layouts, key=len)


def _load_mnist(folder: Path) -> Images:
    paths = _find_mnist(folder)
    missing = [name for key, name in _IDX_FILES.items() if key not in paths]
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


def _download_mnist(cache: Path) -> str | None:
    """Download MNIST into the cache; return None, or why that failed."""
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(10.0)
    try:
        from torchvision.datasets import MNIST  # type: ignore[import-untyped, unused-ignore]

        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            MNIST(str(cache), download=True)
    except (ImportError, OSError, RuntimeError, HTTPException) as error:
        return f"the download failed ({textwrap.shorten(str(error), 100, placeholder=' ...')})"
    finally:
        socket.setdefaulttimeout(timeout)
    return None


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
