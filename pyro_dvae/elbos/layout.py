"""What an ELBO must know of two programs before it runs them, found by a trial run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from torch import nn

from pyro_dvae.elbos.noise import random_states, restore
from pyro_dvae.elbos.pair import Pair
from pyro_dvae.elbos.plates import PARTICLES

Layout = TypeVar("Layout")
Result = TypeVar("Result")

# Not an attribute of the ELBO, which would then not be copied and pickled as any module is.
_LAST: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()
"""ELBO -> the layout that its last call found."""


class LayoutChanged(TypeError):
    """A run whose traces are not laid out as it was told (no ValueError, which Pyro rewrites)."""

    @classmethod
    def between(cls, expected: object, found: object) -> LayoutChanged:
        """The error that names both."""
        return cls(
            "Expected programs with the same sites, plates and categories in each run; got "
            f"{found} after {expected}. Let them not depend on what is drawn."
        )


def nesting(pair: Pair) -> int:
    """The most plates around a site, particles left out."""
    sites = (*pair.model_sites.values(), *pair.guide_sites.values())
    frames = (frame for site in sites for frame in site["cond_indep_stack"])
    return max((-f.dim for f in frames if f.vectorized and f.name != PARTICLES), default=0)


def with_layout(
    elbo: nn.Module, find: Callable[[], Layout], run: Callable[[Layout], Result]
) -> Result:
    """`run` under the layout of the ELBO's last call, or, where that is not right, a found one.

    A trial run costs some 60 % of an enumerated step of 16 codes, and programs seldom change. But
    another model, another K or another nesting of plates must not be run under what is remembered:
    so `run` must compare its traces with the layout, and raise `LayoutChanged`.

    Args:
        elbo: whose last layout is tried first.
        find: finds the layout by a trial run.
        run: the run itself; it may be called twice, from the same state of the random numbers.
    """
    known = _LAST.get(elbo)
    if known is not None:
        before = random_states()
        try:
            return run(known)
        except Exception:  # of any kind, as another program meets it; an error of its own recurs
            restore(before)
    layout = _LAST[elbo] = find()
    return run(layout)
