"""Each likelihood against torch's own in double precision, against sums, and at its edges."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor
from torch.nn.functional import softplus

from pyro_dvae import (
    Bernoulli,
    Beta,
    Categorical,
    ContinuousBernoulli,
    CorrelatedNormal,
    Laplace,
    LogisticMixture,
    Mixed,
    Multinomial,
    NegativeBinomial,
    Normal,
    Ordinal,
    Poisson,
)
from pyro_dvae.likelihoods.base import typical_of
from pyro_dvae.likelihoods.names import named_likelihood
from pyro_dvae.likelihoods.numerics import log1mexp, log_beta, log_softplus


def torchs(name: str, params: Tensor) -> Any:
    """The same distribution of torch, in its own parameters."""
    p = params.unbind(-1)
    return {
        "categorical": lambda: dist.Categorical(logits=params),
        "continuous-bernoulli": lambda: dist.ContinuousBernoulli(logits=params),
        "normal": lambda: dist.Normal(p[0], (softplus(p[1] + 7) - 7).exp()),
        "laplace": lambda: dist.Laplace(p[0], (softplus(p[1] + 7) - 7).exp()),
        "beta": lambda: dist.Beta(softplus(p[0]), softplus(p[1])),
        "poisson": lambda: dist.Poisson(softplus(params)),
        "negative-binomial": lambda: dist.NegativeBinomial(softplus(p[0]), logits=p[1]),
    }[name]()


UNIT, COUNT = torch.rand, lambda n: torch.randint(9, (n,)).double()


@pytest.mark.parametrize(
    ("name", "likelihood", "data"),
    [
        ("categorical", Categorical(9), COUNT),
        ("continuous-bernoulli", ContinuousBernoulli(), UNIT),
        ("normal", Normal(), torch.randn),
        ("laplace", Laplace(), torch.randn),
        ("beta", Beta(), UNIT),
        ("poisson", Poisson(), COUNT),
        ("negative-binomial", NegativeBinomial(), COUNT),
    ],
)
@pytest.mark.parametrize("scale", [0.3, 3.0])
def test_log_prob_and_mean_are_torchs(name: str, likelihood: Any, data: Any, scale: float) -> None:
    n = likelihood.num_params
    params = scale * torch.randn(500, *([n] if n > 1 else []))
    x, theirs = data(500), torchs(name, params)
    ours = likelihood(params, 0)
    torch.testing.assert_close(ours.log_prob(x), theirs.log_prob(x), rtol=1e-6, atol=1e-6)
    if name != "categorical":
        torch.testing.assert_close(ours.mean, theirs.mean, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("event", [(), (3,), (2, 2)])
def test_correlated_normal_is_torchs(event: tuple[int, ...]) -> None:
    """A Gaussian whose covariance, in units of `spread`, is A^-1 diag(s^2) A^-T."""
    likelihood, size = CorrelatedNormal(event), math.prod(event)
    torch.nn.init.normal_(likelihood.below_diagonal)
    likelihood.calibrate(3 + torch.randn(40, *event).cumsum(-1 if event else 0))
    params, x = torch.randn(7, 1, *event, 2), torch.randn(5, *event)
    ours = likelihood(params, len(event))
    flat = params.reshape(7, 1, size, 2)
    location, spread = likelihood.location.flatten(), likelihood.spread.flatten()
    root = spread.diag() @ likelihood.factor(flat[..., 0]).inverse().tril()
    scale = (softplus(flat[..., 1] + 7) - 7).exp()
    mean = location + flat[..., 0] @ root.T
    theirs = dist.MultivariateNormal(mean, scale_tril=root * scale.unsqueeze(-2))
    torch.testing.assert_close(ours.log_prob(x), theirs.log_prob(x.reshape(5, size)))
    torch.testing.assert_close(ours.mean.reshape(7, 1, size), mean)
    draws = ours.expand([7, 1]).sample((20_000,)).reshape(-1, 7, size)
    for mine, wanted in zip(draws.unbind(1), theirs.covariance_matrix.squeeze(1), strict=True):
        away = (mine - mine.mean(0)).unsqueeze(-1) * (mine - mine.mean(0)).unsqueeze(-2)
        error = away.std(0) / math.sqrt(len(draws))
        assert ((away.mean(0) - wanted).abs() <= 5 * error).all()


def test_correlated_normal_starts_where_neighbours_are_uncorrelated() -> None:
    """Also where columns repeat each other, or one never varies."""
    x = torch.randn(300, 4) @ torch.randn(4, 4)
    x = torch.cat([x, x[:, :1], torch.ones(300, 1)], -1)
    likelihood = CorrelatedNormal((6,))
    likelihood.calibrate(x)
    y = likelihood.features(x) @ likelihood.factor(x).T
    assert y.isfinite().all()
    torch.testing.assert_close(y.std(0, correction=0)[:4], torch.ones(4))
    nearest = torch.cdist(likelihood.features(x), likelihood.features(x))
    step = y - y[nearest.fill_diagonal_(math.inf).argmin(1)]
    prior = likelihood.start @ likelihood.start.T  # of one more row, whose variances are 1
    found = step.T @ step / 2 + prior
    size = found.diagonal().sqrt()
    torch.testing.assert_close(found / size / size[:, None], torch.eye(6))
    assert likelihood(torch.zeros(6, 2), 1).log_prob(x).isfinite().all()
    likelihood.calibrate(x[:1])
    with pytest.raises(ValueError, match=r"Expected data of 6 elements .*event_shape=\(4,\)"):
        likelihood(torch.zeros(4, 2), 1).sample()
    with pytest.raises(ValueError, match="Expected at most 4096 elements for the correlated"):
        CorrelatedNormal((5000,))


def test_multinomial_is_torchs_and_of_its_own_total() -> None:
    logits, x = torch.randn(20, 6), torch.randint(5, (20, 6)).double()
    ours = Multinomial()(logits, 1).log_prob(x)
    theirs = [
        dist.Multinomial(int(row.sum()), logits=p).log_prob(row)
        for p, row in zip(logits, x, strict=True)
    ]
    torch.testing.assert_close(ours, torch.stack(theirs))
    of_three = torch.cartesian_prod(*[torch.arange(4.0)] * 3).double()
    of_three = of_three[of_three.sum(-1) == 3]
    total = Multinomial()(torch.randn(2, 1, 3), 1).log_prob(of_three).exp().sum(-1)
    torch.testing.assert_close(total, torch.ones(2))


def test_multinomial_draws_the_calibrated_total() -> None:
    likelihood = Multinomial()
    assert likelihood(torch.randn(4, 6), 1).sample().sum(-1).tolist() == [1] * 4
    likelihood.calibrate(torch.tensor([[3.0, 4.0], [2.0, 2.0]]))  # 5.5
    assert likelihood.total_count == 6
    p = likelihood(torch.randn(4, 2, 3), 2)
    assert (p.sample((9,)).sum((-1, -2)) == 6).all()
    torch.testing.assert_close(p.mean.sum((-1, -2)), torch.full((4,), 6.0))
    likelihood.calibrate(torch.zeros(2, 2))
    assert likelihood.total_count == 1


@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0, 1e4])
@pytest.mark.parametrize("levels", [2, 3, 256])
def test_probabilities_of_levels_sum_to_one(levels: int, scale: float) -> None:
    for likelihood in (Categorical(levels), LogisticMixture(levels, 3), Ordinal(levels)):
        params = scale * torch.randn(20, 1, likelihood.num_params)
        log_p = likelihood(params, 0).log_prob(torch.arange(levels).double())
        torch.testing.assert_close(log_p.logsumexp(-1), torch.zeros(20), atol=1e-9, rtol=0)
        mean = (log_p.exp() * torch.arange(levels)).sum(-1, keepdim=True)
        torch.testing.assert_close(likelihood(params, 0).mean, mean)


def test_logistic_mixture_is_a_difference_of_distribution_functions() -> None:
    params, levels = torch.randn(50, 1, 6), 6
    p = LogisticMixture(levels, 2)(params, 0)
    w, m, s = params.unflatten(-1, (3, 2)).unbind(-2)
    s = (softplus(s + 7) - 7).exp()
    edges = (torch.arange(levels - 1) + 0.5) * 2 / (levels - 1) - 1
    below = ((edges[:, None] - m[..., None, :]) / s[..., None, :]).sigmoid()
    below = (below * w.softmax(-1)[..., None, :]).sum(-1).squeeze(1)
    ends = torch.zeros(50, 1), torch.ones(50, 1)
    mass = torch.cat([ends[0], below, ends[1]], -1).diff(dim=-1)
    torch.testing.assert_close(p.log_prob(torch.arange(levels).double()).exp(), mass)


@pytest.mark.parametrize("event", [(), (3,), (2, 2)])
def test_ordinal_is_a_difference_of_cumulative_logits(event: tuple[int, ...]) -> None:
    levels, num = 4, math.prod(event)
    data = torch.randint(levels, (50, *event)).double().clamp(max=2) if event else COUNT(50) % 3
    likelihood = Ordinal(levels, event)
    assert not likelihood.is_calibrated()
    likelihood.calibrate(data)
    assert likelihood.is_calibrated()
    params = torch.randn(5, *(event or (1,)), 2)
    p = likelihood(params, max(1, len(event)))
    flat = params.flatten(1, -2)
    c = likelihood.thresholds.reshape(-1, levels - 1)
    scale = (softplus(flat[..., 1, None] + 7) - 7).exp()
    below = ((c - flat[..., 0, None]) / scale).sigmoid()
    ends = torch.zeros(5, num, 1), torch.ones(5, num, 1)
    mass = torch.cat([ends[0], below, ends[1]], -1).diff(dim=-1)  # (5, P, L)
    for level in range(levels):
        x = torch.full((5, *(event or (1,))), level).double()
        torch.testing.assert_close(p.log_prob(x).exp(), mass[..., level].prod(-1))
    torch.testing.assert_close(p.typical.flatten(1), mass.argmax(-1).double())
    torch.testing.assert_close(p.mean.flatten(1), (mass * torch.arange(levels)).sum(-1))
    # A location of 0 and a scale of 1 give the frequencies, half a datum more for each level.
    counts = torch.stack([(data == level).sum(0) for level in range(levels)], -1) + 0.5
    zeros = torch.zeros(levels, *(event or (1,)), 2)
    zeros[..., 1] = math.log(math.expm1(7)) - 7  # a scale of 1
    x = torch.arange(levels).reshape(-1, *[1] * max(1, len(event))).double()
    found = likelihood(zeros, max(1, len(event))).log_prob(x.expand(levels, *(event or (1,))))
    frequencies = (counts / counts.sum(-1, keepdim=True)).reshape(-1, levels)
    torch.testing.assert_close(found.exp(), frequencies.prod(0))


def test_what_stands_for_a_datum_is_no_mean_of_categories() -> None:
    p = torch.tensor([0.5, 0.1, 0.4]).log()
    assert Categorical(3)(p.expand(1, 3), 1).typical.item() == 0
    assert Categorical(3)(p.expand(1, 3), 1).mean.item() == pytest.approx(0.9)
    mixed = Mixed([(Categorical(3), 1), (Normal((1,)), 1), (Bernoulli(), 1)])
    params = torch.stack([p, torch.tensor([2.5, 0, 0]), torch.tensor([0.25, 0, 0])])
    bit = 1 / (1 + math.exp(-0.25))
    assert mixed(params, 1).typical.tolist() == pytest.approx([0, 2.5, bit])
    own: Any = dist.Normal(1.5, 1)
    assert typical_of(own) == 1.5


def nodes(low: float, high: float, pieces: int = 1) -> tuple[Tensor, Tensor]:
    """Points and weights of Gauss-Legendre quadrature."""
    x, w = map(torch.from_numpy, np.polynomial.legendre.leggauss(100))
    edges = torch.linspace(low, high, pieces + 1)
    half = edges.diff()[:, None] / 2
    return (edges[:-1, None] + half * (x + 1)).flatten(), (half * w).flatten()


@pytest.mark.parametrize("logit", [0.0, 1e-8, -1e-3, 0.4999, 0.5001, -3.0, 30.0, -300.0])
def test_continuous_bernoulli_integrates_to_one(logit: float) -> None:
    x, w = nodes(0, 1, 20)
    p = ContinuousBernoulli()(torch.tensor([[logit]]), 0)
    density = p.log_prob(x).exp()
    assert density @ w == pytest.approx(1, abs=1e-12)
    assert p.mean.item() == pytest.approx(((density * x) @ w).item(), abs=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_continuous_bernoulli_near_one_half(dtype: torch.dtype) -> None:
    """Against C(g) = l / tanh(l / 2), l = logit(g), in double precision."""
    logits = torch.linspace(-1, 1, 2000).requires_grad_()  # no zero
    log_c = (logits / (logits / 2).tanh()).log()
    exact = 0.3 * logits - softplus(logits) + log_c
    (exact_gradient,) = torch.autograd.grad(exact.sum(), logits)

    ours = logits.detach().to(dtype).requires_grad_()
    p = ContinuousBernoulli()(ours, 0)
    log_prob = p.log_prob(torch.full_like(ours, 0.3))
    (gradient,) = torch.autograd.grad(log_prob.sum(), ours)
    expected = (exact, exact_gradient, 0.3 - exact_gradient)
    for value, wanted in zip((log_prob, gradient, p.mean), expected, strict=True):
        tolerance = 1e-6 if dtype == torch.float32 else 1e-12
        torch.testing.assert_close(value.double(), wanted, atol=tolerance, rtol=0)


@pytest.mark.parametrize("location", [0.0, 40.0])
def test_real_ones_integrate_to_one_in_the_datas_units(location: float) -> None:
    for likelihood in (Normal(), Normal((), 0.4), Laplace(), Laplace((), 0.4)):
        likelihood.location.fill_(location)
        likelihood.spread.fill_(5.0)
        params = torch.tensor([0.3, 0.2])[: likelihood.num_params]
        p = likelihood(params if len(params) > 1 else params.squeeze(), 0)
        middle = location + 5 * 0.3
        assert p.mean.item() == pytest.approx(middle)
        x, w = nodes(middle - 250, middle + 250, 40)  # an edge at the Laplace's cusp
        assert p.log_prob(x).exp() @ w == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("params", [(-3.0, -2.0), (0.0, 0.0), (9.0, 4.0), (900.0, 3.0)])
def test_beta_integrates_to_one(params: tuple[float, float]) -> None:
    # By the logit of x, whose singular ends are then smooth tails.
    t, w = nodes(-600, 600, 1200)
    a, b = softplus(torch.tensor(params))
    inside = t.abs() < 30  # where x and 1 - x are floats; beyond, the density is a power of them
    log_p = Beta()(torch.tensor([params]), 0).log_prob(t[inside].sigmoid())
    jacobian = t.sigmoid().log() + (-t).sigmoid().log()
    total = (log_p + jacobian[inside]).exp() @ w[inside]
    log_b = a.lgamma() + b.lgamma() - (a + b).lgamma()
    tails = (-30 * a - log_b).exp() / a + (-30 * b - log_b).exp() / b
    assert (total + tails).item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("params", [(-5.0, 1.0), (0.0, 0.0), (9.0, 1.0), (300.0, -4.0)])
def test_counts_sum_to_one(params: tuple[float, float]) -> None:
    x = torch.arange(3000.0).double()
    negative_binomial = NegativeBinomial()(torch.tensor([params]), 0).log_prob(x)
    poisson = Poisson()(torch.tensor([params[0]]), 0).log_prob(x)
    for log_p in (negative_binomial, poisson):
        assert log_p.exp().sum().item() == pytest.approx(1, abs=1e-10)


def test_mixed_is_the_sum_of_its_columns() -> None:
    parts = [(Bernoulli(), 2), (Categorical(3), 1), (Normal((1,), 0.5), 1), (Poisson(), 1)]
    mixed = Mixed(parts)
    assert mixed.num_params == 3
    x = torch.tensor([[0, 1, 2, -0.3, 4], [1, 1, 0, 2.0, 0]])
    mixed.calibrate(x)
    assert mixed.blocks[2].location == x[:, 3].mean()
    params = torch.randn(7, 1, 5, 3)
    expected = (
        Bernoulli()(params[..., :2, 0], 1).log_prob(x[:, :2])
        + Categorical(3)(params[..., 2, :], 0).log_prob(x[:, 2])
        + mixed.blocks[2](params[..., 3:4, 0], 1).log_prob(x[:, 3:4])
        + mixed.blocks[3](params[..., 4:5, 0], 1).log_prob(x[:, 4:5])
    )
    torch.testing.assert_close(mixed(params, 1).log_prob(x), expected)
    assert not mixed.support.is_discrete
    assert Mixed(parts[:2]).support.is_discrete
    bits = Mixed([(Bernoulli(), 2)])
    torch.testing.assert_close(
        bits(params[..., :2, 0], 1).log_prob(x[:, :2]),
        Bernoulli()(params[..., :2, 0], 1).log_prob(x[:, :2]),
    )


@pytest.mark.parametrize("likelihood", [Normal, Laplace])
def test_calibration_of_columns(likelihood: Any) -> None:
    x = torch.randn(4001, 4) * torch.tensor([1, 1e-3, 1e6, 0]) + torch.tensor([0, 5, -3e6, 0.1])
    part = likelihood((4,)).float()
    part.calibrate(x.float())
    assert part.spread[3] == 1
    assert part.location[3] == x[0, 3].float()
    middle = x.mean(0) if likelihood is Normal else x.median(0).values
    spread = x.std(0) if likelihood is Normal else (x - middle).abs().mean(0)
    close = {"rtol": 1e-3, "atol": 1e-6}
    torch.testing.assert_close(part.location.double(), middle, **close)
    torch.testing.assert_close(part.spread[:3].double(), spread[:3], **close)
    features = part.features(x.float())
    assert features.abs().max() < 10
    with pytest.raises(ValueError, match=r"event \(4,\); got \(5, 3\)\. Build.*event_shape=\(3,\)"):
        part.calibrate(torch.zeros(5, 3))
    with pytest.raises(ValueError, match="Expected finite numbers"):
        part.calibrate(torch.full((5, 4), math.inf))


@pytest.mark.parametrize("likelihood", [Poisson, NegativeBinomial])
def test_calibration_of_counts(likelihood: Any) -> None:
    rates = torch.tensor([0.05, 3.0, 400.0, 0.0])
    x = torch.distributions.NegativeBinomial(2.0, rates / (rates + 2.0)).sample((4001,))
    part = likelihood((4,))
    assert not part.is_calibrated()
    part.calibrate(x)
    assert part.is_calibrated()
    params = torch.zeros(4, 2) if likelihood is NegativeBinomial else torch.zeros(4)
    p = part(params, 1)
    mean = x.mean(0).clamp(min=0.5 / 4001)
    torch.testing.assert_close(p.mean, mean)
    if likelihood is NegativeBinomial:  # the variance is m + m^2 / r
        wanted = x.var(0, correction=0)[:3]
        torch.testing.assert_close((p.mean + p.mean * part.odds_unit)[:3], wanted)
    # The units are a change of params: the distribution is one that units of 1 have too.
    params = torch.randn(5, 4, 2) if likelihood is NegativeBinomial else torch.randn(5, 4)
    if likelihood is NegativeBinomial:
        total, odds = softplus(params[..., 0]) * part.total_unit, part.odds_unit.log()
        theirs = dist.NegativeBinomial(total, logits=params[..., 1] + odds)
    else:
        theirs = dist.Poisson(softplus(params) * part.unit)
    ours = part(params, 1)
    torch.testing.assert_close(ours.log_prob(x[:5]), theirs.log_prob(x[:5]).sum(-1))
    torch.testing.assert_close(ours.mean, theirs.mean)
    one = likelihood()
    one.calibrate(x)
    torch.testing.assert_close(one(params[:1, :1] * 0, 1).mean, x.mean().reshape(1, 1))
    # The weights of an old version have no units.
    old = {name: value for name, value in part.state_dict().items() if not name.endswith("unit")}
    assert old == {}
    part.load_state_dict(old)
    assert not part.is_calibrated()
    with pytest.raises(ValueError, match=r"event \(4,\); got \(5, 3\)\. Build.*event_shape=\(3,\)"):
        part.calibrate(torch.zeros(5, 3))
    with pytest.raises(ValueError, match="Expected counts"):
        part.calibrate(torch.full((5, 4), 0.5))


@pytest.mark.parametrize(
    ("check", "x", "message"),
    [
        (ContinuousBernoulli(), [0.0, 255.0], r"in \[0, 1\] .*got float64 values from 0 to 255\."),
        (Categorical(4), [0.0, 4.0], r"from 0 to 3 .*4 levels; got float64 values from 0 to 4\."),
        (Categorical(4), [0.0, 0.5], "whole numbers"),
        (Categorical(4), [[0.0, -1.0]], r"to 0 \(first bad column: 1\)"),
        (LogisticMixture(256), [0.0, 256.0], "logistic-mixture likelihood of 256 levels"),
        (Beta(), [0.0, 0.5], r"strictly between .*Squeeze the data .*or use continuous-bernoulli"),
        (Beta(), [0.5, 1.0], "strictly between"),
        (Poisson(), [0.5, 1.0], r"counts 0, 1, 2, .* poisson .*Use normal"),
        (NegativeBinomial(), [-1.0, 1.0], "negative-binomial"),
        (Multinomial(), [0.0, math.inf], "multinomial"),
        (Normal(), [0.0, math.inf], "Expected finite numbers for the normal likelihood"),
        (Laplace(), [-math.inf, 0], "laplace"),
        (CorrelatedNormal((2,)), [[math.inf, 0]], "finite numbers for the correlated-normal"),
        (Mixed([(Bernoulli(), 2), (Poisson(), 2)]), [[0, 1, 2, 2.5]], "^Column 3: Expected counts"),
        (Mixed([(Bernoulli(), 2), (Poisson(), 2)]), [[0, 3, 2, 2.5]], "^Column 1: Expected data"),
        (Mixed([(Bernoulli(), 2)]), [[0, 1, 1]], r"rows of 2 columns.*shape \(1, 3\)"),
    ],
)
def test_refusals(check: Any, x: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        check.check(torch.tensor(x))
    assert "\n" not in str(error.value)


def test_integers_are_taken() -> None:
    x = torch.tensor([[0, 1], [2, 3]], dtype=torch.uint8)
    for likelihood in (Categorical(4), LogisticMixture(4), Poisson(), Multinomial(), Normal()):
        likelihood.check(x)
        n = likelihood.num_params
        params = torch.zeros(2, 2, *([n] if n > 1 else []))
        assert likelihood(params, 1).log_prob(x).isfinite().all()
        assert likelihood.features(x).is_floating_point()
    with pytest.raises(ValueError, match="got uint8 values from 0 to 3"):
        Categorical(3).check(x.flatten())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Categorical(1), "levels of at least 2; got 1"),
        (lambda: LogisticMixture(1), "levels of at least 2; got 1"),
        (lambda: LogisticMixture(256, 0), "components of at least 1; got 0"),
        (lambda: Normal((), 0.0), "positive, finite scale; got 0"),
        (lambda: Laplace((), math.inf), "positive, finite scale; got inf"),
        (lambda: Mixed([]), "kinds of columns of at least 1"),
        (lambda: Mixed([(Bernoulli(), 0)]), "columns of a kind of at least 1"),
    ],
)
def test_bad_arguments(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    ("spec", "num_params"),
    [
        ("bernoulli", 1),
        ("continuous-bernoulli", 1),
        ("categorical", 256),
        ("categorical:16", 16),
        ("logistic-mixture", 15),
        ("logistic-mixture:2", 6),
        ("normal", 2),
        ("normal:0.1", 1),
        ("correlated-normal", 2),
        ("laplace:2", 1),
        ("beta", 2),
        ("poisson", 1),
        ("negative-binomial", 2),
        ("multinomial", 1),
        ("mixed:bernoulli*3,categorical:5,normal", 5),
        ("mixed:normal:0.1*5", 1),
    ],
)
def test_names(spec: str, num_params: int) -> None:
    likelihood = named_likelihood(spec, (5,))
    assert likelihood.num_params == num_params


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("bernoulli:3", "Expected bernoulli alone; got bernoulli:3"),
        ("categorical:x", "whole number after categorical:; got 'x'"),
        ("categorical:1", "levels of at least 2; got 1"),
        ("normal:x", "Expected a scale after normal:; got 'x'"),
        ("normal:-1", "positive, finite scale; got -1"),
        ("normal:nan", "positive, finite scale; got nan"),
        ("mixed", "kinds after mixed:; got none"),
        ("mixed:", "kind of column to be one of"),
        ("mixed:mixed", "kind of column to be one of .*got 'mixed'"),
        ("mixed:normal*x", r"number of columns after normal\*; got 'x'"),
        ("mixed:normal*0", r"number of columns after normal\*; got '0'"),
        ("mixed:normal*4", r"each column of data of shape \(5,\); got mixed: with 4"),
    ],
)
def test_wrong_names_in_one_line(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        named_likelihood(spec, (5,))
    assert "\n" not in str(error.value)


def test_functions_where_their_formulas_cancel() -> None:
    x = torch.tensor([-1e4, -300, -20.1, -19.9, 0, 50, 1e4])
    torch.testing.assert_close(log_softplus(x)[2:], softplus(x[2:], threshold=40).log())
    assert log_softplus(x)[0] == -1e4
    y = torch.logspace(-5, 1, 100)
    torch.testing.assert_close(log1mexp(y.log()), (-torch.expm1(-y)).log(), rtol=1e-12, atol=1e-14)
    assert log1mexp(torch.tensor(-1e4)) == -1e4
    a, b = torch.rand(2, 500) * 200 + 1
    torch.testing.assert_close(
        log_beta(a, b), a.lgamma() + b.lgamma() - (a + b).lgamma(), rtol=1e-10, atol=1e-11
    )
    # B(a, n) = (n - 1)! / (a (a + 1) ... (a + n - 1)), with no log-gamma
    a = torch.tensor([1.0, 1e4, 1e7])
    expected = math.log(24) - sum((a + i).log() for i in range(5))
    ours = log_beta(a.float(), torch.tensor(5.0, dtype=torch.float32)).double()
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)
