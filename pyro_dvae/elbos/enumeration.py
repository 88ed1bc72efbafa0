"""Sites with finitely many values, all of which a program runs at once."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from pyro.distributions.util import is_identically_zero
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_dvae.codes import enumerate_digits
from pyro_dvae.elbos.distributions import base, describe, support, unmasked
from pyro_dvae.elbos.layout import LayoutChanged, nesting
from pyro_dvae.elbos.pair import Pair


class SumLayout(NamedTuple):
    """What a sum over all values of the latents must know before it runs."""

    nesting: int
    """The most plates around a site; the values lie left of them."""
    shared: frozenset[str]
    """Names of the plates that make a datum; other plates hold variables of the site."""
    sizes: dict[str, tuple[int, int]]
    """Site -> (D, K), variables per datum and values of each."""


def sum_layout(pair: Pair, *, marginal: bool) -> SumLayout:
    """The layout of two programs from their traces.

    Args:
        pair: of a trial run, or of a sum.
        marginal: sum over all latents, those of the model alone too; else over the guide's sites
            whose draws have no reparametrised gradient.

    Raises:
        ValueError: a site that cannot be summed over; the message names it and its distribution.
    """
    sites = dict(pair.guide_sites)
    if marginal:
        for name, site in sites.items():
            _check_values(name, site["fn"], pair)
        sites = {**pair.latents, **sites}
    shared = frozenset(pair.plates.names)
    sizes = {}
    for name, site in sites.items():
        values = support(site["fn"])
        if values is not None and not site["is_observed"]:
            sizes[name] = (_num_variables(site, values, shared), len(values))
        elif marginal:
            raise ValueError(
                "Expected latents with finitely many values (categorical, Bernoulli, binomial) "
                f"for log p(x); got {name}, from {describe(site['fn'])}. Use EnumeratedELBO, which "
                "draws what is reparametrised, or RlooELBO."
            )
        elif not is_identically_zero(site["score_parts"].score_function):
            raise ValueError(
                "Expected sites with finitely many values or reparametrised draws to sum over; "
                f"got {describe(site['fn'])} at site '{name}'. Use a sampled estimator such as "
                "RlooELBO."
            )
    return SumLayout(nesting(pair), shared, sizes)


def _check_values(name: str, q: Any, pair: Pair) -> None:
    """Refuse a site of the guide whose values are not all those of a latent of the model."""
    if name not in pair.latents:
        raise ValueError(
            f"Expected a guide of latents of the model for log p(x); got site '{name}', from "
            f"{describe(q)}, which the model does not draw. Leave it out of the guide, or use "
            "EnumeratedELBO."
        )
    p = pair.latents[name]["fn"]
    ours, models = support(q), support(p)
    # A distribution over one-hot codes, such as a mixture's, may not list them.
    same = isinstance(base(q), torch.distributions.OneHotCategorical)
    if models is not None and ours is not None:
        same = ours.shape == models.shape
    if ours is not None and not same:
        raise ValueError(
            f"Expected the same values in guide and model at site '{name}' for log p(x); got "
            f"{describe(q)} for {describe(p)}. Use one family with one number of categories."
        )


def log_density(site: Any) -> Tensor:
    """Log-probability of a site's value, whatever is masked: a masked draw is a draw all the same.

    Not scaled. Shape of the site's `log_prob`.
    """
    fn = unmasked(site["fn"])
    value: Tensor = site["unscaled_log_prob"] if fn is site["fn"] else fn.log_prob(site["value"])
    return value


def _own_plates(site: Any, shared: frozenset[str]) -> dict[int, int]:
    frames = site["cond_indep_stack"]
    return {f.dim: f.size for f in frames if f.vectorized and f.name not in shared}


def _num_variables(site: Any, values: Tensor, shared: frozenset[str]) -> int:
    event = site["fn"].event_shape
    own = _own_plates(site, shared).values()
    return math.prod(own) * math.prod(event[: len(event) - values.dim() + 1])


class Enumeration(Messenger):
    """Give each site to be summed over all of its values, each site in a dimension of its own.

    It goes around the guide, and around the model for what only that draws.

    Args:
        layout: which sites, and what is around them.
        cut: the site that gets only its values number `start` to `stop`.
        start: see `cut`.
        stop: see `cut`.
    """

    def __init__(self, layout: SumLayout, cut: str | None, start: int, stop: int) -> None:
        super().__init__()
        self.layout = layout
        self.dims = layout.nesting
        self.cut = (cut, start, stop)
        self.seen: set[str] = set()
        self.places: dict[str, int] = {}
        """Site -> the dimension, counted from the right, that holds its several values."""

    def _pyro_sample(self, msg: Any) -> None:
        name, fn = msg["name"], msg["fn"]
        if msg["is_observed"] or name in self.seen:  # the model takes what the guide was given
            return
        self.seen.add(name)
        if name not in self.layout.sizes:  # what should be there is missed after the run
            return
        values = support(fn)
        shared = self.layout.shared
        size = None if values is None else (_num_variables(msg, values, shared), len(values))
        if values is None or size != self.layout.sizes[name]:
            raise LayoutChanged.between(
                f"(D, K) = {self.layout.sizes[name]}", f"{size} at site '{name}'"
            )
        cut, *limits = self.cut
        start, stop = limits if name == cut else (0, None)
        digits = enumerate_digits(*size, start=start, stop=stop, device=values.device)
        own = _own_plates(msg, shared)
        batch = [own.get(dim, 1) for dim in range(-self.dims, 0)]
        msg["value"] = values[digits].reshape(-1, *batch, *fn.event_shape)
        self.dims += 1
        if len(digits) > 1:
            self.places[name] = -self.dims
