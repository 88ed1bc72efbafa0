from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import assignments, exact_elbo, log_probs
from pyro.distributions import constraints
from pyro.distributions.torch_distribution import TorchDistribution
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from zoo import D, K, P, tiny_data, tiny_vae

from pyro_dvae import (
    Bernoulli,
    ContinuousBernoulli,
    Poisson,
    evaluate,
    log_marginal,
    refine,
    sequences,
)
from pyro_dvae.codes import code_log_probs
from pyro_dvae.evaluation import joint as joint_module
from pyro_dvae.evaluation import marginal, ordering, plan
from pyro_dvae.evaluation.joint import Joint


class _SlowBernoulli(nn.Module):
    """The same likelihood without the matrix product."""

    num_params = 1

    def forward(self, params: torch.Tensor, event_dim: int) -> Any:
        return dist.Bernoulli(logits=params).to_event(event_dim)


class _SkewedPrior(nn.Module):
    """Independent latents, not uniform."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.randn(D, K))

    def forward(self) -> Any:
        return dist.OneHotCategorical(logits=self.logits).to_event(1)


class _Largest(TorchDispatchMode):
    """The numbers in the largest tensor that any operation makes."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor):
            # What is expanded takes no memory of its own.
            self.numel = max(self.numel, made.untyped_storage().nbytes() // made.element_size())
        return made


class _TableDistribution(TorchDistribution):
    """One weight a code: the latents depend on one another."""

    arg_constraints = {}  # noqa: RUF012
    support = constraints.independent(constraints.one_hot, 1)

    def __init__(
        self, logits: torch.Tensor, batch_shape: Any = (), code: tuple[int, int] = (D, K)
    ) -> None:
        self.logits = logits.log_softmax(-1)
        super().__init__(torch.Size(batch_shape), torch.Size(code))

    def expand(self, batch_shape: Any, _instance: Any = None) -> _TableDistribution:
        return _TableDistribution(self.logits, batch_shape, tuple(self.event_shape))

    def sample(self, sample_shape: Any = ()) -> torch.Tensor:
        raise AssertionError("evaluation draws from q alone")

    def log_prob(self, value: torch.Tensor) -> torch.Tensor:
        latents, categories = self.event_shape
        place = categories ** torch.arange(latents - 1, -1, -1, device=value.device)
        log_prob = self.logits[(value.argmax(-1) * place).sum(-1)]
        return log_prob.expand(torch.broadcast_shapes(log_prob.shape, self.batch_shape))


class _TablePrior(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(2 * torch.randn(K**D))

    def forward(self) -> Any:
        return _TableDistribution(self.logits)


PRIORS = {"uniform": None, "skewed": _SkewedPrior, "dependent": _TablePrior}


def _vae(prior: str = "uniform", device: Any = "cpu") -> Any:
    vae = tiny_vae()
    if PRIORS[prior] is not None:
        vae.prior = PRIORS[prior]()
    return vae.to(device)


def _close(first: Any, second: Any) -> None:
    """Equal to 1e-12, whatever the figures are made of."""
    first, second = dataclasses.asdict(first), dataclasses.asdict(second)
    assert first.pop("standard_errors") == pytest.approx(
        second.pop("standard_errors"), rel=1e-12, abs=1e-12
    )
    assert first.keys() == second.keys()
    for name, value in first.items():
        other = second[name]
        assert value == (other and pytest.approx(other, rel=1e-12, abs=1e-12)), name


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("likelihood", [None, _SlowBernoulli()])
def test_every_part_is_the_oracles(likelihood: Any, prior: str, device: torch.device) -> None:
    vae, x = _vae(prior, device), tiny_data(5).to(device)
    if likelihood is not None:
        vae.likelihood = likelihood
    scores = evaluate(vae, x)
    rows = [
        [torch.stack(log_probs(vae, row[None], z)) for z in assignments(vae, row[None])]
        for row in x
    ]
    log_lik, log_p, log_q = torch.stack([torch.stack(row) for row in rows]).detach().movedim(-1, 0)
    q = log_q.exp()  # (N, K^D)

    def mean(values: torch.Tensor) -> Any:
        return pytest.approx(values.sum(-1).mean().item(), abs=1e-10)

    assert scores.log_likelihood == mean(q * log_lik)
    assert scores.log_prior == mean(q * log_p)
    assert scores.entropy == mean(-q * log_q)
    assert scores.kl == mean(q * (log_q - log_p))
    elbo = sum(exact_elbo(vae, row[None]).item() for row in x) / 5
    assert scores.elbo == pytest.approx(elbo, abs=1e-10)
    marginal = (log_lik + log_p).logsumexp(-1, keepdim=True)
    assert scores.log_marginal == mean(marginal)
    assert scores.posterior_gap == mean(q * (log_q - (log_lik + log_p - marginal)))
    assert scores.standard_errors == {}
    assert scores.num_data == 5
    assert scores.elbo <= scores.log_marginal
    if prior == "uniform":
        assert scores.log_prior == pytest.approx(-D * math.log(K), abs=1e-10)
    if likelihood is None:
        bits = -elbo / (P * math.log(2))
        assert scores.bits_per_dimension == pytest.approx(bits, abs=1e-10)
    else:
        assert scores.bits_per_dimension is None


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("exact", [None, False])
def test_batches_do_not_matter(
    exact: bool | None, prior: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    vae, x = _vae(prior), tiny_data(15)
    asked = {"importance_samples": 20, "exact": exact}
    whole = evaluate(vae, x, batch_size=15, **asked)
    for batch_size in (1, 7):  # of 7, the last has one datum
        _close(evaluate(vae, x, batch_size=batch_size, **asked), whole)
    for elements in (1, 12, 100):
        monkeypatch.setattr(plan, "_TABLE_ELEMENTS", elements)
        monkeypatch.setattr(joint_module, "_CHUNK_ELEMENTS", elements)
        monkeypatch.setattr(joint_module, "_KEPT_ELEMENTS", elements)
        monkeypatch.setattr(joint_module, "_LOOKED_UP", elements)
        _close(evaluate(vae, x, batch_size=7, **asked), whole)


def test_chunks_of_the_marginal_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    vae, x = tiny_vae(), tiny_data(7)
    whole = log_marginal(vae, x)
    monkeypatch.setattr(marginal, "ROWS", 3)
    for chunk_size in (None, 1, 2, 9, 100):
        torch.testing.assert_close(log_marginal(vae, x, chunk_size=chunk_size), whole)
    assert evaluate(vae, x).log_marginal == pytest.approx(whole.mean().item(), abs=1e-12)


@pytest.mark.parametrize("prior", PRIORS)
def test_draws_agree_with_the_sum(prior: str) -> None:
    vae, x = _vae(prior), tiny_data(50)
    exact = evaluate(vae, x)
    drawn = evaluate(vae, x, exact=False, num_samples=200)
    assert drawn.log_marginal is drawn.posterior_gap is None
    assert ("log_prior" in drawn.standard_errors) == (prior == "dependent")
    for name, error in drawn.standard_errors.items():
        assert 0 < error < 0.1
        assert abs(getattr(drawn, name) - getattr(exact, name)) <= 4.5 * error, name
    for name in {f.name for f in dataclasses.fields(exact)} - drawn.standard_errors.keys():
        if name not in ("standard_errors", "log_marginal", "posterior_gap"):
            assert getattr(drawn, name) == pytest.approx(getattr(exact, name), abs=1e-12), name
    parts = drawn.log_likelihood + drawn.log_prior + drawn.entropy
    assert drawn.elbo == pytest.approx(parts, abs=1e-12)


@pytest.mark.parametrize("prior", PRIORS)
def test_standard_errors_are_the_spread_over_seeds(prior: str) -> None:
    """Within 4.5 standard errors of a variance from 200 seeds, a relative sqrt(2 / 199)."""
    vae, x = _vae(prior), tiny_data(3)
    runs = [
        evaluate(vae, x, exact=False, num_samples=30, importance_samples=30, seed=seed)
        for seed in range(200)
    ]
    for name in runs[0].standard_errors:
        figures = torch.tensor([getattr(run, name) for run in runs])
        claimed = torch.tensor([run.standard_errors[name] for run in runs]).square().mean()
        # The jackknife leaves out terms of order 1/k.
        assert abs(claimed / figures.var() - 1) < 4.5 * math.sqrt(2 / 199) + 0.1, name


def test_same_seed_same_figures_and_nothing_else_moves(device: torch.device) -> None:
    vae, x = tiny_vae().to(device), tiny_data(5).to(device)
    vae.train()
    vae.decoder.eval()
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state())
    asked = {"exact": False, "importance_samples": 10}
    first = evaluate(vae, x, seed=3, **asked)
    assert evaluate(vae, x, seed=3, **asked) == first
    assert evaluate(vae, x, seed=4, **asked).importance_bound != first.importance_bound
    assert evaluate(vae, x, seed=3, exact=False).elbo == first.elbo
    log_marginal(vae, x)
    assert torch.equal(torch.get_rng_state(), states[0])
    if device.type == "cuda":
        assert torch.equal(torch.cuda.get_rng_state(), states[1])
    assert vae.training
    assert vae.encoder.training
    assert not vae.decoder.training


def test_dropout_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    vae, x = tiny_vae(), tiny_data(5)
    before = evaluate(vae, x)
    vae.encoder.layers.append(nn.Dropout(0.5))
    assert evaluate(vae.train(), x) == before
    monkeypatch.setattr(vae.likelihood, "check", lambda x: None)
    with pytest.raises(ValueError, match="Expected data of shape"):
        evaluate(vae, x[:, 1:])
    assert vae.training
    assert torch.is_grad_enabled()


def test_devices_agree(device: torch.device) -> None:
    vae, x = tiny_vae(), tiny_data(5)
    asked = {"exact": False, "importance_samples": 50}
    here = evaluate(vae, x, **asked)
    _close(evaluate(vae.to(device), x.to(device), **asked), here)


@torch.no_grad()
def _two_sample_bound(vae: Any, x: torch.Tensor) -> float:
    """E[log (w_1 + w_2) / 2], over all K^2D pairs of codes."""
    log_prior, log_likelihood = Joint(vae, x).all_codes(x)
    log_q = code_log_probs(vae.encode(x).double().log_softmax(-1))
    log_w = log_prior + log_likelihood - log_q  # (N, K^D)
    pair = torch.logaddexp(log_w[:, None], log_w[:, :, None]) - math.log(2)
    q = log_q.exp()
    return (q[:, None] * q[:, :, None] * pair).sum((1, 2)).mean().item()


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    num_latents=st.integers(1, 3),
    num_categories=st.integers(2, 4),
    num_data=st.integers(1, 9),
    batch_size=st.integers(1, 10),
    scale=st.sampled_from([0.0, 1.0, 100.0, 1e4]),
    double=st.booleans(),
)
def test_laws_hold_for_any_shape_and_for_extreme_logits(
    num_latents: int,
    num_categories: int,
    num_data: int,
    batch_size: int,
    scale: float,
    double: bool,
) -> None:
    dtype = torch.float64 if double else torch.float32
    torch.manual_seed(num_latents + 10 * num_categories + 100 * num_data)
    vae = tiny_vae(num_latents, num_categories).to(dtype)
    x = tiny_data(num_data).to(dtype)
    for network in (vae.encoder, vae.decoder):
        with torch.no_grad():
            bias = network.layers[-1].bias
            network.layers[-1].weight.mul_(scale)
            bias.copy_(scale * torch.randint(-1, 2, bias.shape))
    scores = evaluate(vae, x, importance_samples=30, batch_size=batch_size, refine=2)
    figures = dataclasses.asdict(scores)
    errors = figures.pop("standard_errors")
    others = ("observed_elements", "accuracy", "simple_models")
    annealed = [name for name in figures if name.startswith("annealed")]
    for name in [*others, *annealed]:  # which were not asked for
        assert figures.pop(name) is None
    unused = figures.pop("unused_categories")
    assert (unused is None) == (num_data < 10 * num_categories)
    for value in [*figures.values(), *errors.values()]:
        for number in value if isinstance(value, tuple) else [value]:
            assert math.isfinite(number)
    assert 0 <= scores.kl <= num_latents * math.log(num_categories) + 1e-9
    assert sum(scores.kl_per_latent) == pytest.approx(scores.kl, abs=1e-9)
    assert scores.elbo == pytest.approx(scores.log_likelihood - scores.kl)
    assert scores.posterior_gap >= -1e-9 * max(1, abs(scores.elbo))
    # P(bound - log p(x) > t) <= exp(-t), by Markov; below, draws may miss what the ELBO sums.
    assert scores.remaining_gap > -20
    rounding = (1e-9 if double else 1e-6) * abs(scores.elbo)
    assert scores.elbo <= scores.refined_elbo + rounding
    assert scores.refined_elbo <= scores.log_marginal + rounding
    assert scores.elbo <= _two_sample_bound(vae, x) + rounding
    assert _two_sample_bound(vae, x) <= scores.log_marginal + rounding
    for kl, information in zip(scores.kl_per_latent, scores.information_per_latent, strict=True):
        assert 0 <= information <= kl + 1e-9  # the prior is not the aggregate
    assert all(1 - 1e-9 <= p <= num_categories + 1e-9 for p in scores.perplexity_per_latent)
    assert 1 <= scores.code_perplexity <= scores.codes_used + 1e-9
    assert scores.codes_used <= min(num_data, num_categories**num_latents)
    json.dumps(dataclasses.asdict(scores), allow_nan=False)


def test_kl_is_never_negative_where_q_is_the_prior() -> None:
    """Rounding alone would tell them apart, in either direction."""
    for seed in range(10):
        torch.manual_seed(seed)
        vae, x = _vae("skewed"), tiny_data(5)
        logits = vae.prior.logits.detach() + 3
        vae.encoder.forward = lambda x, logits=logits: logits.expand(len(x), D, K)
        scores = evaluate(vae, x)
        assert 0 <= scores.kl < 1e-12
        assert all(0 <= kl < 1e-12 for kl in scores.kl_per_latent)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many codes or draws make smaller blocks, and codes are decoded once for all of them."""
    vae, x = tiny_vae(), tiny_data(20)
    evaluate(vae, x)  # the trial of the parts decodes a few codes, once
    encoded, decoded = [], []
    vae.encoder.register_forward_hook(lambda *call: encoded.append(len(call[2])))
    vae.decoder.register_forward_hook(lambda *call: decoded.append(call[2].numel() // P))
    evaluate(vae, x, batch_size=5)
    assert max(encoded) == 5
    assert sum(decoded) == K**D
    monkeypatch.setattr(plan, "_TABLE_ELEMENTS", 3 * K**D)
    monkeypatch.setattr(joint_module, "_CHUNK_ELEMENTS", 6 * D * K)
    encoded.clear()
    decoded.clear()
    evaluate(vae, x, importance_samples=1000)
    assert max(encoded) == 3
    assert max(decoded) == 6  # a matrix product holds the codes and the table alone
    assert sum(decoded) == K**D
    encoded.clear()
    evaluate(vae, x, exact=False, num_samples=14)
    assert max(encoded) == 1
    assert max(decoded) == 6
    monkeypatch.setattr(joint_module, "_KEPT_ELEMENTS", P * K**D - 1)
    decoded.clear()
    evaluate(vae, x)
    assert sum(decoded) == 7 * K**D  # blocks of 3


@pytest.mark.parametrize("guide", ["mean-field", "table"])
@pytest.mark.parametrize("exact", [True, False])
def test_codes_of_many_categories_are_counted(
    exact: bool, guide: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At D = 1 all codes are a K x K matrix, which must never be held at once."""
    many, limit = 512, 2**14
    monkeypatch.setattr(joint_module, "_CHUNK_ELEMENTS", limit)
    monkeypatch.setattr(sequences, "_CODE_ELEMENTS", limit)
    monkeypatch.setattr(plan, "_TABLE_ELEMENTS", limit)
    vae, x = tiny_vae(1, many), tiny_data(40)
    if guide == "table":
        logits = torch.randn(many)
        vae.posterior_family.forward = lambda said: _TableDistribution(
            logits, said.shape[:1], (1, many)
        )
    vae.encode(x), vae.decode(torch.eye(many)[:2, None])  # memory of the weights is not counted
    with torch.no_grad(), _Largest() as largest:
        evaluate(vae, x, exact=exact, importance_samples=20)
        log_marginal(vae, x)
    assert largest.numel <= 2 * limit < many**2


def test_excluded_categories_are_never_reached() -> None:
    vae, x = _vae("dependent"), tiny_data(4)
    with torch.no_grad():
        vae.prior.logits[K - 1 :: K] = -math.inf
    encoder = vae.encoder.forward
    excluded = torch.zeros(D, K)
    excluded[:, -1] = -math.inf
    vae.encoder.forward = lambda x: encoder(x) + excluded
    for exact in (True, False):
        scores = evaluate(vae, x, exact=exact, importance_samples=20)
        assert math.isfinite(scores.elbo)
        assert math.isfinite(scores.importance_bound)
        assert math.isfinite(scores.kl)


def test_too_many_codes_to_sum_the_elbo_over() -> None:
    vae, x = tiny_vae(6, 8), tiny_data(3)
    scores = evaluate(vae, x, importance_samples=10)
    assert scores.log_marginal is scores.remaining_gap is None
    assert scores.standard_errors.keys() == {
        "elbo", "log_likelihood", "importance_bound", "importance_gap", "bits_per_dimension",
    }  # fmt: skip
    assert ordering(scores) == "ELBO <= bound(10) holds."
    with pytest.raises(ValueError, match=r"65536 codes .* got K\^D = 8\^6 = 262144\. Use draws"):
        evaluate(vae, x, exact=True)
    # 10^30 codes do not fit an integer.
    assert evaluate(tiny_vae(30, 10), x, importance_samples=5).codes_used <= 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"importance_samples": 1}, "Expected importance samples of at least 2; got 1"),
        ({"num_samples": 1}, "Expected samples of at least 2; got 1"),
        ({"batch_size": 0}, "Expected batch size of at least 1; got 0"),
    ],
)
def test_bad_arguments(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate(tiny_vae(), tiny_data(2), **options)


def test_bad_data() -> None:
    with pytest.raises(ValueError, match="Expected data of at least 1; got 0"):
        evaluate(tiny_vae(), tiny_data(0))
    # The check is ours: Pyro's may be off, and torch.compile switches torch's off.
    grey = tiny_data(2) / 2 + 0.1
    with pyro.validation_enabled(False), pytest.raises(ValueError, match=r"Expected data in \{0, "):
        evaluate(tiny_vae(), grey)
    with pyro.validation_enabled(False), pytest.raises(ValueError, match=r"Expected data in \{0, "):
        log_marginal(tiny_vae(), grey)


def test_ordering_in_words() -> None:
    vae, x = tiny_vae(), tiny_data(4)
    plain = evaluate(vae, x, importance_samples=20)

    def words(**changes: Any) -> str:
        return ordering(dataclasses.replace(plain, **changes))

    errors = {"importance_bound": 0.1}
    values = {"elbo": -3.0, "importance_bound": -2.0, "log_marginal": -1.0}
    assert words(**values) == "ELBO <= bound(20) <= log p(x) holds."
    assert words(**values | {"log_marginal": None}) == "ELBO <= bound(20) holds."
    assert words(**values | {"importance_bound": None}) == "ELBO <= log p(x) holds."
    assert "not checked" in words(elbo=-3.0, importance_bound=None, log_marginal=None)
    chance = words(**values | {"importance_bound": -0.75}, standard_errors=errors)
    assert chance == (
        "ELBO <= bound(20) <= log p(x) fails: bound(20) exceeds log p(x) by 0.25 nats (standard "
        "error 0.1); Monte Carlo error explains it."
    )
    too_much = words(**values | {"importance_bound": -0.5}, standard_errors=errors)
    assert (
        "by 0.5 nats (standard error 0.1); codes that are too rare to be drawn may explain it"
        in too_much
    )
    impossible = words(elbo=-0.5, importance_bound=None, log_marginal=-1.0)
    assert (
        "ELBO exceeds log p(x) by 0.5 nats; no draws are involved, so this is a bug" in impossible
    )
    both = {"importance_bound": 0.3, "elbo": 0.4}
    assert "by 0.5 nats (standard error 0.5); Monte Carlo" in words(
        elbo=-1.5, importance_bound=-2.0, log_marginal=None, standard_errors=both
    )


class _Table(nn.Module):
    """Parameters looked up, so that float32 and double precision see the same."""

    def __init__(self, params: torch.Tensor) -> None:
        super().__init__()
        self.params = nn.Parameter(params)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return self.params[z.squeeze(-2).argmax(-1)]


def _bits(size: float) -> tuple[Any, torch.Tensor, torch.Tensor]:
    logits = size * (1 + torch.rand(6, 784)) * torch.randn(6, 784).sign()
    return Bernoulli(), logits, (logits[[0, 1, 1, 4]] > 0).float()


def _counts(size: float) -> tuple[Any, torch.Tensor, torch.Tensor]:
    rates = size * (1 + torch.rand(6, 300))
    return Poisson(), rates, torch.poisson(rates[[0, 1, 1, 4]]).float()


def _greys(size: float) -> tuple[Any, torch.Tensor, torch.Tensor]:
    logits = size * torch.randn(6, 784)
    return ContinuousBernoulli(), logits, (logits[[0, 1, 1, 4]] > 0).float()


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize(
    ("made", "size"),
    [(_bits, 3.0), (_bits, 20.0), (_bits, 1000.0), (_counts, 1e3), (_counts, 1e4), (_greys, 50.0)],
)
def test_matrix_products_in_float32_lose_no_digits(made: Any, size: float, gradients: bool) -> None:
    """Where x l and its normaliser cancel, though each is thousands of nats."""
    likelihood, params, x = made(size)
    params = params.float()
    log_p = likelihood(params.double()[:, None], 1).log_prob(x.double()[None].expand(6, -1, -1))
    right = log_p.logsumexp(0) - math.log(6)
    vae = tiny_vae(1, 6, tuple(x.shape[1:])).float()
    vae.decoder, vae.likelihood = _Table(params), likelihood
    with torch.set_grad_enabled(gradients):
        value = log_marginal(vae, x)
    assert value.dtype == torch.float64
    tolerance = 5e-4 if size < 5 else 1e-9
    torch.testing.assert_close(value.detach(), right, atol=tolerance, rtol=1e-10)
    drawn = evaluate(vae, x, exact=False, num_samples=100).log_likelihood
    double = evaluate(vae.double(), x, exact=False, num_samples=100).log_likelihood
    assert drawn == pytest.approx(double, rel=1e-6, abs=tolerance)


def test_marginal_is_differentiable() -> None:
    vae, x = _vae("skewed"), tiny_data(1)
    weights = [*vae.decoder.parameters(), vae.prior.logits]
    grad = torch.autograd.grad(log_marginal(vae, x).sum(), weights)
    joint = torch.stack([sum(log_probs(vae, x, z)[:2]) for z in assignments(vae, x)])
    exact = torch.autograd.grad(joint.logsumexp(0), weights)
    torch.testing.assert_close(grad, exact)


def test_gradient_of_the_marginal_with_excluded_codes() -> None:
    """Whole chunks of probability zero leave a finite gradient."""
    vae, x = _vae("skewed"), tiny_data(2)
    with torch.no_grad():
        vae.prior.logits[0, :2] = -math.inf
    for chunk_size in (2, 100):
        grad = torch.autograd.grad(
            log_marginal(vae, x, chunk_size=chunk_size).sum(), list(vae.decoder.parameters())
        )
        assert all(part.isfinite().all() for part in grad)


def test_probabilities_of_all_data_sum_to_one() -> None:
    vae = tiny_vae()
    every_x = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 4)
    assert log_marginal(vae, every_x).exp().sum().item() == pytest.approx(1, abs=1e-12)


def test_too_many_codes() -> None:
    with pytest.raises(ValueError, match=r"1048576 codes to sum over; got K\^D = 8\^7 = 2097152"):
        log_marginal(tiny_vae(7, 8), tiny_data(1))


def test_scores_without_gradients_leave_later_gradients_whole() -> None:
    """What a distribution of codes keeps for the next block of data has no part in a gradient."""
    logits, x = torch.randn(6, 1, P, requires_grad=True), torch.ones(3, P)
    p_x = Bernoulli()(logits, 1)
    with torch.no_grad():
        kept = [p_x.log_prob(x) for _ in range(2)]
    scores = p_x.log_prob(x)
    torch.testing.assert_close(kept, [scores.detach()] * 2)
    (gradient,) = torch.autograd.grad(scores.sum(), logits)
    torch.testing.assert_close(gradient, 3 * (1 - logits.detach().sigmoid()))


@pytest.mark.parametrize("prior", PRIORS)
def test_posteriors_side_by_side(prior: str) -> None:
    vae, x = _vae(prior), tiny_data(6)
    plain, scores = evaluate(vae, x), evaluate(vae, x, refine=2)
    refined = refine(vae, x, 2)
    assert scores.elbo == scores.encoder_elbo == plain.elbo
    assert scores.refined_elbo == pytest.approx(refined.elbo.mean().item(), abs=1e-10)
    assert scores.refined_sweeps == 2
    assert scores.family_gap + scores.encoder_gap == pytest.approx(scores.posterior_gap)
    assert scores.family_gap + 1e-10 >= 0
    assert scores.encoder_gap >= scores.refined_elbo - scores.elbo - 1e-10
    for name, value in dataclasses.asdict(plain).items():
        assert value is None or getattr(scores, name) == value


@pytest.mark.parametrize("prior", PRIORS)
def test_the_exact_posterior_has_log_p_as_its_elbo(prior: str) -> None:
    vae, x = _vae(prior), tiny_data(6)
    scores = evaluate(vae, x, posterior="exact", importance_samples=3)
    plain = evaluate(vae, x)
    assert scores.elbo == pytest.approx(plain.log_marginal, abs=1e-10)
    assert scores.importance_bound == pytest.approx(plain.log_marginal, abs=1e-10)
    assert scores.encoder_elbo == pytest.approx(plain.elbo, abs=1e-10)
    assert scores.posterior_gap == pytest.approx(0, abs=1e-10)
    with pytest.raises(ValueError, match="Expected exact=True or None"):
        evaluate(vae, x, posterior="exact", exact=False)


def test_the_refined_posterior_by_draws() -> None:
    vae, x = _vae(), tiny_data(6)
    drawn = evaluate(vae, x, posterior="refined", refine=3, exact=False, num_samples=400)
    plain = evaluate(vae, x)
    assert drawn.elbo == drawn.refined_elbo
    assert drawn.elbo > plain.elbo + 5 * drawn.standard_errors["refined_elbo"]
    assert drawn.elbo < plain.log_marginal + 5 * drawn.standard_errors["refined_elbo"]
    difference = abs(drawn.encoder_elbo - plain.elbo)
    assert difference < 5 * drawn.standard_errors["encoder_elbo"]
    assert drawn.family_gap is None
    assert drawn.encoder_gap is None
    whole = evaluate(vae, x, exact=False, refine=3, num_samples=400)
    assert whole.elbo == whole.encoder_elbo
    assert whole.refined_elbo == drawn.refined_elbo
