from __future__ import annotations

import math
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from oracle import assignments, exact_elbo, log_probs
from torch import nn
from zoo import D, K, tiny_data, tiny_vae

from pyro_dvae import evaluate, log_marginal
from pyro_dvae import evaluation as module


class _SlowBernoulli(nn.Module):
    """The same likelihood without the matrix product."""

    num_params = 1

    def forward(self, params: torch.Tensor, event_dim: int) -> Any:
        return dist.Bernoulli(logits=params).to_event(event_dim)


def _marginal(vae: Any, row: torch.Tensor) -> float:
    joint = [sum(log_probs(vae, row, z)[:2]) for z in assignments(vae, row)]
    return torch.stack(joint).logsumexp(0).item()


@pytest.mark.parametrize("likelihood", [None, _SlowBernoulli()])
def test_every_part_is_the_oracles(likelihood: Any, device: torch.device) -> None:
    vae, x = tiny_vae().to(device), tiny_data(5).to(device)
    if likelihood is not None:
        vae.likelihood = likelihood
    scores = evaluate(vae, x)
    elbo = sum(exact_elbo(vae, row[None]).item() for row in x) / 5
    marginal = sum(_marginal(vae, row[None]) for row in x) / 5
    assert scores.elbo == pytest.approx(elbo, abs=1e-10)
    assert scores.log_marginal == pytest.approx(marginal, abs=1e-10)
    assert scores.log_prior == pytest.approx(-D * math.log(K), abs=1e-10)
    parts = scores.log_likelihood + scores.log_prior + scores.entropy
    assert scores.elbo == pytest.approx(parts, abs=1e-10)
    assert scores.elbo <= scores.log_marginal
    assert scores.standard_error == 0
    assert scores.num_data == 5


@pytest.mark.parametrize(("rows", "elements"), [(1, 1), (2, 12), (3, 10_000)])
def test_chunks_do_not_matter(rows: int, elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    vae, x = tiny_vae(), tiny_data(7)
    whole, whole_marginal = evaluate(vae, x), log_marginal(vae, x)
    monkeypatch.setattr(module, "_ROWS", rows)
    monkeypatch.setattr(module, "_CHUNK_ELEMENTS", elements)
    chunked = evaluate(vae, x)
    assert vars(chunked) == pytest.approx(vars(whole), abs=1e-12)
    for chunk_size in (1, 2, 9, 100):
        torch.testing.assert_close(log_marginal(vae, x, chunk_size=chunk_size), whole_marginal)


def test_draws_agree_with_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    vae, x = tiny_vae(), tiny_data(50)
    exact = evaluate(vae, x)
    monkeypatch.setattr(module, "MAX_CODES", 1)
    state = torch.get_rng_state()
    drawn = evaluate(vae, x, num_samples=200)
    assert torch.equal(state, torch.get_rng_state())
    assert drawn.log_marginal is None
    assert 0 < drawn.standard_error < 0.1
    assert abs(drawn.elbo - exact.elbo) <= 4.5 * drawn.standard_error
    assert drawn.entropy == pytest.approx(exact.entropy)
    assert evaluate(vae, x, num_samples=200) == drawn


def test_marginal_is_differentiable() -> None:
    vae, x = tiny_vae(1, 2), tiny_data(1)
    grad = torch.autograd.grad(log_marginal(vae, x).sum(), list(vae.decoder.parameters()))
    joint = torch.stack([sum(log_probs(vae, x, z)[:2]) for z in assignments(vae, x)])
    exact = torch.autograd.grad(joint.logsumexp(0), list(vae.decoder.parameters()))
    torch.testing.assert_close(grad, exact)


def test_probabilities_of_all_data_sum_to_one() -> None:
    vae = tiny_vae()
    every_x = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 4)
    assert log_marginal(vae, every_x).exp().sum().item() == pytest.approx(1, abs=1e-12)


def test_too_many_codes() -> None:
    with pytest.raises(ValueError, match=r"1048576 codes to sum over; got K\^D = 8\^7 = 2097152"):
        log_marginal(tiny_vae(7, 8), tiny_data(1))
