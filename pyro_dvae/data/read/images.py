"""Rows of image files, which Pillow decodes when they are read."""

import os
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_dvae.data.read.errors import DataError, reading, shorten
from pyro_dvae.data.read.labels import Labels

_DTYPES = {
    "1": torch.bool,
    "L": torch.uint8,
    "RGB": torch.uint8,
    **dict.fromkeys(("I", "I;16", "I;16L", "I;16B", "I;16N"), torch.int32),
    "F": torch.float32,
}
"""Pillow's mode -> the dtype of such images, if no conversion is asked for."""
_CONVERTIBLE = {"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"}
_TRANSPARENT = " with a transparent colour"
_ADVICE = "Replace the file, or take it out."
_WHY = {mode: "with alpha" for mode in ("LA", "RGBA")} | {"P": "with a palette"}


@dataclass(frozen=True)
class ImageGroup:
    """Some images of one mode and size."""

    mode: str
    """Pillow's name: ``"L"`` is grey, ``"1"`` black and white."""
    height: int
    width: int
    num_images: int
    first: str
    """The path of the first of them, below the folder."""

    def __str__(self) -> str:
        """Return for example "3 of 28 x 28 L"."""
        return f"{self.num_images:,} of {self.height} x {self.width} {self.mode}"


class ImageRows:
    """Rows of image files, which are decoded when they are read.

    Pixels are taken as stored; what EXIF says about turning them is ignored. A grey image is a row
    of shape (H, W), a colour image one of (3, H, W), both uint8. Black and white images are bool.
    Images of one channel with 16 or 32 bits are int32 or float32.

    Args:
        files: The image files.
        root: The folder that holds them.
        labels: (N,) whole numbers and the names of the classes; None if there are no labels.
        size: Height and width to resize to, bilinearly and without keeping the proportions.
        channels: 1 to convert to grey, 3 to convert to RGB; transparent parts become white.

    Raises:
        DataError: If a file is not an image, or if the images differ or need a conversion that
            was not asked for.
    """

    columns = None

    def __init__(
        self,
        files: Sequence[Path],
        root: Path,
        labels: Labels | None = None,
        *,
        size: tuple[int, int] | None = None,
        channels: int | None = None,
    ) -> None:
        self._files, self._root = list(files), root
        self._size, self._channels = size, channels
        self.labels = None if labels is None else labels[0]
        self.label_names = None if labels is None else labels[1]
        self.images, self.num_turned = _groups(self._files, root)
        """The groups of images, the largest first; the number of images that EXIF says to turn."""
        _check_modes(self.images, root, size, channels)
        _check_sizes(self.images, root, size)
        mode = {None: self.images[0].mode, 1: "L", 3: "RGB"}[channels]
        height, width = size or (self.images[0].height, self.images[0].width)
        self.dtype: torch.dtype = _DTYPES[mode]
        self.event_shape = (3, height, width) if mode == "RGB" else (height, width)

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self._files)

    @property
    def ids(self) -> tuple[str, ...] | None:
        """The path of each image, below the folder."""
        return tuple(file.relative_to(self._root).as_posix() for file in self._files)

    def read(self, index: Tensor) -> Tensor:
        """Decode some images.

        Args:
            index: (B,) int64 image numbers, in any order.

        Returns:
            (B, *event_shape) pixels.
        """
        files = [self._files[i] for i in index.tolist()]
        # Threads help, since Pillow releases Python's lock while it decodes.
        with _quiet(), ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            return torch.stack(list(pool.map(self._decode, files)))

    def _decode(self, file: Path) -> Tensor:
        from PIL import Image

        with reading(file, "a whole image", _ADVICE):
            with Image.open(file) as stored:
                image = stored if self._channels is None else _converted(stored, self._channels)
                if self._size is not None:
                    image = image.convert("I") if image.mode.startswith("I;") else image
                    image = image.resize(self._size[::-1], Image.Resampling.BILINEAR)
                pixels = np.array(image)
            tensor = to_tensor(pixels)
            if tensor.shape != self.event_shape or tensor.dtype != self.dtype:
                raise ValueError("it has changed")
            return tensor


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide warnings of Pillow that concern no pixel, such as those on bad EXIF."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def _groups(files: list[Path], root: Path) -> tuple[list[ImageGroup], int]:
    """Group the images by mode and size, and count those to turn; only headers are read."""
    from PIL import Image

    members: dict[tuple[str, int, int], list[Path]] = defaultdict(list)
    num_turned = 0
    for file in files:
        with reading(file, "an image", _ADVICE), _quiet(), Image.open(file) as image:
            members[_mode(image), image.height, image.width].append(file)
            num_turned += _is_turned(image)
    ranked = sorted(members.items(), key=lambda item: -len(item[1]))
    groups = [
        ImageGroup(*kind, len(its), its[0].relative_to(root).as_posix()) for kind, its in ranked
    ]
    return groups, num_turned


def _is_turned(image: Any) -> bool:
    """Whether EXIF says to turn or mirror the image. Pillow does so by itself for TIFF alone."""
    if image.format == "TIFF" or "exif" not in image.info:
        return False
    with suppress(Exception):  # bad EXIF counts as none
        return image.getexif().get(0x0112) in range(2, 9)
    return False


def _mode(image: Any) -> str:
    """Pillow's mode, and what else must be known: several frames, 16 bits, transparency."""
    mode = str(image.mode)
    if getattr(image, "is_animated", False):  # which only some formats of Pillow have
        return f"{mode} in several frames"
    raw = str(image.tile[0][3]) if image.tile else ""
    if ";16" in raw and not mode.startswith("I"):
        return f"{mode} in 16 bits"  # which Pillow would cut to 8
    return f"{mode}{_TRANSPARENT}" if "transparency" in image.info else mode


def _found(groups: list[ImageGroup]) -> str:
    return shorten([str(group) for group in groups], 3)


def _check_modes(
    groups: list[ImageGroup], root: Path, size: tuple[int, int] | None, channels: int | None
) -> None:
    for group in groups:
        plain = group.mode.removesuffix(_TRANSPARENT)
        as_it_is = group.mode in _DTYPES and channels is None
        if plain not in _CONVERTIBLE and not as_it_is:
            raise DataError(
                f"Expected images of one frame and 8 bits in {root}; got {_found(groups)}, with "
                f"{group.first} {group.mode}. Convert these, or take them out."
            )
    odd = [g for g in groups if g.mode not in _DTYPES or g.mode != groups[0].mode]
    if odd and channels is None:
        why = _WHY.get(odd[0].mode, odd[0].mode)
        raise DataError(
            f"Expected images of one mode, grey or RGB, in {root}; got {_found(groups)}, with "
            f"{odd[0].first} {why}. Pass channels=1 or channels=3 to convert all (what is "
            "transparent becomes white)."
        )
    if groups[0].mode == "1" and channels is None and size is not None:
        raise DataError(
            f"Expected grey or RGB images to resize in {root}; got {_found(groups)}, black and "
            "white. Pass channels=1 too, to make them grey."
        )


def _check_sizes(groups: list[ImageGroup], root: Path, size: tuple[int, int] | None) -> None:
    sizes = {(group.height, group.width) for group in groups}
    if size is None and len(sizes) > 1:
        most = groups[0]
        odd = next(g for g in groups if (g.height, g.width) != (most.height, most.width))
        raise DataError(
            f"Expected images of one size in {root}; got {_found(groups)}, with {odd.first} "
            f"{odd.height} x {odd.width}. Pass size=({most.height}, {most.width}) to resize all, "
            "or take the odd ones out."
        )


def _converted(image: Any, channels: int) -> Any:
    if image.mode in ("LA", "P", "PA", "RGBA") or "transparency" in image.info:
        from PIL import Image

        white = Image.new("RGBA", image.size, "white")
        white.alpha_composite(image.convert("RGBA"))
        image = white
    return image.convert("L" if channels == 1 else "RGB")


def to_tensor(pixels: NDArray[Any]) -> Tensor:
    """Turn decoded pixels (H, W) or (H, W, C) into a tensor (H, W) or (C, H, W).

    Whole numbers of more than 8 bits become int32.
    """
    if pixels.dtype.kind in "iu" and pixels.dtype.itemsize > 1:
        pixels = pixels.astype(np.int32)
    if pixels.ndim == 3:
        pixels = pixels.transpose(2, 0, 1)  # (3, H, W)
    return torch.from_numpy(np.ascontiguousarray(pixels))
