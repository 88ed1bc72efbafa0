from __future__ import annotations

import math

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_dvae import Bernoulli
from pyro_dvae.likelihoods.entropies import element_entropies


@pytest.mark.parametrize("size", [19.0, 21.0, 25.0])
@pytest.mark.parametrize("is_step", [True, False])
def test_large_logits_keep_their_digits_in_double_precision(size: float, is_step: bool) -> None:
    """Torch's softplus takes l for log(1 + e^l) from 20 on, and so loses e^-20."""
    right = math.log1p(math.exp(-size))
    p_x = Bernoulli()(torch.full((2, 1, 4), size), 1)
    with torch.set_grad_enabled(is_step):
        found = p_x.log_prob(torch.ones(3, 4))
    # The terms that cancel are of the size of the logits.
    torch.testing.assert_close(found, torch.full((2, 3), -4 * right), rtol=0, atol=1e-13)
    torch.testing.assert_close(
        element_entropies(p_x),
        torch.full((2, 1, 4), right + size / (1 + math.exp(size))),
        rtol=0,
        atol=1e-14,
    )


@pytest.mark.parametrize("event", [(), (4,), (2, 3)])
@pytest.mark.parametrize(
    ("batch", "data"),
    [((), ()), ((5,), (5,)), ((3, 5), (5,)), ((7, 1), (5,)), ((2, 7, 1), (5,)), ((5,), (3, 5))],
)
def test_log_prob_is_torchs(
    event: tuple[int, ...], batch: tuple[int, ...], data: tuple[int, ...], device: torch.device
) -> None:
    logits = torch.randn((*batch, *event), device=device, requires_grad=True)
    x = torch.bernoulli(torch.full((*data, *event), 0.5, device=device))
    ours = Bernoulli()(logits, len(event))
    theirs = dist.Bernoulli(logits=logits).to_event(len(event))
    assert ours.batch_shape == theirs.batch_shape
    assert ours.event_shape == theirs.event_shape
    torch.testing.assert_close(ours.log_prob(x), theirs.log_prob(x))
    grads = [torch.autograd.grad(p.log_prob(x).sum(), logits)[0] for p in (ours, theirs)]
    torch.testing.assert_close(*grads)
    torch.testing.assert_close(ours.mean, logits.sigmoid())


def test_expansion_keeps_the_logits_and_the_numbers() -> None:
    logits = torch.randn(7, 1, 4)
    x = torch.bernoulli(torch.full((5, 4), 0.5))
    ours = Bernoulli()(logits, 1).expand([7, 5])
    assert ours.logits is logits
    assert ours.batch_shape == (7, 5)
    assert ours.sample().shape == ours.mean.shape == (7, 5, 4)
    theirs = dist.Bernoulli(logits=logits).to_event(1).expand([7, 5])
    torch.testing.assert_close(ours.log_prob(x), theirs.log_prob(x))


@pytest.mark.parametrize("scale", [1e-4, 10.0, 1e4])
def test_extreme_logits_in_float32(scale: float) -> None:
    logits = (scale * torch.randn(20, 50)).float().requires_grad_()
    x = torch.bernoulli(torch.full((20, 50), 0.5)).float()
    log_prob = Bernoulli()(logits, 1).log_prob(x)
    log_prob.sum().backward()
    exact = dist.Bernoulli(logits=logits.detach().double()).to_event(1).log_prob(x.double())
    torch.testing.assert_close(log_prob.double(), exact, rtol=1e-5, atol=1e-5)
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_draws_have_the_mean(device: torch.device) -> None:
    logits = torch.randn(6, device=device)
    draws = Bernoulli()(logits, 1).sample((20_000,))
    p = logits.sigmoid()
    assert ((draws.mean(0) - p).abs() <= 4.5 * (p * (1 - p) / 20_000).sqrt()).all()
    assert set(draws.unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("value", [0.37, -1.0, 255.0, float("nan")])
def test_grey_values_are_refused_in_one_line(value: float) -> None:
    x = torch.zeros(1000, 4)
    x[3, 2] = value
    for check in (Bernoulli().check, Bernoulli()(torch.zeros(4), 1).log_prob):
        with pytest.raises(
            ValueError, match=r"Expected data in \{0, 1\}.*got float64 values from"
        ) as error:
            check(x)
        assert "\n" not in str(error.value)


def test_wrong_event_shape() -> None:
    with pytest.raises(ValueError, match=r"event shape \(2, 2\); got \(3, 4\)"):
        Bernoulli()(torch.zeros(3, 2, 2), 2).log_prob(torch.zeros(3, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_written_out_gradients_are_those_of_cross_entropy(dtype: torch.dtype) -> None:
    """For logits of every size, data shared by particles, and second derivatives."""
    size = torch.logspace(-4, 2.5, 25, dtype=dtype)
    logits = torch.stack([torch.cat([-size, size])] * 3).unsqueeze(1).requires_grad_()  # (S, 1, P)
    x = (torch.arange(50) % 2).to(dtype).unsqueeze(0).requires_grad_()
    slow = -torch.nn.functional.binary_cross_entropy_with_logits(
        logits, x.expand_as(logits), reduction="none"
    ).sum(-1)
    fast = Bernoulli().log_prob(logits, x)
    torch.testing.assert_close(fast, slow)
    weight = torch.arange(1.0, 4.0, dtype=dtype).unsqueeze(-1)
    results = []
    for value in (fast, slow):
        first = torch.autograd.grad((weight * value).sum(), (logits, x), create_graph=True)
        (second,) = torch.autograd.grad(first[0].square().sum(), logits)
        results.append([*first, second])
    torch.testing.assert_close(*results)


def test_small_log_probabilities_keep_their_digits() -> None:
    logits = torch.tensor([[20.0], [12.0], [-9.0]], dtype=torch.float32)
    x = torch.tensor([[1.0], [1.0], [0.0]], dtype=torch.float32)
    exact = -torch.log1p(torch.exp(-logits.double().abs())).squeeze(-1)
    torch.testing.assert_close(Bernoulli().log_prob(logits, x).double(), exact, rtol=1e-6, atol=0.0)


def test_torchs_function_transforms_pass_through() -> None:
    x, logits = torch.bernoulli(torch.full((5, 4), 0.5)), torch.randn(5, 4)

    def score(row: torch.Tensor, datum: torch.Tensor) -> torch.Tensor:
        return Bernoulli()(row, 1).log_prob(datum)

    with pyro.validation_enabled(False):
        slopes = torch.func.vmap(torch.func.grad(score))(logits, x)
        torch.testing.assert_close(slopes, x - logits.sigmoid())
        one_datum = torch.func.vmap(score, in_dims=(0, None))(logits, x[0])
        one_code = torch.func.vmap(score, in_dims=(None, 0))(logits[0], x)
    torch.testing.assert_close(one_datum, Bernoulli()(logits, 1).log_prob(x[0]))
    torch.testing.assert_close(one_code, Bernoulli()(logits[0], 1).log_prob(x))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 784])
@pytest.mark.parametrize("scale", [0.0, 0.1, 3.0])
def test_pixels_scored_together_keep_their_digits(size: int, scale: float) -> None:
    """Whatever number of them shares a logarithm: no further off than sums in float32 are."""
    logits = (scale * torch.randn(200, size)).float()
    x = (logits > 0).float()
    exact = -torch.nn.functional.softplus(-logits.double().abs()).sum(-1)
    found = Bernoulli().log_prob(logits, x).double()
    torch.testing.assert_close(found, exact, rtol=5e-7, atol=0.0)
