"""What must end in one line, within limits of memory and time, as tables.

A row is a way to go wrong; `hostile` runs the command (see `tests/hostile.py`), and
`Outcome.refusal` takes nothing but one line and the exit status 2. Each kind has a section:
settings x sizes, environments x commands; those of run folders and of data files may have files
of their own, `test_hostile_runs.py` and `test_hostile_data.py`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hostile import Hostile

SMALL = ("--batch-size", "100", "--hidden", "8", "--latents", "2", "--categories", "4")
"""With `--data d.npy --epochs 1` a training that takes a tenth of a second."""


@pytest.fixture
def images(hostile: Hostile) -> Path:
    """600 images of 8 x 8 zeros and ones, in the test's folder."""
    bits = np.random.default_rng(0).random((600, 8, 8)) < 0.3
    np.save("d.npy", bits.astype(np.uint8))
    return Path("d.npy")


# The harness itself.


def test_time_limit(hostile: Hostile) -> None:
    assert hostile("--version", seconds=1, prelude="while True: pass").status == 124
    assert hostile("--version", seconds=0, prelude="import time; time.sleep(60)").status == 124


def test_memory_limit(hostile: Hostile) -> None:
    gibibyte = "import numpy; numpy.empty(2**30, numpy.uint8)"
    outcome = hostile("--version", memory=500, prelude=gibibyte)
    assert outcome.status == 1
    assert "_ArrayMemoryError" in outcome.err.splitlines()[-1]
    outcome = hostile("--version", memory=1500, prelude=gibibyte)
    assert (outcome.status, outcome.err) == (0, "")


# Settings x sizes.


@pytest.mark.usefixtures("images")
def test_a_training_is_within_the_limits(hostile: Hostile) -> None:
    outcome = hostile("fit", "run", "--data", "d.npy", "--epochs", "1", *SMALL)
    assert (outcome.status, outcome.err) == (0, "")
    assert "test ELBO" in outcome.out
