"""The same bytes whatever the user has set, and the user's settings afterwards."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from zoo import tiny_data, tiny_vae

from pyro_dvae.coding import compress, decompress

Setting = Callable[[], Any]


@contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    yield
    assert torch.get_num_threads() == number
    torch.set_num_threads(before)


@contextmanager
def dtype(which: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(which)
    yield
    assert torch.get_default_dtype() == which
    torch.set_default_dtype(before)


SETTINGS: dict[str, Setting] = {
    "two threads": lambda: threads(2),
    "three threads": lambda: threads(3),
    "float32": lambda: dtype(torch.float32),
    "bfloat16": lambda: torch.autocast("cpu", torch.bfloat16),
    "another device": lambda: torch.device("meta"),
}


@pytest.fixture(scope="module")
def vae() -> Any:
    torch.manual_seed(0)
    return tiny_vae(3, 4, (40,)).float().eval()


@pytest.mark.parametrize("way", ["code", "bits-back", "exact"])
@pytest.mark.parametrize("name", SETTINGS)
def test_settings_change_no_byte(vae: Any, way: Any, name: str) -> None:
    values = tiny_data(70, (40,)).numpy().astype(np.uint8)
    content = compress(vae, values, way=way).content
    with SETTINGS[name]():
        assert compress(vae, values, way=way).content == content
        assert (decompress(vae, content) == values).all()


_COMPILED = [pytest.param(how, marks=pytest.mark.slow) for how in ("wrapped", "in place", "parts")]


@pytest.mark.parametrize("how", [*_COMPILED, "double", "training"])
def test_other_forms_of_a_model_are_the_same_model(vae: Any, how: str) -> None:
    values = tiny_data(30, (40,)).numpy().astype(np.uint8)
    content = compress(vae, values).content
    other = copy.deepcopy(vae)
    if how == "wrapped":
        other = torch.compile(other, backend="eager")
    elif how == "in place":
        other.compile(backend="eager")
        other.decoder.compile(backend="eager")
    elif how == "parts":
        other.encoder = torch.compile(other.encoder, backend="eager")
        other.decoder = torch.compile(other.decoder, backend="eager")
    elif how == "double":
        other.double()
    else:
        other.train()
    assert compress(other, values).content == content
    assert (decompress(other, content) == values).all()
    assert other.training == (how == "training")


@pytest.mark.parametrize("way", ["code", "bits-back", "exact"])
@pytest.mark.parametrize(("noise", "is_same"), [(1e-14, True), (1e-3, False)])
def test_a_machine_that_rounds_otherwise_reads_the_data_or_says_so(
    vae: Any, way: Any, noise: float, is_same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = tiny_data(300, (40,)).numpy().astype(np.uint8)
    content = compress(vae, values, way=way).content
    decoder = type(vae.decoder)
    forward = decoder.forward

    def other(self: Any, z: torch.Tensor) -> torch.Tensor:
        params = forward(self, z)
        return params + noise * (1e6 * params).sin()

    monkeypatch.setattr(decoder, "forward", other)
    if is_same:
        assert (decompress(vae, content) == values).all()
        return
    with pytest.raises(ValueError, match=r"Expected the probabilities .* rounds otherwise"):
        decompress(vae, content, "a.pdv")
