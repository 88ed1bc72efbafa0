"""Enumeration: a program runs at all values of its discrete sites at once."""

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
from pyro_dvae.elbos.listed import ListedCodes
from pyro_dvae.elbos.pair import Pair


class SumLayout(NamedTuple):
    """Sizes and plates of the sites that a sum over all their values is made of."""

    nesting: int
    """The largest number of plates around a site. Dimensions left of them hold the values."""
    shared: frozenset[str]
    """Names of the plates of data. All other plates hold variables of one datum."""
    sizes: dict[str, tuple[int, int]]
    """Site -> (D, K): the number of variables per datum, and of values of each variable."""


def sum_layout(pair: Pair, *, marginal: bool) -> SumLayout:
    """The layout of a sum over the codes of model and guide.

    Args:
        pair: the traces of a trial run, or of the sum itself.
        marginal: True for a sum over all latents, also those that only the model has. False for a
            sum over the guide's sites, without those whose draws are reparametrised.

    Raises:
        ValueError: a site cannot be summed over. The message names the site and its distribution.
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
                f"for log p(x); got {name}, from {describe(site['fn'])}. Use RlooELBO, or "
                "EnumeratedELBO, which draws reparametrised latents."
            )
        elif not is_identically_zero(site["score_parts"].score_function):
            raise ValueError(
                "Expected sites with finitely many values or reparametrised draws to sum over; "
                f"got {describe(site['fn'])} at site '{name}'. Use a sampled estimator such as "
                "RlooELBO."
            )
    return SumLayout(nesting(pair), shared, sizes)


def _check_values(name: str, q: Any, pair: Pair) -> None:
    """Refuse a site of the guide that is no latent of the model, or has other values there."""
    if name not in pair.latents:
        raise ValueError(
            f"Expected only latents of the model in the guide for log p(x); got site '{name}', "
            f"from {describe(q)}, which the model does not draw. Leave it out of the guide, or use "
            "EnumeratedELBO."
        )
    p = pair.latents[name]["fn"]
    ours, models = support(q), support(p)
    # A distribution over one-hot codes, such as a mixture's, may have no list of its values.
    same = isinstance(base(q), torch.distributions.OneHotCategorical)
    if models is not None and ours is not None:
        same = ours.shape == models.shape
    if ours is not None and not same:
        raise ValueError(
            f"Expected the same values in guide and model at site '{name}' for log p(x); got "
            f"{describe(q)} for {describe(p)}. Use one family with one number of categories."
        )


def log_density(site: Any) -> Tensor:
    """Log-probability of a site's value, without mask and scale, of the shape of its `log_prob`.

    The draws of a masked site are drawn from its distribution all the same, so it counts in q(z|x).
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
    """Give each site of a layout all of its codes, in a dimension of the site's own.

    It is a handler around the guide. For log p(x) it is one around the model too, where it gives
    codes to the latents that only the model has.

    Args:
        layout: of the sum.
        cut: name of the site that gets only some of its codes; None if every site gets all.
        start: number of the first code of that site.
        stop: number after that of its last code.
    """

    def __init__(self, layout: SumLayout, cut: str | None, start: int, stop: int) -> None:
        super().__init__()
        self.layout = layout
        self.dims = layout.nesting
        self.cut = (cut, start, stop)
        self.seen: set[str] = set()
        self.places: dict[str, int] = {}
        """Site -> the dimension, counted from the right, that holds its several values."""
        self.codes: dict[str, ListedCodes] = {}
        """Site -> its codes, if all of its variables lie in its event."""

    def _pyro_sample(self, msg: Any) -> None:
        name, fn = msg["name"], msg["fn"]
        if msg["is_observed"] or name in self.seen:  # Pyro gives the model the guide's values
            return
        self.seen.add(name)
        if name not in self.layout.sizes:  # after the run, the layouts are compared
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
        if not own:
            self.codes[name] = ListedCodes(msg["value"], digits)
        self.dims += 1
        if len(digits) > 1:
            self.places[name] = -self.dims
