"""B data under C codes by one matrix product, against the same element by element."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pyro_dvae import (
    Bernoulli,
    Categorical,
    ContinuousBernoulli,
    CorrelatedNormal,
    Laplace,
    Likelihood,
    LogisticMixture,
    Masked,
    Mixed,
    Multinomial,
    NegativeBinomial,
    Normal,
    Poisson,
)
from pyro_dvae.evaluation.joint import precise
from pyro_dvae.likelihoods import real
from pyro_dvae.likelihoods.levels import FEW_LEVELS
from pyro_dvae.likelihoods.linear import ExponentialFamily

C, B, P = 5, 7, 4


def few(levels: int) -> Callable[..., Tensor]:
    return lambda *shape: torch.randint(levels, shape).double()


def calibrated() -> Normal:
    likelihood = Normal((P,))
    likelihood.calibrate(100 + 3 * torch.randn(50, P))
    return likelihood


def correlated() -> CorrelatedNormal:
    likelihood = CorrelatedNormal((P,))
    likelihood.calibrate(torch.randn(50, P) @ torch.randn(P, P))
    return likelihood


FAMILIES: dict[str, tuple[Any, Callable[..., Tensor]]] = {
    "bernoulli": (Bernoulli(), few(2)),
    "poisson": (Poisson((P,)), few(9)),
    "continuous-bernoulli": (ContinuousBernoulli(), torch.rand),
    "normal": (calibrated(), lambda *shape: 100 + 3 * torch.randn(shape)),
    "correlated normal": (correlated(), torch.randn),
    "normal, fixed scale": (Normal((P,), 0.5), torch.randn),
    "categorical": (Categorical(6), few(6)),
    "categorical, many levels": (Categorical(FEW_LEVELS + 1), few(FEW_LEVELS + 1)),
    "mixed": (
        Mixed([(Bernoulli(), 2), (Categorical(3), 1), (Poisson(), P - 3)]),
        few(2),
    ),
    "no product": (Laplace((P,)), torch.randn),
    "mixed, one without": (Mixed([(Poisson(), 1), (NegativeBinomial(), P - 1)]), few(4)),
}


CASES = [(name, False) for name in FAMILIES]
CASES += [(name, True) for name in FAMILIES if name != "correlated normal"]


def params_of(likelihood: Likelihood, *batch: int) -> Tensor:
    n = likelihood.num_params
    return 2 * torch.randn(*batch, P, *([n] if n > 1 else []), requires_grad=True)


@pytest.mark.parametrize(("name", "gaps"), CASES)
def test_the_product_is_the_sum_of_the_elements(name: str, gaps: bool) -> None:
    """Values, and gradients of the parameters; `params` of each datum are never multiplied."""
    likelihood, draw = FAMILIES[name]
    likelihood.double()
    x = draw(B, P).double()
    if gaps:
        likelihood = Masked(likelihood)
        x[torch.rand(B, P) < 0.4] = math.nan
        x[0] = math.nan
    params = params_of(likelihood, C, 1)
    product = likelihood(params, 1).log_prob(x)
    paired = likelihood(params.expand(C, B, *params.shape[2:]), 1).log_prob(x)
    assert product.shape == paired.shape == (C, B)
    torch.testing.assert_close(product, paired, rtol=1e-10, atol=1e-10)
    weights = torch.randn(C, B)
    found, wanted = (
        torch.autograd.grad((weights * each).sum(), params)[0] for each in (product, paired)
    )
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    if gaps:
        assert (product[:, 0] == 0).all()


class Sizes(TorchDispatchMode):
    """Notes the size of the largest tensor that is made."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if isinstance(found, Tensor):
            self.largest = max(self.largest, found.numel())
        return found


@pytest.mark.parametrize(("name", "gaps"), CASES)
def test_a_product_makes_no_array_of_all_elements(name: str, gaps: bool) -> None:
    likelihood, draw = FAMILIES[name]
    inside = Masked(likelihood) if gaps else likelihood
    num_codes, num_data = 200, 1_000
    params, x = params_of(inside, num_codes, 1), draw(num_data, P)
    with Sizes() as sizes, torch.no_grad():
        inside(params, 1).log_prob(x)
    makes_one = sizes.largest > num_codes * num_data
    assert makes_one == any(word in name for word in ("many", "no product", "without"))


def test_a_normal_with_the_smallest_scale_loses_no_digits_in_float32() -> None:
    """u^2 / s^2 is 3e7 there: a product in float32 would be off by nats."""
    likelihood = Normal((P,))
    u = 5 * torch.randn(B, P)
    params = torch.stack([u[:C] + 1e-3 * torch.randn(C, P), torch.full((C, P), -20.0)], -1)
    params = params.float().unsqueeze(1)
    x = u.float()
    exact = likelihood(params.double(), 1).log_prob(x.double())
    torch.testing.assert_close(
        likelihood(params, 1).log_prob(x).double(), exact, rtol=1e-6, atol=1e-5
    )
    assert likelihood(params, 1).log_prob(x).dtype == torch.float32


def test_a_level_of_probability_0_is_impossible_for_data_that_have_it_alone() -> None:
    params = torch.zeros(1, 1, 2, 3)
    params[0, 0, 0, 2] = -math.inf
    x = torch.tensor([[2.0, 0.0], [1.0, 2.0], [2.0, math.nan], [math.nan, 2.0]])
    found = Masked(Categorical(3))(params, 1).log_prob(x)[0]
    wanted = [-math.inf, -math.log(2) - math.log(3), -math.inf, -math.log(3)]
    torch.testing.assert_close(found, torch.tensor(wanted))
    params[0, 0, 1, 0] = math.nan
    assert Categorical(3).log_prob(params, x[:2]).isnan().all()


class Widened(Normal):
    """A density of its own: the sum of the elements, not the product of its parent."""

    def element_log_probs(self, params: Tensor, x: Tensor) -> Tensor:
        return dist.Normal(params[..., 0], 2.0).log_prob(x)


@pytest.mark.parametrize("gaps", [False, True])
def test_elements_defined_anew_are_the_ones_that_are_summed(gaps: bool) -> None:
    likelihood = Masked(Widened()) if gaps else Widened()
    params, x = params_of(likelihood, C, 1), torch.randn(B, P)
    wanted = dist.Normal(params[..., 0], 2.0).log_prob(x).sum(-1)
    torch.testing.assert_close(likelihood(params, 1).log_prob(x), wanted)


@pytest.mark.parametrize("name", ["normal", "correlated normal", "normal, fixed scale"])
def test_a_device_without_double_precision_scores_element_by_element(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    likelihood, draw = FAMILIES[name]
    likelihood = copy.deepcopy(likelihood).double()
    params, x = params_of(likelihood, C, 1), draw(B, P).double()
    by_product = likelihood(params, 1).log_prob(x)
    monkeypatch.setattr(real, "_has_double", lambda x: False)
    monkeypatch.setattr(real, "_natural", lambda *_: pytest.fail("it made a product"))
    torch.testing.assert_close(likelihood(params, 1).log_prob(x), by_product)


def test_costs_tell_what_is_a_product() -> None:
    for likelihood in (
        *(Bernoulli(), Poisson(), Multinomial(), ContinuousBernoulli()),
        *(Normal(), CorrelatedNormal((2,))),
    ):
        assert likelihood.cost == 0
        if isinstance(likelihood, ExponentialFamily):
            assert Masked(likelihood).cost == 0
    assert Masked(Mixed([(Bernoulli(), 2), (Normal((2,)), 2)])).cost == 0
    for likelihood in (Categorical(3), Mixed([(Bernoulli(), 2), (Categorical(3), 2)])):
        assert likelihood.cost == Masked(likelihood).cost == 1
    assert Masked(LogisticMixture()).cost == LogisticMixture().cost > 1


@pytest.mark.parametrize("gaps", [False, True])
def test_large_counts_are_summed_in_double_precision(gaps: bool) -> None:
    """Of a Poisson rate near 10^6, x log r, r and log x! have millions of nats in common."""
    for likelihood in (Poisson(), Mixed([(Bernoulli(), P - 2), (Poisson(), 2)])):
        inside = Masked(likelihood) if gaps else likelihood
        params = torch.cat([torch.randn(C, 1, P - 2), 1e6 + 1e3 * torch.randn(C, 1, 2)], -1)
        x = torch.cat([torch.ones(C, P - 2), params[:, 0, -2:].round()], -1)
        params, x = params.float(), x.float()
        exact = inside(params.double(), 1).log_prob(x.double())
        p_x = inside.float()(params, 1)
        assert ((p_x.log_prob(x) - exact).abs() > 0.1).any()
        found = precise(p_x).log_prob(x)
        torch.testing.assert_close(found, exact, rtol=1e-9, atol=1e-6)


def test_distributions_of_others_are_never_changed() -> None:
    theirs = dist.Normal(torch.zeros(P), 1.0).to_event(1)
    assert precise(theirs) is theirs
