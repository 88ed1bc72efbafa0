from __future__ import annotations

import pytest
import torch
from torch import nn

from pyro_dvae import MLPDecoder, MLPEncoder


@pytest.mark.parametrize("event", [(784,), (28, 28), (27, 33), (131, 2), (3, 8, 8), (1,)])
def test_sized_from_the_data(event: tuple[int, ...]) -> None:
    encoder, decoder = MLPEncoder(event, 2, 3, (7,)), MLPDecoder(event, 2, 3, (7,))
    assert encoder(torch.zeros(5, *event)).shape == (5, 2, 3)
    for lead in [(), (5,), (4, 5), (9, 1)]:
        assert decoder(torch.zeros(*lead, 2, 3)).shape == (*lead, *event)
    assert MLPDecoder(event, 2, 3, (7,), num_params=2)(torch.zeros(2, 3)).shape == (*event, 2)


def test_default_is_the_tutorials() -> None:
    def sizes(module: nn.Module) -> list[tuple[int, int]]:
        layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
        return [(layer.in_features, layer.out_features) for layer in layers]

    assert sizes(MLPEncoder((28, 28), 4, 8)) == [(784, 512), (512, 256), (256, 32)]
    assert sizes(MLPDecoder((28, 28), 4, 8)) == [(32, 256), (256, 512), (512, 784)]


def test_wrong_shape_says_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"shape \(B, 28, 28\); got \(5, 784\)"):
        MLPEncoder((28, 28), 2, 3)(torch.zeros(5, 784))
