"""What the tests of sweeps share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pyro_dvae.data import Source, open_source

SMALL: dict[str, Any] = {
    "num_categories": 3,
    "hidden": (4,),
    "batch_size": 16,
    "epochs": 2,
    "guide_epochs": 0,
    "validation": 8,
    "test": 8,
}


class Stop(Exception):
    """What a signal makes of a sweep."""


@pytest.fixture(autouse=True)
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    """48 rows of three bits, in a folder of their own."""
    torch.set_default_dtype(torch.float32)
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).integers(0, 2, (48, 3))
    np.savetxt("t.csv", rows, "%d", ",", header="a,b,c", comments="")
    return open_source("t.csv")
