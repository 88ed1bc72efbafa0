"""Data as people see them: images in [0, 1], or rows of cells; and back."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_dvae.data import kind_of, levels_of
from pyro_dvae.runs import Run, is_image, named_values, preparation_of, shade_of


class View(NamedTuple):
    """A datum as people see it: an image, or a row."""

    image: Tensor | None
    """(H, W), (1, H, W) or (3, H, W) in [0, 1]; None for a row."""
    cells: list[float | str]
    """One per column, numbers and the names of levels, in the units of the data; empty for an
    image."""


def views_of(run: Run, x: Tensor) -> list[View]:
    """Data as people see them.

    Args:
        run: the run.
        x: (N, *event_shape), what the likelihood takes, or means of it, on the CPU.
    """
    if is_image(run.event_shape):
        shade = shade_of(run)
        return [View(image, []) for image in (x if shade is None else shade(x))]
    stored = preparation_of(run.config, run.event_shape).restore(x.double())
    return [View(None, cells) for cells in named_values(run.data, stored)]


def x_of_image(run: Run, image: Tensor, seed: int) -> Tensor:
    """What the likelihood takes of an image that a person drew: the inverse of `shade_of`.

    Where the run draws zeros and ones from brightness b, they are drawn here too, as Bernoulli(b);
    where it does not, they are 1 for b >= 1/2.

    Args:
        run: the run, whose data are images.
        image: (C, H, W) in [0, 1].
        seed: of the draws.

    Returns:
        (1, *event_shape).
    """
    likelihood = run.vae.likelihood
    kind = kind_of(likelihood)
    brightness = image.reshape(1, *run.event_shape)
    if kind == "bits":
        if run.config.binarize in ("dynamic", "static"):
            generator = torch.Generator().manual_seed(seed)
            return (torch.rand(brightness.shape, generator=generator) < brightness).float()
        return (brightness >= 0.5).float()
    if kind == "levels":
        return (brightness * (levels_of(likelihood) - 1)).round()
    if kind == "unit":
        return brightness
    if kind == "open":
        return (brightness * 255 + 0.5) / 256
    low, high = (0.0, 1.0) if run.data.span is None else run.data.span
    x = low + brightness * (high - low)
    return x.round() if kind == "counts" else x
