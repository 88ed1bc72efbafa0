"""What the pictures of a run show, as tensors: `plots` draws them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_dvae.data import Splits, kind_of, levels_of
from pyro_dvae.runs.blocks import draw_samples
from pyro_dvae.runs.run import Run

Shade = Callable[[Tensor], Tensor]
"""Values that the likelihood takes, or means of it, of any shape -> brightness in [0, 1]."""


def shade_of(run: Run) -> Shade | None:
    """How a run's data are shown in [0, 1]; None for zeros and ones, which are shown as they are.

    Args:
        run: the run.
    """
    likelihood = run.vae.likelihood
    kind = kind_of(likelihood)
    if kind == "bits":
        return None
    low, high = (0.0, 1.0) if run.data.span is None else run.data.span
    if kind == "levels":
        low, high = 0.0, levels_of(likelihood) - 1.0
    elif kind in ("unit", "open"):
        low, high = 0.0, 1.0
    return lambda x: ((x - low) / ((high - low) or 1.0)).clamp(0, 1)


def brightness(run: Run, x: Tensor, values: Tensor, high: float) -> Tensor:
    """Data in [0, 1]; where zeros and ones are drawn, what they are drawn from.

    Args:
        run: the run.
        x: (N, *event_shape), what the likelihood takes.
        values: (N, *event_shape), the same data as they are stored.
        high: the greatest stored value of all the data that these N are taken from.

    Returns:
        (N, *event_shape).
    """
    shade = shade_of(run)
    if shade is not None:
        return shade(x)
    if run.config.range is not None:
        low, high = run.config.range
        return (values.double() - low).float() / (high - low)
    return values / 255 if values.dtype == torch.uint8 and high > 1 else x


class Grid(NamedTuple):
    """Images in rows, in the order in which `plots.image_grid` takes them."""

    images: Tensor
    """(N, *event_shape) in [0, 1]."""
    num_columns: int
    """Images per row."""
    title: str
    rows: list[str]
    """A name per row, or none."""


def sample_grid(
    run: Run, num: int, *, means: bool = True, label: int | None = None, seed: int = 0
) -> Grid:
    """Draw images from a run's model; one row per class where the prior is conditional.

    `plots.image_grid(*sample_grid(run, 64))` is a figure of them.

    Args:
        run: the run, whose data are images.
        num: images.
        means: show the means of p(x|z); else draws from it.
        label: the one class to draw, of a prior that is conditional; None for all.
        seed: of the draws.
    """
    x, labels = draw_samples(run, num, means=means, label=label, seed=seed)
    shade = shade_of(run)
    images = x if shade is None else shade(x)
    title = f"{'means of' if means else 'draws from'} p(x|z), z from the prior"
    columns, classes = min(num, max(1, round(num**0.5))), run.config.num_classes
    if labels is None or label is not None or num < classes:
        return Grid(images, columns, title, [])
    columns = num // classes
    names = [str(name) for name in run.data.label_names or range(classes)]
    return Grid(images[: columns * classes], columns, f"{title} given the label", names)


class Examples(NamedTuple):
    """Some of a run's images."""

    shown: Tensor
    """(N, *event_shape) in [0, 1], as people see them."""
    x: Tensor
    """(N, *event_shape), as the model takes them."""


def example_images(run: Run, splits: Splits, num: int = 12) -> Examples:
    """The first images of the test part; of the training part where there is no test part.

    Args:
        run: the run.
        splits: its data.
        num: images, at most.
    """
    rows = splits.stored["train" if splits.test is None else "test"]
    index = torch.arange(min(num, len(rows)))
    values = rows.read(index)
    if splits.test is None:
        batch = splits.train.batch(index, torch.Generator().manual_seed(run.config.seed))
        x = batch[0] if isinstance(batch, tuple) else batch
    else:
        x = splits.test[:num]
    return Examples(brightness(run, x, values, float(values.max())), x)


def is_image(event_shape: Sequence[int]) -> bool:
    """Whether data of a shape are images: (H, W), (1, H, W) or (3, H, W)."""
    return len(event_shape) == 2 or (len(event_shape) == 3 and event_shape[0] in (1, 3))
