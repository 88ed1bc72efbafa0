"""What the data of a new run decide where the user does not."""

from __future__ import annotations

import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .options import fail

if TYPE_CHECKING:
    from pyro_dvae import Config
    from pyro_dvae.data import Scan, Source

MOST_ROWS, MOST_BYTES = 10_000, 2**26
"""What is kept apart at most, in float32, unless the user says how many rows."""


def look(source: Source) -> Scan:
    """Look at all of the data before anything is made of them.

    Raises:
        ValueError: they cannot be read, or not be trained on.
    """
    from pyro_dvae.data import complaint, scan

    if source.notice:
        print(source.notice, file=sys.stderr)
    found = scan(source.train)
    wrong = complaint(found)
    if wrong is not None:
        fail(wrong)
    return found


def describe(found: Scan) -> str:
    """What was found, in one line."""
    shape = " x ".join(map(str, found.event_shape)) or "a single number"
    distinct = "" if found.num_distinct is None else f" ({found.num_distinct} distinct)"
    classes = "" if found.classes is None else f", {len(found.classes)} classes"
    duplicates = f", {found.num_duplicates:,} duplicates" if found.num_duplicates else ""
    return (
        f"data: {found.num_data:,} rows of {shape}, {found.dtype}, {found.low:g} to "
        f"{found.high:g}{distinct}{classes}{duplicates}, none missing or infinite"
    )


def settle(config: Config, settings: dict[str, Any], source: Source, found: Scan) -> Config:
    """The settings, with what the data decide.

    Args:
        config: the settings that do not depend on the data.
        settings: what the user asked for; None where he did not.
        source: the data.
        found: what they are.

    Raises:
        ValueError: they do not fit the likelihood.
    """
    import torch

    from pyro_dvae.data import Extent, choose

    low, high = found.low or 0.0, found.high or 0.0
    is_binary = {low, high} <= {0, 1} and (found.num_distinct or 3) <= 2
    known = Extent(getattr(torch, found.dtype), low, high, is_binary)
    preparation = choose(known, settings["binarize"], config.range)
    shares = {"validation": 0.05} | ({"test": 0.1} if source.test is None else {})
    amounts: dict[str, Any] = {}
    most = max(1, min(MOST_ROWS, MOST_BYTES // (4 * math.prod(found.event_shape))))
    for part, share in shares.items():
        amounts[part] = share if round(share * found.num_data) <= most else most
        if settings[part] is not None:
            amounts[part] = settings[part]
    return replace(config, binarize=preparation.binarize, **amounts)


def stem(name: str) -> str:
    """The name of data, fit for that of a folder."""
    return re.sub(r"[^\w.-]+", "-", Path(name).stem).strip("-.") or "data"
