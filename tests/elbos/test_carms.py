"""CARMS: the law of its coupled draws, and its estimate summed over every tuple of them."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from oracle import FixedDraws, exact_elbo, gradient
from test_coupled import FixedPartners, code_sites, digits, pair_table, value
from torch import Tensor, nn
from zoo import PROGRAMS, tiny_data, tiny_vae

from pyro_dvae import RlooELBO
from pyro_dvae.codes import one_hot
from pyro_dvae.elbos.carms import CarmsELBO, CoupledSticks

EXACT = {"atol": 1e-10, "rtol": 0}


def joint_table(logits: Tensor, num_draws: int) -> Tensor:
    """(K, ..., K) probabilities of n draws for logits (K,), summed over who succeeds at each stick.

    The number of successes at a stick is one of the two whole numbers next to n s.
    """
    pi, order = logits.softmax(-1), logits.argsort().tolist()
    table = torch.zeros((len(order),) * num_draws)

    def go_on(place: int, found: dict[int, int], probability: float) -> None:
        if len(found) == num_draws:
            table[tuple(found[i] for i in range(num_draws))] += probability
            return
        s = float(pi[order[place]] / pi[order[place:]].sum())
        whole = min(math.floor(num_draws * s), num_draws - 1)
        part = num_draws * s - whole
        for number, share in ((whole, 1 - part), (whole + 1, part)):
            each = share / math.comb(num_draws, number)
            for who in itertools.combinations(range(num_draws), number):
                if each > 1e-30:
                    new = {i: order[place] for i in who if i not in found}
                    go_on(place + 1, found | new, probability * each)

    go_on(0, {}, 1.0)
    return table


@pytest.mark.parametrize("num_draws", [2, 3, 5])
@pytest.mark.parametrize("num_categories", [2, 3, 4])
def test_each_draw_follows_the_guide_and_weights_are_those_of_pairs(
    num_categories: int, num_draws: int
) -> None:
    logits = 2 * torch.randn(num_categories)
    pi, table = logits.softmax(-1), joint_table(logits, num_draws)
    if num_draws == 2:
        torch.testing.assert_close(table, pair_table(logits), **EXACT)
    z, partner = torch.meshgrid(*[torch.arange(num_categories)] * 2, indexing="ij")
    weight = CoupledSticks(logits.log_softmax(-1), num_draws).weight(z, partner)
    different = z != partner
    for pair in itertools.combinations(range(num_draws), 2):
        others = [i for i in range(num_draws) if i not in pair]
        both = table.sum(others) if others else table
        torch.testing.assert_close(both.sum(0), pi, **EXACT)
        torch.testing.assert_close(both.sum(1), pi, **EXACT)
        ratio = torch.outer(pi, pi) / both
        torch.testing.assert_close(weight[different], ratio[different], **EXACT)
    assert (weight.diagonal() == 0).all()


@pytest.mark.parametrize("num_draws", [2, 3])
def test_draws_are_as_frequent_as_the_table_says(num_draws: int, device: torch.device) -> None:
    logits = torch.randn(3, device=device).log_softmax(-1)
    n = 100_000
    drawn = CoupledSticks(logits.expand(n, -1), num_draws).draw()
    table = joint_table(logits.cpu(), num_draws).to(device)
    counts = torch.zeros_like(table)
    counts.index_put_(tuple(drawn), torch.ones(n, device=device), accumulate=True)
    error = (table * (1 - table) / n).sqrt()
    assert ((counts / n - table).abs() <= 4.5 * error + 1e-12).all()


def test_weights_stay_below_two() -> None:
    for num_categories, num_draws in itertools.product((2, 3, 8, 64), (2, 3, 8)):
        logits = (4 * torch.randn(500, num_categories)).log_softmax(-1)
        logits[:250] = (logits[:250] / 100).log_softmax(-1)
        sticks = CoupledSticks(logits, num_draws)
        z = sticks.draw()
        weight = sticks.weight(z, z.roll(1, 0))
        assert ((weight >= 0) & (weight < 2)).all()


def mean_estimate(elbo: Any, program: Any, x: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Loss and gradient over all tuples of draws of the only site."""
    site, num = code_sites(program, x)[name], elbo.num_particles
    tables = [joint_table(logits, num) for logits in site.logits[0, 0].detach()]
    loss: Any = 0.0
    grad: Any = 0.0
    for each in itertools.product(digits(site), repeat=num):
        by_latent = torch.stack(each, -1)  # (D, S)
        weights = [t[tuple(z)] for t, z in zip(tables, by_latent, strict=True)]
        if (weight := torch.stack(weights).prod()) > 0:
            drawn = torch.stack([value(site, z) for z in each])
            guide = FixedDraws({name: drawn})(program.guide)
            estimate = elbo.differentiable_loss(program.model, guide, x)
            loss = loss + weight * estimate.detach()
            grad = grad + weight * gradient(estimate, program)
    return loss, grad


CASES = [
    ("vae", 2, {}),
    ("index-valued", 3, {"analytic_kl": False, "beta": 0.3}),
    ("plated latents", 2, {"beta": 0.3}),
    ("vae", 2, {"analytic_kl": False}),
]


@pytest.mark.parametrize(
    ("name", "num_particles", "options"),
    [CASES[1], *(pytest.param(*case, marks=pytest.mark.slow) for case in (CASES[0], *CASES[2:]))],
)
def test_expected_gradient_is_exact(name: str, num_particles: int, options: dict[str, Any]) -> None:
    (build, nesting), x = PROGRAMS[name], tiny_data()
    program = build()
    elbo = CarmsELBO(num_particles, max_plate_nesting=nesting, **options)
    loss, grad = mean_estimate(elbo, program, x, "z")
    beta = options.get("beta", 1.0)
    torch.testing.assert_close(loss, -exact_elbo(program, x).detach(), **EXACT)
    torch.testing.assert_close(grad, gradient(-exact_elbo(program, x, beta), program), **EXACT)


@pytest.mark.slow
@pytest.mark.parametrize("analytic_kl", [True, False])
def test_expected_gradient_of_two_sites(analytic_kl: bool) -> None:
    """The draws of the first site are coupled, and those of the second are independent."""
    program, x = PROGRAMS["hierarchy"][0](), tiny_data()
    sites = code_sites(program, x)
    firsts, seconds = digits(sites["z1"]), digits(sites["z2"])
    after = []  # log-probabilities (K,) of the second site after each draw of the first
    for a in firsts:
        given = {"z1": value(sites["z1"], a)}
        after.append(code_sites(program, x, given)["z2"].logits.detach().flatten())
    table = joint_table(sites["z1"].logits.detach().flatten(), 2)
    elbo = CarmsELBO(2, beta=0.7, analytic_kl=analytic_kl, max_plate_nesting=1)
    grad: Any = 0.0
    for a, b in itertools.product(firsts, repeat=2):
        for c, d in itertools.product(seconds, repeat=2):
            weight = table[a, b] * (after[int(a)][c] + after[int(b)][d]).exp()
            if weight > 0:
                draws = {
                    "z1": torch.stack([value(sites["z1"], z) for z in (a, b)]),
                    "z2": torch.stack([value(sites["z2"], z) for z in (c, d)]),
                }
                guide = FixedDraws(draws)(program.guide)
                grad = grad + weight * gradient(
                    elbo.differentiable_loss(program.model, guide, x), program
                )
    torch.testing.assert_close(grad, gradient(-exact_elbo(program, x, 0.7), program), **EXACT)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plated latents", "inverse hierarchy"])
def test_mean_gradient_of_real_draws(name: str) -> None:
    """z-test at 4.5 standard errors; each of 300 copies of a datum draws its own codes."""
    program, x = PROGRAMS[name][0](), tiny_data()
    exact = gradient(-exact_elbo(program, x), program)
    copies, elbo = x.expand(300, -1), CarmsELBO(3)
    losses = [elbo.differentiable_loss(program.model, program.guide, copies) for _ in range(40)]
    grads = torch.stack([gradient(loss, program) for loss in losses]) / 300
    error = grads.std(0) / len(grads) ** 0.5
    assert ((grads.mean(0) - exact).abs() <= 4.5 * error + 1e-12).all()


def test_two_draws_are_those_of_disarm() -> None:
    """The encoder's gradient at the same pairs of draws is the same."""
    vae, x = tiny_vae(), tiny_data()
    for z, partner in zip(digits(code_sites(vae, x)["z"]), torch.randint(3, (9, 2)), strict=True):
        both = one_hot(torch.stack([z, partner]), 3)
        losses = []
        for elbo, codes in (
            (FixedPartners(partner), both[:1]),
            (CarmsELBO(2, max_plate_nesting=1), both[:, None]),
        ):
            guide = FixedDraws({"z": codes})(vae.guide)
            losses.append(elbo.differentiable_loss(vae.model, guide, x))
        torch.testing.assert_close(*(gradient(loss, vae.encoder) for loss in losses), **EXACT)


@pytest.mark.parametrize("num_draws", [2, 4])
def test_two_categories_are_arms(num_draws: int) -> None:
    """A pair that differs has weight s (1-s) / P(1, 0), s the probability of the rarer category."""
    s = torch.tensor(0.3)
    successes = [math.floor(num_draws * 0.3), math.floor(num_draws * 0.3) + 1]
    shares = [1 - (num_draws * 0.3 - successes[0]), num_draws * 0.3 - successes[0]]
    p10 = sum(
        share * n * (num_draws - n) / (num_draws * (num_draws - 1))
        for n, share in zip(successes, shares, strict=True)
    )
    sticks = CoupledSticks(torch.stack([1 - s, s]).log(), num_draws)
    found = sticks.weight(torch.tensor([0, 1]), torch.tensor([1, 0]))
    torch.testing.assert_close(found, torch.full((2,), 0.21 / p10), **EXACT)


@pytest.mark.slow
def test_lower_variance_than_rloo() -> None:
    vae, x = tiny_vae(event=(20,)), tiny_data(50, (20,))

    def variance(elbo: Any) -> float:
        losses = [elbo.differentiable_loss(vae.model, vae.guide, x) for _ in range(30)]
        return torch.stack([gradient(loss, vae.encoder) for loss in losses]).var(0).sum().item()

    assert variance(CarmsELBO(3)) < 0.8 * variance(RlooELBO(3))


@pytest.mark.parametrize(
    "rows",
    [
        [0.0, 0.0],
        [-300.0, -200.0, 0.0, 0.0],
        [-torch.inf, 1.0, -torch.inf, 1.0],
        [-torch.inf, -torch.inf, 3.0],
        [1e4, -1e4, 0.0, 1e4],
    ],
)
def test_extreme_logits_in_float32(rows: list[float]) -> None:
    torch.set_default_dtype(torch.float32)
    vae, x = tiny_vae(2, len(rows)), tiny_data(200)
    logits = torch.tensor(rows).expand(2, -1).clone().requires_grad_()
    vae.encoder = nn.Module()
    vae.encoder.forward = lambda x: logits.expand(len(x), 2, -1)
    for num_particles in (2, 5):
        loss = CarmsELBO(num_particles).differentiable_loss(vae.model, vae.guide, x)
        assert loss.isfinite()
        assert torch.autograd.grad(loss, logits)[0].isfinite().all()


def test_straight_through_codes_are_coupled_too() -> None:
    """Their distribution is replaced after the draw. Draws and weights must agree all the same."""
    logits, mean = torch.randn(3).requires_grad_(), torch.tensor([2.0, -1.0, 0.0])

    def program(family: Any, x: Tensor | None) -> Any:
        def run() -> None:
            with pyro.plate("data", 50):
                z = pyro.sample("z", family(logits=logits if x is None else torch.zeros(3)))
                if x is not None:
                    pyro.sample("x", dist.Normal(z @ mean, 1.0), obs=x)

        return run

    found = []
    for family in (dist.OneHotCategorical, dist.OneHotCategoricalStraightThrough):
        pyro.set_rng_seed(1)
        loss = CarmsELBO(3).differentiable_loss(
            program(dist.OneHotCategorical, torch.ones(50)), program(family, None)
        )
        found.append(torch.autograd.grad(loss, logits)[0])
    torch.testing.assert_close(*found, **EXACT)


def test_one_particle_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 particles to couple; got 1"):
        CarmsELBO(1)
