from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from oracle import assignments, log_probs
from zoo import D, K, tiny_data, tiny_vae

from pyro_dvae import evaluate
from pyro_dvae.codes import code_log_probs, drawn_log_probs
from pyro_dvae.evaluation import plan, scoring
from pyro_dvae.evaluation.importance import (
    draw_in_chunks,
    importance_bound,
    log_mean_exp,
)
from pyro_dvae.evaluation.joint import DecodedBlock, Joint, TabulatedBlock
from pyro_dvae.posteriors import FactorisedPosterior


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _sharp(num_data: int = 1) -> Any:
    """A model whose guide is far from its posterior, and data."""
    vae = tiny_vae()
    with torch.no_grad():
        for network in (vae.encoder, vae.decoder):
            network.layers[-1].weight.mul_(4)
    return vae, tiny_data(num_data)


def _log_weights(vae: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """log w and log q of every code, (K^D,), for one datum, by running the programs."""
    rows = [torch.stack(log_probs(vae, x, z)) for z in assignments(vae, x)]
    log_lik, log_p, log_q = torch.stack(rows).detach().T
    return log_lik + log_p - log_q, log_q


def draw_categories(
    log_q: torch.Tensor, num_samples: int, generator: torch.Generator
) -> torch.Tensor:
    return FactorisedPosterior(log_q).draw(slice(None), num_samples, generator)[0]


def test_draws_have_the_probabilities() -> None:
    logits = torch.randn(3, D, K).log_softmax(-1)
    index = draw_categories(logits, 20_000, _generator())  # (B, S, D)
    frequency = torch.nn.functional.one_hot(index, K).double().mean(1)
    error = (logits.exp() * (1 - logits.exp()) / 20_000).sqrt()
    assert ((frequency - logits.exp()).abs() <= 4.5 * error).all()
    # The latents are drawn independently.
    both = ((index[..., 0] == 0) & (index[..., 1] == 0)).double().mean(1)
    expected = logits.exp()[:, 0, 0] * logits.exp()[:, 1, 0]
    assert ((both - expected).abs() <= 4.5 * (expected / 20_000).sqrt()).all()


def test_improbable_and_impossible_categories() -> None:
    logits = torch.tensor([-math.inf, 0.0, -math.inf, -1e4, -math.inf])
    index = draw_categories(logits.log_softmax(-1).expand(1, 1, 5), 10_000, _generator())
    assert (index == 1).all()


def test_uniforms_at_the_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.tensor([-math.inf, 0.3, 0.1, -math.inf]).log_softmax(-1).expand(1, 1, 4)
    for uniform, category in ((0.0, 1), (1 - 2**-53, 2)):
        monkeypatch.setattr(
            torch, "rand", lambda *shape, u=uniform, **options: torch.full(shape, u).double()
        )
        assert draw_categories(logits, 1, _generator()).item() == category
    # Nine ninths, rounded, leave a gap below 1 that must not belong to the impossible tenth.
    logits = torch.cat([torch.zeros(9), torch.tensor([-math.inf])]).log_softmax(-1)
    assert logits.exp().cumsum(-1)[-1] < 1 - 2**-53
    assert draw_categories(logits.expand(1, 1, 10), 1, _generator()).item() == 8


@pytest.mark.parametrize("limit", [1, 3, 4, 11, 12, 35, 1000])
def test_draws_do_not_depend_on_chunks(limit: int) -> None:
    logits = torch.randn(5, D, K).log_softmax(-1)
    whole = draw_categories(logits, 7, _generator())
    chunked = torch.full_like(whole, -1)
    for rows, draws, index, _ in draw_in_chunks(
        FactorisedPosterior(logits), 5, 7, limit, _generator()
    ):
        assert index.shape[0] * index.shape[1] <= limit
        chunked[rows, draws] = index
    assert torch.equal(chunked, whole)
    one = _generator()
    rows = [draw_categories(row[None], 7, one) for row in logits]
    assert torch.equal(torch.cat(rows), whole)


@pytest.mark.parametrize("limit", [1, 5, 1000])
def test_bound_is_the_mean_of_weights_inside_the_logarithm(limit: int) -> None:
    vae, x = _sharp(4)
    log_q = vae.encode(x).log_softmax(-1).detach()
    index = draw_categories(log_q, 9, _generator())
    with torch.no_grad():
        for block_type in (DecodedBlock, TabulatedBlock):
            block = block_type(Joint(vae, x), x)
            bound, variance = importance_bound(
                FactorisedPosterior(log_q), block.log_joint, 4, 9, limit, _generator()
            )
            for i, row in enumerate(x):
                log_w, _ = _log_weights(vae, row[None])
                number = index[i, :, 0] * K + index[i, :, 1]
                drawn = log_w[number]
                by_hand = drawn.exp().mean().log()
                assert bound[i].item() == pytest.approx(by_hand.item(), abs=1e-10)
                left_out = torch.stack(
                    [torch.cat([drawn[:j], drawn[j + 1 :]]).exp().mean().log() for j in range(9)]
                )
                jackknife = 8 / 9 * (left_out - left_out.mean()).square().sum()
                assert variance[i].item() == pytest.approx(jackknife.item(), abs=1e-10)


def test_two_samples_have_the_expectation_of_all_pairs() -> None:
    """E[log (w_1 + w_2) / 2] over all K^2D pairs, within 4.5 standard errors."""
    vae, x = _sharp()
    log_w, log_q = _log_weights(vae, x)
    exact = sum(
        (log_q[i] + log_q[j]).exp() * (torch.stack([log_w[i], log_w[j]]).logsumexp(0) - math.log(2))
        for i, j in itertools.product(range(K**D), repeat=2)
    ).item()
    elbo, marginal = (log_q.exp() * log_w).sum().item(), (log_w + log_q).logsumexp(0).item()
    assert elbo < exact < marginal
    scores = evaluate(vae, x.expand(5000, -1), importance_samples=2)
    # One datum many times: the spread over it is known without the jackknife.
    terms = scoring.datum_scores(vae, x.expand(5000, -1), bound="importance", importance_samples=2)
    error = terms.std().item() / math.sqrt(5000)
    assert abs(scores.importance_bound - exact) <= 4.5 * error
    # Of two draws the jackknife knows the squared difference alone, and errs by at most a third.
    assert 0.66 * error < scores.standard_errors["importance_bound"] < 1.34 * error


def test_bound_rises_with_k_to_the_marginal() -> None:
    vae, x = _sharp(200)
    runs = [evaluate(vae, x, importance_samples=k) for k in (2, 8, 32, 128, 2048)]
    bounds = [run.importance_bound for run in runs]
    assert runs[0].elbo < bounds[0]
    assert bounds[:4] == sorted(bounds[:4])
    last = runs[-1]
    gap = last.remaining_gap
    assert abs(gap) <= 4.5 * last.standard_errors["remaining_gap"] + 0.01 * last.posterior_gap
    assert last.importance_gap + gap == pytest.approx(last.posterior_gap, abs=1e-12)


def test_the_posterior_needs_one_weight() -> None:
    """Every weight is p(x) where q is the posterior: bound = ELBO = log p(x), without error."""
    vae, x = tiny_vae(1, 6), tiny_data(4)
    with torch.no_grad():
        log_prior, log_likelihood = Joint(vae, x).all_codes(x)
    posterior = (log_prior + log_likelihood).unsqueeze(-2)
    vae.encoder.forward = lambda x: posterior
    scores = evaluate(vae, x, importance_samples=50)
    assert scores.importance_bound == pytest.approx(scores.log_marginal, abs=1e-12)
    assert scores.elbo == pytest.approx(scores.log_marginal, abs=1e-12)
    assert scores.standard_errors["importance_bound"] < 1e-12


def test_jackknife_where_one_weight_dominates() -> None:
    """The delta method would say 1 - 1/k at most; the next weight is 40 nats away."""
    log_w = torch.tensor([[0.0, -40.0, -41.0], [0.0, 0.0, 0.0], [0.0, -math.inf, -math.inf]])
    bound, variance = log_mean_exp(log_w)
    rest = math.log(math.exp(-40) + math.exp(-41))
    # l_1 = rest, l_2 = l_3 = 0
    by_hand = 2 / 3 * ((2 / 3 * rest) ** 2 + 2 * (rest / 3) ** 2)
    assert bound.tolist() == pytest.approx([-math.log(3), 0, -math.log(3)], abs=1e-12)
    assert variance[0].item() == pytest.approx(by_hand, rel=1e-12)
    assert variance[1].item() == pytest.approx(0, abs=1e-15)
    assert variance[2].item() == math.inf


def test_jackknife_is_the_delta_method_for_many_even_weights() -> None:
    log_w = 0.5 * torch.randn(3, 10_000)
    v = log_w.softmax(-1)
    _, variance = log_mean_exp(log_w)
    torch.testing.assert_close(variance, v.square().sum(-1) - 1e-4, rtol=1e-2, atol=0)


def test_log_probabilities_of_codes() -> None:
    log_probs_ = torch.randn(2, 3, 4).log_softmax(-1)
    every = code_log_probs(log_probs_)
    assert every.shape == (2, 64)
    torch.testing.assert_close(every.exp().sum(-1), torch.ones(2))
    index = torch.tensor(list(itertools.product(range(4), repeat=3)))
    torch.testing.assert_close(drawn_log_probs(log_probs_, index.expand(2, 64, 3)), every)


def test_bound_without_a_table_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    vae, x = _sharp(6)
    tabulated = evaluate(vae, x, exact=False, importance_samples=40)
    monkeypatch.setattr(plan, "MAX_CODES", 1)
    decoded = evaluate(vae, x, importance_samples=40)
    assert decoded.importance_bound == pytest.approx(tabulated.importance_bound, rel=1e-12)
    assert decoded.elbo == pytest.approx(tabulated.elbo, rel=1e-12)
    assert decoded.standard_errors == pytest.approx(tabulated.standard_errors, rel=1e-10)
