"""Folders of images; the names of subfolders are the labels."""

from pathlib import Path

import torch

from pyro_dvae.data.errors import DataError, reading, shorten
from pyro_dvae.data.images import ImageRows
from pyro_dvae.data.labels import Labels

IMAGE_SUFFIXES = (
    *(".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"),
    *(".pbm", ".pgm", ".ppm", ".pnm"),
)


def image_folder(
    folder: Path, *, size: tuple[int, int] | None = None, channels: int | None = None
) -> tuple[ImageRows, ImageRows | None, str | None]:
    """Open a folder of images; the names of subfolders are the labels.

    Args:
        folder: Images, or subfolders of images, or ``train`` and ``test`` with either in them.
        size: Height and width to resize to.
        channels: 1 or 3 to convert to.

    Returns:
        Training images, test images or None, and a line on what was left out, or None.

    Raises:
        DataError: If there are no images, or they do not go together.
    """
    parts = sorted(_visible(folder, folders=True))
    split = [part.name for part in parts] == ["test", "train"] and not _here(folder)
    opened, left_out = [], []
    for part in [folder / "train", folder / "test"] if split else [folder]:
        files, labels, others = _find(part)
        opened.append(ImageRows(files, part, labels, size=size, channels=channels))
        left_out += [_name(other, folder) for other in others]
    notice = f"left out, being no images: {shorten(left_out)}" if left_out else None
    train, test = opened[0], opened[1] if split else None
    if test is not None and (
        (test.event_shape, test.dtype) != (train.event_shape, train.dtype)
        or test.label_names != train.label_names
    ):
        raise DataError(
            f"Expected images of one kind and the same classes in train and test of {folder}; got "
            f"{train.event_shape} {train.label_names} and {test.event_shape} {test.label_names}. "
            "Pass --size or --channels, or make the folders agree."
        )
    return train, test, notice


def _visible(folder: Path, *, folders: bool) -> list[Path]:
    entries = [path for path in folder.iterdir() if not path.name.startswith(".")]
    return [path for path in entries if path.is_dir() == folders]


def _here(folder: Path) -> list[Path]:
    files = _visible(folder, folders=False)
    return sorted(path for path in files if path.suffix.lower() in IMAGE_SUFFIXES)


def _find(folder: Path) -> tuple[list[Path], Labels | None, list[Path]]:
    """The images, their labels, and the other files."""
    with reading(folder, "a folder of images"):
        found = _here(folder)
        others = sorted(set(_visible(folder, folders=False)) - set(found))
        by_class: dict[str, list[Path]] = {}
        for part in sorted(_visible(folder, folders=True)):
            below = sorted(path for path in part.rglob("[!.]*") if path.is_file())
            images = [path for path in below if path.suffix.lower() in IMAGE_SUFFIXES]
            others += sorted(set(below) - set(images)) if images else [part]
            if images:
                by_class[part.name] = images
    if found and by_class:
        raise DataError(
            f"Expected all images in class folders of {folder}, or none; got {len(found)} beside "
            f"the folders {shorten(list(by_class))}. Move them, or pass one folder."
        )
    if not found and not by_class:
        raise DataError(
            f"Expected images (.png, .jpg, ...) in {folder}; got "
            f"{shorten([_name(other, folder) for other in others]) or 'an empty folder'}. "
            "Pass the folder that holds them."
        )
    if found:
        return found, None, others
    numbers = [i for i, images in enumerate(by_class.values()) for _ in images]
    files = [image for images in by_class.values() for image in images]
    return files, (torch.tensor(numbers), tuple(by_class)), others


def _name(file: Path, root: Path) -> str:
    return file.relative_to(root).as_posix()
