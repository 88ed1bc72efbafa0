"""REBAR and RELAX: unbiased whatever the control variate, and what trains the control variate."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from oracle import exact_elbo, expected, gradient
from pyro.infer import SVI
from torch import Tensor, nn
from zoo import PROGRAMS, D, IndependentSites, K, P, cat, tiny_data, tiny_vae

from pyro_dvae import DiscreteELBO, ReinforceELBO
from pyro_dvae.codes import conditional_gumbels, one_hot
from pyro_dvae.elbos.control_variate import RelaxELBO

EXACT = {"atol": 1e-10, "rtol": 0}
ONE_HOT = [name for name in PROGRAMS if name != "index-valued"]


class Network(nn.Module):
    """Of the codes and x, not small: an arbitrary control variate."""

    def __init__(self, code_size: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(code_size + P, 6), nn.Tanh(), nn.Linear(6, 1))

    def forward(self, codes: Tensor, x: Tensor) -> Tensor:
        return 2 * self.layers(cat(codes, x))


def code_size(name: str) -> int:
    return {"vae": D * K, "plated latents": D * K, "index-valued": K}.get(name, K + 2)


def sharp(name: str) -> Any:
    """A program whose codes matter: a bias of the control variate would stand out."""
    program = PROGRAMS[name][0]()
    with torch.no_grad():
        for parameter in program.parameters():
            parameter.mul_(2.5)
    return program


def mean_gradient(
    elbo: DiscreteELBO, program: Any, x: Tensor, *, copies: int = 2000, repeats: int = 50
) -> tuple[Tensor, Tensor]:
    """Mean and its standard error over `copies` times `repeats` draws."""
    many = x.expand(copies, -1)
    grads = torch.stack(
        [
            gradient(elbo.differentiable_loss(program.model, program.guide, many), program) / copies
            for _ in range(repeats)
        ]
    )
    return grads.mean(0), grads.std(0) / repeats**0.5


VARIANTS: dict[str, tuple[dict[str, Any], bool]] = {
    "rebar": ({"analytic_kl": False, "temperature": 0.3, "eta": 0.8}, False),
    "relax": ({"eta": -0.6, "temperature": 1.5}, True),
    "beta, particles": ({"analytic_kl": False, "beta": 0.4, "num_particles": 2}, True),
}


# Of the programs, one runs in the quick suite; each takes many draws.
SOME = [name if name == "vae" else pytest.param(name, marks=pytest.mark.slow) for name in ONE_HOT]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", SOME)
def test_mean_gradient_is_exact(name: str, variant: str) -> None:
    """100,000 draws and more against 4.5 standard errors, in encoder, decoder and prior."""
    options, with_network = VARIANTS[variant]
    program, x = sharp(name), tiny_data()
    network = Network(code_size(name)) if with_network else None
    mean, error = mean_gradient(RelaxELBO(network=network, **options), program, x)
    exact = gradient(-exact_elbo(program, x, options.get("beta", 1.0)), program)
    assert ((mean - exact).abs() <= 4.5 * error + 1e-12).all()
    assert (error > 0).any()


@pytest.mark.parametrize(("name", "free_bits"), [("vae", 0.0), ("vae", 0.2), ("hierarchy", 0.0)])
def test_control_variate_has_mean_zero(name: str, free_bits: float) -> None:
    """At the same draws, less REINFORCE: the terms in c alone, with nothing else to vary.

    What the draws enter pathwise only (decoder and prior) is the same to the last digit.
    """
    program, x = sharp(name), torch.ones(1000, P)
    network = Network(code_size(name))
    differences = []
    for seed in range(40):
        both = []
        for elbo in (
            RelaxELBO(network=network, free_bits=free_bits),
            ReinforceELBO(free_bits=free_bits),
        ):
            pyro.set_rng_seed(seed)
            both.append(
                gradient(elbo.differentiable_loss(program.model, program.guide, x), program)
            )
        differences.append(both[0] - both[1])
    difference = torch.stack(differences)
    error = difference.std(0) / len(difference) ** 0.5
    assert (difference.mean(0).abs() <= 4.5 * error + 1e-9).all()
    in_guide = torch.cat(
        [
            torch.full((p.numel(),), any(part in key for part in ("encoder", "guide")))
            for key, p in program.named_parameters()
        ]
    )
    assert (error[~in_guide] < 1e-12).all()
    assert (error[in_guide] > 1e-6).any()


def test_gradient_in_the_logits_by_hand() -> None:
    """(f - c(z~)) (b - pi) + d/dtheta (c(z) - c(z~)), by central differences at the same noise."""
    vae, x, tau = tiny_vae(), tiny_data(), 0.7
    elbo = RelaxELBO(eta=0.8, temperature=tau)
    terms = elbo.terms(vae.model, vae.guide, (x,), {})
    code, logits = terms.pair.codes["z"].code, vae.encode(x)[None].detach()
    pyro.set_rng_seed(8)
    ((_, gradient_),) = elbo._gradients(terms)

    def c(z: Tensor) -> Tensor:
        return 0.8 * vae.decode((z / tau).softmax(-1)).log_prob(x).detach()

    pyro.set_rng_seed(8)
    noise = conditional_gumbels(logits.log_softmax(-1), code) - logits.log_softmax(-1)
    log_e = torch.empty_like(logits).exponential_().log()
    top = (log_e * code).sum(-1, keepdim=True)

    def both(theta: Tensor) -> tuple[Tensor, Tensor]:
        total = theta.logsumexp(-1, keepdim=True)  # theta need not be normalised
        others = -(log_e - theta).logaddexp(top - total)
        return c(theta + noise), c(torch.where(code > 0, total - log_e, others))

    by_hand = (terms.learning_signal - both(logits)[1])[..., None, None].detach() * (
        code - logits.softmax(-1)
    )
    for i in range(D * K):
        step = 1e-5 * torch.eye(D * K)[i].reshape(logits.shape)
        up, down = (z - tilde for z, tilde in (both(logits + step), both(logits - step)))
        by_hand.view(-1)[i] += ((up - down) / 2e-5).squeeze()
    torch.testing.assert_close(gradient_, by_hand, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(gradient_.sum(-1), torch.zeros(1, 1, D), **EXACT)


def test_free_bits_leave_the_control_variate_smooth() -> None:
    """Signal and control variate hold the same KLs, so that none is left in their difference."""
    program, x, parts = IndependentSites(), tiny_data(3), []
    for free_bits in (0.0, 10.0):
        elbo = RelaxELBO(free_bits=free_bits)
        pyro.set_rng_seed(8)
        terms = elbo.terms(program.model, program.guide, (x,), {})
        parts.append(next(elbo._gradients(terms))[1])
    torch.testing.assert_close(*parts, **EXACT)


@pytest.mark.parametrize("analytic_kl", [True, False])
@pytest.mark.parametrize("name", PROGRAMS)
def test_without_control_variate_it_is_reinforce(name: str, analytic_kl: bool) -> None:
    """eta = 0: exact by enumeration, for each draw's gradient is REINFORCE's."""
    build, nesting = PROGRAMS[name]
    program, x = build(), tiny_data()
    options: dict[str, Any] = {"beta": 0.7, "analytic_kl": analytic_kl}
    loss, grad = expected(
        lambda: RelaxELBO(eta=0, max_plate_nesting=nesting, **options), program, x, 1, nesting
    )
    torch.testing.assert_close(grad, gradient(-exact_elbo(program, x, 0.7), program), **EXACT)
    torch.testing.assert_close(loss, -exact_elbo(program, x).detach(), **EXACT)
    same_draw(lambda: RelaxELBO(2, eta=0, **options), lambda: ReinforceELBO(2, **options), program)


def same_draw(
    left: Callable[[], DiscreteELBO], right: Callable[[], DiscreteELBO], program: Any
) -> None:
    x, results = tiny_data(3), []
    for make in (left, right):
        pyro.set_rng_seed(3)
        loss = make().differentiable_loss(program.model, program.guide, x)
        results.append(torch.cat([loss.detach()[None], gradient(loss, program)]))
    torch.testing.assert_close(*results, **EXACT)


def test_index_valued_site_is_reinforce() -> None:
    program = PROGRAMS["index-valued"][0]()
    network = Network(K)
    same_draw(lambda: RelaxELBO(2, network=network), lambda: ReinforceELBO(2), program)


class Mixed(nn.Module):
    """One-hot a, then one site of another kind drawn given a, then one-hot b."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.q_a, self.q_w = nn.Parameter(torch.randn(K)), nn.Parameter(3 * torch.randn(K, 2))
        self.q_b = nn.Parameter(2 * torch.randn(2, K))
        self.mean = nn.ParameterList(2 * torch.randn(n, P) for n in (K, 2, K))

    def draw(self, logits: Tensor) -> Tensor:
        if self.kind == "index":
            return one_hot(pyro.sample("w", dist.Categorical(logits=logits)), 2)
        return pyro.sample("w", dist.Normal(logits, 1.0).to_event(1))

    def model(self, x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            a = pyro.sample("a", dist.OneHotCategorical(logits=torch.zeros(K)))
            w = self.draw(torch.zeros(2))
            b = pyro.sample("b", dist.OneHotCategorical(logits=torch.zeros(K)))
            logits = sum(z @ mean for z, mean in zip((a, w, b), self.mean, strict=True))
            pyro.sample("x", dist.Bernoulli(logits=logits).to_event(1), obs=x)

    def guide(self, x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            a = pyro.sample("a", dist.OneHotCategorical(logits=self.q_a))
            w = self.draw(a @ self.q_w)
            pyro.sample("b", dist.OneHotCategorical(logits=w @ self.q_b))


@pytest.mark.parametrize("kind", ["index", "continuous"])
def test_sites_of_other_kinds(kind: str) -> None:
    """Against REINFORCE: b has a control variate, a has not, since w is drawn after it."""
    program, x = Mixed(kind), tiny_data()
    mean, error = mean_gradient(RelaxELBO(), program, x)
    plain, plain_error = mean_gradient(ReinforceELBO(), program, x)
    assert ((mean - plain).abs() <= 4.5 * (error**2 + plain_error**2).sqrt() + 1e-12).all()
    terms = RelaxELBO().terms(program.model, program.guide, (x,), {})
    names = list(terms.pair.codes)
    assert [RelaxELBO()._can_relax(terms.pair, name) for name in names] == [
        name == "b" for name in names
    ]


@pytest.mark.parametrize("name", SOME)
def test_lowers_the_variance(name: str) -> None:
    program, x = PROGRAMS[name][0](), tiny_data()

    def variance(elbo: DiscreteELBO) -> float:
        return mean_gradient(elbo, program, x, copies=100)[1].square().sum().item()

    plain = variance(ReinforceELBO())
    for temperature in (0.1, 0.5):
        assert variance(RelaxELBO(temperature=temperature)) < 0.5 * plain


@pytest.mark.parametrize("temperature", [0.3, 1.0])
@pytest.mark.parametrize("name", ONE_HOT)
def test_control_variate_descends_the_second_moment(name: str, temperature: float) -> None:
    """Against central differences of the squared gradient in the logits, at the same noise."""
    program, x = PROGRAMS[name][0](), tiny_data(3)
    elbo = RelaxELBO(2, eta=0.8, temperature=temperature, network=Network(code_size(name)))
    terms = elbo.terms(program.model, program.guide, (x,), {})

    def moment() -> Tensor:
        pyro.set_rng_seed(8)
        return sum((g.detach() ** 2).sum((-1, -2)).mean(0).sum() for _, g in elbo._gradients(terms))

    pyro.set_rng_seed(8)
    surrogate = elbo.surrogate(terms)
    assert surrogate.shape == (3,)
    (-surrogate.sum()).backward()
    for parameter in elbo.parameters():
        flat, grad = parameter.data.view(-1), parameter.grad.view(-1)
        for i in range(min(3, len(flat))):
            ends = []
            for step in (1e-5, -2e-5):
                flat[i] += step
                ends.append(moment())
            flat[i] += 1e-5
            slope = (ends[0] - ends[1]) / 2e-5
            torch.testing.assert_close(grad[i], slope, rtol=1e-5, atol=1e-6)
    assert all((parameter.grad != 0).any() for parameter in elbo.parameters())


def test_programs_get_nothing_of_the_second_moment() -> None:
    """Whether or not the control variate learns, their gradient is the same."""
    vae = tiny_vae()
    network = Network(D * K)
    same_draw(
        lambda: RelaxELBO(network=network),
        lambda: RelaxELBO(network=copy.deepcopy(network)).requires_grad_(False),
        vae,
    )


def test_noise_given_the_code_is_gumbel_noise() -> None:
    """Over drawn codes: G, and in each code's share, are those of rejection (quantiles)."""
    log_p = torch.randn(K).log_softmax(-1)
    code = dist.OneHotCategorical(logits=log_p).sample((200_000,))
    z = conditional_gumbels(log_p.expand_as(code), code)
    assert torch.equal(z.argmax(-1), code.argmax(-1))
    noise = z - log_p
    levels = torch.tensor([0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98])
    quantiles = -(-levels.log()).log()  # of the standard Gumbel
    below = (noise[..., None] < quantiles).to(noise.dtype)  # (N, K, 7)
    spread = (levels * (1 - levels) / len(z)).sqrt()
    assert ((below.mean(0) - levels).abs() <= 4.5 * spread).all()
    pairs = torch.einsum("nij,nkj->ikj", below, below) / len(z)  # independent of each other
    off = ~torch.eye(K, dtype=torch.bool)
    spread = (levels**2 * (1 - levels**2) / len(z)).sqrt()
    assert ((pairs[off] - levels**2).abs() <= 4.5 * spread).all()
    free = log_p - torch.empty(200_000, K).exponential_().log()
    for k in range(K):
        given, rejected = z[code[:, k] > 0], free[free.argmax(-1) == k]
        for column in range(K):
            cuts = rejected[:, column].quantile(levels)
            share = (given[:, column, None] < cuts).to(z.dtype).mean(0)
            count = 1 / (1 / len(given) + 1 / len(rejected))
            assert ((share - levels).abs() <= 4.5 * (levels * (1 - levels) / count).sqrt()).all()


def test_conditional_gumbels_are_differentiable_in_the_logits() -> None:
    logits = torch.randn(4, K, requires_grad=True)
    code = torch.eye(K)[torch.tensor([0, 1, 2, 1])]

    def z(logits: Tensor) -> Tensor:
        torch.manual_seed(0)
        return conditional_gumbels(logits.log_softmax(-1), code)

    assert torch.autograd.gradcheck(z, logits)


def step_by_torch(elbo: DiscreteELBO, vae: Any, x: Tensor, rate: float, steps: int) -> None:
    optimizer = torch.optim.Adam([*vae.parameters(), *elbo.parameters()], lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        elbo(vae.model, vae.guide)(x).backward()
        optimizer.step()


def changed(before: Tensor, after: Tensor) -> bool:
    return not torch.equal(before, after)


def test_svi_and_a_torch_optimizer_take_the_same_steps() -> None:
    x, results = tiny_data(3), []
    for route in ("svi", "torch"):
        pyro.set_rng_seed(2)
        pyro.clear_param_store()
        vae, elbo = tiny_vae(), RelaxELBO(2, network=Network(D * K))
        before = [parameter.detach().clone() for parameter in elbo.parameters()]
        if route == "svi":
            svi = SVI(vae.model, vae.guide, pyro.optim.Adam({"lr": 0.01}), loss=elbo)
            for _ in range(3):
                svi.step(x)
        else:
            step_by_torch(elbo, vae, x, 0.01, 3)
        assert all(map(changed, before, elbo.parameters()))
        results.append(nn.utils.parameters_to_vector([*vae.parameters(), *elbo.parameters()]))
    torch.testing.assert_close(*results, **EXACT)


@pytest.mark.slow
def test_training_the_control_variate_lowers_the_variance() -> None:
    """From a poor one: eta = 0.2 at a high temperature; the programs stay as they are."""
    vae, x = tiny_vae(), tiny_data(1)
    elbo = RelaxELBO(eta=0.2, temperature=3.0)

    def variance() -> float:
        return mean_gradient(elbo, vae, x, copies=200)[1].square().sum().item()

    before = variance()
    optimizer = torch.optim.Adam(elbo.parameters(), lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        elbo.differentiable_loss(vae.model, vae.guide, x.expand(50, -1)).backward()
        optimizer.step()
    assert variance() < 0.3 * before


def test_evaluation_trains_nothing() -> None:
    vae, x, elbo = tiny_vae(), tiny_data(3), RelaxELBO()
    elbo.loss(vae.model, vae.guide, x)
    with torch.no_grad():
        elbo(vae.model, vae.guide)(x)
    assert all(parameter.grad is None for parameter in elbo.parameters())
    assert not [name for name in pyro.get_param_store() if name.startswith("RelaxELBO")]


def test_finite_in_float32_at_a_low_temperature(device: torch.device) -> None:
    torch.set_default_dtype(torch.float32)
    vae, x = tiny_vae().to(device), tiny_data(500).to(device)
    with torch.no_grad():
        vae.encoder.layers[-1].weight.mul_(50.0)
    elbo = RelaxELBO(temperature=0.05).to(device)
    for _ in range(20):
        elbo.differentiable_loss(vae.model, vae.guide, x).backward()
    for module in (vae, elbo):
        assert all(parameter.grad.isfinite().all() for parameter in module.parameters())


@pytest.mark.parametrize("analytic_kl", [True, False])
def test_category_of_probability_zero(analytic_kl: bool) -> None:
    vae, x = tiny_vae(), tiny_data(2)
    logits = torch.tensor([[0.0, -math.inf, 0.0], [0.3, 0.1, -math.inf]]).requires_grad_()
    vae.encoder = nn.Module()
    vae.encoder.forward = lambda x: logits.expand(2, 2, 3)
    elbo = RelaxELBO(analytic_kl=analytic_kl)
    elbo.differentiable_loss(vae.model, vae.guide, x).backward()
    finite = [logits.grad[logits.isfinite()], *(p.grad for p in elbo.parameters())]
    assert all(grad.isfinite().all() for grad in finite)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_temperature_out_of_range(bad: float) -> None:
    with pytest.raises(ValueError, match="finite temperature > 0"):
        RelaxELBO(temperature=bad)


def test_eta_out_of_range() -> None:
    with pytest.raises(ValueError, match="finite eta; got nan"):
        RelaxELBO(eta=math.nan)


def test_network_must_give_one_number_per_code() -> None:
    vae, x, network = tiny_vae(), tiny_data(3), nn.Module()
    network.forward = lambda codes, x: codes
    with pytest.raises(
        ValueError, match=r"\(2, 1, 3\) or \(2, 1, 3, 1\), one number per code; got"
    ):
        RelaxELBO(network=network).differentiable_loss(vae.model, vae.guide, x)
