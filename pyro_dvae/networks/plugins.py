"""Networks of the user's own by the name `module:factory`: imported and built.

Importing a module runs its code: this happens only where a `Config` names it, and `load_run` asks
first whether the user trusts what a run names.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pyro_dvae.networks.trial import Part, in_one_line, refuse, try_network
from pyro_dvae.networks.trust import current_folder_first

Shape = tuple[int, ...]


def own_encoder(name: str, event_shape: Shape, num_latents: int, num_outputs: int) -> nn.Module:
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
    part = Part("encoder", name, settings)
    network = _build(part)
    x = torch.rand(2, *event_shape, generator=torch.Generator().manual_seed(0), device="cpu")
    part = part._replace(output="(rows, num_latents, num_outputs)")
    try_network(part, network, {"data": x}, len(event_shape), (num_latents, num_outputs))
    return network


def own_decoder(
    name: str, event_shape: Shape, num_latents: int, num_categories: int, num_params: int
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
    part = Part("decoder", name, settings)
    network = _build(part)
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(num_categories, (2, 3, num_latents), generator=generator, device="cpu")
    z = nn.functional.one_hot(index, num_categories).to(torch.get_default_dtype())
    codes = {"codes": z[:, 0], "codes with two leading dimensions": z}
    extra = (num_params,) if num_params > 1 else ()
    part = part._replace(output=f"(..., *event_shape{', num_params' * len(extra)})")
    try_network(part, network, codes, 2, event_shape + extra)
    return network


def _build(part: Part) -> nn.Module:
    module_name, _, factory_name = part.name.partition(":")
    if not (module_name and factory_name):
        raise ValueError(
            f"Expected module:factory for the {part.kind}; got {part.name!r}. Write "
            f"networks:make_{part.kind}, say, for the function make_{part.kind} of networks.py."
        )
    with current_folder_first():
        factory = _factory(part, module_name, factory_name)
        try:
            network = factory(**part.settings)
        except (Exception, SystemExit) as error:
            trace = error.__traceback__
            if isinstance(error, TypeError) and (trace is None or trace.tb_next is None):
                raise ValueError(  # the call itself failed
                    f"Expected {part} to take {', '.join(part.settings)} by keyword; got "
                    f"{in_one_line(error)}. Give the factory these arguments."
                ) from error
            refuse(part, "to be built", error)
    if not isinstance(network, nn.Module):
        raise ValueError(
            f"Expected {part} to return a torch.nn.Module; got {type(network).__name__}. Return "
            "the network."
        )
    return network


def _factory(part: Part, module_name: str, factory_name: str) -> Callable[..., Any]:
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        missing = getattr(error, "name", None) or ""
        is_missing = isinstance(error, ModuleNotFoundError)
        if not (is_missing and f"{module_name}.".startswith(f"{missing}.")):
            refuse(part, "to be imported", error)
        raise ValueError(
            f"Expected a module {module_name} for {part}; got none in {Path.cwd()} or among those "
            f"installed. Run from the folder that holds {module_name.replace('.', '/')}.py, or "
            "put that folder on PYTHONPATH."
        ) from error
    factory = getattr(module, factory_name, None)
    if not callable(factory):
        got = "nothing of that name" if factory is None else f"{type(factory).__name__}"
        where = getattr(module, "__file__", None) or module_name
        raise ValueError(
            f"Expected a function or class {factory_name} in {where} for {part}; got {got}. "
            "Define it there, or name another."
        )
    return factory
