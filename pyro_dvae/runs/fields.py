"""Checks that values from files have the types that they should have."""

from __future__ import annotations

import types
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, Union, get_args, get_origin

from pyro_dvae.checks import shortened

_WORDS = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    type(None): "null",
    Any: "anything",
}


def check_fields(values: Mapping[str, Any], types_by_name: Mapping[str, Any]) -> None:
    """Raise a ValueError that names the first value of a wrong type.

    JSON has lists where Python has tuples, and may have a whole number where Python has a float.
    Both are right.

    Args:
        values: name -> value. A value whose name has no type may be anything.
        types_by_name: name -> type, of the kinds that JSON can hold.
    """
    for name, value in values.items():
        if name in types_by_name and not _is(value, types_by_name[name]):
            raise ValueError(
                f"Expected {name} to be {_words(types_by_name[name])}; got {shortened(value)}. "
                "Change it."
            )
        if isinstance(value, int) and abs(value) >= 2**63:
            raise ValueError(f"Expected {name} below 2^63; got {shortened(value)}. Lower it.")


def _is(value: Any, kind: Any) -> bool:
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(_is(value, one) for one in inner)
    if origin is dict:
        return isinstance(value, dict) and all(_is(item, inner[1]) for item in value.values())
    if origin in (tuple, list):
        if not isinstance(value, (tuple, list)):
            return False
        if origin is list or inner[-1] is ...:
            return all(_is(item, inner[0]) for item in value)
        return len(value) == len(inner) and all(map(_is, value, inner))
    if kind is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    if kind is float:
        return isinstance(value, Real) and not isinstance(value, bool) and _fits_a_float(value)
    return isinstance(value, kind)


def _fits_a_float(value: Real) -> bool:
    try:
        float(value)
    except OverflowError:
        return False
    return True


def _words(kind: Any) -> str:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(map(_words, inner))
    if origin is dict:
        return "an object"
    if origin in (tuple, list):
        number = f" of {len(inner)}" if origin is tuple and inner[-1] is not ... else ""
        return f"a list{number}, each {_words(inner[0])}"
    return _WORDS.get(kind, str(kind))
