"""Laws of every network, and what is special about the convolutional ones."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from zoo import NETWORKS, tiny_data

from pyro_dvae import (
    Bernoulli,
    Config,
    ConvDecoder,
    ConvEncoder,
    DiscreteVAE,
    EnumeratedELBO,
    RlooELBO,
    UniformPrior,
    build_vae,
    fit,
    grid_size,
    load_run,
)
from pyro_dvae.codes import enumerate_codes
from pyro_dvae.runs.checkpoints import write_weights
from pyro_dvae.runs.record import DataRecord
from pyro_dvae.runs.settings import write_config

K = 3
EVENTS = [(28, 28), (1, 28, 28), (3, 31, 45), (2, 9, 8), (5, 6), (1, 1), (4, 40)]
ODD = (3, 11, 9)

every_network = pytest.mark.parametrize("name", NETWORKS)


def latents_of(name: str, event: tuple[int, ...]) -> int:
    return math.prod(grid_size(event)) if "grid" in name else 2


def pair(name: str, event: tuple[int, ...] = ODD, num_params: int = 1) -> tuple[Any, Any, int]:
    (encoder, decoder), d = NETWORKS[name], latents_of(name, event)
    return encoder(event, d, K), decoder(event, d, K, num_params), d


def codes(*shape: int) -> Tensor:
    return nn.functional.one_hot(torch.randint(K, shape), K).to(torch.get_default_dtype())


@every_network
@pytest.mark.parametrize("event", EVENTS, ids=str)
def test_sized_from_the_data(name: str, event: tuple[int, ...]) -> None:
    encoder, decoder, d = pair(name, event)
    assert encoder(tiny_data(2, event)).shape == (2, d, K)
    for lead in [(), (2,), (2, 3), (3, 1)]:
        assert decoder(codes(*lead, d)).shape == (*lead, *event)


@every_network
@pytest.mark.parametrize("event", [(6, 9), (3, 9, 10)], ids=str)
def test_every_element_has_its_parameters(name: str, event: tuple[int, ...]) -> None:
    """The parameters of one element are those that the head has for it, not its neighbours'."""
    _, decoder, d = pair(name, event, 2)
    z = codes(2, d)
    assert decoder(z).shape == (2, *event, 2)
    head = decoder.head if hasattr(decoder, "head") else decoder.layers[-1]
    with torch.no_grad():
        head.weight.zero_()
        head.bias.copy_(torch.arange(head.bias.numel()))
    params = decoder(z)
    torch.testing.assert_close(params[..., 1], params[..., 0] + 1)
    if hasattr(decoder, "head") and len(event) == 3:
        assert params[0, :, 0, 0, 0].tolist() == [0, 2, 4]  # channel by channel


@pytest.mark.parametrize("name", ["conv", "conv-grid"])
@pytest.mark.parametrize(
    ("event", "last"),
    [((3, 256, 256), (8, 8)), ((3, 64, 64), (8, 8)), ((28, 28), (7, 7)), ((3, 33, 45), (5, 6))],
    ids=str,
)
def test_last_map_is_small(name: str, event: tuple[int, ...], last: tuple[int, int]) -> None:
    assert grid_size(event) == last
    encoder, decoder, _ = pair(name, event)
    with torch.no_grad():
        x = tiny_data(1, event)
        assert encoder.layers(x.reshape(1, -1, *event[-2:])).shape[-2:] == last
        assert decoder(encoder(x).softmax(-1)).shape == (1, *event)


@pytest.mark.parametrize("name", ["conv", "conv-grid"])
def test_every_pixel_is_seen_and_drawn(name: str) -> None:
    """No border of an odd size is lost on the way down or up."""
    encoder, decoder, d = pair(name)
    x = torch.rand(1, *ODD, requires_grad=True)
    encoder(x).square().sum().backward()
    assert x.grad is not None
    assert (x.grad != 0).all()
    first, second = decoder(codes(1, d)), decoder(codes(1, d).roll(1, -1))
    assert (first != second).all()


@every_network
def test_rows_are_treated_each_by_itself(name: str) -> None:
    encoder, decoder, d = pair(name)
    for training in (True, False):
        encoder.train(training)
        x, z = torch.rand(4, *ODD), codes(2, 3, d)
        torch.testing.assert_close(encoder(x)[1:2], encoder(x[1:2]))
        torch.testing.assert_close(decoder(z)[1, 2], decoder(z[1, 2]))


@every_network
def test_gradients_reach_every_parameter(name: str) -> None:
    encoder, decoder, _ = pair(name)
    z = encoder(torch.rand(5, *ODD)).softmax(-1)  # relaxed codes
    decoder(z).square().sum().backward()
    for key, weight in (*encoder.named_parameters(), *decoder.named_parameters()):
        assert weight.grad is not None, key
        assert weight.grad.isfinite().all()
        assert (weight.grad != 0).any(), key


@every_network
@pytest.mark.parametrize("event", [(28, 28), (3, 64, 64)], ids=str)
def test_first_output_is_of_order_one_in_float32(name: str, event: tuple[int, ...]) -> None:
    torch.set_default_dtype(torch.float32)
    (encoder, decoder), d = NETWORKS[name], latents_of(name, event)
    context, params = encoder(event, d, K)(tiny_data(4, event)), decoder(event, d, K)(codes(4, d))
    for out in (context, params):
        assert out.dtype == torch.float32
        assert 1e-3 < out.std() < 3


@every_network
def test_float32_agrees_with_float64(name: str) -> None:
    encoder, decoder, d = pair(name)
    x, z = 1e4 * torch.randn(3, *ODD), codes(3, d)
    for network, value in ((encoder, x), (decoder, z)):
        exact = network(value)
        ours = network.float()(value.float()).double()
        assert ours.isfinite().all()
        assert (ours - exact).abs().max() < 1e-4 * exact.abs().max()


@every_network
def test_two_epochs_lower_the_loss(name: str) -> None:
    encoder, decoder, d = pair(name)
    vae = DiscreteVAE(encoder, decoder, UniformPrior(d, K), Bernoulli())
    x = (torch.rand(20, *ODD) < torch.linspace(0, 1, 9)).double()
    records = list(fit(vae, RlooELBO(2), x, None, epochs=3, batch_size=5, learning_rate=3e-3))
    assert records[-1].train_elbo > records[0].train_elbo + 1


def test_an_exact_elbo_runs_the_network_once_for_each_code() -> None:
    encoder, decoder, d = pair("conv", (5, 6))
    vae, calls = DiscreteVAE(encoder, decoder, UniformPrior(d, K), Bernoulli()), []
    decoder.register_forward_hook(lambda _, inputs, out: calls.append(inputs[0].shape[:-2].numel()))
    x = tiny_data(4, (5, 6))
    loss = EnumeratedELBO(max_plate_nesting=1).loss(vae.model, vae.guide, x)
    assert (calls.count(K**d), max(calls)) == (1, K**d)
    z = enumerate_codes(d, K).unsqueeze(1)  # (K^D, 1, D, K)
    q = vae.posterior(x)
    log_q = q.log_prob(z)
    log_p = vae.decode(z).log_prob(x) + vae.prior().log_prob(z)
    assert loss == pytest.approx(-(log_q.exp() * (log_p - log_q)).sum().item())


@pytest.mark.parametrize("network", ["mlp", "conv", "conv:4", "conv-grid", "conv-grid:2"])
def test_run_is_loaded_as_it_was_saved(network: str, tmp_path: Path) -> None:
    config = Config(network=network, hidden=(5,), num_latents=5 * 6, num_categories=2)
    vae = build_vae(config, (3, 9, 6))
    write_config(tmp_path, DataRecord(config), (3, 9, 6))
    write_weights(tmp_path, vae.float().state_dict(), 1)
    x = torch.rand(2, 3, 9, 6)
    loaded = load_run(tmp_path).vae
    torch.testing.assert_close(loaded.double().encode(x), vae.double().encode(x))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ConvEncoder((5,), 2, K), r"Expected images .* got data of shape \(5,\)\. Use"),
        (lambda: ConvDecoder((1, 2, 3, 4), 2, K), r"got data of shape \(1, 2, 3, 4\)"),
        (lambda: ConvDecoder((0, 4), 2, K), r"got data of shape \(0, 4\)"),
        (
            lambda: ConvEncoder((3, 33, 45), 4, K, grid=True),
            r"30 latents, one per position of the 5 x 6 grid .*; got 4\. Use num_latents=30",
        ),
        (lambda: ConvDecoder((28, 28), 4, K, grid=True), "Expected 49 latents.*num_latents=49"),
        (lambda: ConvDecoder((28, 28), 4, K, width=0), "width of at least 1; got 0"),
        (lambda: ConvEncoder(ODD, 4, K)(torch.rand(2, 3, 9, 11)), r"shape \(B, 3, 11, 9\); got"),
        (lambda: build_vae(Config(network="conv:x"), (9, 9)), "whole number after conv:; got 'x'"),
        (lambda: build_vae(Config(network="conv:0"), (9, 9)), "after conv: of at least 1; got 0"),
        (lambda: Config(network="unet"), "one of mlp, conv, conv-grid; got 'unet'"),
    ],
)
def test_refusals(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        build()
    assert "\n" not in str(error.value)


def test_deep_networks_start_near_the_identity() -> None:
    """What leaves every residual block is what came in, up to a tenth or so."""
    encoder = ConvEncoder((64, 64), 2, K)
    blocks = [layer for layer in encoder.layers if type(layer).__name__ == "_Residual"]
    assert len(blocks) == 3
    for block in blocks:
        block.register_forward_hook(
            lambda _, inputs, out: ratios.append(((out - inputs[0]).std() / inputs[0].std()).item())
        )
    ratios: list[float] = []
    encoder(tiny_data(3, (64, 64)))
    assert all(0.01 < ratio < 0.5 for ratio in ratios)
