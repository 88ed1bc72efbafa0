"""Networks and likelihoods of the user's own by the name `module:factory`.

Importing a module runs its code. This happens only where a `Config` names it, and `load_run` asks
first whether the user trusts what a run names.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor, nn

from pyro_dvae.checks import one_of
from pyro_dvae.contracts import completed
from pyro_dvae.likelihoods.base import KINDS, Likelihood
from pyro_dvae.likelihoods.masked import unmasked
from pyro_dvae.likelihoods.mixed import Mixed
from pyro_dvae.networks.trial import Subject, in_one_line, refuse, try_network
from pyro_dvae.networks.trust import current_folder_first
from pyro_dvae.streams import RandomStream


def own_encoder(
    name: str, event_shape: tuple[int, ...], num_latents: int, num_outputs: int
) -> nn.Module:
    """The encoder of `module:factory`, (B, *event) -> (B, D, C), tried on two rows.

    Modules are looked for in the current folder first, as Python does for a script there.

    Args:
        name: "module:factory"; the factory gets the other arguments by keyword.
        event_shape: shape of one datum.
        num_latents: D.
        num_outputs: C; the K categories' logits for a mean-field guide.

    Raises:
        ValueError: it cannot be imported or built, or fails its trial; says what to change.
    """
    settings = {
        "event_shape": event_shape,
        "num_latents": num_latents,
        "num_outputs": num_outputs,
    }
    subject = Subject("encoder", name, settings, "(rows, num_latents, num_outputs)")
    network = build_own(subject)
    x = torch.rand(2, *event_shape, generator=torch.Generator().manual_seed(0), device="cpu")
    try_network(subject, network, {"data": x}, len(event_shape), (num_latents, num_outputs))
    return network


def own_decoder(
    name: str,
    event_shape: tuple[int, ...],
    num_latents: int,
    num_categories: int,
    num_params: int,
) -> nn.Module:
    """The decoder of `module:factory`, codes (..., D, K) -> (..., *event), tried on two rows.

    Args:
        name: "module:factory"; the factory gets the other arguments by keyword.
        event_shape: shape of one datum.
        num_latents: D.
        num_categories: K.
        num_params: the likelihood's parameters per element; (..., *event, num_params) if not 1.

    Raises:
        ValueError: it cannot be imported or built, or fails its trial; says what to change.
    """
    settings = {
        "event_shape": event_shape,
        "num_latents": num_latents,
        "num_categories": num_categories,
        "num_params": num_params,
    }
    extra = (num_params,) if num_params > 1 else ()
    output = f"(..., *event_shape{', num_params' * len(extra)})"
    subject = Subject("decoder", name, settings, output)
    network = build_own(subject)
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(num_categories, (2, 3, num_latents), generator=generator, device="cpu")
    z = nn.functional.one_hot(index, num_categories).to(torch.get_default_dtype())
    codes = {"codes": z[:, 0], "codes with two leading dimensions": z}
    try_network(subject, network, codes, 2, event_shape + extra)
    return network


def own_likelihood(name: str, event_shape: tuple[int, ...]) -> Likelihood:
    """The likelihood of `module:factory`, tried on the parameters of three codes.

    Args:
        name: "module:factory", such as the class of a likelihood. The factory gets `event_shape` by
            keyword if it takes an argument of that name, and no argument else.
        event_shape: shape of one datum.

    Raises:
        ValueError: it cannot be imported or built, or fails its trial; says what to change.
    """
    subject = Subject("likelihood", name, {"event_shape": event_shape})
    likelihood = completed(build_own(subject), Likelihood)
    _check_members(subject, likelihood)
    extra = (likelihood.num_params,) if likelihood.num_params > 1 else ()
    with torch.no_grad(), RandomStream(0, torch.device("cpu")):
        params = torch.randn(3, 1, *event_shape, *extra, device="cpu")
        try:
            p = likelihood(params, len(event_shape))
        except Exception as error:
            asked = f"to take parameters {tuple(params.shape)} and event_dim={len(event_shape)}"
            refuse(subject, asked, error)
        _try_distribution(subject, likelihood, p, event_shape)
    return likelihood


def _check_members(subject: Subject, likelihood: Likelihood) -> None:
    """Refuse a number of parameters, or a kind of values, that there cannot be."""
    num = likelihood.num_params
    if not isinstance(num, int) or num < 1:
        raise ValueError(
            f"Expected {subject} to have a whole number num_params of at least 1; got {num!r}. "
            "Set it to the number of parameters per element of a datum."
        )
    is_mixed = isinstance(unmasked(likelihood), Mixed)
    kinds = [kind for kind in KINDS if kind != Mixed.kind or is_mixed]
    one_of(f"kind of {subject}", likelihood.kind, kinds)


def _try_distribution(
    subject: Subject, likelihood: Likelihood, p: object, event_shape: tuple[int, ...]
) -> None:
    """Refuse what is no distribution over x, (3, 1) of them, or does not score its own draws."""
    if not isinstance(p, TorchDistributionMixin):
        raise ValueError(
            f"Expected {subject} to return a distribution of Pyro; got {type(p).__name__}. Use the "
            "classes in pyro.distributions, or subclass TorchDistribution."
        )
    its_own, asked = (tuple(p.batch_shape), tuple(p.event_shape)), ((3, 1), event_shape)
    if its_own != asked:
        raise ValueError(
            f"Expected {subject} to return a distribution of batch shape {asked[0]} and event "
            f"shape {asked[1]}, one for each code; got {its_own[0]} and {its_own[1]}. Call "
            ".to_event(event_dim) for elements that are independent."
        )
    methods: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
        "draw data": (p.sample, (3, 1, *event_shape)),
        "give their mean": (lambda: p.mean, (3, 1, *event_shape)),
        "take its own draws as data": (lambda: _checked(likelihood, x), (2, *event_shape)),
        "score data": (lambda: p.log_prob(x), (3, 2)),
        "give what the encoder sees of data": (
            lambda: likelihood.features(x),
            (2, *likelihood.feature_shape(event_shape)),
        ),
    }
    x: Tensor = torch.empty(0)
    for what, (method, shape) in methods.items():
        try:
            result = method()
        except Exception as error:
            refuse(subject, f"to {what}", error)
        if not isinstance(result, Tensor) or tuple(result.shape) != shape:
            got = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
            raise ValueError(
                f"Expected {subject} to {what} as a tensor {shape}; got {got}. Keep the leading "
                "dimensions of the parameters, and broadcast them against those of the data."
            )
        if what != "give their mean" and result.isnan().any():  # some means are not defined
            raise ValueError(
                f"Expected {subject} to {what}; got NaN for parameters drawn from a standard "
                "normal. Map them to the parameters' range, by softplus or exp say."
            )
        if what == "draw data":
            x = result[:2, 0]


def _checked(likelihood: Likelihood, x: Tensor) -> Tensor:
    likelihood.check(x)
    return x


def build_own(subject: Subject, returns: type[Any] = nn.Module) -> Any:
    """What the factory of `module:factory` returns.

    A factory of networks gets all settings. Any other one gets those that it has arguments for.

    Args:
        subject: what is built, and the settings.
        returns: the class of it.

    Raises:
        ValueError: it cannot be imported or built, or is of another class; says what to change.
    """
    module_name, _, factory_name = subject.name.partition(":")
    if not (module_name and factory_name):
        raise ValueError(
            f"Expected module:factory for the {subject.kind}; got {subject.name!r}. Write "
            f"networks:make_{subject.kind}, say, for the function make_{subject.kind} of "
            "networks.py."
        )
    with current_folder_first():
        factory = _factory(subject, module_name, factory_name)
        settings = subject.settings
        if subject.kind not in ("encoder", "decoder"):
            settings = {name: value for name, value in settings.items() if _takes(factory, name)}
        try:
            part = factory(**settings)
        except (Exception, SystemExit) as error:
            trace = error.__traceback__
            if isinstance(error, TypeError) and (trace is None or trace.tb_next is None):
                raise ValueError(  # the call itself failed
                    f"Expected {subject} to take {', '.join(settings) or 'no argument'} by "
                    f"keyword; got {in_one_line(error)}. Give the factory these arguments."
                ) from error
            refuse(subject, "to be built", error)
    if not isinstance(part, returns):
        name = "a torch.nn.Module" if returns is nn.Module else f"an {returns.__name__} of Pyro"
        what = "network" if subject.kind in ("encoder", "decoder") else subject.kind
        raise ValueError(
            f"Expected {subject} to return {name}; got {type(part).__name__}. Return the {what}."
        )
    return part


def own_function(name: str, kind: str) -> Callable[..., Any]:
    """The function or class of `module:factory`, which is imported.

    Args:
        name: "module:factory".
        kind: what it makes, for messages.

    Raises:
        ValueError: it cannot be imported; says what to change.
    """
    module_name, _, factory_name = name.partition(":")
    with current_folder_first():
        return _factory(Subject(kind, name, {}), module_name, factory_name)


def own_takes(name: str, kind: str, argument: str) -> bool:
    """Whether the factory of `module:factory`, which is imported, has an argument of a name.

    Args:
        name: "module:factory".
        kind: the kind of part, for messages.
        argument: the name of the argument.

    Raises:
        ValueError: it cannot be imported; says what to change.
    """
    return _takes(own_function(name, kind), argument)


def _takes(factory: Callable[..., Any], name: str) -> bool:
    """Whether a function, or a class, has an argument of this name."""
    try:
        return name in inspect.signature(factory).parameters
    except (TypeError, ValueError):  # of some callables that are not written in Python
        return False


def _factory(subject: Subject, module_name: str, factory_name: str) -> Callable[..., Any]:
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        missing = error.name or "" if isinstance(error, ModuleNotFoundError) else ""
        if not (missing and f"{module_name}.".startswith(f"{missing}.")):
            refuse(subject, "to be imported", error)
        raise ValueError(
            f"Expected a module {module_name} for {subject}; got none in {Path.cwd()} or among "
            f"those installed. Run from the folder that holds {module_name.replace('.', '/')}.py, "
            "or put that folder on PYTHONPATH."
        ) from error
    factory = getattr(module, factory_name, None)
    if not callable(factory):
        got = "nothing of that name" if factory is None else f"{type(factory).__name__}"
        where = vars(module).get("__file__") or module_name
        raise ValueError(
            f"Expected a function or class {factory_name} in {where} for {subject}; got {got}. "
            "Define it there, or name another."
        )
    return factory
