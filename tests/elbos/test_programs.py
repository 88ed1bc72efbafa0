"""Sites that only one of guide and model draws, factors, and programs without latents or plates."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from oracle import FixedDraws
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoDiagonalNormal, AutoNormal
from torch import Tensor, nn
from zoo import ELBOS, is_pathwise, make_batch, make_vae

from pyro_dvae import (
    DisarmELBO,
    EnumeratedELBO,
    LocalExpectationELBO,
    MarginalELBO,
    ReinforceELBO,
    RelaxELBO,
    RlooELBO,
    log_marginal,
)

EXACT = {"atol": 1e-10, "rtol": 0}
N = 4
X = torch.tensor([0.3, -1.2, 0.8, 2.0], dtype=torch.float64)


def slopes(value: Tensor, *weights: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(value, weights, allow_unused=True, materialize_grads=True))


class TwoLatents(nn.Module):
    """p(u) p(z|u) p(x|u, z) with u and z of two and three categories, a pair per datum."""

    def __init__(self, drawn: tuple[str, ...]) -> None:
        super().__init__()
        self.drawn = drawn
        self.p_u, self.p_z = nn.Parameter(torch.randn(2)), nn.Parameter(torch.randn(2, 3))
        self.mean = nn.Parameter(torch.randn(2, 3))
        self.q_u, self.q_z = nn.Parameter(torch.randn(N, 2)), nn.Parameter(torch.randn(N, 3))

    def model(self) -> None:
        with pyro.plate("data", N):
            u = pyro.sample("u", dist.Bernoulli(logits=self.p_u[1])).long()
            z = pyro.sample("z", dist.Categorical(logits=self.p_z[u]))
            pyro.sample("x", dist.Normal(self.mean[u, z], 1.0), obs=X)

    def guide(self) -> None:
        with pyro.plate("data", N):
            if "u" in self.drawn:
                pyro.sample("u", dist.Bernoulli(logits=self.q_u[:, 1]))
            if "z" in self.drawn:
                pyro.sample("z", dist.Categorical(logits=self.q_z))

    def log_marginal(self) -> tuple[Tensor, Tensor]:
        """Log p(x), and the guide's log-likelihood under the posterior, both summed over data."""
        log_u = torch.stack([-self.p_u[1], self.p_u[1]]).sigmoid().log()
        joint = log_u[:, None] + self.p_z.log_softmax(-1)
        joint = joint + dist.Normal(self.mean, 1.0).log_prob(X[:, None, None])  # (N, 2, 3)
        value = joint.flatten(1).logsumexp(-1)
        posterior = (joint - value[:, None, None]).exp().detach()
        log_q = torch.zeros_like(joint)
        if "u" in self.drawn:
            log_qu = torch.stack([-self.q_u[:, 1], self.q_u[:, 1]], -1).sigmoid().log()
            log_q = log_q + log_qu[:, :, None]
        if "z" in self.drawn:
            log_q = log_q + self.q_z.log_softmax(-1)[:, None]
        return value.sum(), (posterior * log_q).sum()


@pytest.mark.parametrize("drawn", [(), ("u",), ("z",), ("u", "z")])
@pytest.mark.parametrize("chunk_size", [2, 100])
def test_marginal_sums_what_the_guide_does_not_draw(drawn: Any, chunk_size: int) -> None:
    program = TwoLatents(drawn)
    value, follow = program.log_marginal()
    loss = MarginalELBO(chunk_size=chunk_size).differentiable_loss(program.model, program.guide)
    torch.testing.assert_close(-loss.detach(), value.detach(), **EXACT)
    weights = list(program.parameters())
    torch.testing.assert_close(slopes(-loss, *weights), slopes(value + follow, *weights), **EXACT)


@pytest.mark.parametrize("name", ELBOS)
@pytest.mark.filterwarnings("ignore:Found vars in model but not guide")
def test_a_latent_of_the_model_alone(name: str) -> None:
    """Refused where its draw needs a score; with a reparametrised one its prior is its guide."""
    program = TwoLatents(("u",))
    with pytest.raises((ValueError, TypeError), match=r"^Expected"):
        ELBOS[name]().differentiable_loss(program.model, program.guide)

    loc = nn.Parameter(torch.tensor(0.5))

    def model() -> None:
        with pyro.plate("data", N):
            w = pyro.sample("w", dist.Normal(loc, 0.0 * loc + 1e-9))  # as good as known
            pyro.sample("x", dist.Normal(w, 1.0), obs=X)

    loss = ELBOS[name]().differentiable_loss(model, lambda: None)
    exact = dist.Normal(loc, 1.0).log_prob(X).sum()
    torch.testing.assert_close(-loss.detach(), exact.detach(), atol=1e-7, rtol=0)
    torch.testing.assert_close(slopes(-loss, loc), slopes(exact, loc), atol=1e-7, rtol=0)


def test_the_score_that_a_latent_of_the_model_alone_would_need() -> None:
    program = TwoLatents(("z",))
    with (
        pytest.warns(UserWarning, match="Found vars in model but not guide"),
        pytest.raises(
            ValueError, match=r"trained; got site 'u', from Bernoulli, in the model alone"
        ),
    ):
        RlooELBO(2).differentiable_loss(program.model, program.guide)


@pytest.mark.filterwarnings("ignore:Found vars in model but not guide")
def test_what_obs_mask_leaves_unobserved() -> None:
    seen, loc = torch.tensor([True, False, True, True]), nn.Parameter(torch.tensor(0.4))
    bits = (X > 0).to(X.dtype)

    def model() -> None:
        with pyro.plate("data", N):
            pyro.sample("x", dist.Bernoulli(logits=loc), obs=bits, obs_mask=seen)

    exact = dist.Bernoulli(logits=loc).log_prob(bits)[seen].sum()
    loss = MarginalELBO().differentiable_loss(model, lambda: None)
    torch.testing.assert_close(-loss.detach(), exact.detach(), **EXACT)
    torch.testing.assert_close(slopes(-loss, loc), slopes(exact, loc), **EXACT)
    with pytest.raises(ValueError, match=r"'x_unobserved', from Bernoulli.*place of obs_mask"):
        EnumeratedELBO().differentiable_loss(model, lambda: None)


@pytest.mark.parametrize("name", ELBOS)
@pytest.mark.filterwarnings("ignore:Found non-auxiliary vars in guide")
def test_a_latent_that_the_model_observes(name: str) -> None:
    """As in Trace_ELBO: log p(z) and log p(x|z) count once, and less log q at the guide's draw."""
    program = TwoLatents(("u", "z"))
    given = {"u": torch.tensor([0.0, 1.0, 1.0, 0.0]), "z": torch.tensor([0, 2, 1, 1])}
    model = poutine.condition(program.model, given)
    elbo = ELBOS[name]()
    if is_pathwise(elbo):
        with pytest.raises(ValueError, match=r"at site '[uz]'; got|at site 'z', since indices"):
            elbo.differentiable_loss(model, program.guide)
        return
    if name in ("snapshot", "disarm", "arsm", "local expectation", "sum-first", "jsa"):
        with pytest.raises(TypeError, match="got Bernoulli at site 'u'"):
            elbo.differentiable_loss(model, program.guide)
        return
    log_joint = poutine.trace(model).get_trace().log_prob_sum()
    loss = elbo.differentiable_loss(model, program.guide)
    weights, guides = [program.p_u, program.p_z, program.mean], [program.q_u, program.q_z]
    found = slopes(-loss, *weights, *guides)
    torch.testing.assert_close(found[:3], slopes(log_joint, *weights), **EXACT)
    if name == "enumerated":
        entropy = dist.Bernoulli(logits=program.q_u[:, 1]).entropy().sum()
        entropy = entropy + dist.Categorical(logits=program.q_z).entropy().sum()
        torch.testing.assert_close(-loss.detach(), (log_joint + entropy).detach(), **EXACT)
        torch.testing.assert_close(found[3:], slopes(entropy, *guides), **EXACT)


@pytest.mark.filterwarnings("ignore:Found non-auxiliary vars in guide")
def test_marginal_refuses_what_the_model_does_not_draw() -> None:
    program = TwoLatents(("u", "z"))
    model = poutine.condition(program.model, {"z": torch.zeros(N).long()})
    with pytest.raises(ValueError, match=r"latents of the model.*got site 'z', from Categorical"):
        MarginalELBO().loss(model, program.guide)


@pytest.mark.parametrize(
    ("q", "p"),
    [
        (dist.Categorical(torch.ones(3)), dist.Categorical(torch.ones(4))),
        (dist.Categorical(torch.ones(3)), dist.Poisson(torch.tensor(1.0))),
        (dist.Bernoulli(torch.tensor(0.5)), dist.Binomial(2, torch.tensor(0.5))),
    ],
)
def test_marginal_refuses_values_that_the_guide_leaves_out(q: Any, p: Any) -> None:
    message = rf"same values.*at site 'z'.*got {type(q).__name__} for {type(p).__name__}"
    with pyro.validation_enabled(False), pytest.raises(ValueError, match=message):
        MarginalELBO().loss(lambda: pyro.sample("z", p), lambda: pyro.sample("z", q))


@pytest.mark.parametrize("prior", ["mixture", "boltzmann", "learned"])
def test_marginal_under_a_prior_that_lists_no_values(prior: str) -> None:
    vae = make_vae(prior)
    (x,) = make_batch(vae)
    loss = MarginalELBO().differentiable_loss(vae.model, vae.guide, x)
    exact = log_marginal(vae, x).sum()
    torch.testing.assert_close(-loss.detach(), exact.detach(), **EXACT)


class Globals(nn.Module):
    """Continuous weights of a decoder beside one code per datum."""

    def __init__(self, auto: type) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.randn(N, 3))
        self.auto = auto(poutine.block(self.model, hide=["z", "x"]))
        self.auto()

    def model(self) -> None:
        w = pyro.sample("w", dist.HalfNormal(torch.ones(3)).to_event(1))
        with pyro.plate("data", N):
            z = pyro.sample("z", dist.OneHotCategorical(torch.ones(3)))
            pyro.sample("x", dist.Normal((z * w).sum(-1), 1.0), obs=X)

    def guide(self) -> None:
        self.auto()
        with pyro.plate("data", N):
            pyro.sample("z", dist.OneHotCategorical(logits=self.logits))


@pytest.mark.parametrize("auto", [AutoNormal, AutoDiagonalNormal])
def test_autoguide_of_globals_beside_codes(auto: type) -> None:
    """Enumeration is the mean of Trace_ELBO over the codes, at the same draw of the globals."""
    program = Globals(auto)
    weights = [program.logits, *program.auto.parameters()]
    exact = torch.zeros(())
    for index in itertools.product(range(3), repeat=N):
        code = torch.eye(3)[torch.tensor(index)]
        weight = (code * program.logits.log_softmax(-1)).sum().exp()
        pyro.set_rng_seed(2)
        guide = poutine.trace(FixedDraws({"z": code})(program.guide)).get_trace()
        model = poutine.trace(poutine.replay(program.model, trace=guide)).get_trace()
        exact = exact + weight * (model.log_prob_sum() - guide.log_prob_sum())
    pyro.set_rng_seed(2)
    loss = EnumeratedELBO().differentiable_loss(program.model, program.guide)
    torch.testing.assert_close(-loss.detach(), exact.detach(), **EXACT)
    torch.testing.assert_close(slopes(-loss, *weights), slopes(exact, *weights), **EXACT)


@pytest.mark.parametrize("auto", [AutoNormal, AutoDiagonalNormal])
@pytest.mark.parametrize("name", ELBOS)
def test_every_elbo_takes_an_autoguide_of_globals(auto: type, name: str) -> None:
    """The value is that of Trace_ELBO at the same draws; the globals' gradient is pathwise."""
    program = Globals(auto)
    elbo = ELBOS[name]()
    if name in ("rws", "jsa"):
        with pytest.raises(ValueError, match=r"not reparametrised.*Normal at site '_?\w+'. Use"):
            elbo.differentiable_loss(program.model, program.guide)
        return
    loss = elbo.differentiable_loss(program.model, program.guide)
    assert all(slope.isfinite().all() for slope in slopes(loss, *program.parameters()))
    if name not in ("reinforce", "rloo"):
        return
    ours = type(elbo)(elbo.num_particles, analytic_kl=False)
    pyros = Trace_ELBO(elbo.num_particles, vectorize_particles=True, max_plate_nesting=1)
    losses = []
    for each in (ours, pyros):
        pyro.set_rng_seed(1)
        losses.append(each.differentiable_loss(program.model, program.guide))
    torch.testing.assert_close(losses[0].detach(), losses[1].detach(), **EXACT)
    found, expected = (slopes(each, *program.auto.parameters()) for each in losses)
    torch.testing.assert_close(found, expected, **EXACT)


@pytest.mark.parametrize("make", [ReinforceELBO, lambda **o: RlooELBO(3, **o), EnumeratedELBO])
def test_factor_in_a_guide(make: Callable[..., Any]) -> None:
    """It counts as log q does, with its own gradient."""
    program, extra = TwoLatents(("u", "z")), nn.Parameter(torch.tensor(0.7))

    def guide() -> None:
        program.guide()
        pyro.factor("f", extra**2, has_rsample=True)

    losses = []
    for each in (guide, program.guide):
        pyro.set_rng_seed(4)
        losses.append(make().differentiable_loss(program.model, each))
    torch.testing.assert_close(losses[0] - losses[1], extra**2, **EXACT)
    torch.testing.assert_close(slopes(losses[0], extra), [2 * extra.detach()], **EXACT)


@pytest.mark.parametrize("name", [*ELBOS, "marginal"])
def test_refused_by_name(name: str) -> None:
    make = {**ELBOS, "marginal": MarginalELBO}[name]
    logits = nn.Parameter(torch.randn(3))

    def program(size: int | None = N, mask: Any = None, factor: bool = False) -> Any:
        def run() -> None:
            with pyro.plate("data", size):
                fn = dist.OneHotCategorical(logits=logits.expand(N, 3))
                pyro.sample("z", fn if mask is None else fn.mask(mask))
                if factor:
                    pyro.factor("f", logits.sum(), has_rsample=False)

        return run

    for options, message in [
        ({"size": None}, r"^Expected a size for plate 'data' around site 'z'; got none"),
        ({"factor": True}, r"^Expected .* site 'f'"),
        (
            {"mask": False},
            r"^Expected a tensor as the mask of site 'z', from MaskedDistribution of",
        ),
    ]:
        model = program(**{**options, "factor": False})
        with pytest.raises(ValueError, match=message):
            make().differentiable_loss(model, program(**options))


@pytest.mark.parametrize("name", [*ELBOS, "marginal"])
def test_a_model_without_latents(name: str) -> None:
    loc = nn.Parameter(torch.tensor(0.4))

    def model() -> None:
        with pyro.plate("data", N):
            pyro.sample("x", dist.Normal(loc, 1.0), obs=X)

    exact = dist.Normal(loc, 1.0).log_prob(X).sum()
    loss = {**ELBOS, "marginal": MarginalELBO}[name]().differentiable_loss(model, lambda: None)
    torch.testing.assert_close(-loss.detach(), exact.detach(), **EXACT)
    torch.testing.assert_close(slopes(-loss, loc), slopes(exact, loc), **EXACT)


@pytest.mark.parametrize("chunk_size", [1, 100])
def test_marginal_where_the_guide_excludes_a_category(chunk_size: int) -> None:
    program = TwoLatents(("z",))
    value, _ = program.log_marginal()
    with torch.no_grad():
        program.q_z[:, 1] = -math.inf
    loss = MarginalELBO(chunk_size=chunk_size).differentiable_loss(program.model, program.guide)
    torch.testing.assert_close(-loss.detach(), value.detach(), **EXACT)
    models = [program.p_u, program.p_z, program.mean]
    *found, follow = slopes(-loss, *models, program.q_z)
    torch.testing.assert_close(found, slopes(value, *models), **EXACT)
    assert follow.isfinite().all()


@pytest.mark.parametrize("make", [DisarmELBO, LocalExpectationELBO, RelaxELBO, RlooELBO])
@pytest.mark.parametrize("one_hot", [False, True])
def test_one_site_outside_every_plate(make: Callable[[], Any], one_hot: bool) -> None:
    logits, mean = nn.Parameter(torch.tensor([0.3, -0.2, 0.5])), torch.tensor([2.0, -1.0, 0.0])
    family = dist.OneHotCategorical if one_hot else dist.Categorical

    def model() -> None:
        z = pyro.sample("z", family(logits=torch.arange(3.0)))
        loc = (z * mean).sum(-1) if one_hot else mean[z]
        pyro.sample("x", dist.Normal(loc, 1.0), obs=torch.tensor(1.0))

    def guide() -> None:
        pyro.sample("z", family(logits=logits))

    exact = EnumeratedELBO().differentiable_loss(model, guide)
    draws = torch.stack(
        [slopes(make().differentiable_loss(model, guide), logits)[0] for _ in range(40)]
    )
    error = (draws.mean(0) - slopes(exact, logits)[0]).abs()
    assert (error <= 4.5 * draws.std(0) / 40**0.5 + 1e-9).all()
