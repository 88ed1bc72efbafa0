"""Two small runs that reports are made of, the same in all tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from pyro_dvae.data import open_source
from pyro_dvae.reports import html_report
from pyro_dvae.runs import start_run

SMALL = {"hidden": (8,), "num_latents": 2, "num_categories": 3, "estimator": "rloo"}
HOSTILE = "<script>alert('x')</script> & $y_1$"
"""A name that a page must escape, and matplotlib must not take for mathematics."""


NAMES = ("images", "table", "both")
_MADE: dict[str, Any] = {}


def runs(factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of the two runs, trained once for all tests."""
    if "runs" not in _MADE:
        torch.set_default_dtype(torch.float32)
        folder = factory.mktemp("made")
        _MADE["runs"] = {
            "images": image_run(folder / "images"),
            "table": table_run(folder / "table"),
        }
    return _MADE["runs"]


def texts(factory: pytest.TempPathFactory) -> dict[str, str]:
    """The pages of the two runs, and of both together, written once for all tests."""
    if "texts" not in _MADE:
        its = runs(factory)
        torch.set_default_dtype(torch.float32)
        several = [*its.values()]
        _MADE["texts"] = {name: html_report(its.get(name, several)) for name in NAMES}
    return _MADE["texts"]


def train(folder: Path, data: Path, labels: str | None = None, **settings: Any) -> Path:
    """A run folder after three epochs."""
    source = open_source(data, labels=labels)
    options = {**SMALL, "prior": "uniform", "epochs": 3, **settings}
    with start_run(source, folder, **options) as training:
        for _ in training.epochs():
            pass
        training.finish()
    return folder


def image_run(folder: Path, **settings: Any) -> Path:
    """A run of images with two classes: dark and bright ones."""
    folder.mkdir(exist_ok=True)
    labels = np.arange(120) % 2
    dark = np.random.default_rng(0).integers(0, 100, (120, 4, 5))
    np.savez(
        folder / "x.npz", x=(dark + 100 * labels[:, None, None]).astype(np.uint8), labels=labels
    )
    options = {"test": 30, "validation": 20, **settings}
    return train(folder / "run", folder / "x.npz", **options)


def table_run(folder: Path, **settings: Any) -> Path:
    """A run of a table whose names are hostile to a page."""
    folder.mkdir(exist_ok=True)
    generator = np.random.default_rng(0)
    kind = generator.integers(0, 2, 90)
    frame = pd.DataFrame(
        {
            HOSTILE: generator.normal(size=90) + 3 * kind,
            "level": np.where(kind == 1, '"><img src=x onerror=alert(1)>', "plain"),
            "width": generator.normal(size=90),
            "kind": np.where(kind == 1, "<b>one</b>", "two"),
        }
    )
    frame.to_csv(folder / "x.csv", index=False)
    options = {"likelihood": "mixed", "test": 20, "validation": 10, **settings}
    return train(folder / "run", folder / "x.csv", labels="kind", **options)
