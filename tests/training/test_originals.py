"""What somebody has put in the place of a method is asked by a Trainer as it is by SVI."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from oracle import gradient
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrize
from zoo import make_batch, make_vae, tiny_data, tiny_vae

from pyro_dvae import DiscreteVAE, RlooELBO, Trainer
from pyro_dvae.elbos.base import DiscreteELBO
from pyro_dvae.elbos.score_function import ScoreFunctionELBO
from pyro_dvae.training.adam import FusedAdam
from pyro_dvae.training.backward import Backward, needs_no_traces
from pyro_dvae.training.compiled import CompiledBackward, torch_compiles

Wrapper = Callable[..., Any]


def by_svi(elbo: Any, vae: Any, batch: tuple[Tensor, ...]) -> Tensor:
    pyro.set_rng_seed(3)
    loss = elbo.differentiable_loss(vae.model, vae.guide, *batch) / len(batch[0])
    return torch.cat([loss.detach().reshape(1), gradient(loss, vae)])


def by_trainer(elbo: Any, vae: Any, batch: tuple[Tensor, ...]) -> Tensor:
    with pyro.validation_enabled(False):
        backward = Backward(vae, elbo, FusedAdam([*vae.parameters()], 0.1), batch)
        pyro.set_rng_seed(3)
        loss = backward(batch, torch.zeros((), dtype=torch.float32)) / len(batch[0])
    grads = [torch.zeros_like(w) if w.grad is None else w.grad for w in vae.parameters()]
    return torch.cat([loss.reshape(1), *(grad.flatten() for grad in grads)])


def check_asked(elbo: Any, vae: Any, batch: tuple[Tensor, ...], before: Tensor) -> None:
    """The same step for both, and another than before the change."""
    expected = by_svi(elbo, vae, batch)
    assert not torch.allclose(expected, before)
    torch.testing.assert_close(by_trainer(elbo, vae, batch), expected, rtol=1e-10, atol=1e-12)


def changed_terms(terms: Any) -> Any:
    return terms._replace(
        log_likelihood=3 * terms.log_likelihood, learning_signal=3 * terms.learning_signal
    )


# Every public method of an ELBO that a step could ask -> what comes of its result.
ELBO_METHODS: dict[str, Callable[[Any], Any]] = {
    "differentiable_loss": lambda loss: 2 * loss,
    "terms": changed_terms,
    "split": changed_terms,
    "bound": lambda bound: 2 * bound,
    "objective": lambda objective: 2 * objective,
    "surrogate": lambda surrogate: 2 * surrogate,
    "wrap": lambda guide: poutine.scale(guide, scale=0.5),
    "kl_weight": lambda weight: 3 * weight,
    "closed_form_sites": lambda sites: set(),
    "advantage": lambda advantage: 2 * advantage,
}
# A Trainer asks `differentiable_loss`; a common scale cancels out.
NOT_OF_A_STEP = {"loss", "loss_and_grads", "loss_scale", "extra_repr"}


def changed(method: Wrapper, change: Callable[[Any], Any]) -> Wrapper:
    """Under the name and module of the method that it wraps."""

    @functools.wraps(method)
    def own(*args: Any, **kwargs: Any) -> Any:
        return change(method(*args, **kwargs))

    return own


def test_the_table_has_every_public_method_of_an_elbo() -> None:
    own = {
        name
        for cls in (DiscreteELBO, ScoreFunctionELBO)
        for name, member in vars(cls).items()
        if callable(member) and not name.startswith("_")
    }
    assert own == ELBO_METHODS.keys() | NOT_OF_A_STEP


@pytest.mark.parametrize("where", ["instance", "subclass", "mixin", "class", "base class"])
@pytest.mark.parametrize("name", ELBO_METHODS)
def test_methods_of_an_elbo(name: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vae, elbo = tiny_vae(), RlooELBO(3)
    batch = make_batch(vae)
    before = by_svi(elbo, vae, batch)
    change, method = ELBO_METHODS[name], getattr(RlooELBO, name)
    own = changed(method, change)
    if where == "instance":
        setattr(elbo, name, changed(getattr(elbo, name), change))
    elif where == "subclass":
        elbo = type("Own", (RlooELBO,), {name: own})(3)
    elif where == "mixin":
        elbo = type("Own", (type("Mixin", (), {name: own}), RlooELBO), {})(3)
    else:
        owner = next(cls for cls in RlooELBO.__mro__ if name in vars(cls))
        monkeypatch.setattr(RlooELBO if where == "class" else owner, name, own)
    check_asked(elbo, vae, batch, before)


def sharper(codes: Any) -> Any:
    return dist.OneHotCategorical(logits=3 * codes.base_dist.logits).to_event(1)


def with_codes(vae: Any, codes: Callable[[Any], Any]) -> Callable[[Tensor], Tensor]:
    """A program that draws z from other codes."""

    def guide(x: Tensor) -> Tensor:
        with pyro.plate("data", len(x)):
            value: Tensor = pyro.sample("z", codes(x))
        return value

    return guide


def own_model(vae: Any) -> Callable[[Tensor], Tensor]:
    def model(x: Tensor) -> Tensor:
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", vae.prior())
            value: Tensor = pyro.sample("x", vae.likelihood(2 * vae.decoder(z), 1), obs=x)
        return value

    return model


# Name -> of a model, the function to put on it.
MODEL_METHODS: dict[str, Callable[[Any], Wrapper]] = {
    "guide": lambda vae: with_codes(vae, lambda x: sharper(vae.posterior(x))),
    "model": own_model,
    "posterior": lambda vae: changed(vae.posterior, sharper),
    "encode": lambda vae: changed(vae.encode, lambda context: 3 * context),
    "decode": lambda vae: lambda z: vae.likelihood(3 * vae.decoder(z), 1),
    "prior_codes": lambda vae: changed(
        vae.prior_codes,
        lambda _: sharper(dist.OneHotCategorical(logits=torch.eye(3)[:2]).to_event(1)),
    ),
    "_draw": lambda vae: lambda codes: pyro.sample("z", sharper(codes)),
}


@pytest.mark.parametrize("where", ["instance", "subclass", "class"])
@pytest.mark.parametrize("name", MODEL_METHODS)
def test_methods_of_a_model(name: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vae, elbo = make_vae("learned"), RlooELBO(3)
    batch = make_batch(vae)
    before = by_svi(elbo, vae, batch)
    own = MODEL_METHODS[name](vae)
    if where == "instance":
        setattr(vae, name, own)
    elif where == "class":
        monkeypatch.setattr(DiscreteVAE, name, lambda _, *args: own(*args))
    else:
        vae.__class__ = type("Own", (DiscreteVAE,), {name: lambda _, *args: own(*args)})
    check_asked(elbo, vae, batch, before)


def twice(*args: Any) -> Any:
    """Of a forward hook: the output, sharper."""
    codes = args[-1]
    return sharper(codes) if hasattr(codes, "base_dist") else None


def _of_more(forward: Wrapper, params: Tensor, event_dim: int) -> Any:
    return forward(3 * params, event_dim)


PARTS: dict[str, Callable[[Any, pytest.MonkeyPatch], Any]] = {
    "forward hook on the prior": lambda vae, _: vae.prior.register_forward_hook(twice),
    "forward hook on the guide": lambda vae, _: vae.posterior_family.register_forward_hook(twice),
    "pre-hook on the guide": lambda vae, _: vae.posterior_family.register_forward_pre_hook(
        lambda _, args: (3 * args[0],)
    ),
    "pre-hook on the likelihood": lambda vae, _: vae.likelihood.register_forward_pre_hook(
        lambda _, args: (3 * args[0], args[1])
    ),
    "hook on the encoder": lambda vae, _: vae.encoder.register_forward_hook(lambda *a: 3 * a[-1]),
    "hook on a layer": lambda vae, _: vae.decoder.layers[0].register_forward_hook(
        lambda *a: 3 * a[-1]
    ),
    "forward on a layer": lambda vae, _: setattr(
        vae.decoder.layers[0], "forward", changed(vae.decoder.layers[0].forward, lambda y: 3 * y)
    ),
    "forward on the prior": lambda vae, _: setattr(
        vae.prior, "forward", changed(vae.prior.forward, sharper)
    ),
    "forward on the guide": lambda vae, _: setattr(
        vae.posterior_family, "forward", changed(vae.posterior_family.forward, sharper)
    ),
    "forward on the likelihood": lambda vae, _: setattr(
        vae.likelihood, "forward", functools.partial(_of_more, vae.likelihood.forward)
    ),
    "class of the prior": lambda vae, patch: patch.setattr(
        type(vae.prior), "forward", changed(type(vae.prior).forward, sharper)
    ),
    "class of the guide": lambda vae, patch: patch.setattr(
        type(vae.posterior_family), "forward", changed(type(vae.posterior_family).forward, sharper)
    ),
    "class of the likelihood": lambda vae, patch: patch.setattr(
        type(vae.likelihood), "log_prob", changed(type(vae.likelihood).log_prob, lambda v: 2 * v)
    ),
}


@pytest.mark.parametrize("part", PARTS)
def test_parts_of_a_model(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vae, elbo = make_vae("learned"), RlooELBO(3)
    batch = make_batch(vae)
    before = by_svi(elbo, vae, batch)
    PARTS[part](vae, monkeypatch)
    check_asked(elbo, vae, batch, before)


def test_a_uniform_prior_that_is_not() -> None:
    vae, elbo = tiny_vae(), RlooELBO(3)
    batch = make_batch(vae)
    before = by_svi(elbo, vae, batch)
    vae.prior.logits[0, 0] = 2.0
    check_asked(elbo, vae, batch, before)


def test_a_parametrised_prior() -> None:
    vae, elbo = make_vae("learned"), RlooELBO(3)
    batch = make_batch(vae)
    parametrize.register_parametrization(vae.prior, "logits", nn.Tanh())
    torch.testing.assert_close(
        by_trainer(elbo, vae, batch), by_svi(elbo, vae, batch), rtol=1e-10, atol=1e-12
    )


def test_hooks_for_every_module() -> None:
    vae, elbo = make_vae("learned"), RlooELBO(3)
    batch = make_batch(vae)
    before = by_svi(elbo, vae, batch)

    def own(module: nn.Module, _: Any, output: Any) -> Any:
        if isinstance(module, nn.Linear):
            return 3 * output
        return twice(output) if module in (vae.prior, vae.posterior_family) else None

    handle = torch_module.register_module_forward_hook(own)
    try:
        check_asked(elbo, vae, batch, before)
    finally:
        handle.remove()
    assert torch.equal(by_svi(elbo, vae, batch), before)


@pytest.mark.filterwarnings("ignore:Full backward hook")  # codes have no gradient
def test_backward_hooks_are_called() -> None:
    """With the same gradients, on networks and on what the traces alone call."""
    vae, elbo, seen = make_vae("learned"), RlooELBO(3), []
    batch = make_batch(vae)

    def look(_: Any, __: Any, grads: Any) -> None:
        seen.append(grads[0].clone())

    vae.decoder.register_full_backward_hook(look)
    by_svi(elbo, vae, batch)
    by_trainer(elbo, vae, batch)
    torch.testing.assert_close(seen[1], seen[0], rtol=1e-10, atol=1e-12)
    vae.likelihood.register_full_backward_hook(look)
    assert not needs_no_traces(vae, elbo, batch)


# Between two epochs: name -> of a trainer, a change; and whether a step needs traces after it.
MEANWHILE: dict[str, tuple[Callable[[Trainer], Any], bool]] = {
    "frozen": (lambda t: t.vae.decoder.requires_grad_(False), False),  # type: ignore[operator]
    "hook on a network": (
        lambda t: t.vae.decoder.register_forward_hook(lambda *a: 3 * a[-1]),  # type: ignore[operator]
        False,
    ),
    "forward of a network": (
        lambda t: setattr(
            t.vae.decoder, "forward", changed(t.vae.decoder.forward, lambda y: 3 * y)
        ),
        True,
    ),
    "hook on a weight": (
        lambda t: next(t.vae.decoder.parameters()).register_hook(lambda g: 0 * g),
        False,
    ),
    "decode": (lambda t: setattr(t.vae, "decode", MODEL_METHODS["decode"](t.vae)), True),
    "split": (lambda t: setattr(t.elbo, "split", changed(t.elbo.split, changed_terms)), True),
    "particles": (lambda t: setattr(t.elbo, "num_particles", 2), False),
}


# To compile takes seconds.
QUICK = {"frozen", "hook on a network", "decode"}


@contextmanager
def fast_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(CompiledBackward, "backend", "eager")
    torch._dynamo.reset()  # type: ignore[no-untyped-call, unused-ignore]
    yield
    torch._dynamo.reset()  # type: ignore[no-untyped-call, unused-ignore]


@pytest.mark.skipif(not torch_compiles(), reason="this torch is too old")
@pytest.mark.parametrize(
    "what",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MEANWHILE],
)
def test_changes_between_epochs(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager and compiled go on alike, as a trainer does that knew no other model."""
    change, needs_traces = MEANWHILE[what]
    results = []
    with fast_compiler(monkeypatch):
        for compiled in (False, True):
            torch.manual_seed(1)
            vae = tiny_vae()
            trained = Trainer(vae, RlooELBO(3), tiny_data(8), batch_size=4, compiled=compiled)
            *_, _ = trained.run(1)
            before = [weight.detach().clone() for weight in vae.parameters()]
            change(trained)
            *_, _ = trained.run(3)
            assert trained._backward._is_plain is not needs_traces
            results.append(nn.utils.parameters_to_vector(vae.parameters()).detach())
            moved = [not torch.equal(a, b) for a, b in zip(before, vae.parameters(), strict=True)]
            frozen = [not weight.requires_grad for weight in vae.parameters()]
            assert (
                all(m != f for m, f in zip(moved, frozen, strict=True))
                or what == "hook on a weight"
            )
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)


@pytest.mark.skipif(not torch_compiles(), reason="this torch is too old")
def test_thawed_weights_are_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    with fast_compiler(monkeypatch):
        vae = tiny_vae()
        trained = Trainer(vae, RlooELBO(3), tiny_data(8), batch_size=4, compiled=True)
        vae.decoder.requires_grad_(False)
        *_, _ = trained.run(1)
        before = nn.utils.parameters_to_vector(vae.decoder.parameters()).detach().clone()
        vae.decoder.requires_grad_(True)
        *_, _ = trained.run(2)
        after = nn.utils.parameters_to_vector(vae.decoder.parameters()).detach()
        assert not torch.equal(before, after)
