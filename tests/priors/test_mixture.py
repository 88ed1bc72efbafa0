from __future__ import annotations

import math
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from code_laws import (
    check_codes,
    check_conditionals,
    check_frequencies,
    check_normalised,
    log_table,
)
from torch import Tensor

from pyro_dvae import AutoregressivePrior, MixtureCodes, MixturePrior
from pyro_dvae.codes import enumerate_codes
from pyro_dvae.sequences import CausalCodes, CausalNetwork

D, K, C = 3, 2, 4


def factorised(*batch: int, num_components: int = C) -> Any:
    logits = torch.randn(*batch, num_components, D, K)
    return dist.OneHotCategorical(logits=logits).to_event(1)


def sequential(*batch: int) -> CausalCodes:
    return CausalCodes(CausalNetwork(D, K, 5, num_features=3), torch.randn(*batch, C, D, 3))


def mixtures() -> dict[str, MixtureCodes]:
    some_zero = torch.tensor([0.3, -math.inf, 1.0, 0.0])
    return {
        "factorised": MixtureCodes(torch.randn(C), factorised()),
        "factorised, batch": MixtureCodes(torch.randn(2, C), factorised(2)),
        "weights of a batch": MixtureCodes(torch.randn(2, 1, C), factorised(3)),
        "sequential": MixtureCodes(torch.randn(C), sequential()),
        "sequential, batch": MixtureCodes(torch.randn(2, C), sequential(2)),
        "one component": MixtureCodes(torch.zeros(1), factorised(num_components=1)),
        "weight 0": MixtureCodes(some_zero, factorised()),
        "mixture of mixtures": MixtureCodes(
            torch.randn(2), MixtureCodes(torch.randn(2, C), factorised(2))
        ),
        "prior": MixturePrior(D, K, C)(),
        "expanded": MixtureCodes(torch.randn(1, C), factorised(1)).expand((3,)),
        "alike": MixtureCodes(torch.randn(C), AutoregressivePrior(D, K)().expand((C,))),
    }


@pytest.mark.parametrize("name", mixtures())
def test_is_a_distribution_with_its_own_conditionals(name: str) -> None:
    check_codes(mixtures()[name])


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("make", [factorised, sequential])
def test_is_the_weighted_sum_of_its_components(make: Any, batch: tuple[int, ...]) -> None:
    log_weights, components = torch.randn(*batch, C), make(*batch)
    weights = log_weights.softmax(-1).unsqueeze(-1)  # (*batch, C, 1)
    expected = (weights * log_table(components).exp()).sum(-2).log()
    torch.testing.assert_close(log_table(MixtureCodes(log_weights, components)), expected)


def impossible() -> tuple[Tensor, Tensor]:
    """A component without category 0 at latent 0, all without it at latent 1."""
    logits = torch.randn(C, D, K)
    logits[0, 0, 0] = logits[:, 1, 0] = -math.inf
    log_weights = torch.randn(C)
    log_weights[1] = -math.inf
    return log_weights.requires_grad_(), logits.requires_grad_()


def test_impossible_categories_give_no_nan() -> None:
    log_weights, logits = impossible()
    p = MixtureCodes(log_weights, dist.OneHotCategorical(logits=logits).to_event(1))
    check_normalised(p)
    check_frequencies(p)
    codes = enumerate_codes(D, K)
    log_p = p.log_prob(codes)
    assert torch.equal(log_p == -math.inf, codes[:, 1, 0] == 1)
    for latent in range(D):
        conditional = p.conditional(codes[:, :latent])
        torch.testing.assert_close(conditional.exp().sum(-1), torch.ones(conditional.shape[:-1]))
    log_p.nan_to_num(neginf=0.0).sum().backward()
    assert log_weights.grad is not None
    assert logits.grad is not None
    assert log_weights.grad.isfinite().all()
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("make", [factorised, sequential])
def test_gradients(make: Any) -> None:
    """In weights, parameters and relaxed codes."""
    log_weights = torch.randn(C, requires_grad=True)
    z = torch.rand(4, D, K).requires_grad_()
    if make is factorised:
        theta = torch.randn(C, D, K, requires_grad=True)
    else:
        network, theta = CausalNetwork(D, K, 5, num_features=3), torch.randn(C, D, 3)
        theta.requires_grad_()

    def build(log_weights: Tensor, theta: Tensor) -> MixtureCodes:
        if make is factorised:
            return MixtureCodes(log_weights, dist.OneHotCategorical(logits=theta).to_event(1))
        return MixtureCodes(log_weights, CausalCodes(network, theta))

    assert torch.autograd.gradcheck(
        lambda w, t, z: build(w, t).log_prob(z), (log_weights, theta, z)
    )
    assert torch.autograd.gradcheck(
        lambda w, t, z: build(w, t).conditional(z[:, :2]), (log_weights, theta, z)
    )


def test_relaxed_codes_are_scored_linearly_inside() -> None:
    log_weights, logits = torch.randn(C), torch.randn(C, D, K).log_softmax(-1)
    p = MixtureCodes(log_weights, dist.OneHotCategorical(logits=logits).to_event(1))
    z = torch.rand(5, D, K)
    inside = (z.unsqueeze(-3) * logits).sum((-1, -2))  # (5, C)
    expected = (log_weights.log_softmax(-1) + inside).logsumexp(-1)
    torch.testing.assert_close(p.log_prob(z), expected)


def test_float32_at_extreme_parameters() -> None:
    """Finite, gradients too, and equal to float64."""
    scale = torch.tensor([1e4, -1e4, 1e2, 0.0])
    log_weights = scale[torch.randint(4, (C,))]
    logits = scale[torch.randint(4, (C, D, K))]
    results = []
    for dtype in (torch.float32, torch.float64):
        w = log_weights.to(dtype).requires_grad_()
        b = logits.to(dtype).requires_grad_()
        p = MixtureCodes(w, dist.OneHotCategorical(logits=b).to_event(1))
        z = enumerate_codes(D, K, dtype=dtype)
        value = torch.cat([p.log_prob(z), p.conditional(z[:, :2]).flatten()])
        gradient = torch.autograd.grad(value.sum(), (w, b))
        results.append([value.detach().double(), *(g.double() for g in gradient)])
    for ours, exact in zip(*results, strict=True):
        assert ours.isfinite().all()
        torch.testing.assert_close(ours, exact, rtol=1e-5, atol=1e-3)


def test_components_differ_and_a_step_of_training_raises_the_likelihood() -> None:
    torch.manual_seed(1)
    prior = MixturePrior(D, K, 2)
    codes = enumerate_codes(D, K)[[0, -1]]  # all zero or all one: no factorised prior fits
    optimizer = torch.optim.Adam(prior.parameters(), lr=0.1)
    for _ in range(300):
        loss = -prior().log_prob(codes).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() == pytest.approx(math.log(2), abs=0.05)


def test_conditionals_of_an_expanded_batch_are_not_copied() -> None:
    p = mixtures()["factorised"].expand((1000,))
    assert isinstance(p, MixtureCodes)
    assert p.log_weights.shape == (C,)
    check_conditionals(mixtures()["factorised"].expand((2,)))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 2, 3), "Expected latents of at least 1; got 0"),
        ((1, 1, 3), "Expected categories of at least 2; got 1"),
        ((1, 2, 0), "Expected components of at least 1; got 0"),
    ],
)
def test_refuses_sizes(sizes: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MixturePrior(*sizes)
