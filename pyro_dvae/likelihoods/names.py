"""Likelihoods by name: `poisson`, or `categorical:16` with an argument."""

from __future__ import annotations

from pyro_dvae.checks import one_of
from pyro_dvae.likelihoods import LIKELIHOODS, Likelihood, Masked, Mixed
from pyro_dvae.specs import build_named, name_and_argument

_EXAMPLE = "mixed:bernoulli*3,categorical:5,normal"


def masked(spec: str) -> str:
    """The name of the same likelihood for data with missing values: `masked:normal`."""
    return f"masked:{unmasked(spec)}"


def unmasked(spec: str) -> str:
    """The name of the likelihood of complete data: `normal` for `masked:normal`, and for `normal`.

    Raises:
        ValueError: nothing stands after `masked:`.
    """
    name, argument = name_and_argument(spec)
    if name != "masked":
        return spec
    if not argument:
        raise ValueError(
            f"Expected the name of a likelihood after masked:; got {spec!r}. Use masked:normal, "
            "say."
        )
    return argument


def is_masked(spec: str) -> bool:
    """Whether the likelihood of this name takes missing values."""
    return name_and_argument(spec)[0] == "masked"


def named_class(spec: str) -> type[Likelihood]:
    """The class of the likelihood that `name` or `name:argument` names, of complete data.

    Raises:
        ValueError: there is no such likelihood.
    """
    name, _ = name_and_argument(unmasked(spec))
    one_of("likelihood", name, LIKELIHOODS)
    return LIKELIHOODS[name].cls


def named_likelihood(
    spec: str, event_shape: tuple[int, ...] | None = None, what: str = "likelihood"
) -> Likelihood:
    """Build the likelihood that `name` or `name:argument` names.

    Args:
        spec: The name, or name and argument.
        event_shape: Shape of one datum; None where it is not known, for a look at `levels` say.
        what: The kind of part, for messages.

    Raises:
        ValueError: an unknown name, or an argument that it does not take.
    """
    name, argument = name_and_argument(spec)
    if name == "mixed" and what == "likelihood":
        return _mixed(argument, event_shape)
    if name == "masked" and what == "likelihood":
        return Masked(named_likelihood(unmasked(spec), event_shape))
    kinds = {key: row for key, row in LIKELIHOODS.items() if row.cls not in (Masked, Mixed)}
    table = LIKELIHOODS if what == "likelihood" else kinds
    return build_named(what, spec, table, {"event_shape": event_shape or ()})


def _mixed(argument: str | None, event_shape: tuple[int, ...] | None) -> Likelihood:
    """`bernoulli*3,categorical:5,normal` after the colon: the kinds of the columns of a table."""
    blocks = [
        (named_likelihood(spec, (columns,), "kind of column"), columns)
        for spec, columns in kinds_of_columns(argument)
    ]
    total = sum(columns for _, columns in blocks)
    if event_shape not in (None, (total,)):
        raise ValueError(
            f"Expected one kind for each column of data of shape {event_shape}; got mixed: with "
            f"{total}. Name them all, as in {_EXAMPLE} for five."
        )
    return Mixed(blocks)


def kinds_of_columns(argument: str | None) -> list[tuple[str, int]]:
    """The kinds in `bernoulli*3,categorical:5,normal`, and how many columns in a row have each.

    Raises:
        ValueError: there are none, or what follows a star is no number.
    """
    if argument is None:
        raise ValueError(
            f"Expected the columns' kinds after mixed:; got none. Use {_EXAMPLE}, say."
        )
    kinds = []
    for item in argument.split(","):
        spec, star, times = item.strip().partition("*")
        if star and not (times.isdecimal() and 0 < int(times) <= 10**6):
            raise ValueError(
                f"Expected a number of columns after {spec}*; got {times!r}. Use {spec}*3, say."
            )
        kinds.append((spec, int(times) if star else 1))
    return kinds
