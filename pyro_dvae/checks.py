"""Checks of settings. A message says what was expected, what was given, and what to do."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable
from typing import Any


def one_of(what: str, value: str, known: Iterable[str]) -> None:
    """Raise a ValueError unless `value` is among `known`."""
    names = list(known)
    if value not in names:
        raise ValueError(
            f"Expected {what} to be one of {', '.join(names)}; got {value!r}. Choose one of them."
        )


def shortened(value: Any) -> str:
    """A value as text for a message, of at most one line."""
    try:
        return reprlib.repr(value)
    except ValueError:  # Python does not print whole numbers of thousands of digits
        return "a whole number of thousands of digits"


def at_least(what: str, value: int, least: int) -> None:
    """Raise a ValueError unless `value >= least`."""
    if value < least:
        raise ValueError(f"Expected {what} of at least {least}; got {value}. Raise it.")


def training_settings(
    batch_size: int,
    averaging: float,
    annealing: int,
    initial_beta: float,
    learning_rate: float,
    warmup: int,
    cooldown: int,
    reinmax_steps: int,
) -> None:
    """Raise a ValueError unless `Trainer` accepts these settings."""
    at_least("batch size", batch_size, 1)
    if not 0 < learning_rate < math.inf:
        raise ValueError(
            f"Expected a positive, finite learning rate; got {learning_rate}. Use 1e-3."
        )
    if not 0 <= averaging < 1:
        raise ValueError(f"Expected averaging in [0, 1); got {averaging}. Use 0.999 or 0.")
    at_least("epochs of annealing", annealing, 0)
    if not 0 <= initial_beta < math.inf:
        raise ValueError(f"Expected a finite initial beta >= 0; got {initial_beta}. Use 4.")
    at_least("epochs of warm-up", warmup, 0)
    at_least("epochs of cool-down", cooldown, 0)
    at_least("steps by ReinMax", reinmax_steps, 0)


def code_shape(num_latents: int, num_categories: int) -> None:
    """Raise a ValueError unless D >= 1 and K >= 2."""
    at_least("latents", num_latents, 1)
    at_least("categories", num_categories, 2)


MOST_LAYERS = 1_000
"""Largest number of hidden layers of a network, since each takes time to build."""


def hidden_sizes(sizes: Iterable[int]) -> None:
    """Raise a ValueError unless there are at most `MOST_LAYERS` layers, each with a unit."""
    sizes = list(sizes)
    if len(sizes) > MOST_LAYERS:
        raise ValueError(
            f"Expected at most {MOST_LAYERS:,} hidden layers; got {len(sizes):,}. Leave some out."
        )
    for size in sizes:
        at_least("hidden units", size, 1)


def dropout_share(dropout: float) -> None:
    """Raise a ValueError unless `dropout` is in [0, 1)."""
    if not 0 <= dropout < 1:
        raise ValueError(f"Expected dropout in [0, 1); got {dropout}. Use 0.3, or 0 for none.")


def labelled_share(share: float) -> None:
    """Raise a ValueError unless `share` is in [0, 1)."""
    if not 0 <= share < 1:
        raise ValueError(f"Expected a labelled share in [0, 1); got {share}. Use 0.1, say.")
