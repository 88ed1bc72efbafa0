"""VIMCO against the S-sample bound, summed over every tuple of draws."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from oracle import FixedDraws, assignments, exact_elbo, expected, gradient, log_probs
from torch import Tensor
from zoo import PROGRAMS, tiny_data, tiny_vae

from pyro_dvae.codes import enumerate_codes
from pyro_dvae.elbos.multi_sample import VimcoELBO
from pyro_dvae.evaluation import log_marginal

EXACT = {"atol": 1e-10, "rtol": 0}


def exact_bound(program: Any, x: Tensor, num_particles: int, beta: float = 1.0) -> Tensor:
    """E[log 1/S sum_s p(x|z_s) (p(z_s) / q(z_s|x))^beta], differentiable, for one datum."""
    rows = [log_probs(program, x, values) for values in assignments(program, x)]
    log_lik, log_p, log_q = (torch.stack(part) for part in zip(*rows, strict=True))
    log_w = log_lik + beta * (log_p - log_q)
    tuples = torch.tensor(list(itertools.product(range(len(rows)), repeat=num_particles)))
    bound = log_w[tuples].exp().mean(1).log()
    return (log_q[tuples].sum(1).exp() * bound).sum()


@pytest.mark.parametrize("beta", [1.0, 0.3])
@pytest.mark.parametrize("name", PROGRAMS)
def test_expected_gradient_is_that_of_the_bound(name: str, beta: float) -> None:
    build, nesting = PROGRAMS[name]
    program, x = build(), tiny_data()

    def make() -> VimcoELBO:
        return VimcoELBO(2, beta=beta, max_plate_nesting=nesting)

    loss, grad = expected(make, program, x, 2, nesting)
    torch.testing.assert_close(loss, -exact_bound(program, x, 2).detach(), **EXACT)
    torch.testing.assert_close(grad, gradient(-exact_bound(program, x, 2, beta), program), **EXACT)


def test_three_particles(device: torch.device) -> None:
    vae, x = tiny_vae(1, 3).to(device), tiny_data().to(device)
    loss, grad = expected(lambda: VimcoELBO(3, max_plate_nesting=1), vae, x, 3, 1)
    exact = -exact_bound(vae, x, 3)
    torch.testing.assert_close(loss, exact.detach(), **EXACT)
    torch.testing.assert_close(grad, gradient(exact, vae), **EXACT)


@pytest.mark.parametrize("name", PROGRAMS)
def test_bound_grows_from_the_elbo_to_the_marginal(name: str) -> None:
    program, x = PROGRAMS[name][0](), tiny_data()
    bounds = [exact_bound(program, x, s).item() for s in (1, 2, 3)]
    rows = [log_probs(program, x, values) for values in assignments(program, x)]
    marginal = torch.stack([log_lik + log_p for log_lik, log_p, _ in rows]).logsumexp(0).item()
    assert bounds[0] == pytest.approx(exact_elbo(program, x).item(), abs=1e-10)
    assert bounds[0] < bounds[1] < bounds[2] < marginal


def test_many_particles_reach_the_marginal() -> None:
    vae, x = tiny_vae(), tiny_data(3)
    bound = -VimcoELBO(20_000).loss(vae.model, vae.guide, x)
    assert bound == pytest.approx(log_marginal(vae, x).sum().item(), abs=0.1)


@pytest.mark.parametrize("num_particles", [2, 5])
def test_estimate_by_hand(num_particles: int) -> None:
    """Every baseline replaces one weight by the geometric mean of the others."""
    vae, x = tiny_vae(), tiny_data()
    z = enumerate_codes(2, 3)[torch.randperm(9)[:num_particles]]
    rows = [log_probs(vae, x, {"z": row[None]}) for row in z]
    log_lik, log_p, log_q = (torch.stack(part) for part in zip(*rows, strict=True))
    log_w = log_lik + log_p - log_q
    w = log_w.detach().exp()
    estimate = (w / w.sum() * log_w).sum()
    for s in range(num_particles):
        others = torch.cat([w[:s], w[s + 1 :]])
        without = torch.cat([others, others.prod()[None] ** (1 / len(others))])
        estimate = estimate + (w.mean().log() - without.mean().log()) * log_q[s]
    guide = FixedDraws({"z": z[:, None]})(vae.guide)
    elbo = VimcoELBO(num_particles, max_plate_nesting=1)
    grad = gradient(-elbo.differentiable_loss(vae.model, guide, x), vae)
    torch.testing.assert_close(grad, gradient(estimate, vae), **EXACT)


def test_a_datum_does_not_see_the_rest_of_its_batch() -> None:
    vae, x = tiny_vae(), tiny_data(3)
    z = enumerate_codes(2, 3)[torch.randint(9, (4, 3))]  # (S, B, D, K)

    def loss_of(rows: slice) -> Tensor:
        guide = FixedDraws({"z": z[:, rows]})(vae.guide)
        return VimcoELBO(4, max_plate_nesting=1).differentiable_loss(vae.model, guide, x[rows])

    whole = loss_of(slice(None))
    parts = sum(loss_of(slice(i, i + 1)) for i in range(3))
    torch.testing.assert_close(whole, parts, **EXACT)
    torch.testing.assert_close(gradient(whole, vae), gradient(parts, vae), **EXACT)


def test_subsampling_and_scaled_sites() -> None:
    """N/B times the loss and gradient; a KL scaled by Pyro has the gradient of beta."""
    vae, x = tiny_vae(), tiny_data(6)
    index = torch.tensor([1, 4])

    def model(x: Tensor) -> None:
        with pyro.plate("data", 6, subsample=index):
            with poutine.scale(scale=0.3):
                z = pyro.sample("z", vae.prior())
            pyro.sample("x", vae.decode(z), obs=x[index])

    def guide(x: Tensor) -> None:
        with pyro.plate("data", 6, subsample=index), poutine.scale(scale=0.3):
            logits = vae.encode(x[index])
            pyro.sample("z", dist.OneHotCategorical(logits=logits).to_event(1))

    pyro.set_rng_seed(4)
    scaled = VimcoELBO(3).differentiable_loss(model, guide, x)
    pyro.set_rng_seed(4)
    plain = VimcoELBO(3, beta=0.3).differentiable_loss(vae.model, vae.guide, x[index])
    torch.testing.assert_close(gradient(scaled, vae), 3 * gradient(plain, vae), **EXACT)


def test_weights_far_apart_in_float32() -> None:
    torch.set_default_dtype(torch.float32)
    vae, x = tiny_vae(event=(3000,)), tiny_data(20, (3000,))
    for parameter in vae.decoder.parameters():
        parameter.data.mul_(30)
    loss = VimcoELBO(5).differentiable_loss(vae.model, vae.guide, x)
    assert loss.isfinite()
    assert gradient(loss, vae).isfinite().all()


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: VimcoELBO(1), ValueError, "at least 2 particles"),
        (lambda: VimcoELBO(free_bits=0.1), ValueError, "no free bits"),
        (lambda: VimcoELBO(beta=math.nan), ValueError, "finite beta"),
        (lambda: VimcoELBO(analytic_kl=True), TypeError, "analytic_kl"),
    ],
)
def test_arguments_refused(build: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build()
