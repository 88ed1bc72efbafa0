"""The likelihoods by name: `poisson`, or `categorical:16` with an argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pyro_dvae.checks import one_of
from pyro_dvae.likelihoods.base import Likelihood
from pyro_dvae.likelihoods.bernoulli import Bernoulli
from pyro_dvae.likelihoods.counts import Multinomial, NegativeBinomial, Poisson
from pyro_dvae.likelihoods.levels import Categorical, LogisticMixture
from pyro_dvae.likelihoods.mixed import Mixed
from pyro_dvae.likelihoods.real import Laplace, Normal
from pyro_dvae.likelihoods.unit import Beta, ContinuousBernoulli
from pyro_dvae.specs import is_code, name_and_argument, no_argument, whole


class Named(NamedTuple):
    """A likelihood that has a name."""

    likelihood: type[Likelihood]
    build: Callable[[str, str | None, tuple[int, ...] | None], Likelihood]
    """(name, argument, shape of a datum or None) -> likelihood; a ValueError if they are wrong."""


def _plain(likelihood: type[Likelihood]) -> Named:
    """A likelihood that takes no argument."""

    def build(name: str, argument: str | None, shape: tuple[int, ...] | None) -> Likelihood:
        no_argument(name, argument)
        return likelihood()

    return Named(likelihood, build)


def _scaled(likelihood: type[Normal] | type[Laplace]) -> Named:
    """A likelihood whose argument is a fixed scale."""

    def build(name: str, argument: str | None, shape: tuple[int, ...] | None) -> Likelihood:
        try:
            scale = None if argument is None else float(argument)
        except ValueError:
            raise ValueError(
                f"Expected a scale after {name}:; got {argument!r}. Use {name}:0.1, say, or "
                f"{name} alone to learn it."
            ) from None
        return likelihood(shape or (), scale)

    return Named(likelihood, build)


def _categorical(name: str, argument: str | None, shape: tuple[int, ...] | None) -> Likelihood:
    return Categorical(whole(name, argument, 256))


def _logistic_mixture(name: str, argument: str | None, shape: tuple[int, ...] | None) -> Likelihood:
    return LogisticMixture(components=whole(name, argument, 5))


def _mixed(name: str, argument: str | None, shape: tuple[int, ...] | None) -> Likelihood:
    example = "mixed:bernoulli*3,categorical:5,normal"
    if argument is None:
        raise ValueError(f"Expected the columns' kinds after mixed:; got none. Use {example}, say.")
    kinds = [kind for kind in LIKELIHOODS if kind != name]
    blocks = []
    for item in argument.split(","):
        spec, star, times = item.strip().partition("*")
        if star and not (times.isdecimal() and 0 < int(times) <= 10**6):
            raise ValueError(
                f"Expected a number of columns after {spec}*; got {times!r}. Use {spec}*3, say."
            )
        one_of("kind of column", name_and_argument(spec)[0], kinds)
        columns = int(times) if star else 1
        blocks.append((named_likelihood(spec, (columns,)), columns))
    total = sum(columns for _, columns in blocks)
    if shape not in (None, (total,)):
        raise ValueError(
            f"Expected one kind for each column of data of shape {shape}; got mixed: with "
            f"{total}. Name them all, as in {example} for five."
        )
    return Mixed(blocks)


LIKELIHOODS: dict[str, Named] = {
    "bernoulli": _plain(Bernoulli),
    "continuous-bernoulli": _plain(ContinuousBernoulli),
    "beta": _plain(Beta),
    "categorical": Named(Categorical, _categorical),
    "logistic-mixture": Named(LogisticMixture, _logistic_mixture),
    "normal": _scaled(Normal),
    "laplace": _scaled(Laplace),
    "poisson": _plain(Poisson),
    "negative-binomial": _plain(NegativeBinomial),
    "multinomial": _plain(Multinomial),
    "mixed": Named(Mixed, _mixed),
}
"""Name -> class, and how to build one."""


def is_own(spec: str) -> bool:
    """Whether this names a likelihood of a user's own, `module:factory`."""
    return name_and_argument(spec)[0] not in LIKELIHOODS and is_code(spec)


def named(spec: str) -> Named:
    """The row of the table that `name` or `name:argument` names.

    Raises:
        ValueError: there is no such likelihood.
    """
    name, _ = name_and_argument(spec)
    one_of("likelihood", name, LIKELIHOODS)
    return LIKELIHOODS[name]


def named_likelihood(spec: str, event_shape: tuple[int, ...] | None = None) -> Likelihood:
    """Build the likelihood that `name` or `name:argument` names.

    Args:
        spec: the name, or name and argument.
        event_shape: shape of one datum; None where it is not known, as for a look at `levels`.

    Raises:
        ValueError: an unknown name, or an argument that it does not take.
    """
    return named(spec).build(*name_and_argument(spec), event_shape)
