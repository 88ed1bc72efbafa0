"""Scores for anomaly detection against sums over all completions and codes."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn
from zoo import LIKELIHOODS, D, K, P, make_batch, make_vae

from pyro_dvae import datum_scores, log_marginal
from pyro_dvae.codes import enumerate_codes
from pyro_dvae.evaluation import (
    AnomalyScore,
    anomaly,
    anomaly_scores,
    conditional_surprise,
    excess_log_probs,
    explain,
    independent_elements,
    log_probs,
    plan,
    surprise,
)
from pyro_dvae.likelihoods.entropies import _DRAWS, datum_entropy, element_entropies
from pyro_dvae.likelihoods.masked import is_dependent

DEPENDENT = [name for name, row in LIKELIHOODS.items() if is_dependent(row.build((P,)))]
CLOSE: dict[str, Any] = {"atol": 1e-9, "rtol": 1e-9}


def model(name: str) -> tuple[Any, Tensor]:
    vae = make_vae(likelihood=name).eval()
    x = LIKELIHOODS[name].data((12, P))
    vae.likelihood.calibrate(x)
    return vae, x


def test_bits_by_the_sum_over_the_other_value() -> None:
    vae, x = model("bernoulli")
    both = log_marginal(vae, x)
    expected = torch.stack(
        [
            torch.logaddexp(
                both, log_marginal(vae, torch.cat([x[:, :j], 1 - x[:, j, None], x[:, j + 1 :]], 1))
            )
            - both
            for j in range(P)
        ],
        -1,
    )
    torch.testing.assert_close(conditional_surprise(vae, x), expected, **CLOSE)
    found = explain(vae, x)
    torch.testing.assert_close(found.values, expected, **CLOSE)
    likely = torch.where(expected < math.log(2), x, 1 - x)
    assert torch.equal(found.expected, likely)
    torch.testing.assert_close(anomaly_scores(vae, x, "conditional"), -expected.sum(-1), **CLOSE)


@pytest.mark.parametrize("name", [name for name in LIKELIHOODS if name not in DEPENDENT])
@torch.no_grad()
def test_surprise_by_the_sum_over_all_codes(name: str) -> None:
    """log p(x_p|x_r) = log p(x) - log p(x_r), and E[x_p|x_r] by Bayes' rule."""
    vae, x = model(name)
    p_x = vae.decode(enumerate_codes(D, K)[:, None])
    elements = p_x.element_log_probs(x)  # (K^D, N, P), 0 of a missing one
    rest = elements.sum(-1, keepdim=True) - elements
    log_p = elements.sum(-1).logsumexp(0)[:, None] - rest.logsumexp(0)
    expected = (-log_p).masked_fill(x.isnan(), torch.nan)
    torch.testing.assert_close(conditional_surprise(vae, x), expected, equal_nan=True, **CLOSE)
    found = explain(vae, x)
    torch.testing.assert_close(found.values, expected, equal_nan=True, **CLOSE)
    mean = (rest.softmax(0) * p_x.mean).sum(0)
    real = [2, 3] if name in ("mixed", "masked") else list(range(P))
    if vae.likelihood.kind not in ("bits", "levels"):
        torch.testing.assert_close(found.expected[:, real], mean[:, real], **CLOSE)
    total = anomaly_scores(vae, x, "conditional")
    torch.testing.assert_close(total, log_p.masked_fill(x.isnan(), 0).sum(-1), **CLOSE)


def test_drawn_codes_come_near() -> None:
    vae, x = model("bernoulli")
    exact = conditional_surprise(vae, x)
    drawn = conditional_surprise(vae, x, exact=False, importance_samples=4000, seed=3)
    assert (drawn - exact).abs().max() < 0.1
    assert torch.equal(
        drawn, conditional_surprise(vae, x, exact=False, importance_samples=4000, seed=3)
    )


@pytest.mark.parametrize("prior", ["learned", "conditional", "autoregressive"])
def test_blocks_and_labels(prior: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vae = make_vae(prior).eval()
    batch = make_batch(vae, num_data=7)
    whole = conditional_surprise(vae, *batch)
    torch.testing.assert_close(conditional_surprise(vae, *batch, batch_size=2), whole)
    excess = excess_log_probs(vae, *batch)
    monkeypatch.setattr(plan, "_TABLE_ELEMENTS", 20)
    monkeypatch.setattr(surprise, "MOST_LEVELS", 0)  # element by element, as of real numbers
    torch.testing.assert_close(conditional_surprise(vae, *batch), whole)
    torch.testing.assert_close(excess_log_probs(vae, *batch), excess)
    torch.testing.assert_close(log_probs(vae, *batch), log_marginal(vae, *batch).detach())


@pytest.mark.parametrize("name", [name for name in LIKELIHOODS if name != "multinomial"])
@torch.no_grad()
def test_excess_by_the_sum_over_all_codes(name: str) -> None:
    vae, x = model(name)
    codes = enumerate_codes(D, K)[:, None]
    p_x = vae.decode(codes)
    weights = vae.posterior(x).log_prob(codes).exp()  # (K^D, N)
    observed = ~x.isnan() if vae.likelihood.takes_missing else None
    torch.manual_seed(3)
    entropy = datum_entropy(p_x, observed)
    expected = (weights * (p_x.log_prob(x) + entropy)).sum(0)
    found = excess_log_probs(vae, x, seed=3)
    # Draws of x, where the entropy has no closed form, are others.
    noise = 0.0 if "bernoulli" in name or name in ("categorical", "normal", "laplace") else 4.0
    assert (found - expected).abs().max() <= noise / _DRAWS**0.5 * P**0.5 + 1e-9


@pytest.mark.parametrize("name", ["bernoulli", "beta"])
def test_a_scorer_of_excess_computes_the_entropies_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    vae, x = model(name)
    calls = []
    entropies = anomaly._entropies

    def counting(joint: Any) -> Tensor:
        calls.append(joint)
        return entropies(joint)

    whole = excess_log_probs(vae, x, seed=1)
    monkeypatch.setattr(anomaly, "_entropies", counting)
    scorer = anomaly.anomaly_scorer(vae, "excess", seed=1)
    torch.testing.assert_close(torch.cat([scorer(some, None) for some in x.split(2)]), whole)
    assert len(calls) == 1


@pytest.mark.parametrize("name", list(LIKELIHOODS))
@torch.no_grad()
def test_entropy_is_the_mean_surprise_of_draws(name: str) -> None:
    vae, _ = model(name)
    p_x = vae.decode(enumerate_codes(D, K))
    draws = p_x.sample((4000,))
    cost = -p_x.log_prob(draws)
    error = cost.std(0) / 4000**0.5
    own = torch.stack([datum_entropy(p_x) for _ in range(200)])
    own_error = own.std(0) / 200**0.5
    assert ((own.mean(0) - cost.mean(0)).abs() <= 4.5 * torch.hypot(error, own_error)).all()
    if name not in DEPENDENT:
        assert element_entropies(p_x).shape == p_x.mean.shape


def test_entropy_of_other_distributions() -> None:
    normal = torch.distributions.Normal(torch.zeros(3, 2), 1.5)
    from pyro.distributions import Independent

    torch.manual_seed(0)
    found = element_entropies(Independent(normal, 1))
    assert (found - normal.entropy()).abs().max() < 4.5 * 0.5**0.5 / _DRAWS**0.5


@pytest.mark.parametrize("by", get_args(AnomalyScore))
def test_scores_by_their_definitions(by: AnomalyScore) -> None:
    vae, x = model("bernoulli")
    train, validation = (LIKELIHOODS["bernoulli"].data((40, P)) for _ in range(2))
    found = anomaly_scores(vae, x, by, train=train, validation=validation)
    log_p = log_marginal(vae, x).detach()
    elements = independent_elements(vae, train)
    assert elements is not None
    usual = log_marginal(vae, validation).mean().item()
    expected = {
        "log-prob": log_p,
        "ratio": log_p - elements.log_prob(x),
        "conditional": -conditional_surprise(vae, x).sum(-1),
        "excess": excess_log_probs(vae, x),
        "typicality": -(log_p - usual).abs(),
    }[by]
    torch.testing.assert_close(found, expected)


def test_where_codes_are_too_many() -> None:
    vae, x = model("bernoulli")
    exact = excess_log_probs(vae, x)
    bound = datum_scores(vae, x, bound="importance", importance_samples=100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "_MOST_NUMBERS", -1)
        torch.testing.assert_close(log_probs(vae, x), bound)
        drawn = torch.stack([excess_log_probs(vae, x, seed=seed) for seed in range(100)])
    error = drawn.std(0) / 10
    assert ((drawn.mean(0) - exact).abs() <= 4.5 * error).all()


def test_a_swapped_pair_of_columns_surprises() -> None:
    """Of columns that are equal, the one that differs is named, though both values are usual."""
    vae = make_vae().eval()
    nn.init.zeros_(vae.decoder.layers[-1].weight)
    logits = torch.tensor([4.0, 4.0, 4.0, 4.0])

    class Decoder(nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            return logits * (2 * z[..., 0, :1] - 1)  # all on or all off

    vae.decoder = Decoder()
    x = torch.tensor([[1.0, 1.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    found = explain(vae, x)
    assert found.values[0].argmax() == 2
    assert found.expected[0, 2] == 1
    assert (found.values[1] < 0.1).all()


class TestRefusals:
    def test_dependent_elements(self) -> None:
        vae, x = model("multinomial")
        for function in (conditional_surprise, explain):
            with pytest.raises(
                ValueError, match="the surprise of single elements; got Multinomial"
            ):
                function(vae, x)
        assert anomaly_scores(vae, x, "ratio", train=x).shape == (12,)
        with pytest.raises(ValueError, match="for the score 'excess'; got Multinomial"):
            anomaly_scores(vae, x, "excess")

    def test_what_is_missing(self) -> None:
        vae, x = model("bernoulli")
        with pytest.raises(ValueError, match="train data for the score 'ratio'"):
            anomaly_scores(vae, x, "ratio")
        with pytest.raises(ValueError, match="validation data for the score 'typicality'"):
            anomaly_scores(vae, x, "typicality")
        with pytest.raises(ValueError, match="log-prob, ratio, conditional"):
            anomaly_scores(vae, x, "best")  # type: ignore[arg-type]
