from __future__ import annotations

import copy
import math
from typing import Any

import pyro
import pytest
import torch
from pdvae_cli.figures import print_figures
from torch import Tensor
from zoo import D, K, tiny_data, tiny_vae

from pyro_dvae import BoltzmannPrior, Config, RlooELBO, Trainer, evaluate, log_marginal
from pyro_dvae.codes import enumerate_codes

PAIRS = ["all", "bipartite"]


def prior(
    strength: float = 0.7, pairs: Any = "all", size: tuple[int, int] = (3, 3), **options: Any
):
    """A Boltzmann prior with drawn weights."""
    made = BoltzmannPrior(*size, pairs, **options)
    with torch.no_grad():
        for weight in made.parameters():
            weight.normal_(0, strength)
    return made


def large(*arguments: Any, **options: Any) -> BoltzmannPrior:
    """The same, treated as if its codes could not be summed."""
    return prior(*arguments, max_codes=1, **options)


def by_definition(made: BoltzmannPrior, codes: Tensor) -> Tensor:
    score = (codes * made.field).sum((-2, -1))
    for (d, e), weight in zip(made.pairs.tolist(), made.couplings, strict=True):
        score = score + torch.einsum(
            "...k,kl,...l->...", codes[..., d, :], weight, codes[..., e, :]
        )
    return score


def exact_log_normaliser(made: BoltzmannPrior) -> Tensor:
    return by_definition(made, enumerate_codes(made.num_latents, made.num_categories)).logsumexp(0)


def test_pairs() -> None:
    assert BoltzmannPrior(3, 2).pairs.tolist() == [[0, 1], [0, 2], [1, 2]]
    assert BoltzmannPrior(3, 2, "bipartite").pairs.tolist() == [[0, 2], [1, 2]]
    halves = BoltzmannPrior(5, 2, "bipartite")
    assert halves.pairs.tolist() == [[d, e] for d in range(3) for e in (3, 4)]
    assert halves.blocks == [slice(0, 3), slice(3, 5)]


@pytest.mark.parametrize("options", [{}, {"max_codes": 1}])
def test_uniform_before_training(options: dict[str, int]) -> None:
    made = BoltzmannPrior(3, 4, **options).eval()
    p = made()
    torch.testing.assert_close(p.log_prob(enumerate_codes(3, 4)), torch.full((64,), -math.log(64)))
    assert p.log_normaliser_error == 0
    assert made.sequential is not bool(options)


@pytest.mark.parametrize("pairs", PAIRS)
def test_scores_and_conditionals_are_sums_over_codes(pairs: str) -> None:
    made = prior(2.0, pairs)
    codes = enumerate_codes(3, 3)
    expected = by_definition(made, codes) - exact_log_normaliser(made)
    p = made()
    torch.testing.assert_close(p.log_prob(codes), expected)
    torch.testing.assert_close(p.expand([27]).log_prob(codes.expand(2, 27, 3, 3))[1], expected)
    torch.testing.assert_close(p.log_normaliser, exact_log_normaliser(made))
    for latent in range(3):
        joint = expected.exp().view(3**latent, 3, -1).sum(-1)
        conditional = (joint / joint.sum(-1, keepdim=True)).repeat_interleave(3 ** (3 - latent), 0)
        found = p.conditional(codes[:, :latent]).exp()
        torch.testing.assert_close(found.expand(27, 3), conditional)


def test_between_codes_the_chain_rule_holds() -> None:
    p = prior(2.0)()
    z = torch.rand(4, 5, 3, 3).softmax(-1)
    chain = sum((z[..., d, :] * p.conditional(z[..., :d, :])).sum(-1) for d in range(3))
    torch.testing.assert_close(p.log_prob(z), chain)
    z.requires_grad_()
    chain = sum((z[..., d, :] * p.conditional(z[..., :d, :])).sum(-1) for d in range(3))
    (by_chain,) = torch.autograd.grad(chain.sum(), z, retain_graph=True)
    (by_energy,) = torch.autograd.grad(p.log_prob(z).sum(), z, retain_graph=True)
    # Along the simplex, which is where relaxed codes move.
    tangent = [slope - slope.mean(-1, keepdim=True) for slope in (by_chain, by_energy)]
    torch.testing.assert_close(*tangent)


def test_score_of_probabilities_is_the_mean_score() -> None:
    made = large()
    q = torch.rand(3, 3).softmax(-1)
    codes = enumerate_codes(3, 3)
    weight = (codes * q).sum(-1).prod(-1)
    p = made.eval()()
    torch.testing.assert_close(p.log_prob(q), (weight * p.log_prob(codes)).sum())


@pytest.mark.parametrize("make", [prior, large])
@pytest.mark.parametrize("pairs", PAIRS)
def test_draws_have_the_probabilities(make: Any, pairs: str) -> None:
    made = make(1.0, pairs, num_sweeps=30).eval()
    draws = made().expand([2]).sample((4000,))
    assert draws.shape == (4000, 2, 3, 3)
    codes = enumerate_codes(3, 3)
    assert (draws.sum(-1) == 1).all()
    counts = (draws.flatten(0, 1)[:, None] == codes).flatten(2).all(-1).sum(0)
    mean = 8000 * (by_definition(made, codes) - exact_log_normaliser(made)).exp().detach()
    chi_square = ((counts - mean) ** 2 / mean).sum()
    assert chi_square < 26 + 4.5 * math.sqrt(2 * 26)


@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("strength", [0.3, 3.0])
def test_estimate_is_within_its_error(pairs: str, strength: float) -> None:
    made = large(strength, pairs, (4, 3)).eval()
    exact = exact_log_normaliser(made).item()
    assert abs(made.estimate_log_normaliser(400, 400)[0] - exact) < 0.2
    found = [made.estimate_log_normaliser(100, 40, seed) for seed in range(20)]
    off = torch.tensor([(value - exact) / error for value, error in found])
    assert off.abs().max() < 4.5
    assert abs(off.mean()) < 4.5 / math.sqrt(20)
    assert 0.5 < off.std() < 2  # the error is of the right size


def test_more_temperatures_lower_the_error() -> None:
    made = large(2.0)
    assert made.estimate_log_normaliser(200, 300)[1] < made.estimate_log_normaliser(200, 5)[1] / 3


def test_estimate_is_made_anew_for_other_weights_in_eval_mode_alone() -> None:
    made = large()
    made()
    assert made.log_normaliser_error == 0
    made.eval()
    state = torch.get_rng_state()
    p = made()
    assert torch.equal(torch.get_rng_state(), state)
    assert 0 < p.log_normaliser_error < 0.1
    assert abs(p.log_normaliser - exact_log_normaliser(made)) < 4.5 * p.log_normaliser_error
    better = made.estimate_log_normaliser(300, 2000)[0]
    assert made().log_normaliser == better  # and kept
    with torch.no_grad():
        made.couplings.add_(1e-6)
    assert made().log_normaliser != better
    again = copy.deepcopy(made)
    assert again().log_normaliser == made().log_normaliser


@pytest.mark.parametrize("training", [True, False])
def test_log_marginal_is_one_estimate_in_both_modes(training: bool) -> None:
    vae, x = tiny_vae(3, 3), tiny_data(4)
    vae.prior = made = large(num_chains=5)
    right = _log_marginal_by_definition(vae, x)
    value = log_marginal(vae.train(training), x)
    error = made.log_normaliser_error
    assert 0 < error < 0.1
    assert ((value - right).abs() < 4.5 * error).all()
    assert torch.equal(value, log_marginal(vae.train(not training), x))
    with torch.no_grad():  # to other weights, by a step that no evaluation saw
        made.couplings.mul_(1.5)
    right = _log_marginal_by_definition(vae, x)
    assert ((log_marginal(vae.train(training), x) - right).abs() < 4.5 * error).all()


def _log_marginal_by_definition(vae: Any, x: Tensor) -> Tensor:
    codes = enumerate_codes(3, 3)
    log_p = by_definition(vae.prior, codes) - exact_log_normaliser(vae.prior)
    return (log_p + vae.decode(codes[:, None]).log_prob(x).T).logsumexp(-1)


def test_figures_show_the_error_of_log_z(capsys: pytest.CaptureFixture[str]) -> None:
    """Also what is summed over all codes; the gaps, where log Z cancels, are exact."""
    vae, x = tiny_vae(3, 3), tiny_data(4)
    vae.prior = made = large()
    scores = evaluate(vae, x)
    error = made.log_normaliser_error.item()
    named = ("elbo", "log_prior", "kl", "log_marginal")
    assert {name: scores.standard_errors[name] for name in named} == dict.fromkeys(named, error)
    assert set(scores.standard_errors) == {*named, "bits_per_dimension"}
    print_figures(scores, "test", Config(prior="boltzmann"))
    words = capsys.readouterr().out
    assert f"ELBO {scores.elbo:.2f} ± {error:.2g} nats/image (log Z estimated; " in words
    assert f"log p(x) {scores.log_marginal:.2f} ± {error:.2g} (log Z estimated, all" in words
    assert "exact" not in words
    right = _log_marginal_by_definition(vae, x).mean().item()
    assert abs(scores.log_marginal - right) < 4.5 * error
    posterior = vae.posterior(x)
    q = posterior.log_prob(enumerate_codes(3, 3)[:, None]).T
    joint = (
        by_definition(made, enumerate_codes(3, 3))
        + vae.decode(enumerate_codes(3, 3)[:, None]).log_prob(x).T
    )
    gap = (q.exp() * (q - joint.log_softmax(-1))).sum(-1).mean().item()
    assert scores.posterior_gap == pytest.approx(gap, abs=1e-10)


def test_value_in_training_follows_the_weights() -> None:
    """By the mean of E_now - E_then over draws of p now, which is at least the change of log Z."""
    made = large(num_chains=4000)
    made.eval()()
    made.train()
    with torch.no_grad():
        made.couplings.mul_(1.1)
    made.advance(30)
    change = made().log_normaliser - made.log_normaliser
    then = made._energy(made.estimated_field, made.estimated_couplings).table()
    now = made._energy(made.field, made.couplings).table()
    p, difference = now.softmax(0), now - then
    mean = (p * difference).sum()
    error = ((p * (difference - mean).square()).sum() / 4000).sqrt()
    assert error > 0
    assert abs(change - mean) <= 4.5 * error
    assert mean >= now.logsumexp(0) - then.logsumexp(0)


@pytest.mark.parametrize("pairs", PAIRS)
def test_gradient_of_persistent_chains(pairs: str) -> None:
    made = large(1.0, pairs, num_chains=4000)
    made.advance(30)
    made().log_normaliser.backward()
    found = [weight.grad.clone() for weight in made.parameters()]
    made.zero_grad()
    exact_log_normaliser(made).backward()
    for weight, mean in zip(made.parameters(), found, strict=True):
        p = weight.grad  # the probability that the pair is so: an indicator's variance is known
        assert ((mean - p).abs() < 4.5 * (p * (1 - p) / 4000).sqrt() + 1e-12).all()


def test_exact_gradient() -> None:
    made = prior()
    found = torch.autograd.grad(made().log_normaliser, list(made.parameters()))
    torch.testing.assert_close(
        found, torch.autograd.grad(exact_log_normaliser(made), list(made.parameters()))
    )


def test_chains_move_once_a_step_of_training() -> None:
    made = large(num_chains=50)
    start = made.chains.clone()
    made.eval()()
    with torch.no_grad():
        made.train()()
    assert torch.equal(made.chains, start)
    made()
    moved = made.chains.clone()
    assert not torch.equal(moved, start)
    made()
    assert torch.equal(made.chains, moved)
    optimizer = torch.optim.Adam(made.parameters(), fused=True)
    made().log_normaliser.backward()
    optimizer.step()
    made()
    assert not torch.equal(made.chains, moved)


def test_likelihood_training_finds_the_couplings() -> None:
    truth = prior(1.5)
    data = truth().sample((2000,))
    made = BoltzmannPrior(3, 3, max_codes=1)
    optimizer = torch.optim.Adam(made.parameters(), lr=0.1)
    for _ in range(100):
        optimizer.zero_grad()
        (-made().log_prob(data).mean()).backward()
        optimizer.step()
    score = made.eval()().log_prob(data).mean()
    assert abs(score - truth().log_prob(data).mean()) < 0.05


def test_estimate_and_chains_are_saved() -> None:
    made = large()
    made()
    before = made.eval()().log_prob(enumerate_codes(3, 3))
    other = BoltzmannPrior(3, 3, max_codes=1)
    other.load_state_dict(made.state_dict())
    other.estimate_log_normaliser = None  # type: ignore[assignment, method-assign]
    torch.testing.assert_close(other.eval()().log_prob(enumerate_codes(3, 3)), before)
    assert torch.equal(other.chains, made.chains)
    with torch.device("meta"):
        shapes = {k: v.shape for k, v in BoltzmannPrior(3, 3, max_codes=1).state_dict().items()}
    assert shapes == {k: v.shape for k, v in made.state_dict().items()}


@pytest.mark.parametrize("make", [prior, large])
def test_on_a_device(make: Any, device: torch.device) -> None:
    made = make()
    codes = enumerate_codes(3, 3)
    before = made.eval()().log_prob(codes)
    p = made.to(device)()
    torch.testing.assert_close(p.log_prob(codes.to(device)).cpu(), before)
    assert p.sample((5,)).device.type == device.type
    made.train()().log_prob(codes.to(device)).sum().backward()
    assert made.couplings.grad.isfinite().all()
    made.estimate_log_normaliser(10, 10)


@pytest.mark.parametrize("make", [prior, large])
@pytest.mark.parametrize("size", [1.0, 1e2, 1e4])
def test_extreme_weights_in_float32(make: Any, size: float) -> None:
    made = make(size, num_chains=10)
    narrow = copy.deepcopy(made).float()
    codes = enumerate_codes(3, 3)
    p = narrow.eval()()
    wide = made.eval()()
    torch.testing.assert_close(
        p.log_prob(codes.float()).double(), wide.log_prob(codes), atol=1e-5 * size, rtol=1e-4
    )
    p.log_prob(codes.float()).sum().backward()
    assert narrow.field.grad.isfinite().all()
    assert narrow.couplings.grad.isfinite().all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, 3), "Expected latents of a Boltzmann prior of at least 2; got 1"),
        ((2, 1), "Expected categories of at least 2; got 1"),
        ((2, 3, "some"), "Expected pairs to be one of all, bipartite; got 'some'"),
    ],
)
def test_bad_arguments(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BoltzmannPrior(*arguments)


def test_bad_settings() -> None:
    for name in ("num_chains", "chain_sweeps", "num_sweeps"):
        with pytest.raises(ValueError, match="of at least 1; got 0"):
            BoltzmannPrior(2, 3, **{name: 0})
    with pytest.raises(ValueError, match="Expected chains of at least 2; got 1"):
        large().estimate_log_normaliser(1)
    with pytest.raises(ValueError, match="Expected temperatures of at least 1; got 0"):
        large().estimate_log_normaliser(2, 0)


def trainer(x: Tensor) -> Trainer:
    pyro.set_rng_seed(0)
    vae = tiny_vae()
    vae.prior = BoltzmannPrior(D, K, max_codes=1, num_chains=20)
    return Trainer(vae, RlooELBO(2), x, x, batch_size=5, learning_rate=0.05, averaging=0.9)


def test_training_continues_where_it_stopped() -> None:
    x = tiny_data(20)
    whole, first, second = trainer(x), trainer(x), trainer(x)
    scores = [record.validation_elbo for record in whole.run(3)]
    parts = [record.validation_elbo for record in first.run(1)]
    second.load_state_dict(first.state_dict())
    parts += [record.validation_elbo for record in second.run(3)]
    assert parts == scores
    ours, theirs = second.vae.state_dict(), whole.vae.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    # What is kept is scored by the estimate of its own weights.
    whole.keep_best()
    assert evaluate(whole.vae, x).elbo == max(scores)
    errors = evaluate(whole.vae.train(), x).standard_errors
    assert errors["elbo"] >= whole.vae.prior.log_normaliser_error > 0
