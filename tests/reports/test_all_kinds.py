"""Reports of all kinds of data and models are whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from reports.made import image_run, train
from reports.pages import Page

from pyro_dvae.reports import html_report

pytestmark = pytest.mark.slow

GENERATOR = np.random.default_rng(0)
PARTS = {"test": 10, "validation": 10}


def of_array(x: np.ndarray, **settings: Any) -> Callable[[Path], Path]:
    """A run of an array."""

    def make(folder: Path) -> Path:
        np.save(folder / "x.npy", x)
        return train(folder / "run", folder / "x.npy", **{**PARTS, **settings})

    return make


def of_images(**settings: Any) -> Callable[[Path], Path]:
    return lambda folder: image_run(folder, **settings)


def with_gaps(folder: Path) -> Path:
    """A run of 30 columns of which cells are missing."""
    x = GENERATOR.normal(size=(60, 30))
    x[GENERATOR.random(x.shape) < 0.1] = np.nan
    frame = pd.DataFrame(x, columns=[f"c{i}" for i in range(30)])
    frame.to_csv(folder / "x.csv", index=False)
    return train(folder / "run", folder / "x.csv", likelihood="masked:normal", **PARTS)


COLOURS = GENERATOR.integers(0, 256, (60, 3, 4, 4), np.uint8)
EVERY = 11
"""The number of sections of images and of tables."""
KINDS: dict[str, tuple[Callable[[Path], Path], int, str]] = {
    # a run, its sections, and what its page says
    "colours": (of_array(COLOURS, likelihood="normal"), EVERY, "All 9 codes are in this page."),
    "many latents": (of_images(num_latents=30), EVERY, "The first 16 latents and 3 categories"),
    "many categories": (of_images(num_latents=1, num_categories=40), EVERY, "All 40 codes"),
    "labels": (of_images(prior="conditional"), EVERY, "Each row is a class"),
    "no validation": (of_images(validation=0), EVERY, "of epoch 3, the last one"),
    "no epochs": (of_images(epochs=0), EVERY, "0 of 0 epochs"),
    "gaps": (with_gaps, EVERY, "The first 24 of 30 columns are shown."),
    "no images": (
        of_array(GENERATOR.normal(size=(60, 2, 3, 4)), likelihood="normal"),
        7,
        "What each latent tells",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_of_each_kind_is_whole(tmp_path: Path, kind: str) -> None:
    torch.set_default_dtype(torch.float32)
    make, number, told = KINDS[kind]
    text = html_report(make(tmp_path))
    page = Page(text)
    assert len(page.root.all("h2")) == number
    assert told in text
    assert "This section was left out" not in text
