"""Properties of the distribution of a site, with all of its wrappers such as `.to_event(n)`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions.distribution import Distribution
from pyro.distributions.relaxed_straight_through import (
    RelaxedBernoulliStraightThrough,
    RelaxedOneHotCategoricalStraightThrough,
)
from pyro.distributions.torch_distribution import ExpandedDistribution, MaskedDistribution
from torch import Tensor

from pyro_dvae.codes import unwrap

# Torch's classes are the bases of Pyro's, and of Pyro's straight-through ones.
_CODES = (torch.distributions.OneHotCategorical, torch.distributions.Categorical)
_SAME_VALUES = (torch.distributions.Independent, MaskedDistribution, ExpandedDistribution)
"""Wrappers that do not change the values of a distribution."""
_WRAPPERS = (*_SAME_VALUES, torch.distributions.TransformedDistribution)
_RELAXED_STRAIGHT_THROUGH = (
    RelaxedOneHotCategoricalStraightThrough,
    RelaxedBernoulliStraightThrough,
)
"""Classes whose draws are discrete, but whose support and score are those of the relaxation."""


def layers(fn: object, wrappers: tuple[type[Any], ...] = _WRAPPERS) -> Iterator[object]:
    """The distribution itself, the distribution inside it, and so on to the innermost one."""
    yield fn
    while isinstance(fn, wrappers):
        fn = fn.base_dist
        yield fn


def base(fn: object) -> Any:
    """The distribution inside of `.to_event(n)`, `.mask(m)` and `.expand(shape)`."""
    *_, innermost = layers(fn, _SAME_VALUES)
    return innermost


def describe(fn: object) -> str:
    """The name of a site's distribution, for a message: "Independent of Bernoulli"."""
    return " of ".join(type(layer).__name__ for layer in layers(fn))


def unmasked(fn: Any) -> Any:
    """The distribution without any `.mask(m)`."""
    if isinstance(fn, MaskedDistribution):
        return unmasked(fn.base_dist)
    if isinstance(fn, torch.distributions.Independent):
        inside = unmasked(fn.base_dist)
        return fn if inside is fn.base_dist else inside.to_event(fn.reinterpreted_batch_ndims)
    return fn


def is_masked(site: Any) -> bool:
    """Whether a site has a mask, from `poutine.mask` or from its distribution's `.mask(m)`."""
    inside = (fn._mask for fn in layers(site["fn"]) if isinstance(fn, MaskedDistribution))
    return any(mask is not None and mask is not True for mask in (site["mask"], *inside))


def support(fn: object) -> Tensor | None:
    """All values of one variable of a site, (K, *event of the variable).

    Args:
        fn: the distribution of a site, such as a categorical, Bernoulli or binomial one. It may be
            in `.to_event(n)`, masked or expanded.

    Returns:
        The values. None if there are infinitely many, if the variables have different values (such
        as binomial ones of different totals), or if the draws are reparametrised.
    """
    inside = base(fn)
    is_finite = isinstance(inside, Distribution) and inside.has_enumerate_support
    if not is_finite or isinstance(inside, dist.Empirical):  # it lists equal values twice
        return None
    if inside.has_rsample and not isinstance(inside, _CODES):  # straight-through codes have it too
        return None
    try:
        values = inside.enumerate_support(expand=False)
    except NotImplementedError:
        return None
    shape = (len(values), *inside.event_shape)
    return values.reshape(shape) if values.numel() == math.prod(shape) else None


def without_straight_through(fn: Any) -> Any:
    """The distribution itself, or a plain one of the same codes if it is straight-through.

    A straight-through distribution has discrete draws, but `has_rsample` is True. So Pyro would
    leave out the score function, and follow the biased gradient of the draws.

    Args:
        fn: the distribution of a site.

    Raises:
        TypeError: the distribution is straight-through but not one of codes; or it is of torch's
            own classes, not of Pyro's.
    """
    inside, num_event = unwrap(fn)
    if isinstance(fn, torch.distributions.Distribution) and not isinstance(fn, Distribution):
        raise TypeError(
            f"Expected a distribution of Pyro; got torch's {inside}. Use the class of the same "
            "name in pyro.distributions."
        )
    if not (isinstance(fn, Distribution) and fn.has_rsample):
        return fn
    if isinstance(inside, torch.distributions.OneHotCategorical):
        return dist.OneHotCategorical(logits=inside.logits).to_event(num_event)
    if isinstance(inside, torch.distributions.Categorical):
        return dist.Categorical(logits=inside.logits).to_event(num_event)
    if _is_straight_through(fn):
        raise TypeError(
            f"Expected draws whose gradient is exact; got the straight-through {inside}. Use "
            "OneHotCategorical, or Bernoulli for one bit. The ELBO then estimates the gradient."
        )
    return fn


def _is_straight_through(fn: Any) -> bool:
    if any(isinstance(layer, _RELAXED_STRAIGHT_THROUGH) for layer in layers(fn)):
        return True
    try:
        return bool(fn.support.is_discrete)  # and it has `rsample`
    except (AttributeError, NotImplementedError):
        return False
