"""REINFORCE with a network as baseline: unbiased, and trained by least squares alone."""

from __future__ import annotations

import copy
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from oracle import exact_elbo, expected, gradient
from pyro.infer import SVI
from torch import Tensor, nn
from zoo import PROGRAMS, P, tiny_data, tiny_vae

from pyro_dvae import DiscreteELBO, ReinforceELBO

EXACT = {"atol": 1e-10, "rtol": 0}


def network(num_inputs: int = P) -> nn.Module:
    return nn.Sequential(nn.Linear(num_inputs, 5), nn.Tanh(), nn.Linear(5, 1))


def warm(elbo: ReinforceELBO) -> ReinforceELBO:
    """With a running mean of -2."""
    elbo.mean, elbo.weight = torch.tensor(-0.4), torch.tensor(0.2)
    return elbo


def grads(value: Tensor, module: nn.Module) -> Tensor:
    parts = torch.autograd.grad(
        value, list(module.parameters()), retain_graph=True, materialize_grads=True
    )
    return torch.cat([part.flatten() for part in parts])


@pytest.mark.parametrize("analytic_kl", [True, False])
@pytest.mark.parametrize("name", PROGRAMS)
def test_expected_gradient_is_exact(name: str, analytic_kl: bool) -> None:
    build, nesting = PROGRAMS[name]
    program, x, baseline = build(), tiny_data(), network()
    options: dict[str, Any] = {"beta": 0.7, "analytic_kl": analytic_kl}

    def make() -> ReinforceELBO:
        return warm(ReinforceELBO(baseline=baseline, max_plate_nesting=nesting, **options))

    loss, grad = expected(make, program, x, 1, nesting)
    torch.testing.assert_close(grad, gradient(-exact_elbo(program, x, 0.7), program), **EXACT)
    torch.testing.assert_close(loss, -exact_elbo(program, x).detach(), **EXACT)


@pytest.mark.parametrize("squeezed", [True, False])
@pytest.mark.parametrize("name", PROGRAMS)
def test_each_part_descends_its_own_term(name: str, squeezed: bool) -> None:
    """Programs: (f - b(x) - c) grad log q. Network: (f - b(x) - c)^2, mean over particles."""
    program, x = PROGRAMS[name][0](), tiny_data(3)
    baseline = nn.Sequential(network(), nn.Flatten(0)) if squeezed else network()
    elbo = warm(ReinforceELBO(2, baseline=baseline))
    terms = elbo.terms(program.model, program.guide, (x,), {})
    surrogate = elbo.surrogate(terms)
    assert surrogate.shape == (3,)
    residual = terms.learning_signal.detach() - baseline(x).reshape(3) + 2.0  # c = -2
    score = elbo.objective(terms) + (residual.detach() * terms.log_guide).mean(0)
    torch.testing.assert_close(
        grads(surrogate.sum(), program), grads(score.sum(), program), **EXACT
    )
    squares = -(residual**2).mean(0)
    torch.testing.assert_close(
        grads(surrogate.sum(), baseline), grads(squares.sum(), baseline), **EXACT
    )
    for i in range(3):  # per datum
        torch.testing.assert_close(
            grads(surrogate[i], baseline), grads(squares[i], baseline), **EXACT
        )


def subsampled(vae: Any) -> tuple[Any, Any]:
    """The programs of a VAE with 2 of 6 data in the plate."""
    index = torch.tensor([1, 4])

    def model(x: Tensor) -> None:
        with pyro.plate("data", 6, subsample=index):
            pyro.sample("x", vae.decode(pyro.sample("z", vae.prior())), obs=x)

    def guide(x: Tensor) -> None:
        with pyro.plate("data", 6, subsample=index):
            pyro.sample("z", dist.OneHotCategorical(logits=vae.encode(x)).to_event(1))

    return model, guide


def test_subsampling_scales_the_least_squares_as_the_bound() -> None:
    vae, x, baseline = tiny_vae(), tiny_data(2), network()
    losses = []
    for programs in (subsampled(vae), (vae.model, vae.guide)):
        pyro.set_rng_seed(4)
        losses.append(ReinforceELBO(baseline=baseline).differentiable_loss(*programs, x))
    for module in (baseline, vae):
        grad, plain = (grads(loss, module) for loss in losses)
        torch.testing.assert_close(grad, 3 * plain, **EXACT)


def variance(elbo: DiscreteELBO, vae: Any, x: Tensor) -> float:
    draws = [
        gradient(elbo.differentiable_loss(vae.model, vae.guide, x), vae.encoder) for _ in range(60)
    ]
    return torch.stack(draws[20:]).var(0).sum().item()


@pytest.mark.parametrize("route", ["svi", "torch"])
def test_learns_and_lowers_the_variance(route: str) -> None:
    """Two kinds of data whose signals lie far apart: one mean cannot serve both."""
    pixels = 20
    vae = tiny_vae(event=(pixels,))
    with torch.no_grad():
        vae.decoder.layers[-1].bias.fill_(2.0)
    x = torch.arange(20)[:, None].remainder(2).expand(-1, pixels).to(torch.get_default_dtype())
    elbo = ReinforceELBO(baseline=network(pixels), decay=0.9)

    def error() -> float:
        signal = elbo.terms(vae.model, vae.guide, (x,), {}).learning_signal.detach()[0]
        return (signal - elbo.mean / elbo.weight - elbo.baseline(x)[:, 0]).square().mean().item()

    elbo.differentiable_loss(vae.model, vae.guide, x)
    before = error()
    if route == "svi":
        rate = lambda name: {"lr": 0.1 if name.startswith("ReinforceELBO") else 0.0}  # noqa: E731
        svi = SVI(vae.model, vae.guide, pyro.optim.Adam(rate), loss=elbo)
        for _ in range(100):
            svi.step(x)
    else:
        loss_of = elbo(vae.model, vae.guide)
        assert {*elbo.baseline.parameters()} == {*loss_of.parameters()}
        optimizer = torch.optim.Adam(elbo.parameters(), lr=0.1)
        for _ in range(100):
            optimizer.zero_grad()
            loss_of(x).backward()
            optimizer.step()
    assert error() < 0.05 * before
    mean = ReinforceELBO(baseline="running_mean", decay=0.9)
    assert variance(elbo, vae, x) < 0.2 * variance(mean, vae, x)


def test_svi_and_a_torch_optimizer_take_the_same_step() -> None:
    x, results = tiny_data(3), []
    for route in ("svi", "torch"):
        pyro.set_rng_seed(2)
        pyro.clear_param_store()
        vae, elbo = tiny_vae(), ReinforceELBO(2, baseline=network())
        if route == "svi":
            svi = SVI(vae.model, vae.guide, pyro.optim.Adam({"lr": 0.01}), loss=elbo)
            for _ in range(3):
                svi.step(x)
        else:
            loss_of = elbo(vae.model, vae.guide)
            optimizer = torch.optim.Adam([*vae.parameters(), *elbo.parameters()], lr=0.01)
            for _ in range(3):
                optimizer.zero_grad()
                loss_of(x).backward()
                optimizer.step()
        results.append(
            nn.utils.parameters_to_vector([*vae.parameters(), *elbo.parameters()]).detach()
        )
    torch.testing.assert_close(*results, **EXACT)


def test_elbos_of_one_process_do_not_touch() -> None:
    """Nor do a copy and its original, or one that comes after the store was cleared."""
    vae, x = tiny_vae(), tiny_data(3)
    first = ReinforceELBO(baseline=network())
    train(first, vae, x)
    elbos = [first, ReinforceELBO(baseline=network()), copy.deepcopy(first)]
    for elbo in elbos:
        before = [weights(other) for other in elbos]
        train(elbo, vae, x)
        for other, old in zip(elbos, before, strict=True):
            assert torch.equal(weights(other), old) == (other is not elbo)
    pyro.clear_param_store()
    old = weights(first)
    train(first, tiny_vae(), x)
    assert not torch.equal(weights(first), old)


def test_weights_loaded_into_the_store_are_those_used() -> None:
    vae, x = tiny_vae(), tiny_data(3)
    elbo = ReinforceELBO(baseline=network())
    train(elbo, vae, x)
    store = pyro.get_param_store()
    saved, trained = copy.deepcopy(store.get_state()), weights(elbo)
    train(elbo, vae, x)
    store.set_state(saved)
    SVI(vae.model, vae.guide, pyro.optim.Adam({"lr": 0.0}), loss=elbo).step(x)
    assert torch.equal(weights(elbo), trained)
    train(elbo, vae, x)
    assert not torch.equal(weights(elbo), trained)


def train(elbo: DiscreteELBO, vae: Any, x: Tensor) -> None:
    SVI(vae.model, vae.guide, pyro.optim.Adam({"lr": 0.1}), loss=elbo).step(x)


def weights(elbo: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(elbo.parameters()).detach().clone()


def test_evaluation_trains_nothing() -> None:
    vae, x = tiny_vae(), tiny_data(3)
    elbo = ReinforceELBO(baseline=network())
    before = copy.deepcopy(elbo.state_dict())
    elbo.loss(vae.model, vae.guide, x)
    SVI(vae.model, vae.guide, pyro.optim.Adam({"lr": 0.1}), loss=elbo).evaluate_loss(x)
    assert all(torch.equal(value, before[key]) for key, value in elbo.state_dict().items())
    assert not [name for name in pyro.get_param_store() if name.startswith("ReinforceELBO")]
    assert all(parameter.grad is None for parameter in elbo.parameters())


def test_frozen_network_is_a_baseline_still() -> None:
    vae, x = tiny_vae(), tiny_data(3)
    elbo = ReinforceELBO(baseline=network().requires_grad_(False))
    before = weights(elbo)
    train(elbo, vae, x)
    assert torch.equal(weights(elbo), before)


@pytest.mark.parametrize("shape", [(), (1,), (1, 3), (3, 2)])
def test_network_must_give_one_number_per_datum(shape: tuple[int, ...]) -> None:
    vae, x, baseline = tiny_vae(), tiny_data(3), nn.Module()
    baseline.forward = lambda x: torch.zeros(shape)
    with pytest.raises(ValueError, match=r"shape \(3,\) or \(3, 1\), one number per datum; got \("):
        ReinforceELBO(baseline=baseline).differentiable_loss(vae.model, vae.guide, x)


@pytest.mark.parametrize("baseline", [lambda x: x, "network", torch.zeros(3)])
def test_baseline_of_another_kind(baseline: Any) -> None:
    with pytest.raises(ValueError, match="None, finite, a network, or 'running_mean'; got"):
        ReinforceELBO(baseline=baseline)
