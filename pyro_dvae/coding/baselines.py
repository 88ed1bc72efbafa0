"""The sizes that compressors without a model reach on the same values."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MOST_SIDE = 16_383
"""The most pixels of a side of a WebP image."""


def baseline_sizes(values: NDArray[Any], *, is_image: bool) -> dict[str, int | None]:
    """Bytes of gzip, bz2, xz, zstd, PNG and lossless WebP, each at its highest level.

    Zeros and ones are packed, eight per byte, and are images of one bit per pixel. Other values
    take as few bytes as hold the largest of them.

    Args:
        values: (N, *event_shape), whole numbers of at least 0.
        is_image: whether a datum is an image (H, W), (1, H, W) or (3, H, W).

    Returns:
        Name -> bytes; None where a package or a format of such values is not there.
    """
    is_bits = bool(((values == 0) | (values == 1)).all())
    small = values.astype(np.min_scalar_type(int(values.max())))
    content = np.packbits(small.astype(bool)).tobytes() if is_bits else small.tobytes()
    zstd = _zstd()
    sizes: dict[str, int | None] = {
        "gzip": len(gzip.compress(content, 9, mtime=0)),
        "bz2": len(bz2.compress(content, 9)),
        "xz": len(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME)),
        "zstd": None if zstd is None else len(zstd(content)),
    }
    if not is_image:
        return sizes
    images = _images(small)
    for name in ("PNG", "WebP"):
        sheet = None if images is None else _sheet(images)
        each = [] if images is None else [_size(image, name, is_bits) for image in images]
        known = [size for size in each if size is not None]
        sizes[f"{name}, one sheet"] = None if sheet is None else _size(sheet, name, is_bits)
        sizes[f"{name}, one by one"] = sum(known) if known else None
    return sizes


def _zstd() -> Callable[[bytes], bytes] | None:
    """Zstandard at its highest level, of Python 3.14 or of a package; None if neither is there."""
    try:
        from compression import zstd  # type: ignore[import-not-found, unused-ignore]
    except ImportError:  # or another module of that name is in the path
        try:
            import zstandard  # type: ignore[import-not-found, unused-ignore]
        except ModuleNotFoundError:
            return None
        compressor: Callable[[bytes], bytes] = zstandard.ZstdCompressor(level=22).compress
        return compressor
    return lambda content: bytes(zstd.compress(content, level=22))


def _images(values: NDArray[Any]) -> NDArray[Any] | None:
    """(N, H, W) or (N, H, W, 3) bytes; None if a pixel needs more than a byte."""
    if values.dtype.itemsize > 1:
        return None
    if values.ndim == 4:
        return values[:, 0] if values.shape[1] == 1 else np.moveaxis(values, 1, -1)
    return values


def _sheet(images: NDArray[Any]) -> NDArray[Any] | None:
    """All images side by side in a square; None if it is too large for a picture."""
    num, height, width = images.shape[:3]
    columns = math.ceil(math.sqrt(num))
    rows = -(-num // columns)
    if max(rows * height, columns * width) > _MOST_SIDE:
        return None
    blank = np.zeros((rows * columns - num, *images.shape[1:]), images.dtype)
    grid = np.concatenate([images, blank]).reshape(rows, columns, *images.shape[1:])
    return np.swapaxes(grid, 1, 2).reshape(rows * height, columns * width, *images.shape[3:])


def _size(image: NDArray[Any], name: str, is_bits: bool) -> int | None:
    from PIL import Image, features

    if name == "WebP" and not features.check("webp"):
        return None
    picture = Image.fromarray(image * 255 if is_bits else image)
    file = io.BytesIO()
    if name == "PNG":
        (picture.convert("1", dither=Image.Dither.NONE) if is_bits else picture).save(
            file, "PNG", optimize=True
        )
    else:
        picture.convert("RGB").save(file, "WEBP", lossless=True, quality=100, method=6)
    return len(file.getvalue())
