"""Whether a user has replaced a method of the library, or registered a hook."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

Members = Mapping[type, Mapping[str, Any]]


def members(*classes: type) -> Members:
    """For each class the methods and properties that it defines, by name.

    Call this when the library is imported, before a user can change a class.

    Args:
        *classes: the classes.
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
    """Whether every method of an object is the library's own.

    A method may be replaced on the object, in a subclass, or on a class of the library. The methods
    are compared by identity, because a wrapper can have the same name.

    Args:
        thing: an object of one of the classes, or of a subclass of one.
        originals: the result of `members`.
        free: the names of methods that may be replaced.
    """
    mro = type(thing).__mro__
    names = {name for cls in mro for name in originals.get(cls, ())}.difference(free)
    owners = {name: next((cls for cls in mro if name in vars(cls)), object) for name in names}
    return names.isdisjoint(vars(thing)) and all(
        name in originals.get(cls, ()) and vars(cls)[name] is originals[cls][name]
        for name, cls in owners.items()
    )


def are_unchanged(originals: Members) -> bool:
    """Whether no method of the classes was replaced since the call of `members`."""
    return all(
        vars(cls).get(name) is member
        for cls, own in originals.items()
        for name, member in own.items()
    )


def has_own_methods(thing: object) -> bool:
    """Whether an object has an attribute that hides a method of its class."""
    return any(callable(getattr(type(thing), name, None)) for name in vars(thing))


def has_hooks(modules: Iterable[nn.Module]) -> bool:
    """Whether one of the modules has a hook, or torch has a hook for all modules."""
    shared = torch.nn.modules.module  # torch 2.7 has no function that asks for all of them
    return bool(
        shared._global_forward_hooks
        or shared._global_forward_pre_hooks
        or shared._global_backward_hooks
        or shared._global_backward_pre_hooks
    ) or any(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        for module in modules
    )


def weight_has_hooks(weight: Tensor) -> bool:
    """Whether a weight has a hook that autograd calls with its gradient."""
    return bool(weight._backward_hooks or weight._post_accumulate_grad_hooks)


def class_members(module: nn.Module) -> list[tuple[Any, ...]]:
    """The classes of a module and of its submodules with all their members, to compare by `same`.

    Classes of torch are left out.
    """
    classes = {cls: None for part in module.modules() for cls in type(part).__mro__}
    return [
        (cls, *vars(cls).values())
        for cls in classes
        if cls.__module__.partition(".")[0] not in ("torch", "builtins", "typing")
    ]


def attributes(module: nn.Module, *, methods: bool) -> list[tuple[Any, ...]]:
    """A module and its submodules with their classes and attributes, to compare by `same`.

    Args:
        module: the module.
        methods: True takes the attributes that can be called; False takes all others except
            private ones and the mode, training or evaluation.
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
    """Whether two lists hold the same objects, compared by identity."""
    return len(a) == len(b) and all(
        len(one) == len(other) and all(map(operator.is_, one, other))
        for one, other in zip(a, b, strict=True)
    )
