"""Tests of the compiled gradient: autograd's, to rounding, from the same draws."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from zoo import ELBOS, LIKELIHOODS, make_batch, make_vae, tiny_data, tiny_vae

from pyro_dvae import (
    ContinuousBernoulli,
    DiscreteELBO,
    MLPBaseline,
    ReinforceELBO,
    RlooELBO,
    ScoreFunctionELBO,
    Trainer,
)
from pyro_dvae.training.backward import needs_no_traces
from pyro_dvae.training.compiled import CompiledBackward, torch_compiles

pytestmark = pytest.mark.skipif(not torch_compiles(), reason="this torch is too old")

BATCH_SIZE = 4
NUM_DATA = 10  # so that the last batch is short


@pytest.fixture(autouse=True)
def fast_backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The same graph, forward and backward, without the seconds that its code takes."""
    monkeypatch.setattr(CompiledBackward, "backend", "aot_eager")
    torch._dynamo.reset()  # type: ignore[no-untyped-call, unused-ignore]
    yield
    torch._dynamo.reset()  # type: ignore[no-untyped-call, unused-ignore]


def trainer(
    elbo: DiscreteELBO, prior: str = "uniform", likelihood: str = "bernoulli", **options: Any
) -> Trainer:
    torch.manual_seed(1)
    vae = make_vae(prior, likelihood)
    data = make_batch(vae, likelihood, NUM_DATA)[0]
    return Trainer(vae, elbo, data, batch_size=BATCH_SIZE, **options)


def after(trained: Trainer, epochs: int) -> Tensor:
    """Every number that training has made."""
    elbos = [record.train_elbo for record in trained.run(epochs)]
    state = [value.flatten() for value in trained.elbo.state_dict().values()]
    weights = [weight.detach().flatten() for weight in trained.vae.parameters()]
    return torch.cat([torch.tensor(elbos), *state, *weights])


def was_compiled(trained: Trainer) -> bool:
    return getattr(trained._backward, "_compiled", None) is not None


NAMES = ["reinforce", "reinforce, constant", "reinforce, running mean", "rloo"]
ANNEALED: dict[str, Any] = {"annealing": 2, "initial_beta": 3.0}
CASES: list[tuple[str, str, dict[str, Any]]] = [
    *((name, "uniform", {}) for name in NAMES),
    ("rloo", "learned", {}),
    ("rloo", "uniform", ANNEALED),
    *((name, "learned", {}) for name in ("gumbel-softmax", "st-gumbel", "gapped-st")),
    ("reinmax", "learned", ANNEALED),
    ("reinforce, running mean", "learned", ANNEALED),
]


@pytest.mark.parametrize(
    ("name", "prior", "options"),
    [*CASES[-2:], *(pytest.param(*case, marks=pytest.mark.slow) for case in CASES[:-2])],
)
def test_trains_alike(name: str, prior: str, options: dict[str, Any]) -> None:
    """With a short last batch, while beta falls, and in what the ELBO remembers."""
    eager, compiled = (
        trainer(ELBOS[name](), prior, compiled=flag, **options) for flag in (False, True)
    )
    expected, found = after(eager, 3), after(compiled, 3)
    assert was_compiled(compiled)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    assert isinstance(compiled.elbo.beta, float)


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", [name for name in LIKELIHOODS if name != "bernoulli"])
def test_whatever_the_likelihood(likelihood: str) -> None:
    trained = [
        trainer(ELBOS["rloo"](), "learned", likelihood, compiled=flag) for flag in (False, True)
    ]
    expected, found = (after(each, 2) for each in trained)
    assert was_compiled(trained[1])
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


class Centred(ScoreFunctionELBO):
    """Signals less the batch's mean."""

    is_unbiased = False

    def advantage(self, signal: Tensor) -> Tensor:
        return signal - signal.mean()


@pytest.mark.slow
def test_an_advantage_of_ones_own() -> None:
    eager, compiled = (trainer(Centred(2), compiled=flag) for flag in (False, True))
    expected, found = after(eager, 2), after(compiled, 2)
    assert was_compiled(compiled)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_a_decoder_that_is_differentiated_at_one_particle() -> None:
    elbos = [RlooELBO(3, decoder_particles=1) for _ in range(2)]
    eager, compiled = (
        trainer(elbo, compiled=flag) for elbo, flag in zip(elbos, (False, True), strict=True)
    )
    expected, found = after(eager, 2), after(compiled, 2)
    assert was_compiled(compiled)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


class Scaled(nn.Module):
    """A network, and a weight that multiplies its outputs."""

    def __init__(self, network: nn.Module, weight: nn.Parameter) -> None:
        super().__init__()
        self.network, self.weight = network, weight

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.weight * self.network(x)
        return result


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rloo", "reinmax"])
def test_a_weight_that_both_networks_share(name: str) -> None:
    def trained(compiled: bool) -> Tensor:
        torch.manual_seed(1)
        vae, shared = tiny_vae(), nn.Parameter(torch.ones(()))
        vae.encoder, vae.decoder = Scaled(vae.encoder, shared), Scaled(vae.decoder, shared)
        options: dict[str, Any] = {"batch_size": BATCH_SIZE, "compiled": compiled}
        return after(Trainer(vae, ELBOS[name](), tiny_data(NUM_DATA), **options), 2)

    torch.testing.assert_close(trained(True), trained(False), rtol=1e-10, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rloo", "reinmax"])
def test_free_bits(name: str) -> None:
    results = [
        after(trainer(ELBOS[name](free_bits=0.05), compiled=flag), 2) for flag in (False, True)
    ]
    torch.testing.assert_close(results[1], results[0], rtol=1e-10, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["network", "likelihood"])
def test_a_process_may_train_several_models(part: str) -> None:
    """Of equal shapes, so that the graph of one would do for the next."""

    def another(compiled: bool) -> Tensor:
        torch.manual_seed(1)
        vae, data = tiny_vae(), tiny_data(2 * BATCH_SIZE)
        if part == "network":
            vae.encoder.layers[1] = nn.Tanh()
        if part == "likelihood":
            vae.likelihood = ContinuousBernoulli()
        options: dict[str, Any] = {"batch_size": BATCH_SIZE, "compiled": compiled}
        return after(Trainer(vae, ELBOS["rloo"](), data, **options), 2)

    *_, _ = trainer(ELBOS["rloo"](), compiled=True).run(1)
    torch.testing.assert_close(another(True), another(False), rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_the_compiler_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own code, where there is a C++ compiler."""
    monkeypatch.setattr(CompiledBackward, "backend", "inductor")
    expected = after(trainer(ELBOS["rloo"]()), 2)
    compiled = trainer(ELBOS["rloo"](), compiled=True)
    try:
        found = after(compiled, 2)
    except UserWarning as warning:
        pytest.skip(f"no compiler: {warning}")
    assert was_compiled(compiled)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.slow
def test_continues_bit_for_bit() -> None:
    whole = trainer(ELBOS["rloo"](), compiled=True)
    first = trainer(ELBOS["rloo"](), compiled=True)
    *_, _ = first.run(1)
    second = trainer(ELBOS["rloo"](), compiled=True)
    second.load_state_dict(first.state_dict())
    assert torch.equal(after(second, 3)[-20:], after(whole, 3)[-20:])


def test_goes_on_where_compiling_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line says so, and not a draw is lost."""

    def refuse(*_: Any) -> None:
        raise RuntimeError("no compiler here\nand many lines of it")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: refuse)
    expected = after(trainer(ELBOS["rloo"]()), 2)
    compiled = trainer(ELBOS["rloo"](), compiled=True)
    with pytest.warns(UserWarning, match=r"^The training step .* \(no compiler here\); it goes on"):
        found = after(compiled, 2)
    assert not was_compiled(compiled)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The training step")  # which may say that it cannot again
def test_a_setting_changed_meanwhile_counts() -> None:
    results = []
    for flag in (False, True):
        trained = trainer(ELBOS["rloo"](), compiled=flag)
        *_, _ = trained.run(1)
        trained.elbo.free_bits = 0.05
        results.append(after(trained, 3))
    torch.testing.assert_close(results[1], results[0], rtol=1e-10, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["layer", "likelihood"])
def test_a_part_changed_between_epochs_counts(part: str) -> None:
    results = []
    for flag in (False, True):
        trained = trainer(ELBOS["rloo"](), compiled=flag)
        vae: Any = trained.vae
        *_, _ = trained.run(1)
        before = after(trained, 2)
        if part == "layer":
            vae.decoder.layers[1] = nn.Tanh()
        else:
            vae.likelihood = ContinuousBernoulli()
        results.append(after(trained, 3))
        assert not trained._backward._is_plain
        assert not torch.allclose(results[-1][0], before[0])
    torch.testing.assert_close(results[1], results[0], rtol=1e-10, atol=1e-12)


def test_refuses_an_elbo_with_a_method_of_its_own() -> None:
    class Own(RlooELBO):
        def bound(self, terms: Any) -> Tensor:
            return super().bound(terms)

    with pytest.raises(ValueError, match="whose step compiles; got Own"):
        trainer(Own(3), compiled=True)


def test_a_step_that_is_not_taken_is_not_averaged() -> None:
    trained = trainer(ELBOS["rloo"](), averaging=0.9)
    *_, _ = trained.run(1)
    with torch.no_grad():
        trained.vae.decoder.layers[-1].bias[0] = torch.nan  # type: ignore[union-attr, index]
    with pytest.raises(FloatingPointError):
        *_, _ = trained.run(2)
    assert trained.average.num_steps == 3


def test_names_what_is_not_finite() -> None:
    trained = trainer(ELBOS["rloo"](), compiled=True)
    *_, _ = trained.run(1)
    weights = [weight.detach().clone() for weight in trained.vae.parameters()]
    with torch.no_grad():
        trained.vae.decoder.layers[-1].bias[0] = torch.nan  # type: ignore[union-attr, index]
    with pytest.raises(FloatingPointError, match=r"the reconstruction term.*at step 1 of 3"):
        *_, _ = trained.run(2)
    after_it = list(trained.vae.parameters())
    assert all(torch.equal(a, b) for a, b in zip(weights[:-1], after_it[:-1], strict=True))


@pytest.mark.parametrize("name", ["reinmax-rao", "enumerated", "rebar"])
def test_refuses_what_needs_traces(name: str) -> None:
    with pytest.raises(ValueError, match=r"whose step compiles; got \w+ELBO and DiscreteVAE"):
        trainer(ELBOS[name](), compiled=True)


def test_needs_no_traces() -> None:
    vae, elbo = tiny_vae(), ELBOS["rloo"]()
    rows = (tiny_data(3),)
    assert needs_no_traces(vae, elbo, rows)
    assert needs_no_traces(vae, ELBOS["reinmax"](), rows)
    assert not needs_no_traces(vae, ELBOS["reinmax-rao"](), rows)
    assert not needs_no_traces(vae, RlooELBO(2, analytic_kl=False), rows)
    assert not needs_no_traces(vae, ReinforceELBO(baseline=MLPBaseline((4,))), rows)
    other = make_vae("autoregressive")
    assert not needs_no_traces(other, elbo, rows)
