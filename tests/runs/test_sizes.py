"""Memory that settings ask for: see `pyro_dvae/runs/sizes.py`."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from pyro_dvae import memory
from pyro_dvae.memory import refuse_bytes
from pyro_dvae.runs.config import Config, build_vae
from pyro_dvae.runs.sizes import memory_of, refuse_too_large

SMALL = Config(hidden=(8,), num_latents=2, num_categories=4, num_particles=3, batch_size=5)
SHAPE = (4, 4)


@pytest.mark.parametrize(
    ("part", "spec"),
    [
        ("prior", "uniform"),
        ("prior", "mixture:7"),
        ("prior", "boltzmann"),
        ("likelihood", "categorical:9"),
        ("guide", "autoregressive:6"),
        ("network", "conv:3"),
    ],
)
def test_a_model_takes_what_its_tensors_take(part: str, spec: str) -> None:
    config = replace(SMALL, **{part: spec})  # type: ignore[arg-type]
    vae = build_vae(config, SHAPE)
    assert memory_of(config, SHAPE) == 4 * sum(
        x.numel() for x in [*vae.parameters(), *vae.buffers()]
    )
    state = torch.get_rng_state()
    memory_of(config, SHAPE, 100)
    assert torch.equal(torch.get_rng_state(), state)  # nothing is drawn


def test_a_step_by_hand() -> None:
    # MLP: 16 -> 8 -> 2 x 4, back 2 x 4 -> 8 -> 16; B = 5 of 100 or all 3, S = 3.
    weights = memory_of(SMALL, SHAPE)
    for num_data, batch in ((100, 5), (3, 3)):
        step = batch * ((8 + 8) + 3 * (2 * 2 * 4 + 8 + 16))
        assert memory_of(SMALL, SHAPE, num_data) == 4 * weights + 2 * 4 * step


def test_more_than_torch_can_count_is_infinite() -> None:
    assert memory_of(replace(SMALL, hidden=(10**20,)), SHAPE) == math.inf
    assert memory_of(replace(SMALL, num_latents=10**18), SHAPE) == math.inf


def test_the_setting_that_takes_most_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda device: 3 * 2**30)
    large = Config(num_latents=10**6, hidden=(10**5,), prior="mixture:10")
    with pytest.raises(
        ValueError,
        match=r"^Expected a model within the 3\.0 GiB of memory that are available; got at least "
        r"[\d,]+\.\d GiB\. Lower the number of latents\.$",
    ):
        refuse_too_large(large, SHAPE)
    refuse_too_large(SMALL, SHAPE, 100)
    refuse_bytes("a grid", 3 * 2**30, "n")
    with pytest.raises(ValueError, match=r"^Expected a grid within .* Lower n\.$"):
        refuse_bytes("a grid", 3 * 2**30 + 1, "n")
