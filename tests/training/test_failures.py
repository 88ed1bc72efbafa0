from __future__ import annotations

from typing import Any

import pytest
import torch
from zoo import tiny_data, tiny_vae

from pyro_dvae.training.failures import describe_failure

NAN, INF = float("nan"), float("inf")


def _fill(weight: Any, value: float) -> None:
    with torch.no_grad():
        weight.fill_(value)


def test_nothing_to_tell() -> None:
    vae, x = tiny_vae(), tiny_data(3)
    assert describe_failure(vae, x) is None
    with torch.no_grad():
        vae.encoder.layers[-1].bias[1] = -INF  # a category of z1 that is left out
    assert "weights encoder.layers.2.bias" in str(describe_failure(vae, x))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda vae, x: _fill(x[1], NAN), "the data"),
        (lambda vae, x: _fill(vae.encoder.layers[-1].bias[4:5], NAN), "KL term.*logits of z2$"),
        (lambda vae, x: _fill(vae.encoder.layers[0].bias, INF), "KL term.*logits of z1, z2$"),
        (lambda vae, x: _fill(vae.decoder.layers[-1].bias[:1], INF), "reconstruction.* 3 of 3"),
        (
            lambda vae, x: setattr(
                vae.decoder.layers[0].bias, "grad", torch.full_like(vae.decoder.layers[0].bias, NAN)
            ),
            "the gradient of decoder.layers.0.bias",
        ),
    ],
)
def test_the_first_term_is_named(spoil: Any, words: str) -> None:
    vae, x = tiny_vae(), torch.zeros(3, 4)
    spoil(vae, x)
    found = describe_failure(vae, x)
    assert found is not None
    with pytest.raises(ValueError, match=words):
        raise ValueError(found)
