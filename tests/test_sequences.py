"""Codes whose latents follow one another, against enumeration."""

from __future__ import annotations

import math

import pytest
import torch
from zoo import D, K

from pyro_dvae import CausalCodes, CausalNetwork, UniformPrior
from pyro_dvae.codes import enumerate_codes
from pyro_dvae.sequences import SequentialCodes, conditional_logits, expected_log


def _codes(*batch: int) -> CausalCodes:
    network = CausalNetwork(3, K, 6, num_features=4 if batch else 0)
    if not batch:
        return CausalCodes(network)
    return CausalCodes(network, torch.randn(*batch, 3, 4), torch.randn(*batch, 3, K))


@pytest.mark.parametrize("batch", [(), (5,), (2, 5)])
def test_probabilities_sum_to_one(batch: tuple[int, ...]) -> None:
    codes = _codes(*batch)
    assert codes.batch_shape == batch
    every = enumerate_codes(3, K).reshape(-1, *[1] * len(batch), 3, K)
    log_prob = codes.log_prob(every)
    assert log_prob.shape == (K**3, *batch)
    torch.testing.assert_close(log_prob.exp().sum(0), torch.ones(batch))


def test_score_is_the_chain_rule_by_hand() -> None:
    codes = _codes(5)
    z = codes.sample((2,))  # (2, 5, 3, K)
    by_hand = torch.zeros(2, 5)
    for latent in range(3):
        conditional = codes.conditional(z[..., :latent, :]).expand(2, 5, K)
        by_hand = by_hand + (conditional * z[..., latent, :]).sum(-1)
    torch.testing.assert_close(codes.log_prob(z), by_hand)


def test_a_latent_depends_on_those_before_it_alone() -> None:
    network = CausalNetwork(3, K, 6)
    z = torch.rand(3, K, requires_grad=True)
    for latent in range(3):
        (slope,) = torch.autograd.grad(network(z[:latent]).sum(), z, materialize_grads=True)
        assert (slope[latent:] == 0).all()
        (slope,) = torch.autograd.grad(network(z[:latent])[0], z, materialize_grads=True)
        assert all((slope[before] != 0).any() for before in range(latent))


def test_draws_have_the_probabilities() -> None:
    codes = _codes()
    with torch.no_grad():
        drawn = codes.sample((20_000,))
        assert drawn.shape == (20_000, 3, K)
        assert ((drawn == 0) | (drawn == 1)).all()
        assert (drawn.sum(-1) == 1).all()
        probability = codes.log_prob(enumerate_codes(3, K)).exp()
    number = (drawn.argmax(-1) * torch.tensor([K * K, K, 1])).sum(-1)
    frequency = torch.bincount(number, minlength=K**3) / 20_000
    error = (probability * (1 - probability) / 20_000).sqrt()
    assert ((frequency - probability).abs() <= 4.5 * error).all()


def test_expand_and_rows() -> None:
    codes = _codes(5)
    wider = codes.expand([4, 5])
    assert wider.batch_shape == (4, 5)
    assert codes.batch_shape == (5,)
    z = wider.sample()
    assert z.shape == (4, 5, 3, K)
    torch.testing.assert_close(wider.log_prob(z), codes.log_prob(z))
    torch.testing.assert_close(
        codes.rows(slice(1, 3)).log_prob(z[:, 1:3]), codes.log_prob(z)[:, 1:3]
    )
    alone = _codes()
    assert alone.expand([4]).log_prob(alone.sample()).shape == (4,)


def test_uniform_at_the_start() -> None:
    network = CausalNetwork(3, K, 6, uniform=True)
    z = CausalCodes(network).sample((4,))
    torch.testing.assert_close(CausalCodes(network).log_prob(z), torch.full((4,), -3 * math.log(K)))
    CausalCodes(network).log_prob(z).sum().backward()
    assert (network.to_logits[0].weight.grad != 0).any()


def test_conditionals_of_others() -> None:
    uniform = UniformPrior(D, K)()
    torch.testing.assert_close(
        conditional_logits(uniform, torch.empty(1, K)), torch.full((K,), -math.log(K))
    )

    class Other(SequentialCodes):
        def conditional(self, prefix: torch.Tensor) -> torch.Tensor:
            return torch.full((K,), -math.log(K))

    codes = Other(torch.Size(), D, K)
    assert codes.sample((2,)).shape == (2, D, K)
    with pytest.raises(NotImplementedError, match=r"needs; got .* Define rows"):
        codes.rows(slice(1))
    normal = torch.distributions.Normal(torch.zeros(D, K), 1.0).expand([D, K])
    with pytest.raises(TypeError, match="Expected codes with known conditionals"):
        conditional_logits(torch.distributions.Independent(normal, 2), torch.empty(0, K))


def test_nothing_times_minus_infinity_is_nothing() -> None:
    log_prob = torch.tensor([-math.inf, math.log(0.25), math.log(0.75)], requires_grad=True)
    weight = torch.tensor([0.0, 0.5, 0.5], requires_grad=True)
    value = expected_log(weight, log_prob)
    assert value.item() == pytest.approx(0.5 * math.log(0.25 * 0.75))
    value.backward()
    assert log_prob.grad is not None
    assert weight.grad is not None
    assert log_prob.grad.isfinite().all()
    assert weight.grad.isfinite().all()
    impossible = torch.tensor([1.0, 0.0, 0.0])
    assert expected_log(impossible, log_prob).item() == -math.inf
