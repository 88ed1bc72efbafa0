"""Layouts: the sizes of sites and plates, which an ELBO needs before it runs the programs."""

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

# It is not an attribute of the ELBO, since it must not be copied or pickled with the ELBO.
_LAST: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()
"""ELBO -> the layout of its last call."""


class LayoutChanged(TypeError):
    """The traces of a run do not have the expected layout.

    It is not a ValueError, because Pyro changes the messages of those.
    """

    @classmethod
    def between(cls, expected: object, found: object) -> LayoutChanged:
        """The error that names both layouts."""
        return cls(
            "Expected programs with the same sites, plates and categories in each run; got "
            f"{found} after {expected}. Change the programs so that these do not depend on draws."
        )


def nesting(pair: Pair) -> int:
    """The largest number of plates around a site, without the plate of particles."""
    sites = (*pair.model_sites.values(), *pair.guide_sites.values())
    frames = (frame for site in sites for frame in site["cond_indep_stack"])
    return max((-f.dim for f in frames if f.vectorized and f.name != PARTICLES), default=0)


def with_layout(
    elbo: nn.Module, find: Callable[[], Layout], run: Callable[[Layout], Result]
) -> Result:
    """`run(layout)`, with the layout of the ELBO's last call if it still fits, else with a new one.

    A trial run takes about 60 % of the time of an enumerated step with 16 codes, and programs
    seldom change. So the layout of the last call is tried first. It does not fit another model,
    another K or other plates: `run` must compare its traces with the layout, and raise
    `LayoutChanged` if they differ.

    Args:
        elbo: its last layout is tried first.
        find: finds the layout by a trial run.
        run: runs the programs. It may be called twice, with the same random numbers.
    """
    known = _LAST.get(elbo)
    if known is not None:
        before = random_states()
        try:
            return run(known)
        except Exception:  # a wrong layout can raise any error; the program's own come up again
            restore(before)
    layout = _LAST[elbo] = find()
    return run(layout)
