"""What the data of a new run decide where the user does not."""

from __future__ import annotations

import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .console import note
from .options import fail

if TYPE_CHECKING:
    from pyro_dvae import Config
    from pyro_dvae.data import Scan, Source, Splits

MOST_ROWS, MOST_BYTES = 10_000, 2**26
"""What is kept apart at most, in float32, unless the user says how many rows."""


def look(source: Source) -> Scan:
    """Look at all of the data before anything is made of them.

    Raises:
        ValueError: they cannot be read, or not be trained on.
    """
    from pyro_dvae.data import complaint, scan

    repeated = getattr(source.train, "repeated", ())
    if repeated:
        fail(
            f"Expected columns with names of their own in {source.name}; got {repeated[0]!r} more "
            "than once. Rename one, for by its name it is found in other files, or leave it out "
            "with --columns."
        )
    if source.notice:
        note(source.notice)
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
    from pyro_dvae.data import choose, mixed_spec

    likelihood = config.likelihood
    if likelihood == "mixed":
        likelihood = mixed_spec(source.train)
        print(f"columns: {likelihood.removeprefix('mixed:')}", file=sys.stderr)
    preparation = choose(found.extent, settings["binarize"], config.range, likelihood)
    shares = {"validation": 0.05} | ({"test": 0.1} if source.test is None else {})
    amounts: dict[str, Any] = {}
    most = max(1, min(MOST_ROWS, MOST_BYTES // (4 * math.prod(found.event_shape))))
    for part, share in shares.items():
        amounts[part] = share if round(share * found.num_data) <= most else most
        if settings[part] is not None:
            amounts[part] = settings[part]
    return replace(
        config,
        binarize=preparation.binarize,
        range=preparation.range,
        likelihood=preparation.name,
        num_classes=count_classes(config.prior, source),
        **amounts,
    )


def count_classes(prior: str, source: Source) -> int:
    """How many classes the labels have, for a prior that is conditional on them; else 0."""
    from pyro_dvae.data import class_labels

    if prior.partition(":")[0] != "conditional":
        return 0
    return int(class_labels(source.train.labels, 0, "the training data").max()) + 1


def check_values(config: Config, splits: Splits) -> None:
    """Have the likelihood look at every part before anything is trained or left behind.

    Raises:
        ValueError: it does not take a value.
    """
    import torch

    from pyro_dvae.data import Preparation
    from pyro_dvae.data.read.extent import in_blocks
    from pyro_dvae.runs.config import build_likelihood

    if config.likelihood == "bernoulli":
        return  # whose values were checked as they were stored
    likelihood = build_likelihood(config, splits.train.event_shape)
    preparation = Preparation(config.binarize, config.range, config.likelihood)
    generator = torch.Generator()
    for rows in splits.stored.values():
        for index in in_blocks(rows):
            kept = preparation.convert(rows.read(index))
            likelihood.check(preparation.serve(kept, generator))


def stem(name: str) -> str:
    """The name of data, fit for that of a folder."""
    return re.sub(r"[^\w.-]+", "-", Path(name).stem).strip("-.") or "data"
