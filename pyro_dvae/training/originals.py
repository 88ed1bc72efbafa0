"""Whether somebody has put something of their own in the place of a method of the library."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

Members = Mapping[type, Mapping[str, Any]]


def members(*classes: type) -> Members:
    """Class -> its own methods and properties by name, as they are now.

    Args:
        *classes: called when the library is imported, before anybody can change them.
    """
    return {
        cls: {
            name: member
            for name, member in vars(cls).items()
            if not name.startswith("__") and (callable(member) or isinstance(member, property))
        }
        for cls in classes
    }


def is_original(thing: object, originals: Members, *, free: Collection[str] = ()) -> bool:
    """Whether every method of an object is the library's: on it, on its class and on each base.

    Compared by identity, for a wrapper can take over any name.

    Args:
        thing: an object of one of the classes, or of a subclass of one.
        originals: what `members` gave.
        free: names of methods that anybody may override.
    """
    mro = type(thing).__mro__
    names = {name for cls in mro for name in originals.get(cls, ())}.difference(free)
    owners = {name: next((cls for cls in mro if name in vars(cls)), object) for name in names}
    return names.isdisjoint(vars(thing)) and all(
        name in originals.get(cls, ()) and vars(cls)[name] is originals[cls][name]
        for name, cls in owners.items()
    )


def are_unchanged(originals: Members) -> bool:
    """Whether the classes are as they were when `members` saw them."""
    return all(
        vars(cls).get(name) is member
        for cls, own in originals.items()
        for name, member in own.items()
    )


def has_own_methods(thing: object) -> bool:
    """Whether an object hides a method of its class by an attribute of the same name."""
    return any(callable(getattr(type(thing), name, None)) for name in vars(thing))


def has_hooks(modules: Iterable[nn.Module]) -> bool:
    """Whether a call of one of the modules does more than `forward`; torch's global hooks count."""
    return bool(torch.nn.modules.module._has_any_global_hook()) or any(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        for module in modules
    )


def weight_has_hooks(weight: Tensor) -> bool:
    """Whether somebody is called where autograd writes a weight's gradient."""
    return bool(weight._backward_hooks or weight._post_accumulate_grad_hooks)


def class_members(module: nn.Module) -> list[tuple[Any, ...]]:
    """The classes of a module and of its parts, and all that they define, as `same` compares them.

    Classes of torch are left out.
    """
    classes = {cls: None for part in module.modules() for cls in type(part).__mro__}
    return [
        (cls, *vars(cls).values())
        for cls in classes
        if cls.__module__.partition(".")[0] not in ("torch", "builtins", "typing")
    ]


def attributes(module: nn.Module, *, methods: bool) -> list[tuple[Any, ...]]:
    """The parts of a module, their classes and what was put on each, to be compared by `same`.

    Args:
        module: with its submodules.
        methods: take the attributes that can be called; else take all other attributes but the
            mode of training.
    """
    return [
        (
            part,
            type(part),
            *(
                each
                for name, value in vars(part).items()
                if callable(value) == methods
                and (methods or (name[0] != "_" and name != "training"))
                for each in (name, value)
            ),
        )
        for part in module.modules()
    ]


def same(a: list[tuple[Any, ...]], b: list[tuple[Any, ...]]) -> bool:
    """Whether two lists of attributes are the same objects."""
    return len(a) == len(b) and all(
        len(one) == len(other) and all(map(operator.is_, one, other))
        for one, other in zip(a, b, strict=True)
    )
