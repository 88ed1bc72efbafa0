from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from zoo import GUIDES, PRIORS, make_batch, make_vae, tiny_data, tiny_vae

from pyro_dvae import evaluate, log_marginal
from pyro_dvae.evaluation import plan
from pyro_dvae.evaluation.annealed import annealed_bound, evenly_spaced


def _far(vae: Any, scale: float = 6.0) -> Any:
    """The same model, with a guide that is far from its posterior."""
    with torch.no_grad():
        for network in (vae.encoder, vae.decoder):
            network.layers[-1].weight.mul_(scale)
    return vae


@pytest.mark.parametrize("sweeps", [1, 3])
@pytest.mark.parametrize("name", [*PRIORS, *(f"guide {name}" for name in GUIDES), "masked"])
def test_the_mean_weight_is_p_of_x(name: str, sweeps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """E[w] = p(x) for any number of steps; here the mean over 2,000 chains."""
    monkeypatch.setattr(plan, "_MOST_NUMBERS", 0)  # drawn codes are decoded, as where K^D is large
    torch.manual_seed(1)
    likelihood = "masked" if name == "masked" else "bernoulli"
    options = {"prior": name} if name in PRIORS else {"likelihood": likelihood}
    if name.startswith("guide "):
        options = {"guide": name.removeprefix("guide ")}
    vae = _far(make_vae(**options))
    batch = make_batch(vae, likelihood, 2)
    found = annealed_bound(vae, *batch, sweeps=sweeps, chains=2_000)
    error = (found.log_marginal - log_marginal(vae, *batch)).detach().abs()
    # The logarithm of a mean is too low by half its variance.
    assert (error <= 4.5 * found.variance.sqrt() + found.variance).all()
    assert (found.variance > 0).all()


def test_the_bound_rises_with_sweeps_and_with_chains_to_log_p() -> None:
    torch.manual_seed(0)
    vae = _far(tiny_vae(3, 4, (6,)), 15)
    x = tiny_data(1, (6,)).expand(1_000, -1)  # a chain of its own for each copy
    log_p = log_marginal(vae, x[:1]).item()
    means, errors = [], []
    for sweeps, chains in ((1, 2), (4, 2), (20, 2), (20, 10)):
        bound = annealed_bound(vae, x, sweeps=sweeps, chains=chains).log_marginal
        means.append(bound.mean().item())
        errors.append(bound.std().item() / math.sqrt(len(x)))
    for number in range(3):
        error = math.hypot(*errors[number : number + 2])
        assert means[number + 1] - means[number] > 4.5 * error
    assert means[-1] <= log_p + 4.5 * errors[-1]
    assert means[-1] > log_p - 0.1


def test_a_guide_that_is_wrongly_certain_is_left() -> None:
    vae = tiny_vae()
    with torch.no_grad():
        last = vae.encoder.layers[-1]
        last.weight.zero_()
        last.bias.zero_()
        last.bias[0] = 200.0  # q(z_1 = 0|x) is 1 in double precision
    x = tiny_data(2)
    found = annealed_bound(vae, x, sweeps=20, chains=500)
    error = (found.log_marginal - log_marginal(vae, x)).abs()
    assert (error <= 4.5 * found.variance.sqrt() + found.variance).all()
    assert (log_marginal(vae, x) - evaluate(vae, x).elbo > 0.5).any()


def test_codes_without_probability_have_no_weight() -> None:
    """Under a prior that forbids categories, chains that start there count as 0."""
    vae = make_vae("learned")
    with torch.no_grad():
        vae.prior.logits[0, 0] = -math.inf
    x = tiny_data(2)
    found = annealed_bound(vae, x, sweeps=3, chains=2_000)
    error = (found.log_marginal - log_marginal(vae, x)).abs()
    assert (error <= 4.5 * found.variance.sqrt() + found.variance).all()


def test_evaluate_adds_what_the_chains_add() -> None:
    vae, x = _far(tiny_vae()), tiny_data(7)
    assert evenly_spaced(7, 3).tolist() == [0, 2, 4]
    some = evaluate(vae, x, ais=2, ais_data=3, ais_chains=4, seed=5)
    found = annealed_bound(vae, x[[0, 2, 4]], sweeps=2, chains=4, seed=5).log_marginal
    elbos = torch.tensor([evaluate(vae, row[None]).elbo for row in x[[0, 2, 4]]])
    gap = found - elbos
    assert some.annealed_gap == pytest.approx(gap.mean().item())
    assert some.annealed_bound == pytest.approx(some.elbo + gap.mean().item())
    spread = gap.std().item() / math.sqrt(3)
    assert some.standard_errors["annealed_bound"] == pytest.approx(spread)
    assert (some.annealed_sweeps, some.annealed_chains, some.annealed_data) == (2, 4, 3)
    every = evaluate(vae, x, ais=2, ais_data=99, exact=False)
    found, variance = annealed_bound(vae, x, sweeps=2)
    assert every.annealed_data == 7
    assert every.annealed_bound == pytest.approx(found.mean().item())
    error = variance.sum().sqrt().item() / 7
    assert every.standard_errors["annealed_bound"] == pytest.approx(error)
    gap_error = math.hypot(error, every.standard_errors["elbo"])
    assert every.standard_errors["annealed_gap"] == pytest.approx(gap_error)
    assert "annealed(2)" in repr(every)
    assert evaluate(vae, x).annealed_bound is None


def test_an_estimated_log_z_has_its_error_in_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    vae, x = make_vae("boltzmann"), tiny_data(3)
    monkeypatch.setattr(vae.prior, "log_prob_error", lambda: 3.0)
    scores = evaluate(vae, x, ais=1)
    assert scores.standard_errors["annealed_bound"] > 3
    assert scores.standard_errors["annealed_gap"] < 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sweeps": 0}, "sweeps of annealed importance sampling of at least 1; got 0"),
        ({"sweeps": 1, "chains": 1}, "chains of at least 2; got 1"),
    ],
)
def test_refuses(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        annealed_bound(tiny_vae(), tiny_data(2), **options)
    with pytest.raises(ValueError, match="data of annealed importance sampling of at least 2"):
        evaluate(tiny_vae(), tiny_data(2), ais=1, ais_data=1)
