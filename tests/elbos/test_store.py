"""What an ELBO learns, in Pyro's parameter store and outside of it."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pyro
import pytest
import torch
from pyro.infer import SVI
from torch import Tensor, nn
from zoo import ELBOS, tiny_data, tiny_vae

from pyro_dvae import MLPBaseline, MLPControl, ReinforceELBO, RelaxELBO, fit

LEARNING: dict[str, Callable[[], Any]] = {
    "rebar": RelaxELBO,
    "relax": lambda: RelaxELBO(network=MLPControl((4,), 2, 3)),
    "nvil": lambda: ReinforceELBO(baseline=MLPBaseline((4,))),
}


def train(elbo: Any, vae: Any) -> None:
    SVI(vae.model, vae.guide, pyro.optim.Adam({"lr": 0.1}), loss=elbo).step(tiny_data(3))


def weights(elbo: Any) -> Tensor:
    return nn.utils.parameters_to_vector(elbo.parameters()).detach().clone()


def by_torch(elbo: Any, vae: Any) -> None:
    optimizer = torch.optim.Adam([*vae.parameters(), *elbo.parameters()], lr=0.1)
    elbo(vae.model, vae.guide)(tiny_data(3)).backward()
    optimizer.step()


def by_fit(elbo: Any, vae: Any) -> None:
    list(fit(vae, elbo, tiny_data(3), None, epochs=1, learning_rate=0.1))


def in_a_thread(elbo: Any, vae: Any) -> None:
    thread = threading.Thread(target=train, args=(elbo, vae))
    thread.start()
    thread.join()


@pytest.mark.parametrize("again", [train, by_torch, by_fit, in_a_thread])
@pytest.mark.parametrize("name", LEARNING)
def test_learns_on_after_the_store_was_cleared(name: str, again: Callable[..., None]) -> None:
    elbo, vae = LEARNING[name](), tiny_vae()
    for _ in range(2):
        train(elbo, vae)
        pyro.clear_param_store()
    with pyro.get_param_store().scope():
        train(elbo, vae)
    before = weights(elbo)
    again(elbo, vae)
    assert not torch.equal(weights(elbo), before)
    loss = elbo.differentiable_loss(vae.model, vae.guide, tiny_data(3))
    assert loss.isfinite()


@pytest.mark.parametrize("how", [copy.deepcopy, lambda elbo: pickle.loads(pickle.dumps(elbo))])
@pytest.mark.parametrize("name", [*ELBOS, *LEARNING])
def test_a_used_elbo_is_copied_and_pickled(name: str, how: Callable[[Any], Any]) -> None:
    """The copy gives the same numbers, and goes on learning."""
    elbo, vae = {**ELBOS, **LEARNING}[name](), tiny_vae()
    train(elbo, vae)
    other = how(elbo)
    pair = []
    for each in (elbo, other):
        pyro.set_rng_seed(3)
        loss = each.differentiable_loss(vae.model, vae.guide, tiny_data(3))
        pair.append(
            torch.cat([g.flatten() for g in torch.autograd.grad(loss, [*vae.parameters()])])
        )
    assert torch.equal(*pair)
    if name in LEARNING:
        before = weights(other)
        train(other, vae)
        assert not torch.equal(weights(other), before)


def test_weights_loaded_into_the_elbo_are_those_used() -> None:
    elbo, vae = RelaxELBO(), tiny_vae()
    train(elbo, vae)
    elbo.load_state_dict(RelaxELBO(eta=0.25, temperature=2.0).state_dict())
    elbo.differentiable_loss(vae.model, vae.guide, tiny_data(3))
    assert elbo.eta.item() == 0.25


def test_frozen_weights_are_not_shown() -> None:
    """In part: without the warning that `pyro.module` gives."""
    elbo, vae = RelaxELBO(), tiny_vae()
    elbo.eta.requires_grad_(False)
    train(elbo, vae)
    shown = [name for name in pyro.get_param_store() if name.startswith("RelaxELBO")]
    assert [name.partition("$$$")[2] for name in shown] == ["log_temperature"]
    assert elbo.eta.item() == 1


def test_weights_of_another_elbo_under_the_same_name_are_refused() -> None:
    elbo, vae = LEARNING["nvil"](), tiny_vae()
    train(elbo, vae)
    name = next(name for name in pyro.get_param_store() if name.startswith("ReinforceELBO"))
    pyro.clear_param_store()
    pyro.param(name, torch.zeros(7))
    with pytest.raises(ValueError, match=r"^Expected .* for 'ReinforceELBO \d+\$\$\$.*got \(7,\)"):
        train(elbo, vae)
