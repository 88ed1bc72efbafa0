"""Which axes of a trace's log-probabilities are particles, data, or neither."""

from __future__ import annotations

import math
from typing import Any

from pyro.poutine import Trace
from torch import Tensor

PARTICLES = "num_particles_vectorized"
"""The name Pyro gives the plate of vectorised particles."""


def sample_sites(trace: Trace) -> dict[str, Any]:
    """The random sites of a trace by name, in order, without plates' subsample indices."""
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
        self.names = {frame.name for frame in self.frames} | {PARTICLES}
        self.nesting = max((-f.dim for stack in stacks for f in stack), default=0)
        self.scale = math.prod((f.full_size or f.size) / f.size for f in self.frames)
        self.sizes = {frame.dim: frame.size for frame in shared | particles}
        self.flat_sizes = [
            next((f.size for f in particles), 1),
            *(frame.size for frame in self.frames),
        ]

    def per_datum(self, value: Tensor) -> Tensor:
        """Sum what belongs to one datum, keep every dimension.

        Args:
            value: (*extra, *plates), a site's log-probability; extra dimensions (enumerated codes,
                variants of a draw) lie to the left of all plates.
        """
        for dim in range(-min(value.dim(), self.nesting), 0):
            if dim not in self.sizes:
                value = value.sum(dim, keepdim=True)
        return value

    def flat(self, value: Tensor) -> Tensor:
        """`per_datum`, as (*extra, S, *batch)."""
        value = self.per_datum(value)
        extra = value.shape[: max(0, value.dim() - self.nesting)]
        return value.reshape(*extra, *self.flat_sizes)
