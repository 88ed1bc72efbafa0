"""The base class of `Prior`, `Guide` and `Likelihood`: required members, and optional ones."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, TypeVar, cast

from torch import nn


class Contract(nn.Module):
    """A part of a model: a module with members that the library uses."""

    REQUIRED: ClassVar[tuple[str, ...]] = ()
    """Members that every part must have, beside `forward`."""
    OPTIONAL: ClassVar[tuple[str, ...]] = ()
    """Members that a part may lack. The class defines their defaults."""


T = TypeVar("T", bound=Contract)


def completed(part: nn.Module, contract: type[T]) -> T:
    """The part itself, with every optional member of its contract.

    So the library can call `vae.likelihood.check(x)` without asking whether `check` is there. A
    subclass of the contract has all members. Any other module gets the defaults of those that it
    lacks, as attributes of the instance; its class, its weights and the names in its `state_dict`
    stay as they are.

    Args:
        part: a module, such as a likelihood that a user wrote.
        contract: `Prior`, `Guide` or `Likelihood`.

    Raises:
        ValueError: the part lacks a member that the contract requires.
    """
    if isinstance(part, contract):
        return part
    for name in contract.REQUIRED:
        if not hasattr(part, name):
            raise ValueError(
                f"Expected a {contract.__name__.lower()} with the member {name}; got "
                f"{type(part).__name__} without it. Define {name}, or subclass "
                f"pyro_dvae.{contract.__name__}, which documents all members."
            )
    for name in contract.OPTIONAL:
        if not hasattr(part, name):
            default = vars(contract)[name]
            # A partial can be copied and pickled with the module that holds it.
            setattr(part, name, partial(default, part) if callable(default) else default)
    return cast(T, part)
