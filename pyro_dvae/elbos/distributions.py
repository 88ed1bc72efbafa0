"""What an ELBO asks about the distribution of a site, whatever wraps it."""

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
"""Wrappers of a distribution that has the same values."""
_WRAPPERS = (*_SAME_VALUES, torch.distributions.TransformedDistribution)
_RELAXED_STRAIGHT_THROUGH = (
    RelaxedOneHotCategoricalStraightThrough,
    RelaxedBernoulliStraightThrough,
)
"""Discrete draws under a distribution whose support is that of the relaxation, which it scores."""


def layers(fn: object, wrappers: tuple[type[Any], ...] = _WRAPPERS) -> Iterator[object]:
    """A distribution, the one that it wraps, and so on to the innermost one."""
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
    """The distribution without any `.mask(m)`; itself where it has none."""
    if isinstance(fn, MaskedDistribution):
        return unmasked(fn.base_dist)
    if isinstance(fn, torch.distributions.Independent):
        inside = unmasked(fn.base_dist)
        return fn if inside is fn.base_dist else inside.to_event(fn.reinterpreted_batch_ndims)
    return fn


def support(fn: object) -> Tensor | None:
    """All values of one variable of a site, (K, *event of the variable).

    Args:
        fn: the distribution of a site: categorical, Bernoulli, binomial and the like, in
            `.to_event(n)`, masked or expanded.

    Returns:
        None for a distribution without finite support, or whose variables do not share it (counts
        of different totals), or whose draws are reparametrised.
    """
    inside = base(fn)
    is_finite = isinstance(inside, Distribution) and inside.has_enumerate_support
    if not is_finite or isinstance(inside, dist.Empirical):  # which lists equal values twice
        return None
    if inside.has_rsample and not isinstance(inside, _CODES):  # as a straight-through code has
        return None
    try:
        values = inside.enumerate_support(expand=False)
    except NotImplementedError:
        return None
    shape = (len(values), *inside.event_shape)
    return values.reshape(shape) if values.numel() == math.prod(shape) else None


def without_straight_through(fn: Any) -> Any:
    """The distribution of a site whose draws, if they are discrete, have no gradient.

    A straight-through distribution says that its draws are reparametrised. Pyro then leaves out
    the score function and follows the biased gradient of the draws. So a plain Pyro distribution
    of the same codes takes its place.

    Args:
        fn: any distribution.

    Returns:
        A plain distribution of codes in place of a straight-through one; any other `fn` itself.

    Raises:
        TypeError: a straight-through distribution that is not one of codes, or one of torch that
            is not Pyro's.
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
            "OneHotCategorical, or Bernoulli for one bit: the ELBO chooses how to differentiate."
        )
    return fn


def _is_straight_through(fn: Any) -> bool:
    if any(isinstance(layer, _RELAXED_STRAIGHT_THROUGH) for layer in layers(fn)):
        return True
    try:
        return bool(fn.support.is_discrete)  # and it has `rsample`
    except (AttributeError, NotImplementedError):
        return False
