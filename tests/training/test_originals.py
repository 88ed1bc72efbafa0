"""Whatever a user puts in the place of a method, or hooks onto a module: a Trainer obeys as SVI.

Which methods, modules, weights and hooks there are is read from the classes, so that a new one is
checked as it comes.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import ELBO
from pyro.infer.reparam import SplitReparam
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrize, prune
from zoo import make_batch, make_vae, tiny_data, tiny_vae

from pyro_dvae import DiscreteVAE, GumbelSoftmaxELBO, ReinforceELBO, ReinMaxELBO, RlooELBO, Trainer
from pyro_dvae.elbos.base import DiscreteELBO, Terms
from pyro_dvae.elbos.pathwise import PathwiseELBO
from pyro_dvae.elbos.score_function import ScoreFunctionELBO
from pyro_dvae.likelihoods.base import FlatDistribution
from pyro_dvae.likelihoods.bernoulli import IndependentBernoulli
from pyro_dvae.training.adam import FusedAdam
from pyro_dvae.training.backward import Backward
from pyro_dvae.training.compiled import CompiledBackward, torch_compiles

Context = Callable[[], AbstractContextManager[Any]]
Outcome = Tensor | type[Exception]
"""Loss and gradient of a step per datum, or what it raised."""


class Model(NamedTuple):
    """A model, an ELBO and a batch, the same at each call of `make`."""

    vae: Any
    elbo: Any
    batch: tuple[Tensor, ...]


def make(
    prior: str = "learned",
    likelihood: str = "bernoulli",
    elbo: Callable[[], Any] = lambda: RlooELBO(3),
) -> Model:
    torch.manual_seed(1)
    vae = make_vae(prior, likelihood)
    return Model(vae, elbo(), make_batch(vae, likelihood))


def _outcome(model: Model, differentiate: Callable[[], Tensor]) -> Outcome:
    weights = [*model.vae.parameters()]
    for weight in weights:
        weight.grad = None
    state = {name: value.clone() for name, value in model.elbo.state_dict().items()}
    pyro.set_rng_seed(3)
    try:
        with pyro.validation_enabled(False):
            loss = differentiate()
    except Exception as error:
        return type(error)
    finally:
        model.elbo.load_state_dict(state)
    grads = [torch.zeros_like(w) if w.grad is None else w.grad for w in weights]
    return torch.cat([loss.detach().reshape(1), *(grad.flatten() for grad in grads)])


def by_svi(model: Model) -> Outcome:
    vae, elbo, batch = model

    def differentiate() -> Tensor:
        loss = elbo.differentiable_loss(vae.model, vae.guide, *batch) / len(batch[0])
        loss.backward()
        return loss

    return _outcome(model, differentiate)


def by_trainer(model: Model, backward: Backward) -> Outcome:
    bad = torch.zeros((), dtype=torch.float32)
    return _outcome(model, lambda: backward(model.batch, bad) / len(model.batch[0]))


def new_backward(model: Model, compiled: bool = False) -> Backward:
    parts = model.vae, model.elbo, FusedAdam([*model.vae.parameters()], 0.1), model.batch
    with pyro.validation_enabled(False):
        return CompiledBackward(*parts, len(model.batch[0])) if compiled else Backward(*parts)


def by_new_trainer(model: Model) -> Outcome:
    try:
        backward = new_backward(model)
    except Exception as error:  # of the trial run
        return type(error)
    return by_trainer(model, backward)


def stale(*_: Any) -> Any:
    raise AssertionError("a graph of before the change was used")


def goes_compiled(backward: CompiledBackward) -> bool:
    return backward._is_plain and not backward._is_wrapped and not backward._is_watched


def equal(a: Outcome, b: Outcome) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.allclose(a, b, rtol=1e-10, atol=1e-12, equal_nan=True)
    return a is b


def check(
    model: Model,
    change: Callable[[], Any],
    *,
    around: Context = nullcontext,
    meanwhile: bool = True,
    compiles: bool = False,
) -> bool:
    """After a change the steps of SVI and of every kind of trainer are the same.

    Args:
        model: before the change.
        change: makes it.
        around: what the steps run in.
        meanwhile: whether it may come between two epochs of a trainer.
        compiles: run a graph that is compiled after the change, which takes a second; else look
            whether one would be compiled.

    Returns:
        Whether the change changes SVI's step.
    """
    before = by_svi(model)
    assert isinstance(before, Tensor)
    kinds = [False, True] if torch_compiles() else [False]
    trainers = [new_backward(model, compiled) for compiled in kinds] if meanwhile else []
    change()
    with around():
        expected = by_svi(model)
        is_obeyed = not equal(expected, before)
        for backward in trainers:
            if isinstance(backward, CompiledBackward):
                if not is_obeyed:
                    continue  # an old graph is good enough
                backward._compiled = stale
            with pyro.validation_enabled(False):
                backward.notice_changes()
            if isinstance(backward, CompiledBackward) and not compiles and goes_compiled(backward):
                assert backward._compiled is None
                continue
            found = by_trainer(model, backward)
            assert equal(found, expected), f"{type(backward).__name__}: {found} for {expected}"
        found = by_new_trainer(model)
        assert equal(found, expected), f"a new trainer: {found} for {expected}"
    return is_obeyed


@pytest.fixture(autouse=True)
def quick_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(CompiledBackward, "backend", "eager")
    yield
    if "torch._dynamo" in vars(torch):
        torch._dynamo.reset()  # type: ignore[no-untyped-call, unused-ignore]


# ------------------------------------------------------------------ methods


def altered(result: Any) -> Any:
    """Another result of the same kind."""
    if isinstance(result, Terms):
        return Terms(*(altered(v) if isinstance(v, Tensor) else v for v in result))
    if isinstance(result, Tensor):
        return 3 * result if result.is_floating_point() else result
    if isinstance(result, bool):
        return not result
    if isinstance(result, (int, float)):
        return 3 * result
    if isinstance(result, tuple):
        return tuple(map(altered, result))
    if isinstance(result, set):
        return set()
    if isinstance(result, IndependentBernoulli):
        return IndependentBernoulli(3 * result.params, result.event_dim)
    if isinstance(result, FlatDistribution):
        return FlatDistribution(result.likelihood, 3 * result.params, result.event_dim)
    if isinstance(result, dist.Independent):
        return dist.OneHotCategorical(logits=3 * result.base_dist.logits).to_event(1)
    return poutine.scale(result, scale=0.5) if callable(result) else result


def replaced(member: Any) -> Any:
    """A method or property with another result, that has the name and module of the first."""
    if isinstance(member, property):
        return property(replaced(member.fget))

    @functools.wraps(member)
    def own(*args: Any, **kwargs: Any) -> Any:
        with poutine.scale(scale=0.5):  # of the sites of a program
            result = member(*args, **kwargs)
        return altered(result)

    return own


PLACES = ("instance", "subclass", "mixin", "class", "base class")


def put(thing: Any, name: str, where: str, patch: pytest.MonkeyPatch) -> None:
    """Replace a method of an object."""
    cls = type(thing)
    own = replaced(inspect.getattr_static(cls, name))
    if where == "instance":
        setattr(thing, name, replaced(getattr(thing, name)))
    elif where == "subclass":
        thing.__class__ = type("Own", (cls,), {name: own})
    elif where == "mixin":
        thing.__class__ = type("Own", (type("Mixin", (), {name: own}), cls), {})
    else:
        owner = next(base for base in cls.__mro__ if name in vars(base))
        patch.setattr(cls if where == "class" else owner, name, own)


def methods(*classes: type) -> dict[str, Any]:
    """The methods and properties that these classes define."""
    return {
        name: member
        for cls in classes
        for name, member in vars(cls).items()
        if not name.startswith("__") and (inspect.isroutine(member) or isinstance(member, property))
    }


def cases(key: Any, members: dict[str, Any]) -> list[tuple[Any, str, str]]:
    """Each method in each place; a property cannot be put on an instance."""
    return [
        (key, name, where)
        for name, member in members.items()
        for where in PLACES[isinstance(member, property) :]
    ]


class OwnELBO(ScoreFunctionELBO):
    """Signals less the mean of the batch."""

    def advantage(self, signal: Tensor) -> Tensor:
        return signal - signal.mean()


def warm() -> ReinforceELBO:
    elbo = ReinforceELBO(2, baseline="running_mean")
    elbo.mean, elbo.weight = torch.tensor(-0.4), torch.tensor(0.2)
    return elbo


ELBOS: dict[str, Callable[[], Any]] = {
    "rloo": lambda: RlooELBO(3),
    "reinforce": warm,
    "own": lambda: OwnELBO(2),
    "reinmax": ReinMaxELBO,
    "gumbel-softmax": GumbelSoftmaxELBO,
}
ELBO_METHODS = methods(ELBO, DiscreteELBO, ScoreFunctionELBO, RlooELBO)
OF_A_STEP = {
    *("differentiable_loss", "terms", "split", "bound", "objective", "surrogate", "wrap"),
    *("kl_weight", "closed_form_sites", "advantage", "_baseline", "draw", "value", "pull"),
}
"""Methods that must change a step of SVI, so that the comparison means something."""


@pytest.mark.parametrize(
    ("elbo", "name", "where"),
    [
        *cases("rloo", ELBO_METHODS),
        *cases("reinforce", methods(ReinforceELBO)),
        *cases("own", methods(OwnELBO)),
        *cases("reinmax", methods(PathwiseELBO, ReinMaxELBO)),
        *cases("gumbel-softmax", methods(GumbelSoftmaxELBO)),
    ],
)
def test_methods_of_an_elbo(
    elbo: str, name: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make(elbo=ELBOS[elbo])
    compiles = name == "advantage" and where in ("instance", "class")
    changes = check(model, lambda: put(model.elbo, name, where, monkeypatch), compiles=compiles)
    assert changes or name not in OF_A_STEP


@pytest.mark.parametrize(
    ("first", "second"),
    [*itertools.combinations([name for name in ELBO_METHODS if name[0] != "_"], 2)],
)
def test_pairs_of_methods_of_an_elbo(
    first: str, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make()

    def change() -> None:
        put(model.elbo, first, "subclass", monkeypatch)
        put(model.elbo, second, "instance", monkeypatch)

    changes = check(model, change, meanwhile=False)
    assert changes or not {first, second} & OF_A_STEP


@pytest.mark.parametrize(
    "name", [name for name, value in vars(make().elbo).items() if type(value) in (bool, int, float)]
)
def test_settings_of_an_elbo(name: str) -> None:
    model = make()
    value = vars(model.elbo)[name]
    other = not value if isinstance(value, bool) else type(value)(value + 1)
    changes = check(model, lambda: setattr(model.elbo, name, other))
    assert changes or name not in {"beta", "free_bits", "num_particles", "analytic_kl"}


MODEL_METHODS = methods(DiscreteVAE)


@pytest.mark.parametrize(("prior", "name", "where"), cases("learned", MODEL_METHODS))
def test_methods_of_a_model(
    prior: str, name: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make(prior)
    compiles = (name, where) == ("encode", "instance")
    changes = check(model, lambda: put(model.vae, name, where, monkeypatch), compiles=compiles)
    assert changes or name not in {
        *("model", "guide", "posterior", "prior_codes", "encode", "decode", "_draw"),
    }


@pytest.mark.parametrize(
    ("first", "second"),
    [*itertools.combinations(("guide", "model", "posterior", "encode", "decode"), 2)],
)
def test_pairs_of_methods_of_a_model(
    first: str, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make()

    def change() -> None:
        put(model.vae, first, "subclass", monkeypatch)
        put(model.vae, second, "instance", monkeypatch)

    assert check(model, change, meanwhile=False)


# ------------------------------------------------------------------ parts


MODELS = {"learned": "bernoulli", "uniform": "normal"}
"""Prior -> likelihood."""
PARTS = ("encoder", "decoder", "prior", "posterior_family", "likelihood")


def part_methods(prior: str) -> Iterator[tuple[str, str, str, str]]:
    vae = make(prior, MODELS[prior]).vae
    for part in PARTS if prior == "learned" else ("prior", "likelihood"):
        mro = type(getattr(vae, part)).__mro__
        own = methods(*(cls for cls in reversed(mro) if cls.__module__.startswith("pyro_dvae.")))
        for _, name, where in cases(part, own):
            yield prior, part, name, where


@pytest.mark.parametrize(
    ("prior", "part", "name", "where"), [row for prior in MODELS for row in part_methods(prior)]
)
def test_methods_of_a_part(
    prior: str, part: str, name: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make(prior, MODELS[prior])
    changes = check(model, lambda: put(getattr(model.vae, part), name, where, monkeypatch))
    # A uniform distribution that is made sharper stays what it is.
    assert changes or name != "forward" or (prior, part) == ("uniform", "prior")


@pytest.mark.parametrize("prior", MODELS)
@pytest.mark.parametrize("cls", [FlatDistribution, IndependentBernoulli])
def test_methods_of_a_distribution(cls: type, prior: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, member in methods(cls).items():
        with monkeypatch.context() as patch:
            change = functools.partial(patch.setattr, cls, name, replaced(member))
            check(make(prior, MODELS[prior]), change)


def test_a_uniform_prior_that_is_not() -> None:
    model = make("uniform")
    assert check(model, lambda: model.vae.prior.logits[0, 0].fill_(2.0))


# ------------------------------------------------------------------ hooks


HOOKS = [
    name
    for name in dir(nn.Module)
    if name.startswith("register_") and ("forward" in name or "backward" in name)
]
GLOBAL_HOOKS = [
    name
    for name in dir(torch_module)
    if name.startswith("register_module_") and ("forward" in name or "backward" in name)
]
MODULES = [name for name, _ in make().vae.named_modules()]
no_warnings = pytest.mark.filterwarnings(
    "ignore:Full backward hook", "ignore:Using a non-full backward hook", "ignore:Using non-full"
)


def hook(name: str) -> Callable[..., Any]:
    """Of a kind: another output, input or gradient."""
    what = -1 if name.endswith("forward_hook") else 0

    def own(module: nn.Module, *args: Any) -> Any:
        return altered(args[what])

    return own


@no_warnings
@pytest.mark.parametrize("name", HOOKS)
@pytest.mark.parametrize("module", MODULES)
def test_hooks_on_a_module(module: str, name: str) -> None:
    model = make()
    where = model.vae.get_submodule(module)
    changes = check(model, lambda: getattr(where, name)(hook(name)))
    # A distribution has no gradient, and nobody calls the model itself.
    has_output = module.split(".")[0] in ("encoder", "decoder")
    assert changes or not has_output or "backward" in name


@no_warnings
@pytest.mark.parametrize("name", GLOBAL_HOOKS)
def test_hooks_for_every_module(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_module, "_global_is_full_backward_hook", None)
    model, handles = make(), []
    try:
        changes = check(model, lambda: handles.append(getattr(torch_module, name)(hook(name))))
    finally:
        handles[0].remove()
    assert changes


def test_the_hooks_are_all_there() -> None:
    assert len(HOOKS) == 5
    assert len(GLOBAL_HOOKS) == 5


@pytest.mark.parametrize("name", [name for name, _ in make().vae.named_parameters()])
def test_hooks_on_a_weight(name: str) -> None:
    for add in (
        lambda weight: weight.register_hook(altered),
        lambda weight: weight.register_post_accumulate_grad_hook(lambda w: w.grad.mul_(3)),
    ):
        model = make()
        weight = model.vae.get_parameter(name)
        assert check(model, functools.partial(add, weight))


class Twice(nn.Module):
    """A parametrization."""

    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


@pytest.mark.parametrize("name", [name for name, _ in make().vae.named_parameters()])
def test_parametrizations(name: str) -> None:
    model = make()
    module, _, weight = name.rpartition(".")
    owner = model.vae.get_submodule(module)
    parametrize.register_parametrization(owner, weight, Twice(), unsafe=True)
    backward = new_backward(model)
    assert isinstance(expected := by_svi(model), Tensor)
    assert not equal(expected, by_svi(make()))
    assert equal(by_trainer(model, backward), expected)


@pytest.mark.parametrize("name", [name for name, _ in make().vae.named_parameters()])
def test_pruning(name: str) -> None:
    model = make()
    module, _, weight = name.rpartition(".")
    owner = model.vae.get_submodule(module)
    mask = torch.arange(getattr(owner, weight).numel()).view_as(getattr(owner, weight)) % 2
    check(model, lambda: prune.custom_from_mask(owner, weight, mask), meanwhile=False)


# ------------------------------------------------------------------ messengers


MESSENGERS: dict[str, Context] = {
    "scale": lambda: poutine.scale(scale=2.0),
    "mask": lambda: poutine.mask(mask=torch.tensor([True, False, True])),
    "block": lambda: poutine.block(hide=["z"]),
    "trace": poutine.trace,
    "seed": lambda: poutine.seed(rng_seed=5),
    "condition": lambda: poutine.condition(data={"z": torch.eye(3)[torch.zeros(3, 2).long()]}),
    "substitute": lambda: poutine.substitute(data={}),
    "uncondition": poutine.uncondition,
    "infer_config": lambda: poutine.infer_config(config_fn=lambda _: {}),
    "reparam": lambda: poutine.reparam(config={"z": SplitReparam([1], -1)}),
    "lift": lambda: poutine.lift(prior=dist.Normal(0.0, 1.0)),
}


@pytest.mark.parametrize("name", MESSENGERS)
def test_messengers(name: str) -> None:
    model = make()
    changes = check(model, lambda: None, around=MESSENGERS[name])
    assert changes or name not in {"scale", "mask"}


# Between two epochs: name -> of a trainer, a change; and whether a step needs traces after it.
MEANWHILE: dict[str, tuple[Callable[[Trainer], Any], bool]] = {
    "frozen": (lambda t: t.vae.decoder.requires_grad_(False), False),  # type: ignore[operator]
    "hook on a network": (
        lambda t: t.vae.decoder.register_forward_hook(lambda *a: 3 * a[-1]),  # type: ignore[operator]
        False,
    ),
    "forward of a network": (
        lambda t: setattr(t.vae.decoder, "forward", replaced(t.vae.decoder.forward)),
        True,
    ),
    "hook on a weight": (
        lambda t: next(t.vae.decoder.parameters()).register_hook(lambda g: 0 * g),
        False,
    ),
    "decode": (lambda t: setattr(t.vae, "decode", replaced(t.vae.decode)), True),
    "split": (lambda t: setattr(t.elbo, "split", replaced(t.elbo.split)), True),
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
