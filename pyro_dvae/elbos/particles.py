"""Several particles: both programs run in a plate, and must not mix its particles."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyro
import torch
from pyro.poutine.messenger import Messenger

from pyro_dvae.elbos.pair import Pair, Program
from pyro_dvae.elbos.plates import PARTICLES


class OwnShapes(Messenger):
    """Record the batch shapes of distributions, before the plate of particles expands them."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: dict[str, torch.Size] = {}

    def _pyro_sample(self, msg: Any) -> None:
        fn = msg["fn"]
        if isinstance(fn, torch.distributions.Distribution):
            self.shapes[msg["name"]] = fn.batch_shape


def pair_of_particles(
    model: Program,
    guide: Program,
    args: Any,
    kwargs: Any,
    num_particles: int,
    nesting: float,
    wrap: Callable[[Program], Program],
) -> Pair:
    """Run both programs in a plate of particles, left of the programs' own plates.

    Args:
        model: a Pyro program, without the plate of particles.
        guide: a Pyro program, without the plate of particles.
        args: positional arguments of both.
        kwargs: keyword arguments of both.
        num_particles: S. If it is 1, there is no plate of particles.
        nesting: the largest number of the programs' own plates around a site. It is used if S > 1.
        wrap: adds a sampler to the guide in its plate of particles.

    Raises:
        ValueError: a site has more plates than `nesting`, or depends on the codes of several
            particles.
    """
    if num_particles == 1:
        return Pair(model, wrap(guide), args, kwargs, math.inf)
    dim = -1 - int(nesting)
    plate: Any = pyro.plate(PARTICLES, num_particles, dim=dim)
    noted = OwnShapes(), OwnShapes()
    model, guide = (
        plate(note(program)) for note, program in zip(noted, (model, guide), strict=True)
    )
    pair = Pair(model, wrap(guide), args, kwargs, math.inf)
    if pair.plates.nesting > -dim:
        raise ValueError(
            f"Expected at most max_plate_nesting = {nesting} plates around a site; got "
            f"{pair.plates.nesting - 1}. Raise max_plate_nesting, or leave it out."
        )
    model_shapes, guide_shapes = (note.shapes.copy() for note in noted)
    pair.own_shapes = model_shapes, guide_shapes
    pair.refuse_mixed(dict.fromkeys(pair.codes, dim), lambda: pair)
    return pair
