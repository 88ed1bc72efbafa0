"""Which axes of a trace's log-probabilities are particles, data, or neither."""

from __future__ import annotations

import math
from typing import Any

from pyro.poutine import Trace
from torch import Tensor

PARTICLES = "num_particles_vectorized"
"""The name Pyro gives the plate of vectorised particles."""


def sample_sites(trace: Trace) -> dict[str, Any]:
    """The random sites of a trace by name, in order; subsample sites must be pruned already."""
    return {
        name: site
        for name, site in trace.nodes.items()
        if site["type"] == "sample"
        and not (site["infer"] or {}).get("_deterministic")
        and type(site["fn"]).__name__ != "_Subsample"
    }


class DataPlates:
    """The plates that every site of a model and its guide lies in: the axes of one datum's ELBO.

    Sums over any other plate (the D latents in a plate of their own, say) belong to one datum.
    A site outside every plate makes the whole program one datum: still unbiased, never wrong, but
    with less variance reduction, so keep data in a plate.
    """

    def __init__(self, *traces: Trace) -> None:
        stacks = [
            {frame for frame in site["cond_indep_stack"] if frame.vectorized}
            for trace in traces
            for site in sample_sites(trace).values()
        ]
        particles = {frame for stack in stacks for frame in stack if frame.name == PARTICLES}
        shared = set.intersection(*stacks) - particles if stacks else set()
        self.frames = sorted(shared, key=lambda frame: frame.dim)
        self.names = {frame.name for frame in self.frames}
        self.nesting = max((-f.dim for stack in stacks for f in stack), default=0)
        self.scale = math.prod((f.full_size or f.size) / f.size for f in self.frames)
        self._kept = {frame.dim for frame in shared | particles}
        self._num_particles = next((f.size for f in particles), 1)

    def per_datum(self, value: Tensor) -> Tensor:
        """Sum what belongs to one datum, keep every dimension.

        Args:
            value: (*enumerated, *plates), a site's log-probability; enumerated dimensions lie to
                the left of all plates.
        """
        for dim in range(-value.dim(), 0):
            if -self.nesting <= dim and dim not in self._kept:
                value = value.sum(dim, keepdim=True)
        return value

    def flat(self, value: Tensor) -> Tensor:
        """`per_datum`, as (S, *batch)."""
        sizes = [frame.size for frame in self.frames]
        return self.per_datum(value).reshape(self._num_particles, *sizes)
