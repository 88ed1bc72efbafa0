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


def subsamples(trace: Trace) -> dict[str, Tensor]:
    """The indices that the plates of a trace hold, by name."""
    nodes: dict[str, Any] = trace.nodes
    return {
        name: site["value"]
        for name, site in nodes.items()
        if site["type"] == "sample" and type(site["fn"]).__name__ == "_Subsample"
    }


def is_subsampled_loop(*traces: Trace) -> bool:
    """Whether a plate that a program loops over holds some of its data only."""
    return any(
        frame.size != (frame.full_size or frame.size)
        for trace in traces
        for site in sample_sites(trace).values()
        for frame in site["cond_indep_stack"]
        if not frame.vectorized
    )


def common_scale(*sites: Any) -> float:
    """The one scale of sites, which may stand outside of a logarithm: s log sum_z p(x, z).

    Raises:
        ValueError: sites of several scales, by `poutine.scale` or by a plate that subsamples and
            does not hold all sites; the message names them.
    """
    scales: dict[str, list[str]] = {}
    for site in sites:
        scale = site["scale"]
        is_one = not isinstance(scale, Tensor) or scale.numel() == 1
        # Products of the same factors in another order may differ in the last digit.
        scales.setdefault(f"{float(scale):.12g}" if is_one else "several", []).append(site["name"])
    if len(scales) > 1 or "several" in scales:
        found = ", ".join(
            f"{scale} at {' and '.join(sorted(set(names)))}" for scale, names in scales.items()
        )
        raise ValueError(
            "Expected one scale of all sites, for it must stand outside of the logarithm of the "
            f"bound; got {found}. Put poutine.scale and plates that subsample around all sites of "
            "model and guide, or use an ELBO such as RlooELBO or EnumeratedELBO."
        )
    return float(sites[0]["scale"]) if sites else 1.0


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
