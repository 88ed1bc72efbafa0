"""Pathwise estimators: formulas by hand, laws by enumeration, moments in standard errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from oracle import FixedDraws, exact_elbo, expected, gradient
from pyro.infer import SVI
from torch import Tensor
from zoo import PROGRAMS, tiny_data, tiny_vae

from pyro_dvae import ReinforceELBO
from pyro_dvae.codes import conditional_gumbels, enumerate_codes, kl_divergence
from pyro_dvae.elbos.gumbel_softmax import GumbelSoftmaxELBO, RaoGumbelELBO
from pyro_dvae.elbos.pathwise import PathwiseELBO
from pyro_dvae.elbos.reinmax import ReinMaxELBO, ReinMaxRaoELBO
from pyro_dvae.elbos.straight_through import GappedStraightThroughELBO, StraightThroughELBO

EXACT = {"atol": 1e-12, "rtol": 0}
D, K = 2, 3


def hard_gumbel(*args: Any, **options: Any) -> PathwiseELBO:
    return GumbelSoftmaxELBO(*args, hard=True, **options)


def rao(*args: Any, **options: Any) -> PathwiseELBO:
    return RaoGumbelELBO(*args, num_conditional=options.pop("num_conditional", 5), **options)


def reinmax_rao(*args: Any, **options: Any) -> PathwiseELBO:
    return ReinMaxRaoELBO(*args, num_conditional=options.pop("num_conditional", 5), **options)


PATHWISE: dict[str, Callable[..., Any]] = {
    "straight-through": StraightThroughELBO,
    "gumbel-softmax": GumbelSoftmaxELBO,
    "gumbel-softmax, hard": hard_gumbel,
    "rao gumbel": rao,
    "gapped": GappedStraightThroughELBO,
    "reinmax": ReinMaxELBO,
    "reinmax-rao": reinmax_rao,
}
HARD = [name for name in PATHWISE if name != "gumbel-softmax"]
CLOSED = ["vae", "hierarchy", "plated latents"]


class Factor(torch.nn.Module):
    """log p(x|z) = f(z) for any f; a datum is a row of logits, so that N rows are N draws."""

    def __init__(self, logits: Tensor, f: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(logits)  # (N, D, K), unnormalised
        self.f = f

    def model(self, x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            uniform = torch.zeros(self.logits.shape[1:], dtype=x.dtype)
            z = pyro.sample("z", dist.OneHotCategorical(logits=uniform).to_event(1))
            pyro.factor("x", self.f(z))

    def guide(self, x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            pyro.sample("z", dist.OneHotCategorical(logits=self.logits).to_event(1))


def polynomial(degree: int, shape: tuple[int, ...] = (D, K)) -> Callable[[Tensor], Tensor]:
    """Of a code, products between its latents included."""
    size = math.prod(shape)
    linear, square, cube = torch.randn(size), torch.randn(size, size), torch.randn(size)

    def f(z: Tensor) -> Tensor:
        z = z.flatten(-len(shape))
        value = z @ linear
        if degree > 1:
            value = value + ((z @ square) * z).sum(-1)
        return value + (z @ cube) ** 3 if degree > 2 else value

    return f


def pulled(elbo: Any, program: Factor, code: Tensor | None = None) -> Tensor:
    """(N, D, K) gradient of f alone in the logits, at given codes or at draws."""
    x = torch.zeros(len(program.logits), 1, dtype=program.logits.dtype)
    guide = program.guide if code is None else FixedDraws({"z": code})(program.guide)
    loss = elbo.differentiable_loss(program.model, guide, x)
    kl = kl_divergence(program.logits, torch.zeros_like(program.logits)).sum()
    return -torch.autograd.grad(loss - kl, program.logits)[0]


def slope(f: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    z = z.clone().requires_grad_()
    return torch.autograd.grad(f(z).sum(), z)[0]


def jacobian(p: Tensor) -> Tensor:
    """diag(p) - p p^T, by its definition."""
    return torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)


def agree(first: Tensor, second: Tensor | float) -> bool:
    """Means over the rows of draws, the second one's law or its mean, in 4.5 standard errors."""
    variance = first.var(0) / len(first)
    if isinstance(second, Tensor) and second.dim() == first.dim():
        variance, second = variance + second.var(0) / len(second), second.mean(0)
    return bool(((first.mean(0) - second).abs() <= 4.5 * variance.sqrt() + 1e-12).all())


# The laws of exactness: the draw summed out by enumeration.


@pytest.mark.parametrize("particles", [1, 2])
@pytest.mark.parametrize(
    ("elbo", "degree"), [(StraightThroughELBO, 1), (ReinMaxELBO, 1), (ReinMaxELBO, 2)]
)
def test_exact_for_low_degree(elbo: Any, degree: int, particles: int) -> None:
    program, x = Factor(torch.randn(1, D, K), polynomial(degree)), torch.zeros(1, 1)
    exact = -exact_elbo(program, x)

    def make(temperature: float = 1.0) -> Any:
        return elbo(particles, temperature=temperature, max_plate_nesting=1)

    loss, grad = expected(make, program, x, particles, 1)
    torch.testing.assert_close(loss, exact.detach(), **EXACT)
    torch.testing.assert_close(grad, gradient(exact, program), **EXACT)
    if particles == 1:
        _, biased = expected(lambda: make(1.5), program, x, 1, 1)
        assert (biased - grad).abs().max() > 1e-3


@pytest.mark.parametrize(("elbo", "degree"), [(StraightThroughELBO, 2), (ReinMaxELBO, 3)])
def test_biased_for_higher_degree(elbo: Any, degree: int) -> None:
    program, x = Factor(torch.randn(1, D, K), polynomial(degree)), torch.zeros(1, 1)
    _, grad = expected(lambda: elbo(temperature=1.0), program, x, 1, 1)
    assert (grad - gradient(-exact_elbo(program, x), program)).abs().max() > 1e-3


# The formulas, at each draw.


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.6])
@pytest.mark.parametrize("name", ["straight-through", "gapped", "reinmax"])
def test_formula_at_each_code(name: str, temperature: float) -> None:
    theta, f = 2 * torch.randn(D, K), polynomial(3)
    codes = enumerate_codes(D, K)
    program = Factor(theta.repeat(len(codes), 1, 1), f)
    elbo = PATHWISE[name](temperature=temperature)
    got = pulled(elbo, program, codes)
    for code, row, g in zip(codes, got, slope(f, codes), strict=True):
        pi, tempered = theta.softmax(-1), (theta / temperature).softmax(-1)
        if name == "straight-through":
            jac = jacobian(tempered) / temperature
        elif name == "gapped":
            moved = torch.empty_like(theta)
            for d in range(D):
                for k in range(K):
                    top = theta[d].max()
                    moved[d, k] = top if code[d, k] else min(theta[d, k], top - 1.0)
            jac = jacobian((moved / temperature).softmax(-1)) / temperature
        else:
            jac = 2 * jacobian((tempered + code) / 2) - jacobian(pi) / 2
        torch.testing.assert_close(row, (jac @ g.unsqueeze(-1)).squeeze(-1), **EXACT)


def test_gap_is_at_least_what_is_asked() -> None:
    """The drawn category leads the moved logits by the gap, a leading one by no less."""
    theta, f = torch.tensor([[[3.0, 0.0]]] * 2), polynomial(1, (1, 2))
    code = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    for gap, leads in [(0.5, (3.0, 0.5)), (4.0, (4.0, 4.0))]:
        got = pulled(GappedStraightThroughELBO(gap=gap), Factor(theta, f), code)
        p = torch.tensor(leads).sigmoid()
        g = slope(f, code)
        by_hand = p * (1 - p) * (g[..., 0] - g[..., 1])[:, 0]
        torch.testing.assert_close(got[:, 0, 0], by_hand, **EXACT)


@pytest.mark.parametrize("hard", [False, True])
def test_gumbel_formula_at_its_noise(hard: bool) -> None:
    theta, f, tau = torch.randn(5, D, K), polynomial(3), 0.7
    program = Factor(theta, f)
    pyro.set_rng_seed(1)
    got = pulled(GumbelSoftmaxELBO(temperature=tau, hard=hard), program)
    pyro.set_rng_seed(1)
    perturbed = theta - torch.empty(theta.shape).exponential_().log()
    soft = (perturbed / tau).softmax(-1)
    z = torch.eye(K)[perturbed.argmax(-1)] if hard else soft
    by_hand = (jacobian(soft) @ slope(f, z).unsqueeze(-1)).squeeze(-1) / tau
    torch.testing.assert_close(got, by_hand, **EXACT)


@pytest.mark.slow
@pytest.mark.parametrize("name", CLOSED)
def test_soft_gumbel_gradient_by_finite_differences(name: str) -> None:
    """At fixed noise; in a hierarchy through z1 into q(z2|z1), p(z2|z1) and both KLs."""
    program, x = PROGRAMS[name][0](), tiny_data(3)
    elbo = GumbelSoftmaxELBO(2, temperature=0.8, beta=1.0)

    def loss() -> Tensor:
        pyro.set_rng_seed(3)
        return elbo.differentiable_loss(program.model, program.guide, x)

    analytic, numeric, step = gradient(loss(), program), [], 1e-5
    for p in program.parameters():
        for i in range(p.numel()):
            ends = []
            for sign in (1, -1):
                with torch.no_grad():
                    p.view(-1)[i] += sign * step
                ends.append(loss().item())
                with torch.no_grad():
                    p.view(-1)[i] -= sign * step
            numeric.append((ends[0] - ends[1]) / (2 * step))
    torch.testing.assert_close(analytic, torch.tensor(numeric), atol=1e-8, rtol=1e-6)


# Noise given the draw.


def test_conditional_gumbels_have_their_law() -> None:
    """Pooled over D ~ pi they are free Gumbels; given D their maximum is one, at D."""
    theta = torch.tensor([0.5, -1.0, 2.0, -4.0]).log_softmax(-1).expand(40_000, 4)
    code = dist.OneHotCategorical(logits=theta).sample()
    draws = conditional_gumbels(theta, code, 3)
    assert draws.shape == (3, 40_000, 4)
    assert torch.equal(draws.argmax(-1), code.argmax(-1).expand(3, -1))
    assert not torch.equal(draws[0], draws[1])
    noise = draws[0] - theta
    euler = 0.5772156649015329
    assert agree(noise, torch.full((4,), euler))
    assert agree((noise - euler) ** 2, torch.full((4,), math.pi**2 / 6))
    for level in (0.05, 0.3, 0.5, 0.8, 0.99):
        below = (noise <= -math.log(-math.log(level))).to(noise)
        assert agree(below, torch.full((4,), level))
        assert agree(below[:, :-1] * below[:, 1:], torch.full((3,), level**2))
    for k in range(3):
        highest = draws[0][code[:, k] > 0].amax(-1, keepdim=True)
        assert agree(highest, torch.full((1,), euler))


def test_conditional_gumbels_at_the_edges() -> None:
    theta = torch.tensor([0.0, -1e4, -math.inf], dtype=torch.float32).expand(50, 3)
    for drawn in (0, 1):
        code = torch.eye(3, dtype=torch.float32)[drawn].expand(50, 3)
        draws = conditional_gumbels(theta, code, 10)
        assert (draws.argmax(-1) == drawn).all()
        assert draws[..., :2].isfinite().all()
        assert draws.softmax(-1).isfinite().all()


def test_rao_gumbel_has_the_mean_of_gumbel_and_less_variance() -> None:
    theta, f = torch.randn(D, K), polynomial(3)
    program = Factor(theta.expand(20_000, D, K).clone(), f)
    plain = pulled(hard_gumbel(temperature=0.6), program)
    conditional = pulled(rao(temperature=0.6, num_conditional=20), program)
    assert agree(plain, conditional)
    assert conditional.var(0).sum() < 0.9 * plain.var(0).sum()
    assert not agree(plain, pulled(rao(temperature=0.9, num_conditional=20), program))


def truncated_slope(lead: float, temperature: float) -> float:
    """E[p (1 - p)], p = sigmoid(x / tau), x logistic about `lead` and positive; by quadrature."""
    x = torch.linspace(0, 60, 400_001)
    density = (x - lead).sigmoid() * (lead - x).sigmoid()
    p = (x / temperature).sigmoid()
    return float(torch.trapezoid(density * p * (1 - p), x) / torch.trapezoid(density, x))


@pytest.mark.parametrize("temperature", [0.5, 1.0])
@pytest.mark.parametrize("drawn", [0, 1])
def test_two_categories_by_quadrature(drawn: int, temperature: float) -> None:
    """The difference of two Gumbels is logistic, given the draw of one sign."""
    theta, f = torch.tensor([[0.3, -0.6]]), polynomial(2, (1, 2))
    program = Factor(theta.expand(300, 1, 2).clone(), f)
    code = torch.eye(2)[drawn][None]
    pi = theta.softmax(-1)
    g = slope(f, code)
    rise = (g[0, 0] - g[0, 1]) * torch.tensor([[1.0, -1.0]])

    lead = (theta[0, drawn] - theta[0, 1 - drawn]).item()
    by_hand = truncated_slope(lead, temperature) / temperature * rise
    got = pulled(rao(temperature=temperature, num_conditional=200), program, code)
    assert agree(got, by_hand)

    middle = ((pi + code) / 2).log()
    lead = (middle[0, drawn] - middle[0, 1 - drawn]).item()
    by_hand = (
        2 / temperature * truncated_slope(lead, temperature) - pi[0, 0] * pi[0, 1] / 2
    ) * rise
    got = pulled(reinmax_rao(temperature=temperature, num_conditional=200), program, code)
    assert agree(got, by_hand)


# What the programs see, and the value.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("particles", [1, 2, 5])
@pytest.mark.parametrize("name", PATHWISE)
def test_codes_are_one_hot_and_independent(name: str, particles: int, dtype: torch.dtype) -> None:
    """Under plates, `.expand`, particles; the logits are one row, broadcast over everything."""
    row = torch.zeros(K, dtype=dtype, requires_grad=True)
    weight = torch.randn(D, K, dtype=dtype)
    seen = []

    def model(x: Tensor) -> None:
        with pyro.plate("data", 400):
            fn = dist.OneHotCategorical(logits=torch.zeros(K, dtype=dtype)).expand([D])
            z = pyro.sample("z", fn.to_event(1))
            seen.append(z.detach())
            pyro.factor("x", (z * weight).sum((-2, -1)))

    def guide(x: Tensor) -> None:
        with pyro.plate("data", 400):
            z = pyro.sample("z", dist.OneHotCategorical(logits=row).expand([D]).to_event(1))
            seen.append(z.detach())

    elbo = PATHWISE[name](particles, temperature=0.6, max_plate_nesting=1)
    loss = elbo.differentiable_loss(model, guide, torch.zeros(400, 1, dtype=dtype))
    assert (torch.autograd.grad(loss, row)[0] != 0).all()
    in_guide, in_model = seen
    assert torch.equal(in_guide, in_model)
    assert in_model.dtype == dtype
    z = in_model.reshape(particles * 400 * D, K)
    if name == "gumbel-softmax":
        assert ((z > 0) & (z < 1)).any()
        torch.testing.assert_close(z.sum(-1), torch.ones(len(z), dtype=dtype))
        seen.clear()
        elbo.loss(model, guide, torch.zeros(400, 1, dtype=dtype))
        z = seen[1].reshape(-1, K)
    assert ((z == 0) | (z == 1)).all()
    assert (z.sum(-1) == 1).all()
    by_place = z.reshape(particles, 400, D, K).argmax(-1)
    assert (by_place != by_place[:, :1]).any()
    assert (by_place[..., 0] != by_place[..., 1]).any()
    assert particles == 1 or (by_place[0] != by_place[1]).any()
    assert agree(z, torch.full((K,), 1 / K, dtype=dtype))


@pytest.mark.parametrize("name", PATHWISE)
@pytest.mark.parametrize("program", CLOSED)
def test_value_is_the_bound_at_honest_draws(name: str, program: str) -> None:
    module, x = PROGRAMS[program][0](), tiny_data(1)
    elbo = PATHWISE[name](beta=0.25, temperature=0.5)
    hot = PATHWISE[name](temperature=3.0)
    values = []
    for route in (elbo.loss, hot.loss, elbo.differentiable_loss, elbo.loss_and_grads):
        pyro.set_rng_seed(5)
        values.append(torch.as_tensor(route(module.model, module.guide, x)).item())
    num_honest = 4 if elbo.value_is_bound else 2
    assert elbo.value_is_bound == (name in HARD)
    assert values[:num_honest] == pytest.approx([values[0]] * num_honest, rel=1e-12)
    assert values[2] == values[3]
    with torch.no_grad():
        many = elbo.terms(module.model, module.guide, (x.expand(3000, -1),), {})
        assert agree(elbo.bound(many)[:, None], exact_elbo(module, x)[None])
    for site in many.pair.codes.values():
        assert ((site.code == 0) | (site.code == 1)).all()


@pytest.mark.parametrize("name", PATHWISE)
def test_runs_at_other_codes_are_at_those_codes(name: str) -> None:
    program, x = PROGRAMS["hierarchy"][0](), tiny_data(3)
    elbo = PATHWISE[name]()
    pair = elbo.terms(program.model, program.guide, (x,), {}).pair
    values = {key: site.code.roll(1, -1) for key, site in pair.codes.items()}
    fixed = FixedDraws({key: site.value(values[key]) for key, site in pair.codes.items()})
    there = elbo.split(pair.at(values))
    honest = ReinforceELBO().terms(program.model, fixed(program.guide), (x,), {})
    for i in range(4):
        torch.testing.assert_close(there[i], honest[i])


@pytest.mark.parametrize("name", PATHWISE)
@pytest.mark.parametrize("validate", [False, True])
def test_extreme_logits_in_float32(name: str, validate: bool) -> None:
    torch.set_default_dtype(torch.float32)
    rows = [[1e4, -1e4, 0.0], [1e4, 1e4, -1e4], [0.0, -math.inf, 1.0], [0.0, 0.0, 0.0]]
    program = Factor(torch.tensor(rows)[:, None], polynomial(3, (1, 3)))
    # Categories hardly ever drawn, too: their gradient is as finite.
    for drawn in (None, 0, 2):
        code = None if drawn is None else torch.eye(3)[drawn].expand(4, 1, 3)
        with pyro.validation_enabled(validate):
            for temperature in (0.05, 1.0):
                guide = program.guide if code is None else FixedDraws({"z": code})(program.guide)
                elbo = PATHWISE[name](temperature=temperature)
                loss = elbo.differentiable_loss(program.model, guide, torch.zeros(4, 1))
                assert loss.isfinite()
                assert gradient(loss, program).isfinite().all()


# Training, and the options of every ELBO.


@pytest.mark.parametrize("name", PATHWISE)
def test_training_raises_the_exact_elbo(name: str, device: torch.device) -> None:
    vae, x = tiny_vae().to(device), tiny_data(3).to(device)

    def exact() -> float:
        return sum(exact_elbo(vae, row[None]).item() for row in x)

    before, elbo = exact(), PATHWISE[name](2)
    svi = SVI(vae.model, vae.guide, pyro.optim.Adam({"lr": 0.03}), loss=elbo)
    for _ in range(60):
        assert math.isfinite(svi.step(x))
    assert exact() > before + 0.5


@pytest.mark.parametrize("name", PATHWISE)
@pytest.mark.parametrize("program", CLOSED)
def test_svi_and_a_torch_optimizer_take_the_same_step(name: str, program: str) -> None:
    x, results = tiny_data(3), []
    for route in ("svi", "torch"):
        pyro.set_rng_seed(2)
        pyro.clear_param_store()
        module, elbo = PROGRAMS[program][0](), PATHWISE[name](2)
        start = torch.nn.utils.parameters_to_vector(module.parameters()).detach().clone()
        if route == "svi":
            svi = SVI(module.model, module.guide, pyro.optim.Adam({"lr": 0.01}), loss=elbo)
            losses = [svi.step(x) for _ in range(2)]
        else:
            loss_of, losses = elbo(module.model, module.guide), []
            optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
            for _ in range(2):
                optimizer.zero_grad()
                loss = loss_of(x)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        weights = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
        assert ((weights - start).abs() > 1e-3).any()
        results.append((torch.tensor(losses), weights))
    torch.testing.assert_close(results[0], results[1], **EXACT)


@pytest.mark.parametrize("name", PATHWISE)
def test_gradient_goes_through_the_first_layer(name: str) -> None:
    """In this hierarchy x depends on z1 through z2 alone, and beta = 0 leaves no KL."""
    program, x = PROGRAMS["hierarchy"][0](), tiny_data(3)
    loss = PATHWISE[name](beta=0.0).differentiable_loss(program.model, program.guide, x)
    assert (gradient(loss, program.guide1) != 0).any()


@pytest.mark.parametrize("name", PATHWISE)
def test_beta_and_free_bits_weigh_the_kl(name: str) -> None:
    vae, x = tiny_vae(), tiny_data(3)

    def grad(**options: Any) -> Tensor:
        pyro.set_rng_seed(8)
        return gradient(PATHWISE[name](**options).differentiable_loss(vae.model, vae.guide, x), vae)

    none, half, whole = grad(beta=0.0), grad(beta=0.5), grad()
    torch.testing.assert_close(half, (none + whole) / 2, **EXACT)
    assert (none != whole).any()
    torch.testing.assert_close(grad(free_bits=100.0), none, **EXACT)


@pytest.mark.parametrize("name", PATHWISE)
def test_subsampling_scales_the_gradient(name: str) -> None:
    vae, x = tiny_vae(), tiny_data(6)
    index = torch.tensor([1, 4])

    def model(x: Tensor) -> None:
        with pyro.plate("data", 6, subsample=index):
            z = pyro.sample("z", vae.prior())
            pyro.sample("x", vae.decode(z), obs=x[index])

    def guide(x: Tensor) -> None:
        with pyro.plate("data", 6, subsample=index):
            pyro.sample("z", dist.OneHotCategorical(logits=vae.encode(x[index])).to_event(1))

    grads = []
    for programs, rows in (((model, guide), x), ((vae.model, vae.guide), x[index])):
        pyro.set_rng_seed(4)
        grads.append(gradient(PATHWISE[name]().differentiable_loss(*programs, rows), vae))
    torch.testing.assert_close(grads[0], 3 * grads[1], **EXACT)


class Mixed(torch.nn.Module):
    """A continuous or a count-valued site w beside the code, given which the code is drawn."""

    def __init__(self, q: Callable[[Tensor], Any], p: Any) -> None:
        super().__init__()
        self.location = torch.nn.Parameter(torch.tensor(0.3))
        self.tilt = torch.nn.Parameter(torch.randn(1, K))
        self.weight = torch.randn(1, K)
        self.q, self.p = q, p

    def model(self, x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            w = pyro.sample("w", self.p)
            uniform = dist.OneHotCategorical(logits=torch.zeros(1, K)).to_event(1)
            z = pyro.sample("z", uniform)
            pyro.factor("x", (z * self.weight).sum((-2, -1)) + w.sin())

    def guide(self, x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            w = pyro.sample("w", self.q(self.location))
            logits = self.tilt * w[..., None, None]
            pyro.sample("z", dist.OneHotCategorical(logits=logits).to_event(1))


def test_continuous_site_is_drawn_with_its_pathwise_gradient() -> None:
    """f is linear in z, so straight-through is exact given w: its mean is that of REINFORCE."""
    program = Mixed(lambda location: dist.Normal(location, 0.7), dist.Normal(0.0, 1.0))
    x = torch.zeros(200, 1)
    samples = [
        torch.stack(
            [
                gradient(elbo.differentiable_loss(program.model, program.guide, x), program)
                for _ in range(100)
            ]
        )
        for elbo in (StraightThroughELBO(), ReinforceELBO(2))
    ]
    assert agree(*samples)


# Refusals.


@pytest.mark.parametrize("name", PATHWISE)
@pytest.mark.parametrize("temperature", [0.0, -1.0, math.inf, math.nan])
def test_temperature_out_of_range(name: str, temperature: float) -> None:
    with pytest.raises(ValueError, match="finite temperature > 0"):
        PATHWISE[name](temperature=temperature)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: GappedStraightThroughELBO(gap=-1.0), "finite gap >= 0"),
        (lambda: GappedStraightThroughELBO(gap=math.nan), "finite gap >= 0"),
        (lambda: RaoGumbelELBO(num_conditional=0), "num_conditional of at least 1"),
        (lambda: ReinMaxRaoELBO(num_conditional=0), "num_conditional of at least 1"),
        (lambda: ReinMaxELBO(0), "at least 1 particle"),
    ],
)
def test_arguments_out_of_range(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize("name", PATHWISE)
def test_site_without_a_gradient_is_refused(name: str) -> None:
    x = tiny_data(3)
    masked = tiny_vae()
    masked.prior.forward = lambda: dist.OneHotCategorical(torch.ones(2, 3)).mask(True).to_event(1)
    counts = Mixed(lambda location: dist.Poisson(location), dist.Poisson(1.0))
    vae, inverse = tiny_vae(), PROGRAMS["inverse hierarchy"][0]()
    for program, site, options in [
        (vae, "z", {"analytic_kl": False}),
        (masked, "z", {}),
        (inverse, "z2", {}),
        (counts, "w", {}),
    ]:
        elbo = PATHWISE[name](**options)
        for route in (elbo.differentiable_loss, elbo.loss):
            with pytest.raises(ValueError, match=rf"closed-form KL at site '{site}'.*RlooELBO"):
                route(program.model, program.guide, x)


@pytest.mark.parametrize("particles", [1, 2])
@pytest.mark.parametrize("name", PATHWISE)
def test_indices_are_refused(name: str, particles: int) -> None:
    program = PROGRAMS["index-valued"][0]()
    with pytest.raises(ValueError, match=r"one-hot codes at site 'z'.*OneHotCategorical"):
        PATHWISE[name](particles).loss(program.model, program.guide, tiny_data(3))


def test_an_observed_code_stays() -> None:
    """Conditioned outside or inside, the model's code site is no draw."""
    vae, x = tiny_vae(), tiny_data(2)
    z = torch.eye(K)[torch.tensor([[0, 1], [2, 2]])]
    model = poutine.condition(vae.model, {"z": z})

    def guide(x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            pass

    loss = StraightThroughELBO().loss(model, guide, x)
    assert loss == pytest.approx(-(vae.decode(z).log_prob(x) - D * math.log(K)).sum().item())


def test_draw_serves_a_network_without_any_program() -> None:
    """ReinMax of a draw by its formula, and straight-through's; the stand-in is the draw itself."""
    theta = torch.randn(5, K).requires_grad_()
    g = torch.randn(5, K)

    def jacobian(p: Tensor) -> Tensor:
        return torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)

    def pulled(elbo: PathwiseELBO) -> tuple[Tensor, Tensor]:
        code, stand_in = elbo.draw(theta.log_softmax(-1))
        assert (stand_in == code).all()
        assert (code.sum(-1) == 1).all()
        return code, torch.autograd.grad((g * stand_in).sum(), theta)[0]

    pi = theta.detach().softmax(-1)
    code, gradient = pulled(ReinMaxELBO(temperature=1.0))
    expected = 2 * jacobian((pi + code) / 2) - jacobian(pi) / 2
    torch.testing.assert_close(gradient, (expected @ g.unsqueeze(-1)).squeeze(-1), **EXACT)
    _, gradient = pulled(StraightThroughELBO())
    torch.testing.assert_close(gradient, (jacobian(pi) @ g.unsqueeze(-1)).squeeze(-1), **EXACT)
    code = torch.eye(K)[torch.randint(K, (5,))]
    assert (StraightThroughELBO().draw(theta.log_softmax(-1), code)[0] == code).all()
