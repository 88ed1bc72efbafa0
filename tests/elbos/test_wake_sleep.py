"""Reweighted wake-sleep: its mean over every tuple of draws, its limit, and Pyro's own class."""

from __future__ import annotations

import itertools
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from oracle import FixedDraws, assignments, expected, gradient, log_probs
from pyro.infer import ReweightedWakeSleep
from test_multi_sample import exact_bound
from torch import Tensor
from zoo import PROGRAMS, tiny_data, tiny_vae

from pyro_dvae import MarginalELBO, WakeSleepELBO
from pyro_dvae.codes import enumerate_codes

EXACT = {"atol": 1e-10, "rtol": 0}


def mean_estimate(program: Any, x: Tensor, num_particles: int, beta: float = 1.0) -> Tensor:
    """Its gradient is the mean of sum_s w_s / (sum_j w_j) grad (log p(x, z_s) + log q(z_s|x))."""
    rows = [log_probs(program, x, values) for values in assignments(program, x)]
    log_lik, log_p, log_q = (torch.stack(part) for part in zip(*rows, strict=True))
    tuples = torch.tensor(list(itertools.product(range(len(rows)), repeat=num_particles)))
    probability = log_q[tuples].sum(1).exp().detach()
    weight = (log_lik / beta + log_p - log_q).detach()[tuples].softmax(1)
    each = log_lik + beta * log_p + log_q
    return (probability * (weight * each[tuples]).sum(1)).sum()


@pytest.mark.parametrize(
    ("name", "beta"),
    [
        ("index-valued", 0.3),
        *(pytest.param(name, 1.0, marks=pytest.mark.slow) for name in PROGRAMS),
    ],
)
def test_mean_over_every_tuple(name: str, beta: float) -> None:
    (build, nesting), x = PROGRAMS[name], tiny_data()
    program = build()

    def make() -> WakeSleepELBO:
        return WakeSleepELBO(2, beta=beta, max_plate_nesting=nesting)

    loss, grad = expected(make, program, x, 2, nesting)
    torch.testing.assert_close(loss, -exact_bound(program, x, 2).detach(), **EXACT)
    mean = mean_estimate(program, x, 2, beta)
    torch.testing.assert_close(grad, gradient(-mean, program), **EXACT)


@pytest.mark.slow
def test_three_particles() -> None:
    vae, x = tiny_vae(1, 3), tiny_data()
    loss, grad = expected(lambda: WakeSleepELBO(3, max_plate_nesting=1), vae, x, 3, 1)
    torch.testing.assert_close(loss, -exact_bound(vae, x, 3).detach(), **EXACT)
    torch.testing.assert_close(grad, gradient(-mean_estimate(vae, x, 3), vae), **EXACT)


def test_bias_falls_to_the_gradients_of_log_p_and_of_the_forward_kl() -> None:
    """Their exact values are those of `MarginalELBO`; the bias of S particles falls as 1/S."""
    vae, x = tiny_vae(1, 4), tiny_data()
    exact = gradient(MarginalELBO().differentiable_loss(vae.model, vae.guide, x), vae)
    two, four, eight = (
        (gradient(-mean_estimate(vae, x, s), vae) - exact).norm().item() for s in (2, 4, 8)
    )
    assert two > four > eight > 0
    assert 1.6 < four / eight < 2.4
    copies = WakeSleepELBO(20_000).differentiable_loss(vae.model, vae.guide, x)
    torch.testing.assert_close(gradient(copies, vae), exact, atol=0.1, rtol=0.1)


@pytest.mark.parametrize("num_particles", [2, 5])
def test_one_datum_is_pyros_own(num_particles: int) -> None:
    """Pyro's class weighs the draws of all data at once, so it is compared on one datum."""
    vae, x = tiny_vae(), tiny_data()
    z = enumerate_codes(2, 3)[torch.randperm(9)[:num_particles]][:, None]
    guide = FixedDraws({"z": z})(vae.guide)
    losses, grads = [], []
    for elbo in (WakeSleepELBO, ReweightedWakeSleep):
        vae.zero_grad()
        loss = elbo(num_particles, max_plate_nesting=1).loss_and_grads(vae.model, guide, x)
        losses.append(loss[0] if isinstance(loss, tuple) else loss)
        grads.append(torch.cat([weight.grad.flatten() for weight in vae.parameters()]))
    assert losses[0] == pytest.approx(float(losses[1]), abs=1e-10)
    torch.testing.assert_close(grads[0], grads[1], **EXACT)


def test_a_datum_does_not_see_the_rest_of_its_batch() -> None:
    vae, x = tiny_vae(), tiny_data(3)
    z = enumerate_codes(2, 3)[torch.randint(9, (4, 3))]  # (S, B, D, K)

    def loss_of(rows: slice) -> Tensor:
        guide = FixedDraws({"z": z[:, rows]})(vae.guide)
        return WakeSleepELBO(4, max_plate_nesting=1).differentiable_loss(vae.model, guide, x[rows])

    whole = gradient(loss_of(slice(None)), vae)
    parts = sum(gradient(loss_of(slice(i, i + 1)), vae) for i in range(3))
    torch.testing.assert_close(whole, parts, **EXACT)


def test_weights_far_apart_in_float32() -> None:
    torch.set_default_dtype(torch.float32)
    vae, x = tiny_vae(event=(3000,)), tiny_data(20, (3000,))
    for parameter in vae.decoder.parameters():
        parameter.data.mul_(30)
    loss = WakeSleepELBO(5).differentiable_loss(vae.model, vae.guide, x)
    assert loss.isfinite()
    assert gradient(loss, vae).isfinite().all()


def test_what_is_refused() -> None:
    loc = torch.tensor(0.3, requires_grad=True)

    def program() -> None:
        pyro.sample("w", dist.Normal(loc, 1.0))

    with pytest.raises(ValueError, match=r"not reparametrised.*got Normal at site 'w'"):
        WakeSleepELBO(2).loss(program, program)
    with pytest.raises(ValueError, match="beta > 0"):
        WakeSleepELBO(2, beta=0.0)
    with pytest.raises(ValueError, match="2 particles for WakeSleepELBO; got 1"):
        WakeSleepELBO(1)
