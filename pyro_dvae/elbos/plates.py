"""The dimensions of log-probabilities: particles, data, or variables of one datum."""

from __future__ import annotations

import math
from typing import Any

from pyro.poutine import Trace
from torch import Tensor

PARTICLES = "num_particles_vectorized"
"""Pyro's name of the plate of particles."""


def is_subsample(site: Any) -> bool:
    """Whether the value of a sample site is the indices of the data in a plate."""
    return type(site["fn"]).__name__ == "_Subsample"


def sample_sites(trace: Trace) -> dict[str, Any]:
    """The random sites of a trace by name, in order, without the indices of subsamples."""
    return {
        name: site
        for name, site in trace.nodes.items()
        if site["type"] == "sample"
        and not (site["infer"] or {}).get("_deterministic")
        and not is_subsample(site)
    }


def subsamples(trace: Trace) -> dict[str, Tensor]:
    """The indices of the data in each plate of a trace, by name of the plate."""
    nodes: dict[str, Any] = trace.nodes
    return {
        name: site["value"]
        for name, site in nodes.items()
        if site["type"] == "sample" and is_subsample(site)
    }


def is_subsampled_loop(*traces: Trace) -> bool:
    """Whether a program loops over a plate that holds a subsample of its data."""
    return any(
        frame.size != (frame.full_size or frame.size)
        for trace in traces
        for site in sample_sites(trace).values()
        for frame in site["cond_indep_stack"]
        if not frame.vectorized
    )


def common_scale(*sites: Any) -> float:
    """The scale s that all sites have, so that the objective can be s log sum_z p(x, z).

    Raises:
        ValueError: sites have different scales, from `poutine.scale` or from a plate that
            subsamples and does not hold all sites. The message names the sites and their scales.
    """
    scales: dict[str, list[str]] = {}
    for site in sites:
        scale = site["scale"]
        is_one = not isinstance(scale, Tensor) or scale.numel() == 1
        # The same factors in another order can give a product that differs in the last digit.
        scales.setdefault(f"{float(scale):.12g}" if is_one else "several", []).append(site["name"])
    if len(scales) > 1 or "several" in scales:
        found = ", ".join(
            f"{scale} at {' and '.join(sorted(set(names)))}" for scale, names in scales.items()
        )
        raise ValueError(
            "Expected one scale of all sites, since it is a factor in front of the logarithm of "
            f"the bound; got {found}. Put poutine.scale and plates that subsample around all "
            "sites of model and guide, or use an ELBO such as RlooELBO or EnumeratedELBO."
        )
    return float(sites[0]["scale"]) if sites else 1.0


class DataPlates:
    """The plates of data: those that hold every site of model and guide.

    Each element of these plates is one datum, with an ELBO of its own. Log-probabilities are summed
    over all other plates, such as a plate of the D latents. If a site lies outside of all plates,
    the whole program is one datum. The gradient is still unbiased then, but its variance is higher.
    So put all sites into the plate of the data.

    Args:
        traces: of model and guide.
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
        """Sum over all plates but those of particles and data. Summed dimensions stay, with size 1.

        Args:
            value: (*extra, *plates), the log-probability of a site. The extra dimensions on the
                left hold several codes.
        """
        for dim in range(-min(value.dim(), self.nesting), 0):
            if dim not in self.sizes:
                value = value.sum(dim, keepdim=True)
        return value

    def flat(self, value: Tensor) -> Tensor:
        """`per_datum(value)`, reshaped to (*extra, S, *batch)."""
        value = self.per_datum(value)
        extra = value.shape[: max(0, value.dim() - self.nesting)]
        return value.reshape(*extra, *self.flat_sizes)
