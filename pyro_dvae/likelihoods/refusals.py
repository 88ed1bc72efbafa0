"""How likelihoods refuse data that they do not take."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

MISSING = "NaN is a missing value: wrap the likelihood in Masked(...), which leaves such out."
"""What a message says of missing values."""


def refuse_unless(ok: Tensor, x: Tensor, expected: str, advice: str) -> None:
    """Raise a ValueError unless all of `ok` is true.

    The message also says what to do about missing values, if there are some.

    Args:
        ok: whether each element of x is allowed, in the shape of x.
        x: the data.
        expected: what the message says is expected.
        advice: what to do, as a sentence.
    """
    if ok.all():
        return
    where = ""
    if x.dim() == 2:
        column = int((~ok).any(0).nonzero()[0, 0])
        where = f" (first bad column: {column})"
    missing = x.isnan()
    if missing.any():
        advice = MISSING if (ok | missing).all() else f"{MISSING} {advice}"
    raise ValueError(f"Expected {expected}; got {_range(x)}{where}. {advice}")


def _range(x: Tensor) -> str:
    """The dtype and the range of the values that are not NaN, and whether some are NaN."""
    missing = x.isnan()
    known = x[~missing]
    if not len(known):
        return f"{dtype_name(x)} values that are all NaN"
    text = f"{dtype_name(x)} values from {known.min().item():g} to {known.max().item():g}"
    return f"{text}, and NaN" if missing.any() else text


def dtype_name(x: Tensor) -> str:
    """The dtype of a tensor without `torch.`."""
    return str(x.dtype).removeprefix("torch.")


def is_whole(x: Tensor) -> Tensor:
    """Whether each element is a finite whole number."""
    return x.isfinite() & (x == x.round()) if x.is_floating_point() else torch.ones_like(x).bool()


def calibration_data(x: Tensor, event_shape: Sequence[int]) -> Tensor:
    """Training data (N, *event) to calibrate by; all elements in one row if event_shape is ().

    Raises:
        ValueError: there are no data, or the shape of a datum is not event_shape.
    """
    event = tuple(event_shape)
    if not event:
        x = x.flatten()
    if x.shape[1:] != event or len(x) == 0:
        raise ValueError(
            f"Expected data of shape (N, *event) with event {event}; got {tuple(x.shape)}. Build "
            f"the likelihood with event_shape={tuple(x.shape[1:])}."
        )
    return x
