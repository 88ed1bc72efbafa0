"""What a sweep varies: values of settings, and ranges of numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import product
from typing import Any, get_type_hints

from pyro_dvae.defaults import RunSettings

_SAME_DATA = {
    "binarize",
    "drop_copies",
    "group_copies",
    "num_classes",
    "range",
    "seed",
    "split",
    "split_seed",
    "test",
    "validation",
}
"""Settings that every run of a sweep has in common, so that the figures can be compared."""
_MOST_CORNERS = 4096
"""The most combinations that are checked before a search."""
_LONGEST = 120
"""The most characters of the name of a folder, of which most file systems take 255 bytes."""


@dataclass(frozen=True)
class Range:
    """All numbers from `low` to `high`, both included, of which a search may take any.

    A setting that counts, such as `num_latents`, gets whole numbers.
    """

    low: float
    high: float
    log: bool = False
    """Draw the logarithm of the number uniformly, and not the number itself."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(
                f"Expected a range of two finite numbers, the smaller first; got {self}. Swap or "
                "change them."
            )
        if self.log and self.low <= 0:
            raise ValueError(
                f"Expected a range above 0 for a logarithmic scale; got {self}. Raise the lower "
                "end, or leave the scale out."
            )

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}{':log' if self.log else ''}"


Vary = Mapping[str, Sequence[Any] | Range]
"""Setting -> the values that it takes, or a range of numbers."""


def check_vary(vary: Vary, *, is_search: bool) -> None:
    """Raise a ValueError where a sweep cannot vary what is named.

    Args:
        vary: the settings that vary.
        is_search: whether ranges can be searched.
    """
    types = get_type_hints(RunSettings)
    for name, values in vary.items():
        if name not in types or name in _SAME_DATA:
            known = ", ".join(name for name in types if name not in _SAME_DATA)
            hint = ", of which seeds=5 takes five" if name == "seed" else ""
            raise ValueError(
                f"Expected a setting that runs on the same data may differ in; got {name}{hint}. "
                f"Choose from {known}."
            )
        if isinstance(values, Range):
            _check_range(name, values, types[name], is_search)
        elif isinstance(values, str) or not len(values):
            raise ValueError(
                f"Expected one value or more of {name}; got {values!r}. Name some in a list."
            )
        elif len({label(value) for value in values}) < len(values):
            raise ValueError(
                f"Expected values of {name} that differ; got {list(values)}. Leave repeated ones "
                "out."
            )
    if is_search and not vary:
        raise ValueError("Expected settings to vary for a search; got none. Name some.")


def _check_range(name: str, values: Range, its_type: Any, is_search: bool) -> None:
    if not is_search:
        raise ValueError(
            f"Expected single values of {name} where every combination is trained; got the range "
            f"{values}. Name the values, or the number of trials of a search."
        )
    if not (is_whole(name) or its_type in (float, float | None)):
        raise ValueError(
            f"Expected single values of {name}, which is no number; got the range {values}. Name "
            "the values."
        )
    if is_whole(name) and not (float(values.low).is_integer() and float(values.high).is_integer()):
        raise ValueError(
            f"Expected whole numbers as the ends of a range of {name}; got {values}. Round them."
        )


def is_whole(name: str) -> bool:
    """Whether a setting takes whole numbers."""
    return get_type_hints(RunSettings)[name] in (int, int | None)


def points(vary: Vary) -> Iterator[dict[str, Any]]:
    """Every combination of the values that settings take; of ranges, of their two ends."""
    ends = {
        name: _ends(name, values) if isinstance(values, Range) else values
        for name, values in vary.items()
    }
    for number, values in enumerate(product(*ends.values())):
        if number >= _MOST_CORNERS and any(isinstance(v, Range) for v in vary.values()):
            return
        yield dict(zip(ends, values, strict=True))


def _ends(name: str, values: Range) -> list[float]:
    ends = [values.low, values.high]
    return [int(end) for end in ends] if is_whole(name) else ends


def label(value: Any) -> str:
    """A value in one word, such as "256,128"."""
    if isinstance(value, (tuple, list)):
        return ",".join(map(label, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def folder_name(point: Mapping[str, Any], seed: int) -> str:
    """The folder of a run: "estimator=rloo,seed=0"."""
    name = ",".join(f"{key}={label(value)}" for key, value in {**point, "seed": seed}.items())
    clean = re.sub(r"[^\w.,=+-]+", "-", name)
    if len(clean) <= _LONGEST and clean == name:
        return clean
    digest = blake2b(name.encode(), digest_size=4).hexdigest()
    return f"{clean[: _LONGEST - 30]}-{digest},seed={seed}"
