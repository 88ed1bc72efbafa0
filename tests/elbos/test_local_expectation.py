"""Local expectations: exact in the mean, and exact at every draw of a single latent."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from oracle import FixedDraws, assignments, exact_elbo, expected, gradient
from torch import Tensor, nn
from zoo import PROGRAMS, tiny_data, tiny_vae

from pyro_dvae import DiscreteELBO, EnumeratedELBO, ReinforceELBO
from pyro_dvae.codes import enumerate_codes
from pyro_dvae.elbos.coupled import DisarmELBO
from pyro_dvae.elbos.local_expectation import LocalExpectationELBO

EXACT = {"atol": 1e-10, "rtol": 0}


@pytest.mark.parametrize("analytic_kl", [True, False])
@pytest.mark.parametrize("beta", [1.0, 0.3])
@pytest.mark.parametrize("name", PROGRAMS)
def test_expected_gradient_is_exact(name: str, beta: float, analytic_kl: bool) -> None:
    build, nesting = PROGRAMS[name]
    program, x = build(), tiny_data()

    def make() -> LocalExpectationELBO:
        return LocalExpectationELBO(beta=beta, analytic_kl=analytic_kl, max_plate_nesting=nesting)

    loss, grad = expected(make, program, x, 1, nesting)
    torch.testing.assert_close(loss, -exact_elbo(program, x).detach(), **EXACT)
    torch.testing.assert_close(grad, gradient(-exact_elbo(program, x, beta), program), **EXACT)


def test_two_particles(device: torch.device) -> None:
    vae, x = tiny_vae().to(device), tiny_data().to(device)
    _, grad = expected(lambda: LocalExpectationELBO(2, max_plate_nesting=1), vae, x, 2, 1)
    torch.testing.assert_close(grad, gradient(-exact_elbo(vae, x), vae), **EXACT)


def test_free_bits() -> None:
    vae, x = tiny_vae(), tiny_data()
    elbo = EnumeratedELBO(free_bits=0.05)
    exact = gradient(elbo.differentiable_loss(vae.model, vae.guide, x), vae)
    assert not torch.equal(exact, gradient(-exact_elbo(vae, x), vae))
    _, grad = expected(
        lambda: LocalExpectationELBO(free_bits=0.05, max_plate_nesting=1), vae, x, 1, 1
    )
    torch.testing.assert_close(grad, exact, **EXACT)


@pytest.mark.parametrize("analytic_kl", [True, False])
def test_a_single_latent_has_no_variance(analytic_kl: bool) -> None:
    vae, x = tiny_vae(1, 3), tiny_data()
    exact = gradient(-exact_elbo(vae, x), vae.encoder)
    for values in assignments(vae, x):
        loss = LocalExpectationELBO(analytic_kl=analytic_kl).differentiable_loss(
            vae.model, FixedDraws(values)(vae.guide), x
        )
        torch.testing.assert_close(gradient(loss, vae.encoder), exact, **EXACT)


def test_lower_variance_than_reinforce_with_as_many_evaluations() -> None:
    vae, x = tiny_vae(event=(50,)), tiny_data(20, (50,))

    def variance(elbo: DiscreteELBO) -> float:
        losses = [elbo.differentiable_loss(vae.model, vae.guide, x) for _ in range(40)]
        return torch.stack([gradient(loss, vae.encoder) for loss in losses]).var(0).sum().item()

    assert variance(LocalExpectationELBO()) < 0.01 * variance(ReinforceELBO(5))


@pytest.mark.parametrize("name", PROGRAMS)
def test_chunks_do_not_change_the_gradient(name: str) -> None:
    program, x = PROGRAMS[name][0](), tiny_data(3)
    grads = []
    for chunk_size in (None, 1, 3):
        pyro.set_rng_seed(1)
        elbo = LocalExpectationELBO(2, chunk_size=chunk_size)
        grads.append(gradient(elbo.differentiable_loss(program.model, program.guide, x), program))
    torch.testing.assert_close(grads[1], grads[0], **EXACT)
    torch.testing.assert_close(grads[2], grads[0], **EXACT)


def test_decoder_evaluations() -> None:
    """D (K-1) + 1 codes a datum and particle, the draw's alone with gradient."""
    vae, x = tiny_vae(), tiny_data(5)
    rows: list[tuple[int, bool]] = []
    vae.decoder.register_forward_hook(
        lambda _, args, output: rows.append((args[0].shape[:-2].numel(), output.requires_grad))
    )
    LocalExpectationELBO(2).differentiable_loss(vae.model, vae.guide, x)
    # The first is the trial run that counts the plates.
    assert rows[1:] == [(2 * 5, True), (2 * (3 - 1) * 2 * 5, False)]


def test_subsampling_scales_the_gradient() -> None:
    vae, x = tiny_vae(), tiny_data(6)
    index = torch.tensor([1, 4])

    def model(x: Tensor) -> None:
        with pyro.plate("data", 6, subsample=index):
            z = pyro.sample("z", vae.prior())
            pyro.sample("x", vae.decode(z), obs=x[index])

    def guide(x: Tensor) -> None:
        with pyro.plate("data", 6, subsample_size=2) as rows:
            logits = vae.encode(x[rows])
            pyro.sample("z", dist.OneHotCategorical(logits=logits).to_event(1))

    guide = FixedDraws({"data": index})(guide)
    for elbo in (LocalExpectationELBO(), DisarmELBO()):
        grads = []
        for programs, data in [((model, guide), x), ((vae.model, vae.guide), x[index])]:
            pyro.set_rng_seed(4)
            grads.append(gradient(elbo.differentiable_loss(*programs, data), vae))
        torch.testing.assert_close(grads[0], 3 * grads[1], **EXACT)


@pytest.mark.parametrize("num_particles", [1, 5])
def test_category_of_probability_zero(num_particles: int) -> None:
    """With the drawn KL its signal is infinite."""
    vae, x = tiny_vae(), tiny_data(1)
    logits = torch.tensor([[[0.0, -torch.inf, 0.0], [0.3, 0.1, -torch.inf]]], requires_grad=True)
    vae.encoder = nn.Module()
    vae.encoder.forward = lambda _: logits
    elbo = LocalExpectationELBO(num_particles, analytic_kl=False)
    loss = elbo.differentiable_loss(vae.model, vae.guide, x)
    assert loss.isfinite()
    assert torch.autograd.grad(loss, logits)[0].isfinite().all()


class _NormalBetween(nn.Module):
    """Codes z1 and z2, and between them a normal w that tells of z1: z1 -> w -> z2."""

    def __init__(self) -> None:
        super().__init__()
        self.q_1 = nn.Parameter(torch.randn(3))
        self.q_w = nn.Parameter(torch.randn(3))
        self.q_2 = nn.Parameter(torch.randn(2))
        self.mean = nn.Parameter(torch.randn(3, 4))

    def model(self, x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            z1 = pyro.sample("z1", dist.OneHotCategorical(logits=torch.zeros(3)))
            w = pyro.sample("w", dist.Normal(0.0, 1.0))
            z2 = pyro.sample("z2", dist.OneHotCategorical(logits=torch.zeros(2)))
            logits = z1 @ self.mean + (w * z2[..., 0])[..., None]
            pyro.sample("x", dist.Bernoulli(logits=logits).to_event(1), obs=x)

    def guide(self, x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            z1 = pyro.sample("z1", dist.OneHotCategorical(logits=self.q_1))
            w = pyro.sample("w", dist.Normal(z1 @ self.q_w, 0.7))
            pyro.sample("z2", dist.OneHotCategorical(logits=self.q_2 * w[..., None]))


@pytest.mark.slow
@pytest.mark.parametrize("build", [LocalExpectationELBO, DisarmELBO])
def test_a_continuous_site_that_tells_of_a_code(build: Any) -> None:
    """z-tests against the mean of REINFORCE; each of 400 copies of a datum draws its own."""
    program, x = _NormalBetween(), tiny_data(1).expand(400, -1)
    means, variances = [], []
    for elbo in (ReinforceELBO(10, baseline=-4.0), build()):
        losses = [elbo.differentiable_loss(program.model, program.guide, x) for _ in range(100)]
        grads = torch.stack([gradient(loss, program) for loss in losses])
        means.append(grads.mean(0))
        variances.append(grads.var(0) / len(grads))
    spread = sum(variances).sqrt()
    assert ((means[0] - means[1]).abs() <= 4.5 * spread + 1e-12).all()


@pytest.mark.parametrize("build", [LocalExpectationELBO, DisarmELBO])
def test_a_discrete_site_that_is_not_categorical(build: Any) -> None:
    def program(x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            pyro.sample("b", dist.Bernoulli(torch.tensor(0.3, requires_grad=True)))

    with pytest.raises(TypeError, match=r"categorical discrete sites; got .* at site 'b'"):
        build().differentiable_loss(program, program, tiny_data(2))


def test_chunk_of_nothing() -> None:
    with pytest.raises(ValueError, match="at least 1 code; got 0"):
        LocalExpectationELBO(chunk_size=0)


def test_local_expectation_by_hand() -> None:
    """sum_k grad pi_dk f(z with z_d = k), the other latent as drawn."""
    vae, x = tiny_vae(), tiny_data()
    drawn = enumerate_codes(2, 3)[5]
    logits = vae.encode(x).detach().requires_grad_()
    vae.encoder = nn.Module()
    vae.encoder.forward = lambda _: logits
    vae.prior.forward = lambda: dist.OneHotCategorical(logits=logits.detach()[0]).to_event(1)
    guide = FixedDraws({"z": drawn[None]})(vae.guide)
    loss = LocalExpectationELBO().differentiable_loss(vae.model, guide, x)
    by_hand = torch.zeros(())
    for d in range(2):
        for k in range(3):
            z = drawn.clone()
            z[d] = torch.eye(3)[k]
            f = vae.decode(z[None]).log_prob(x).detach()
            by_hand = by_hand + (logits.softmax(-1)[0, d, k] * f).sum()
    # The prior is q itself, so the gradient of the KL is 0.
    grads = [torch.autograd.grad(value, logits)[0] for value in (-loss, by_hand)]
    torch.testing.assert_close(grads[0], grads[1], **EXACT)
