from __future__ import annotations

from typing import Any

import pyro
import pyro.poutine as poutine
import pytest
import torch
from oracle import gradient
from torch import Tensor, nn
from zoo import ELBOS, make_batch, make_vae, tiny_data, tiny_vae

from pyro_dvae import DiscreteELBO
from pyro_dvae.elbos import base, direct

DIRECT = [name for name in ELBOS if not ELBOS[name]().uses_pair]
OPTIONS: list[dict[str, Any]] = [{}, {"beta": 0.3}, {"free_bits": 0.01}]


def value_and_gradient(elbo: DiscreteELBO, vae: Any, batch: tuple[Tensor, ...]) -> Tensor:
    """Of one loss at the seed, and a number drawn after it."""
    pyro.set_rng_seed(3)
    with pyro.validation_enabled(False):
        loss = elbo.differentiable_loss(vae.model, vae.guide, *batch)
    after = torch.rand(1)
    return torch.cat([loss.detach().reshape(1), after, gradient(loss, vae)])


def test_the_score_function_estimators_go_directly() -> None:
    expected = {"reinforce", "reinforce, constant", "reinforce, running mean", "rloo"}
    assert set(DIRECT) == expected


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("prior", ["uniform", "learned"])
@pytest.mark.parametrize("name", DIRECT)
def test_equals_the_traced_path(
    name: str, prior: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Draws, value and gradient, and the state that the steps leave."""
    vae = make_vae(prior)
    batch = make_batch(vae)
    fast, slow = ELBOS[name](**options), ELBOS[name](**options)
    slow.uses_pair = True
    slow.loss(vae.model, vae.guide, *batch)
    taken: list[direct.Run | None] = []

    def score(*args: Any) -> direct.Run | None:
        taken.append(direct.score(*args))
        return taken[-1]

    monkeypatch.setattr(base, "score", score)
    for _ in range(3):
        a, b = (value_and_gradient(elbo, vae, batch) for elbo in (fast, slow))
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)
    assert len(taken) == 3
    assert None not in taken


class Noisy(nn.Module):
    """A decoder with a site of its own."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, z: Tensor) -> Tensor:
        shift = pyro.sample("shift", pyro.distributions.Delta(torch.zeros(z.shape[:-2])))
        return self.decoder(z) + shift.unsqueeze(-1)


def test_traces_where_only_they_will_do() -> None:
    """With a messenger around, Pyro's checks on, or before the first trace."""
    vae, x = tiny_vae(), tiny_data(3)
    elbo = ELBOS["rloo"]()
    with pyro.validation_enabled(False):
        assert not direct.is_plain(vae)
        elbo.loss(vae.model, vae.guide, x)
        assert direct.is_plain(vae)
        with poutine.scale(scale=2.0):
            assert not direct.is_plain(vae)
    assert not direct.is_plain(vae)  # conftest turns the checks on
    assert direct.owner(poutine.scale(vae.model, 2.0), vae.guide) is None
    assert direct.owner(vae.model, tiny_vae().guide) is None


@pytest.mark.parametrize("prior", ["mixture", "autoregressive", "conditional"])
def test_other_models_are_not_plain(prior: str) -> None:
    vae = make_vae(prior)
    ELBOS["rloo"]().loss(vae.model, vae.guide, *make_batch(vae))
    with pyro.validation_enabled(False):
        assert not direct.is_plain(vae)


def test_a_network_that_draws_is_not_plain() -> None:
    vae, x = tiny_vae(), tiny_data(3)
    vae.decoder = Noisy(vae.decoder)
    with pyro.validation_enabled(False):  # the guide has no site "shift"
        ELBOS["rloo"]().loss(vae.model, vae.guide, x)
        assert not direct.is_plain(vae)


def test_data_of_another_shape_are_refused() -> None:
    """Though they have as many elements as the decoder says."""
    vae, x = tiny_vae(), tiny_data(3)
    elbo = ELBOS["rloo"]()
    elbo.loss(vae.model, vae.guide, x)
    vae.decoder.output_shape = (1, *x.shape[1:])  # type: ignore[union-attr]
    with (
        pyro.validation_enabled(False),
        pytest.raises(ValueError, match=r"Expected data with event shape \(1, \d+\); got"),
    ):
        elbo.loss(vae.model, vae.guide, x)
