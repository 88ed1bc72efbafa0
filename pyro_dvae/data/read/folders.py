"""Folders of images, in which the names of subfolders are the labels."""

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import torch

from pyro_dvae.data.read.errors import DataError, reading, shorten
from pyro_dvae.data.read.images import ImageRows
from pyro_dvae.data.read.labels import Labels

IMAGE_SUFFIXES = (
    *(".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"),
    *(".pbm", ".pgm", ".ppm", ".pnm"),
)
_COPIES = ("__MACOSX",)
"""Folders that programs leave behind; they hold no images of their own."""
_NO_IMAGE, _HIDDEN, _BROKEN = "no images", "hidden", "broken links"
_AGAIN, _SPECIAL = "links to folders that are read already", "pipes or devices"


class _LeftOut:
    """The files and folders that are not read, by the reason."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._by_reason: dict[str, list[str]] = defaultdict(list)

    def add(self, reason: str, path: Path) -> None:
        self._by_reason[reason].append(path.relative_to(self._root).as_posix())

    def notice(self) -> str | None:
        """One line on what was left out; None if everything was read."""
        parts = []
        if _NO_IMAGE in self._by_reason:
            parts.append(f"being no images: {shorten(self._by_reason[_NO_IMAGE])}")
        for reason in (_HIDDEN, _BROKEN, _AGAIN, _SPECIAL):
            names = self._by_reason.get(reason)
            if names:
                parts.append(f"{len(names):,} {reason}: {shorten(sorted(names), 3)}")
        return f"left out, {'; '.join(parts)}" if parts else None

    def __str__(self) -> str:
        return shorten([name for names in self._by_reason.values() for name in names])


def image_folder(
    folder: Path, *, size: tuple[int, int] | None = None, channels: int | None = None
) -> tuple[ImageRows, ImageRows | None, str | None]:
    """Open a folder of images, in which the names of subfolders are the labels.

    Hidden files are left out. Links are followed, but no folder is read twice.

    Args:
        folder: A folder of images, or of subfolders of images, or of the two folders ``train`` and
            ``test`` that hold either.
        size: Height and width to resize to; None if the images have one size.
        channels: 1 to convert to grey, 3 to convert to RGB; None to take the images as they are.

    Returns:
        The training images, the test images or None, and a notice or None. The notice says what
        was left out, and how many images EXIF says to turn.

    Raises:
        DataError: If there are no images, or they differ in size, mode or classes.
    """
    left_out = _LeftOut(folder)
    with reading(folder, "a folder of images"):
        parts = sorted(path for path in folder.iterdir() if _is_shown(path) and path.is_dir())
        split = [part.name for part in parts] == ["test", "train"]
        split = split and not any(_is_image(path) for path in folder.iterdir())
    opened = []
    for part in [folder / "train", folder / "test"] if split else [folder]:
        files, labels = _find(part, left_out)
        opened.append(ImageRows(files, part, labels, size=size, channels=channels))
    train, test = opened[0], opened[1] if split else None
    if test is not None and (
        (test.event_shape, test.dtype) != (train.event_shape, train.dtype)
        or test.label_names != train.label_names
    ):
        raise DataError(
            f"Expected images of one kind and the same classes in train and test of {folder}; got "
            f"{train.event_shape} {train.label_names} and {test.event_shape} {test.label_names}. "
            "Pass size=(HEIGHT, WIDTH) or channels=1, or make the folders agree."
        )
    turned = sum(rows.num_turned for rows in opened)
    notices = [left_out.notice()]
    if turned:
        notices.append(
            f"EXIF says to turn {turned:,} of the images, which are taken as stored, not turned"
        )
    return train, test, "; ".join(filter(None, notices)) or None


def _is_shown(path: Path) -> bool:
    return not path.name.startswith(".") and path.name not in _COPIES


def _is_image(path: Path) -> bool:
    return _is_shown(path) and path.suffix.lower() in IMAGE_SUFFIXES and path.is_file()


def _entries(folder: Path, left_out: _LeftOut) -> Iterator[Path]:
    """The files of a folder and then its folders, in the order of their names."""
    for path in sorted(folder.iterdir(), key=lambda path: (path.is_dir(), path)):
        if not _is_shown(path):
            left_out.add(_HIDDEN, path)
        elif path.is_dir() or path.is_file():
            yield path
        elif path.is_symlink() and not path.exists():
            left_out.add(_BROKEN, path)
        else:
            left_out.add(_SPECIAL, path)


def _below(folder: Path, left_out: _LeftOut, seen: set[tuple[int, int]]) -> Iterator[Path]:
    """The files of a folder and of all folders below it; no folder is read twice."""
    for path in _entries(folder, left_out):
        if not path.is_dir():
            yield path
        elif _identity(path) in seen:
            left_out.add(_AGAIN, path)
        else:
            seen.add(_identity(path))
            yield from _below(path, left_out, seen)


def _identity(folder: Path) -> tuple[int, int]:
    known = os.stat(folder)
    return known.st_dev, known.st_ino


def _find(folder: Path, left_out: _LeftOut) -> tuple[list[Path], Labels | None]:
    """The images of a folder, and their labels if they lie in subfolders."""
    found: list[Path] = []
    by_class: dict[str, list[Path]] = {}
    with reading(folder, "a folder of images"):
        for path in _entries(folder, left_out):
            if path.is_dir():
                seen = {_identity(folder), _identity(path)}
                below = sorted(_below(path, left_out, seen))
                images = [file for file in below if _is_image(file)]
                if images:
                    by_class[path.name] = images
                others = sorted(set(below) - set(images)) if images else [path]
            else:
                found += [path] if _is_image(path) else []
                others = [] if _is_image(path) else [path]
            for other in others:
                left_out.add(_NO_IMAGE, other)
    if found and by_class:
        raise DataError(
            f"Expected all images in class folders of {folder}, or none; got {len(found)} beside "
            f"the folders {shorten(list(by_class))}. Move them, or pass one folder."
        )
    if not found and not by_class:
        raise DataError(
            f"Expected images (.png, .jpg, ...) in {folder}; got "
            f"{str(left_out) or 'an empty folder'}. "
            "Pass the folder that holds them."
        )
    if found:
        return found, None
    numbers = [i for i, images in enumerate(by_class.values()) for _ in images]
    files = [image for images in by_class.values() for image in images]
    return files, (torch.tensor(numbers, device="cpu"), tuple(by_class))
