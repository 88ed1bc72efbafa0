"""What a page sends, checked: anything may come, and only what a function can take is let through.

Each function raises a ValueError of one line for everything else. No value is a path of a file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

MOST_SEED = 2**32 - 1
"""The largest seed. JavaScript knows whole numbers up to 2^53 only."""
_LONGEST = 200
"""The most characters of a cell."""


def whole(name: str, value: Any, low: int, high: int) -> int:
    """A whole number from `low` to `high`.

    Args:
        name: what messages call it.
        value: what came.
        low: the smallest number.
        high: the largest number.

    Raises:
        ValueError: it is none.
    """
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not low <= value <= high or value != int(value):
        raise ValueError(
            f"Expected a whole number from {low} to {high} for {name}; got {_told(value)}. Choose "
            "another."
        )
    return int(value)


def code_of(value: Any, num_latents: int, num_categories: int) -> list[int]:
    """The D categories of a code.

    Args:
        value: a list of categories; or a text, such as "3 0 7 1".
        num_latents: D.
        num_categories: K.

    Raises:
        ValueError: these are not D categories from 0 to K - 1.
    """
    if isinstance(value, str) and len(value) <= 16 * num_latents:
        words = value.replace(",", " ").split()
        value = [int(word) if word.isascii() and word.isdigit() else word for word in words]
    if not isinstance(value, (list, tuple)) or len(value) != num_latents:
        number = f"{len(value)} of them" if isinstance(value, (list, tuple)) else _told(value)
        raise ValueError(
            f"Expected a code of {num_latents} categories, such as "
            f"{' '.join(['0'] * min(num_latents, 4))}{' ...' if num_latents > 4 else ''}; got "
            f"{number}. Write one number per latent."
        )
    return [whole(f"z{d}", k, 0, num_categories - 1) for d, k in enumerate(value, 1)]


def pixels_of(value: Any, shape: Sequence[int]) -> Tensor:
    """An image in [0, 1], (C, H, W), of a text with two hexadecimal digits per value.

    Args:
        value: the digits of all planes, one after the other, each in rows.
        shape: (C, H, W).

    Raises:
        ValueError: the text has another length, or other characters.
    """
    number = math.prod(shape)
    text = value if isinstance(value, str) and len(value) == 2 * number else ""
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != number:
        raise ValueError(
            f"Expected an image of {' x '.join(map(str, shape))} values; got another. Draw or "
            "choose an image first."
        )
    return torch.frombuffer(bytearray(found), dtype=torch.uint8).reshape(tuple(shape)) / 255


def hex_of(image: Tensor) -> str:
    """The text that `pixels_of` reads, of an image in [0, 1]."""
    values = image.nan_to_num(0.0).clamp(0, 1).mul(255).round().to(torch.uint8)
    return bytes(values.flatten().tolist()).hex()


def cells_of(
    value: Any, columns: Sequence[str], levels: Mapping[str, Sequence[str]]
) -> list[float | str]:
    """The cells of a row: numbers, and the names of levels; NaN where a number is missing.

    Args:
        value: a list of one text or number per column.
        columns: the names of the columns.
        levels: name of a column -> the names of its levels.

    Raises:
        ValueError: there are more or fewer cells, a number is none, or a level is not known.
    """
    if not isinstance(value, (list, tuple)) or len(value) != len(columns):
        raise ValueError(
            f"Expected a row of {len(columns)} cells; got {_told(value)}. Fill in one per column."
        )
    return [
        _level(name, cell, levels[name]) if name in levels else _number(name, cell)
        for name, cell in zip(columns, value, strict=True)
    ]


def _level(name: str, cell: Any, levels: Sequence[str]) -> str:
    if cell in ("", None) or (isinstance(cell, str) and cell in levels):
        return cell or ""
    raise ValueError(
        f"Expected one of {', '.join(levels)[:_LONGEST]} in the column {name}; got {_told(cell)}. "
        "Choose one."
    )


def _number(name: str, cell: Any) -> float:
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        return math.nan
    is_cell = isinstance(cell, (str, int, float)) and not isinstance(cell, bool)
    try:
        number = float(cell) if is_cell and len(str(cell)) <= _LONGEST else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(
            f"Expected a number in the column {name}; got {_told(cell)}. Change the cell."
        )
    return number


def _told(value: Any) -> str:
    """What came, in few characters."""
    if value is None:
        return "nothing"
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return f"a {type(value).__name__}"
    if isinstance(value, int) and abs(value) > 2**64:
        return "a greater one"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
