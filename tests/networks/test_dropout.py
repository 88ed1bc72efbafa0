"""Dropout of the MLPs."""

from __future__ import annotations

import pytest
import torch

from pyro_dvae import Config, MLPDecoder, MLPEncoder, build_vae
from pyro_dvae.networks.mlp import mlp


def test_a_share_of_the_hidden_units_is_left_out_in_training_alone() -> None:
    """A share 0.25 of 64 x 1,000 units, to 5 standard errors; the others weigh 4 / 3."""
    torch.manual_seed(0)
    layers = mlp([1, 64, 64], dropout=0.25)
    assert isinstance(layers[0], torch.nn.Linear)
    torch.nn.init.ones_(layers[0].weight)
    torch.nn.init.zeros_(layers[0].bias)
    hidden = torch.nn.Sequential(*layers[:3])(torch.ones(1000, 1))
    assert hidden.unique().tolist() == pytest.approx([0, 4 / 3])
    error = (0.25 * 0.75 / hidden.numel()) ** 0.5
    assert (hidden == 0).double().mean().item() == pytest.approx(0.25, abs=5 * error)
    plain = mlp([1, 64, 64])
    plain.load_state_dict(
        {name.replace("3", "2"): value for name, value in layers.state_dict().items()}
    )
    x = torch.randn(7, 1)
    assert torch.equal(layers.eval()(x), plain(x))


def test_a_config_builds_both_networks_with_it() -> None:
    vae = build_vae(Config(hidden=(5, 4), dropout=0.5), (3,))
    assert isinstance(vae.encoder, MLPEncoder)
    assert isinstance(vae.decoder, MLPDecoder)
    for layers in (vae.encoder.layers, vae.decoder.layers):
        assert [layer.p for layer in layers if isinstance(layer, torch.nn.Dropout)] == [0.5, 0.5]


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_what_is_no_share_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match=r"Expected dropout in \[0, 1\); got"):
        Config(dropout=share)
