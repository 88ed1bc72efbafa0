"""Parts by name: `name`, or `name:argument`."""

from __future__ import annotations

from pyro_dvae.checks import at_least, shortened


def name_and_argument(spec: str) -> tuple[str, str | None]:
    """Split `name:argument`; the argument is None where there is no colon."""
    name, colon, argument = spec.partition(":")
    return name, argument if colon else None


def is_code(spec: str) -> bool:
    """Whether this reads `module:factory`, such as `my_code.parts:StudentT`."""
    module, colon, factory = spec.partition(":")
    return bool(colon) and all(word.isidentifier() for word in [*module.split("."), factory])


def no_argument(name: str, argument: str | None) -> None:
    """Raise a ValueError if there is an argument."""
    if argument is not None:
        raise ValueError(f"Expected {name} alone; got {name}:{argument}. Leave the colon out.")


def whole(name: str, argument: str | None, default: int, least: int = 1) -> int:
    """The argument as a whole number; the default where there is none.

    Raises:
        ValueError: it is no whole number, or less than `least`.
    """
    if argument is None:
        return default
    try:
        number = int(argument)
    except ValueError:
        raise ValueError(
            f"Expected a whole number after {name}:; got {shortened(argument)}. "
            f"Use {name}:{default}, say."
        ) from None
    at_least(f"number after {name}:", number, least)
    return number
