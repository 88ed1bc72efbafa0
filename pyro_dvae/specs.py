"""Parts by name: `name`, or `name:argument`, such as `mixture:20`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from pyro_dvae.checks import at_least, one_of, shortened


class Named(NamedTuple):
    """A class that has a name."""

    cls: type[Any]
    argument: str | None = None
    """The keyword of the class that the text after the colon sets; None if there is none.

    The default of the keyword tells what the text is: a whole number, a number (where the default
    is None), or two whole numbers, `2x8` (where it is a pair).
    """
    settings: Mapping[str, Any] = MappingProxyType({})
    """Keywords of the class that have these values, unless the text sets them."""


def name_and_argument(spec: str) -> tuple[str, str | None]:
    """Split `name:argument`; the argument is None where there is no colon."""
    name, colon, argument = spec.partition(":")
    return name, argument if colon else None


def build_named(what: str, spec: str, table: Mapping[str, Named], given: Mapping[str, Any]) -> Any:
    """Build what `name` or `name:argument` names.

    Args:
        what: the kind of part, such as "prior", for messages.
        spec: `name` or `name:argument`.
        table: name -> row.
        given: keyword arguments, such as `num_latents`. The class gets those that it takes.

    Raises:
        ValueError: there is no such name, or the class does not take the argument.
    """
    name, argument = name_and_argument(spec)
    one_of(what, name, table)
    row = table[name]
    takes = inspect.signature(row.cls).parameters
    keywords = {key: value for key, value in given.items() if key in takes} | dict(row.settings)
    if argument is not None:
        if row.argument is None:
            raise ValueError(f"Expected {name} alone; got {name}:{argument}. Leave the colon out.")
        default = row.settings.get(row.argument, takes[row.argument].default)
        keywords[row.argument] = _parsed(name, argument, row.argument, default)
    return row.cls(**keywords)


def _parsed(name: str, text: str, keyword: str, default: Any) -> Any:
    """The text after the colon, converted to the type of the keyword's default."""
    if isinstance(default, int):
        try:
            number = int(text)
        except ValueError:
            raise ValueError(
                f"Expected a whole number after {name}:; got {shortened(text)}. Use "
                f"{name}:{default}."
            ) from None
        at_least(f"number after {name}:", number, 1)
        return number
    if isinstance(default, tuple):
        pair = re.fullmatch(r"(\d{1,4})x(\d{1,4})", text)
        if pair is None:
            raise ValueError(
                f"Expected DxK of the {keyword} layer after {name}:; got {text!r}. Use {name}:4x8."
            )
        return int(pair[1]), int(pair[2])
    try:
        return float(text)
    except ValueError:
        raise ValueError(
            f"Expected a {keyword} after {name}:; got {text!r}. Use {name}:0.1, or "
            f"{name} alone to learn it."
        ) from None


def is_own(spec: str, table: Mapping[str, Any]) -> bool:
    """Whether this names a part of a user's own, `module:factory`, in place of one of the table."""
    return name_and_argument(spec)[0] not in table and is_code(spec)


def is_code(spec: str) -> bool:
    """Whether the text has the form `module:factory`, such as `my_code.parts:StudentT`."""
    module, colon, factory = spec.partition(":")
    return bool(colon) and all(word.isidentifier() for word in [*module.split("."), factory])
