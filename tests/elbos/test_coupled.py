"""DisARM: the law of a coupled pair, cell by cell of its uniforms, and estimates summed over it."""

from __future__ import annotations

import itertools
from typing import Any

import pyro
import pytest
import torch
from oracle import FixedDraws, exact_elbo, gradient
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn
from zoo import PROGRAMS, tiny_data, tiny_vae

from pyro_dvae import DiscreteELBO, EnumeratedELBO, ReinforceELBO
from pyro_dvae.codes import enumerate_codes, kl_divergence, one_hot
from pyro_dvae.elbos.coupled import DisarmELBO, Sticks

EXACT = {"atol": 1e-10, "rtol": 0}


def pair_table(logits: Tensor) -> Tensor:
    """(K, K) probabilities of (z, z') for logits (K,), summed over the cells of the uniforms.

    A stick's uniform has four cells: it succeeds in both draws, in one or the other, in neither.
    """
    pi = logits.softmax(-1)
    order = logits.argsort().tolist()
    table = torch.zeros(len(order), len(order))
    sticks = [float(pi[k] / pi[order[i:]].sum()) for i, k in enumerate(order)]
    cells = []
    for s in sticks:
        both = max(0.0, 2 * s - 1)
        cells.append([(both, 1, 1), (s - both, 1, 0), (s - both, 0, 1), (1 - 2 * s + both, 0, 0)])
    for outcome in itertools.product(*cells):
        probability = torch.tensor([cell[0] for cell in outcome]).prod()
        if probability > 1e-30:
            first = (next(k for k, c in zip(order, outcome, strict=True) if c[i]) for i in (1, 2))
            table[tuple(first)] += probability
    return table


class FixedPartners(DisarmELBO):
    """The partners of the sites, in turn, are given."""

    def __init__(self, *partners: Tensor, **options: Any) -> None:
        super().__init__(**options)
        self.partners = list(partners)

    def _partner(self, sticks: Sticks, index: Tensor) -> Tensor:
        return self.partners.pop(0).expand_as(index)


class Runs(Messenger):
    """Each run of a guide takes the draws of its own dictionary."""

    def __init__(self, *runs: dict[str, Tensor]) -> None:
        super().__init__()
        self.runs = list(runs)

    def __enter__(self) -> Any:
        self.values = self.runs.pop(0)
        return super().__enter__()

    def _pyro_sample(self, msg: Any) -> None:
        if msg["name"] in self.values:
            msg["value"] = self.values[msg["name"]]


def code_sites(program: Any, x: Tensor, values: dict[str, Tensor] | None = None) -> dict[str, Any]:
    guide = FixedDraws(values or {})(program.guide)
    return ReinforceELBO().terms(program.model, guide, (x,), {}).pair.codes


def digits(site: Any) -> list[Tensor]:
    """Every value (D,) of a site's variables."""
    num_latents, num_categories = site.logits.shape[-2:]
    return list(enumerate_codes(num_latents, num_categories).argmax(-1))


def value(site: Any, index: Tensor) -> Tensor:
    code = one_hot(index, site.logits.shape[-1])
    return site.value(code[None, None])


@pytest.mark.parametrize("num_categories", [2, 3, 5])
def test_both_draws_follow_the_guide(num_categories: int) -> None:
    logits = 2 * torch.randn(num_categories)
    table, pi = pair_table(logits), logits.softmax(-1)
    torch.testing.assert_close(table.sum(0), pi, **EXACT)
    torch.testing.assert_close(table.sum(1), pi, **EXACT)
    torch.testing.assert_close(table, table.T, **EXACT)


@pytest.mark.parametrize("spread", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("num_categories", [2, 3, 5])
def test_pairs_are_as_frequent_as_the_table_says(
    num_categories: int, spread: float, device: torch.device
) -> None:
    logits = (spread * torch.randn(num_categories, device=device)).log_softmax(-1)
    n = 100_000
    z = logits.exp().multinomial(n, replacement=True)
    partner = Sticks(logits.expand(n, -1)).partner(z)
    counts = torch.zeros(num_categories, num_categories, device=device)
    counts.index_put_((z, partner), torch.ones(n, device=device), accumulate=True)
    table = pair_table(logits.cpu()).to(device)
    if spread == 0:  # any order of equal categories is right: only the marginal is sure
        counts, table = counts.sum(0), logits.exp()
    error = (table * (1 - table) / n).sqrt()
    assert ((counts / n - table).abs() <= 4.5 * error + 1e-12).all()


def test_weight_is_independent_over_coupled() -> None:
    logits = (2 * torch.randn(5)).log_softmax(-1)
    table, pi = pair_table(logits), logits.exp()
    z, partner = torch.meshgrid(torch.arange(5), torch.arange(5), indexing="ij")
    weight = Sticks(logits.expand(5, 5, 5)).weight(z, partner)
    different = ~torch.eye(5, dtype=torch.bool)
    ratio = torch.outer(pi, pi) / table
    torch.testing.assert_close(weight[different], ratio[different], **EXACT)
    assert (weight.diagonal() == 0).all()


@pytest.mark.parametrize("analytic_kl", [True, False])
@pytest.mark.parametrize("beta", [1.0, 0.3])
@pytest.mark.parametrize("name", ["vae", "plated latents", "index-valued"])
def test_expected_gradient_is_exact(name: str, beta: float, analytic_kl: bool) -> None:
    """Over every pair of codes, latents independent of each other."""
    program, x = PROGRAMS[name][0](), tiny_data()
    site = code_sites(program, x)["z"]
    tables = [pair_table(logits) for logits in site.logits[0, 0].detach()]
    loss: Any = 0.0
    grad: Any = 0.0
    for z, partner in itertools.product(digits(site), repeat=2):
        weight = torch.stack([t[i, j] for t, i, j in zip(tables, z, partner, strict=True)]).prod()
        if weight > 0:
            elbo = FixedPartners(partner, beta=beta, analytic_kl=analytic_kl)
            guide = FixedDraws({"z": value(site, z)})(program.guide)
            estimate = elbo.differentiable_loss(program.model, guide, x)
            loss = loss + weight * estimate.detach()
            grad = grad + weight * gradient(estimate, program)
    torch.testing.assert_close(loss, -exact_elbo(program, x).detach(), **EXACT)
    torch.testing.assert_close(grad, gradient(-exact_elbo(program, x, beta), program), **EXACT)


@pytest.mark.parametrize("analytic_kl", [True, False])
@pytest.mark.parametrize("name", ["hierarchy", "inverse hierarchy"])
def test_expected_gradient_of_two_sites(name: str, analytic_kl: bool) -> None:
    """Over the pair of the first site, the second's draw after each, and the second's pair."""
    program, x = PROGRAMS[name][0](), tiny_data()
    first, second = code_sites(program, x)
    grad: Any = 0.0
    sites = code_sites(program, x)
    firsts, seconds = digits(sites[first]), digits(sites[second])
    after = []  # logits (K,) of the second site after each draw of the first
    for a in firsts:
        given = {first: value(sites[first], a)}
        after.append(code_sites(program, x, given)[second].logits.detach().flatten())
    table = pair_table(sites[first].logits.detach().flatten())
    for a, a_partner in itertools.product(firsts, repeat=2):
        pairs_after = pair_table(after[int(a)])
        for b, b_partner, b_after in itertools.product(seconds, repeat=3):
            weight = table[a, a_partner] * pairs_after[b, b_partner]
            weight = weight * after[int(a_partner)].softmax(-1)[b_after]
            if weight > 0:
                draw = {first: value(sites[first], a), second: value(sites[second], b)}
                guide = Runs(draw, {second: value(sites[second], b_after)}, {})(program.guide)
                elbo = FixedPartners(a_partner, b_partner, beta=0.7, analytic_kl=analytic_kl)
                estimate = elbo.differentiable_loss(program.model, guide, x)
                grad = grad + weight * gradient(estimate, program)
    torch.testing.assert_close(grad, gradient(-exact_elbo(program, x, 0.7), program), **EXACT)


@pytest.mark.parametrize("num_particles", [1, 2])
@pytest.mark.parametrize("name", PROGRAMS)
def test_mean_gradient_of_real_draws(name: str, num_particles: int) -> None:
    """z-test at 4.5 standard errors; each of 300 copies of a datum draws its own pairs."""
    program, x = PROGRAMS[name][0](), tiny_data()
    exact = gradient(-exact_elbo(program, x), program)
    copies, elbo = x.expand(300, -1), DisarmELBO(num_particles)
    losses = [elbo.differentiable_loss(program.model, program.guide, copies) for _ in range(60)]
    grads = torch.stack([gradient(loss, program) for loss in losses]) / 300
    error = grads.std(0) / len(grads) ** 0.5
    assert ((grads.mean(0) - exact).abs() <= 4.5 * error + 1e-12).all()


def test_two_categories_are_disarm() -> None:
    """1/2 (f(b) - f(b')) (-1)^b' 1[b != b'] sigmoid(|theta|) in theta = logit 1 - logit 0."""
    vae, x = tiny_vae(2, 2), tiny_data()
    logits = vae.encode(x).detach().requires_grad_()
    vae.encoder = nn.Module()
    vae.encoder.forward = lambda _: logits
    theta = (logits[0, :, 1] - logits[0, :, 0]).detach()
    kl = torch.autograd.grad(kl_divergence(logits, torch.zeros(2, 2)).sum(), logits)[0]
    for b, partner in itertools.product(enumerate_codes(2, 2).argmax(-1), repeat=2):
        codes = one_hot(torch.stack([b, partner]), 2)
        guide = FixedDraws({"z": codes[:1]})(vae.guide)
        loss = FixedPartners(partner).differentiable_loss(vae.model, guide, x)
        f = vae.decode(codes[:, None]).log_prob(x)[:, 0].detach()
        by_hand = 0.5 * (f[0] - f[1]) * (-1.0) ** partner * (b != partner) * theta.abs().sigmoid()
        by_hand = by_hand - kl[0, :, 1]
        torch.testing.assert_close(-torch.autograd.grad(loss, logits)[0][0, :, 1], by_hand, **EXACT)


def test_free_bits() -> None:
    vae, x = tiny_vae(1, 3), tiny_data()
    options = {"free_bits": 10.0}  # no KL at all
    exact = EnumeratedELBO(**options).differentiable_loss(vae.model, vae.guide, x)
    table = pair_table(vae.encode(x).detach().flatten())
    total: Any = 0.0
    for z, partner in itertools.product(torch.arange(3)[:, None], repeat=2):
        guide = FixedDraws({"z": one_hot(z, 3)[None]})(vae.guide)
        loss = FixedPartners(partner, **options).differentiable_loss(vae.model, guide, x)
        total = total + table[z, partner] * gradient(loss, vae)
    torch.testing.assert_close(total, gradient(exact, vae), **EXACT)


def test_lower_variance_than_reinforce_with_as_many_evaluations() -> None:
    vae, x = tiny_vae(event=(50,)), tiny_data(20, (50,))

    def variance(elbo: DiscreteELBO) -> float:
        losses = [elbo.differentiable_loss(vae.model, vae.guide, x) for _ in range(40)]
        return torch.stack([gradient(loss, vae.encoder) for loss in losses]).var(0).sum().item()

    assert variance(DisarmELBO()) < 0.05 * variance(ReinforceELBO(2))


@pytest.mark.parametrize("name", PROGRAMS)
def test_evaluations(name: str) -> None:
    """One run a site besides the draw's, none of them with gradient."""
    program, x = PROGRAMS[name][0](), tiny_data(3)
    num_sites, runs = len(code_sites(program, x)), []

    def model(x: Tensor) -> None:
        runs.append(torch.is_grad_enabled())
        program.model(x)

    DisarmELBO().differentiable_loss(model, program.guide, x)
    assert runs == [True] + [False] * num_sites


@pytest.mark.parametrize(
    "rows",
    [
        [0.0, 0.0],
        [0.0, 0.0, 0.0],
        [-300.0, -200.0, 0.0, 0.0],
        [-torch.inf, 1.0, -torch.inf, 1.0],
        [-torch.inf, -torch.inf, 3.0],
        [1e4, -1e4, 0.0, 1e4],
        [-1e-6, 0.0, 1e-6, 0.0],
    ],
)
def test_extreme_logits_in_float32(rows: list[float], device: torch.device) -> None:
    torch.set_default_dtype(torch.float32)
    vae, x = tiny_vae(2, len(rows)).to(device), tiny_data(500).to(device)
    logits = torch.tensor(rows, device=device).expand(2, -1).clone().requires_grad_()
    vae.encoder = nn.Module()
    vae.encoder.forward = lambda x: logits.expand(len(x), 2, -1)
    sticks = Sticks(logits.detach().log_softmax(-1).expand(500, 2, -1))
    z = logits.detach().softmax(-1).multinomial(500, replacement=True).T
    partner = sticks.partner(z)
    weight = sticks.weight(z, partner)
    assert ((weight >= 0) & (weight < 2)).all()
    assert (logits.detach().softmax(-1).T[partner, [0, 1]] > 0).all()
    for analytic_kl in (True, False):
        elbo = DisarmELBO(analytic_kl=analytic_kl)
        loss = elbo.differentiable_loss(vae.model, vae.guide, x)
        assert loss.isfinite()
        assert torch.autograd.grad(loss, logits)[0].isfinite().all()


def test_weights_stay_below_two() -> None:
    for num_categories in (2, 3, 8, 64):
        logits = (4 * torch.randn(2000, num_categories)).log_softmax(-1)
        logits[:1000] = (logits[:1000] / 100).log_softmax(-1)
        z = logits.exp().multinomial(1).squeeze(-1)
        sticks = Sticks(logits)
        weight = sticks.weight(z, sticks.partner(z))
        assert ((weight >= 0) & (weight < 2)).all()


def test_partners_are_drawn_anew() -> None:
    vae, x = tiny_vae(), tiny_data(20)
    grads = []
    for seed in (1, 1, 2):
        guide = FixedDraws({"z": enumerate_codes(2, 3)[:1].expand(20, 2, 3)})(vae.guide)
        pyro.set_rng_seed(seed)
        grads.append(gradient(DisarmELBO().differentiable_loss(vae.model, guide, x), vae))
    assert torch.equal(grads[0], grads[1])
    assert not torch.equal(grads[0], grads[2])
