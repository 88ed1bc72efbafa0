"""Pyro's score-function path, ours, and the tutorial's equations give one and the same gradient."""

from __future__ import annotations

import itertools
from typing import Any

import pyro
import pytest
import torch
from oracle import FixedDraws, assignments, exact_elbo, expected, gradient, log_probs
from pyro.infer import SVI, Trace_ELBO
from zoo import ELBOS, PROGRAMS, UNBIASED, D, K, tiny_data, tiny_vae

from pyro_dvae import EnumeratedELBO, ReinforceELBO, RlooELBO, log_marginal
from pyro_dvae.codes import enumerate_codes, kl_divergence

EXACT = {"atol": 1e-10, "rtol": 0}


@pytest.mark.parametrize("name", UNBIASED)
def test_expected_gradient_is_exact(name: str, device: torch.device) -> None:
    make, particles = UNBIASED[name]
    vae, x = tiny_vae().to(device), tiny_data().to(device)
    loss, grad = expected(make, vae, x, particles, 1)
    exact = -exact_elbo(vae, x)
    torch.testing.assert_close(loss, exact.detach(), **EXACT)
    torch.testing.assert_close(grad, gradient(exact, vae), **EXACT)
    enumerated = EnumeratedELBO().differentiable_loss(vae.model, vae.guide, x)
    torch.testing.assert_close(grad, gradient(enumerated, vae), **EXACT)


@pytest.mark.parametrize("name", ["trace", "reinforce", "reinforce, constant"])
def test_expected_gradient_of_a_batch(name: str) -> None:
    """Two data: all pairs of codes, so that a signal summed over the batch would show."""
    vae, x = tiny_vae(2, 2), tiny_data(2)
    log_q = vae.encode(x).log_softmax(-1).detach()
    codes = enumerate_codes(2, 2)
    total = torch.zeros(())
    for pair in itertools.product(codes, repeat=2):
        z = torch.stack(pair)
        guide = FixedDraws({"z": z})(vae.guide)
        loss = UNBIASED[name][0]().differentiable_loss(vae.model, guide, x)
        total = total + (z * log_q).sum().exp() * gradient(loss, vae)
    exact = sum(exact_elbo(vae, row[None]) for row in x)
    torch.testing.assert_close(total, gradient(-exact, vae), **EXACT)


def test_three_particles() -> None:
    vae, x = tiny_vae(1, 3), tiny_data()
    _, grad = expected(lambda: RlooELBO(3, max_plate_nesting=1), vae, x, 3, 1)
    torch.testing.assert_close(grad, gradient(-exact_elbo(vae, x), vae), **EXACT)


@pytest.mark.parametrize("beta", [1.0, 0.3])
@pytest.mark.parametrize("name", PROGRAMS)
def test_any_program(name: str, beta: float) -> None:
    build, nesting = PROGRAMS[name]
    program, x = build(), tiny_data()
    exact = gradient(-exact_elbo(program, x, beta), program)
    options: dict[str, Any] = {"beta": beta, "max_plate_nesting": nesting}
    for make, particles in [
        (lambda: ReinforceELBO(**options), 1),
        (lambda: ReinforceELBO(analytic_kl=False, **options), 1),
        (lambda: RlooELBO(2, **options), 2),
    ]:
        if particles == 1 or len(list(assignments(program, x))) <= 9:
            loss, grad = expected(make, program, x, particles, nesting)
            torch.testing.assert_close(grad, exact, **EXACT)
            torch.testing.assert_close(loss, -exact_elbo(program, x).detach(), **EXACT)
    enumerated = EnumeratedELBO(beta=beta).differentiable_loss(program.model, program.guide, x)
    torch.testing.assert_close(gradient(enumerated, program), exact, **EXACT)
    torch.testing.assert_close(enumerated.detach(), -exact_elbo(program, x).detach(), **EXACT)


@pytest.mark.parametrize("name", PROGRAMS)
def test_batch_is_the_sum_of_its_data(name: str) -> None:
    program, x = PROGRAMS[name][0](), tiny_data(5)
    elbo = EnumeratedELBO()
    whole = elbo.differentiable_loss(program.model, program.guide, x)
    parts = sum(elbo.differentiable_loss(program.model, program.guide, row[None]) for row in x)
    torch.testing.assert_close(whole, parts, **EXACT)
    torch.testing.assert_close(gradient(whole, program), gradient(parts, program), **EXACT)


def test_drawn_kl_is_pyros_trace_elbo_draw_by_draw() -> None:
    vae, x = tiny_vae(), tiny_data(3)
    for ours, pyros in [
        (ReinforceELBO(analytic_kl=False), Trace_ELBO()),
        (
            ReinforceELBO(4, analytic_kl=False),
            Trace_ELBO(4, vectorize_particles=True, max_plate_nesting=1),
        ),
    ]:
        losses = []
        for elbo in (ours, pyros):
            pyro.set_rng_seed(1)
            losses.append(elbo.differentiable_loss(vae.model, vae.guide, x))
        torch.testing.assert_close(losses[0], losses[1], **EXACT)
        torch.testing.assert_close(*(gradient(loss, vae) for loss in losses), **EXACT)


def test_two_particle_rloo_is_half_the_product_of_differences() -> None:
    """1/2 (f1 - f2) (D1 - D2) in the logits (law 2 of the estimators)."""
    vae, x = tiny_vae(), tiny_data()
    codes = enumerate_codes(D, K)
    first, second = codes[1], codes[5]
    logits = vae.encode(x).detach().requires_grad_()
    vae.encoder = torch.nn.Module()
    vae.encoder.forward = lambda _: logits
    z = torch.stack([first, second])[:, None]
    guide = FixedDraws({"z": z})(vae.guide)
    loss = RlooELBO(2, max_plate_nesting=1).differentiable_loss(vae.model, guide, x)
    f = vae.decode(z).log_prob(x)[:, 0]
    by_hand = 0.5 * (f[0] - f[1]) * (first - second)
    by_hand = (
        by_hand - torch.autograd.grad(kl_divergence(logits, torch.zeros(D, K)).sum(), logits)[0]
    )
    torch.testing.assert_close(-torch.autograd.grad(loss, logits)[0], by_hand, **EXACT)


def test_marginal_is_elbo_plus_kl_to_the_posterior(device: torch.device) -> None:
    """Eq. 38, the posterior by enumeration."""
    vae, x = tiny_vae().to(device), tiny_data().to(device)
    rows = [log_probs(vae, x, values) for values in assignments(vae, x)]
    log_lik, log_p, log_q = (torch.stack(part).detach() for part in zip(*rows, strict=True))
    marginal = (log_lik + log_p).logsumexp(0)
    posterior = log_lik + log_p - marginal
    kl = (log_q.exp() * (log_q - posterior)).sum()
    elbo = exact_elbo(vae, x).detach()
    torch.testing.assert_close(elbo + kl, marginal, **EXACT)
    torch.testing.assert_close(log_marginal(vae, x)[0].detach(), marginal, **EXACT)


def test_bound_is_tight_at_the_posterior(device: torch.device) -> None:
    """Eqs. 37 and 39: with D = 1 the categorical guide can be the posterior."""
    vae, x = tiny_vae(1, 6).to(device), tiny_data(4).to(device)
    codes = enumerate_codes(1, 6, device=device)
    joint = vae.decode(codes[:, None]).log_prob(x) + vae.prior().log_prob(codes)[:, None]
    vae.encoder = torch.nn.Module()
    vae.encoder.forward = lambda x: joint.T.unsqueeze(-2).detach()  # (B, 1, K), unnormalised
    loss = EnumeratedELBO().loss(vae.model, vae.guide, x)
    assert -loss == pytest.approx(log_marginal(vae, x).sum().item(), abs=1e-10)


def test_mean_of_trace_elbo_gradients_lies_at_the_exact_one(device: torch.device) -> None:
    """10,000 draws, as 100 means of 100, against 4.5 standard errors of the mean."""
    vae, x = tiny_vae().to(device), tiny_data(2).to(device)
    elbo = Trace_ELBO(100, max_plate_nesting=1, vectorize_particles=True)
    means = torch.stack(
        [gradient(elbo.differentiable_loss(vae.model, vae.guide, x), vae) for _ in range(100)]
    )
    exact = sum(exact_elbo(vae, row[None]) for row in x)
    error = (means.mean(0) - gradient(-exact, vae)).abs()
    standard_error = means.std(0) / 10
    assert (error <= 4.5 * standard_error + 1e-12).all()


@pytest.mark.parametrize("name", ELBOS)
def test_svi_and_a_torch_optimizer_take_the_same_step(name: str, device: torch.device) -> None:
    x = tiny_data(3).to(device)
    results = []
    for route in ("svi", "torch"):
        pyro.set_rng_seed(2)
        pyro.clear_param_store()
        vae, elbo = tiny_vae().to(device), ELBOS[name]()
        if route == "svi":
            svi = SVI(vae.model, vae.guide, pyro.optim.Adam({"lr": 0.01}), loss=elbo)
            losses = [svi.step(x) for _ in range(3)]
        else:
            loss_of, losses = elbo(vae.model, vae.guide), []
            weights = [*vae.parameters(), *loss_of.parameters()]
            optimizer = torch.optim.Adam(weights, lr=0.01)
            for _ in range(3):
                optimizer.zero_grad()
                loss = loss_of(x)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        results.append(
            (torch.tensor(losses), torch.nn.utils.parameters_to_vector(vae.parameters()))
        )
    torch.testing.assert_close(results[0], results[1], **EXACT)


def test_subsampling_scales_the_gradient_and_nothing_else() -> None:
    """A plate of N with B of them: N/B times the loss and gradient, the baseline per datum."""
    vae, x = tiny_vae(), tiny_data(6)
    index = torch.tensor([1, 4])

    def model(x: torch.Tensor) -> None:
        with pyro.plate("data", 6, subsample=index):
            z = pyro.sample("z", vae.prior())
            pyro.sample("x", vae.decode(z), obs=x[index])

    def guide(x: torch.Tensor) -> None:
        with pyro.plate("data", 6, subsample=index):
            logits = vae.encode(x[index])
            pyro.sample("z", pyro.distributions.OneHotCategorical(logits=logits).to_event(1))

    for elbo in (EnumeratedELBO(), ReinforceELBO(baseline=-2.0), RlooELBO(2)):
        pyro.set_rng_seed(4)
        scaled = elbo.differentiable_loss(model, guide, x)
        pyro.set_rng_seed(4)
        plain = elbo.differentiable_loss(vae.model, vae.guide, x[index])
        torch.testing.assert_close(scaled, 3 * plain, **EXACT)
        torch.testing.assert_close(gradient(scaled, vae), 3 * gradient(plain, vae), **EXACT)
