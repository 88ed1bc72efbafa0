from __future__ import annotations

from typing import Any

import pyro
import pyro.poutine as poutine
import pytest
import torch
from oracle import gradient
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn
from zoo import ELBOS, LIKELIHOODS, D, K, make_batch, make_vae, tiny_data, tiny_vae

from pyro_dvae import Bernoulli, MeanFieldGuide, RlooELBO, Trainer, UniformPrior
from pyro_dvae.elbos.gumbel_softmax import ConditionalGumbelELBO
from pyro_dvae.elbos.pathwise import PathwiseELBO
from pyro_dvae.elbos.score_function import ScoreFunctionELBO
from pyro_dvae.training.adam import FusedAdam
from pyro_dvae.training.backward import Backward, needs_no_traces
from pyro_dvae.training.compiled import CompiledBackward

DIRECT = [
    name
    for name in ELBOS
    if (isinstance(elbo := ELBOS[name](), ScoreFunctionELBO) and not elbo.needs_traces)
    or (isinstance(elbo, PathwiseELBO) and not isinstance(elbo, ConditionalGumbelELBO))
]
OPTIONS: list[dict[str, Any]] = [{}, {"beta": 0.3}, {"free_bits": 0.01}]


def traced(elbo: Any, vae: Any, batch: tuple[Tensor, ...]) -> Tensor:
    """Value and gradient of one loss at the seed, per datum, and a number drawn after it."""
    pyro.set_rng_seed(3)
    loss = elbo.differentiable_loss(vae.model, vae.guide, *batch)
    after = torch.rand(1)
    loss = loss / len(batch[0])
    return torch.cat([loss.detach().reshape(1), after, gradient(loss, vae)])


def written_out(elbo: Any, vae: Any, batch: tuple[Tensor, ...]) -> Tensor:
    """The same of a step of training."""
    with pyro.validation_enabled(False):
        assert needs_no_traces(vae, elbo, batch)
        backward = Backward(vae, elbo, FusedAdam([*vae.parameters()], 0.1), batch)
        pyro.set_rng_seed(3)
        loss = backward(batch, torch.zeros((), dtype=torch.float32)) / len(batch[0])
    after = torch.rand(1)
    weights = [*vae.parameters()]
    grads = [torch.zeros_like(w) if w.grad is None else w.grad for w in weights]
    return torch.cat([loss.reshape(1), after, *(grad.flatten() for grad in grads)])


def check_equal(fast: Any, slow: Any, vae: Any, batch: tuple[Tensor, ...]) -> None:
    """Draws, value and gradient, and the state that the steps leave."""
    for elbo in (fast, slow):
        elbo.loss(vae.model, vae.guide, *batch)
    for _ in range(3):
        a, b = written_out(fast, vae, batch), traced(slow, vae, batch)
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)
    assert b[2:].abs().max() > 1e-3


def test_estimators_go_directly() -> None:
    expected = {"reinforce", "reinforce, constant", "reinforce, running mean", "rloo"}
    expected |= {"reinmax", "straight-through", "gapped-st", "gumbel-softmax", "st-gumbel"}
    assert set(DIRECT) >= expected


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("prior", ["uniform", "learned"])
@pytest.mark.parametrize("name", DIRECT)
def test_equals_the_traced_path(name: str, prior: str, options: dict[str, Any]) -> None:
    vae = make_vae(prior)
    check_equal(ELBOS[name](**options), ELBOS[name](**options), vae, make_batch(vae))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("num", [1, 2, 3])
def test_differentiates_the_decoder_at_some_particles(num: int, options: dict[str, Any]) -> None:
    vae = make_vae("learned")
    fast, slow = (RlooELBO(3, decoder_particles=num, **options) for _ in range(2))
    check_equal(fast, slow, vae, make_batch(vae))
    of_all = traced(RlooELBO(3, **options), vae, make_batch(vae))
    of_some = traced(slow, vae, make_batch(vae))
    is_decoder = torch.cat(
        [
            torch.full((weight.numel(),), name.startswith("decoder"))
            for name, weight in vae.named_parameters()
        ]
    )
    value_and_guide = torch.cat([torch.ones(2, dtype=torch.bool), ~is_decoder])
    torch.testing.assert_close(of_some[value_and_guide], of_all[value_and_guide])
    assert torch.allclose(of_some, of_all) == (num == 3)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("name", ["reinforce", "rloo", "reinmax"])
def test_whatever_the_likelihood(name: str, likelihood: str) -> None:
    vae = make_vae(likelihood=likelihood)
    check_equal(ELBOS[name](), ELBOS[name](), vae, make_batch(vae, likelihood))


class OwnGuide(MeanFieldGuide):
    """Sharper than its network says."""

    def forward(self, context: Tensor) -> Any:
        return super().forward(3 * context)


class OwnPrior(UniformPrior):
    """Another one for each latent."""

    def forward(self) -> Any:
        logits = torch.arange(float(self.logits.numel()))
        shape = self.logits.shape
        return pyro.distributions.OneHotCategorical(logits=logits.view(shape)).to_event(1)


class OwnLikelihood(Bernoulli):
    """Of logits twice as large."""

    def forward(self, params: Tensor, event_dim: int) -> Any:
        return super().forward(2 * params, event_dim)


@pytest.mark.parametrize("part", ["guide", "prior", "likelihood", "all"])
@pytest.mark.parametrize("name", ["reinforce", "rloo", "reinmax"])
def test_parts_of_ones_own_are_asked(name: str, part: str) -> None:
    vae = tiny_vae()
    if part in ("guide", "all"):
        vae.posterior_family = OwnGuide()
    if part in ("prior", "all"):
        vae.prior = OwnPrior(*vae.prior.logits.shape)
    if part in ("likelihood", "all"):
        vae.likelihood = OwnLikelihood()
    check_equal(ELBOS[name](), ELBOS[name](), vae, make_batch(vae))


@pytest.mark.parametrize("num_particles", [2, 3])
@pytest.mark.parametrize("name", ["reinmax", "gumbel-softmax"])
def test_pathwise_with_several_particles(name: str, num_particles: int) -> None:
    fast, slow = (ELBOS[name](num_particles=num_particles) for _ in range(2))
    vae = make_vae("learned")
    check_equal(fast, slow, vae, make_batch(vae))


class Deaf(nn.Module):
    """A decoder that does not use the code."""

    def __init__(self, params: Tensor) -> None:
        super().__init__()
        self.params = params

    def forward(self, z: Tensor) -> Tensor:
        return self.params.expand(*z.shape[:-2], -1)


@pytest.mark.parametrize("prior", ["uniform", "learned"])
@pytest.mark.parametrize("is_trained", [False, True])
@pytest.mark.parametrize("name", ["reinmax", "gumbel-softmax"])
def test_a_decoder_that_does_not_use_the_code(name: str, is_trained: bool, prior: str) -> None:
    vae = make_vae(prior)
    params = torch.randn(vae.decoder(torch.zeros(D, K)).shape[-1])
    vae.decoder = Deaf(nn.Parameter(params) if is_trained else params)
    check_equal(ELBOS[name](), ELBOS[name](), vae, make_batch(vae))


@pytest.mark.parametrize("name", ["rloo", "reinmax"])
@pytest.mark.parametrize("frozen", ["encoder", "decoder"])
def test_with_a_frozen_network(frozen: str, name: str) -> None:
    vae = tiny_vae()
    check_equal(ELBOS[name](), ELBOS[name](), vae, make_batch(vae))
    getattr(vae, frozen).requires_grad_(False)
    found = written_out(ELBOS[name](), vae, make_batch(vae))[2:]
    getattr(vae, frozen).requires_grad_(True)
    expected = traced(ELBOS[name](), vae, make_batch(vae))[2:]
    at = [torch.full((w.numel(),), frozen in name) for name, w in vae.named_parameters()]
    torch.testing.assert_close(found, expected.masked_fill(torch.cat(at), 0))


class Standardised(ScoreFunctionELBO):
    """Signals by mean and deviation of the batch."""

    is_unbiased = False

    def advantage(self, signal: Tensor) -> Tensor:
        return (signal - signal.mean()) / signal.std()


@pytest.mark.parametrize("num_particles", [1, 3])
def test_an_advantage_of_ones_own(num_particles: int) -> None:
    elbo, vae = Standardised(num_particles), tiny_vae()
    check_equal(elbo, elbo, vae, make_batch(vae))


class Excluding(nn.Module):
    """An encoder that gives one category no chance."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, x: Tensor) -> Tensor:
        logits = self.encoder(x)
        never = torch.zeros_like(logits, dtype=torch.bool)
        never[..., 0] = True
        return logits.masked_fill(never, -torch.inf)


@pytest.mark.parametrize("prior", ["uniform", "learned"])
@pytest.mark.parametrize("name", ["reinforce", "rloo", "reinmax", "gumbel-softmax"])
def test_a_category_of_probability_zero(name: str, prior: str) -> None:
    vae = make_vae(prior)
    vae.encoder = Excluding(vae.encoder)
    check_equal(ELBOS[name](), ELBOS[name](), vae, make_batch(vae))


class Noisy(nn.Module):
    """A decoder with a site of its own."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, z: Tensor) -> Tensor:
        shift = pyro.sample("shift", pyro.distributions.Delta(torch.zeros(z.shape[:-2])))
        return self.decoder(z) + shift.unsqueeze(-1)


class Onlooker(Messenger):
    """Counts the sites that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.num_seen = 0

    def _pyro_sample(self, msg: Any) -> None:
        self.num_seen += 1


@pytest.mark.parametrize("compiled", [False, True])
def test_training_shows_its_sites_to_a_messenger(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CompiledBackward, "backend", "eager")
    trained = Trainer(tiny_vae(), ELBOS["rloo"](), tiny_data(4), batch_size=2, compiled=compiled)
    with Onlooker() as onlooker:
        list(trained.run(1))
    assert onlooker.num_seen > 0


def test_traces_where_a_messenger_looks_on() -> None:
    vae, x = tiny_vae(), tiny_data(3)
    elbo = ELBOS["rloo"]()
    assert needs_no_traces(vae, elbo, (x,))
    with poutine.scale(scale=2.0):
        assert not needs_no_traces(vae, elbo, (x,))


@pytest.mark.parametrize("prior", ["mixture", "autoregressive", "conditional"])
def test_other_models_are_not_plain(prior: str) -> None:
    vae = make_vae(prior)
    assert not needs_no_traces(vae, ELBOS["rloo"](), make_batch(vae))


def test_a_network_that_draws_is_not_plain() -> None:
    vae, x = tiny_vae(), tiny_data(3)
    vae.decoder = Noisy(vae.decoder)
    assert not needs_no_traces(vae, ELBOS["rloo"](), (x,))


def test_a_trial_run_leaves_no_trace() -> None:
    vae, x = tiny_vae(), tiny_data(3)
    before = torch.get_rng_state()
    needs_no_traces(vae, ELBOS["rloo"](), (x,))
    assert torch.equal(torch.get_rng_state(), before)
    assert not pyro.get_param_store()


def test_data_of_another_shape_are_refused() -> None:
    """Though they have as many elements as the decoder says."""
    vae, x = tiny_vae(), tiny_data(3)
    elbo = ELBOS["rloo"]()
    elbo.loss(vae.model, vae.guide, x)
    vae.decoder.output_shape = (1, *x.shape[1:])  # type: ignore[union-attr]
    with pytest.raises(ValueError, match=r"Expected data with event shape \(1, \d+\); got"):
        written_out(elbo, vae, (x,))
