"""The entropy of p(x|z), in nats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor

from pyro_dvae.likelihoods.base import FlatDistribution, Likelihood
from pyro_dvae.likelihoods.bernoulli import Bernoulli
from pyro_dvae.likelihoods.correlated import CorrelatedNormal
from pyro_dvae.likelihoods.elements import element_log_probs
from pyro_dvae.likelihoods.levels import Categorical
from pyro_dvae.likelihoods.masked import _MaskedDistribution, is_dependent
from pyro_dvae.likelihoods.mixed import _MixedDistribution
from pyro_dvae.likelihoods.numerics import softplus
from pyro_dvae.likelihoods.real import Laplace, Normal
from pyro_dvae.likelihoods.unit import ContinuousBernoulli

_DRAWS = 32
"""Draws of x per code where the entropy has no closed form."""


def _bernoulli(likelihood: Bernoulli, params: Tensor) -> Tensor:
    return softplus(params) - params * params.sigmoid()


def _categorical(likelihood: Categorical, params: Tensor) -> Tensor:
    log_p = params.log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1)


def _normal(likelihood: Normal, params: Tensor) -> Tensor:
    return 0.5 - likelihood.element_log_probs(params, likelihood.mean(params))


def _laplace(likelihood: Laplace, params: Tensor) -> Tensor:
    return 1 - likelihood.element_log_probs(params, likelihood.mean(params))


def _continuous_bernoulli(likelihood: ContinuousBernoulli, params: Tensor) -> Tensor:
    return -likelihood.element_log_probs(params, likelihood.mean(params))  # log p is linear in x


_CLOSED: dict[type[Likelihood], Callable[[Any, Tensor], Tensor]] = {
    Bernoulli: _bernoulli,
    Categorical: _categorical,
    Normal: _normal,
    Laplace: _laplace,
    ContinuousBernoulli: _continuous_bernoulli,
}


def element_entropies(p_x: TorchDistribution) -> Tensor:
    """E[-log p(x_p|z)] of each element, (*batch, *event), in nats.

    Zeros and ones, categories, normal, Laplace and continuous-Bernoulli elements have closed forms.
    The entropy of others is a mean over 32 draws, from torch's global generator.

    Args:
        p_x: p(x|z), of batch shape (*batch) and event shape *event. Its elements are independent;
            they are complete data where the likelihood is masked.

    Raises:
        ValueError: the distribution cannot score single elements.
    """
    if isinstance(p_x, _MaskedDistribution):
        return element_entropies(p_x.base)
    if isinstance(p_x, _MixedDistribution):
        return torch.cat([element_entropies(part) for part in p_x.parts], -1)
    closed = _CLOSED.get(type(p_x.likelihood)) if isinstance(p_x, FlatDistribution) else None
    if closed is not None:
        assert isinstance(p_x, FlatDistribution)
        found = closed(p_x.likelihood, p_x.flat_params)
        return found.reshape(found.shape[:-1] + p_x.event_shape)
    return -element_log_probs(p_x, p_x.sample((_DRAWS,))).mean(0)


def datum_entropy(p_x: TorchDistribution, observed: Tensor | None = None) -> Tensor:
    """E[-log p(x|z)] of a whole datum, in nats, (*batch); by draws, but for the forms above.

    Args:
        p_x: p(x|z), of batch shape (*batch) and event shape *event.
        observed: (*batch, *event) bools, of which elements are counted; None for all.
    """
    if observed is None and isinstance(p_x, FlatDistribution) and is_dependent(p_x.likelihood):
        its, params = p_x.likelihood, p_x.flat_params
        if type(its) is CorrelatedNormal:  # as of a normal element, P times
            return p_x.event_shape.numel() / 2 - its.log_prob(params, its.mean(params))
        return -p_x.log_prob(p_x.sample((_DRAWS,))).mean(0)
    each = element_entropies(p_x)
    each = each if observed is None else each * observed
    return each.reshape(*each.shape[: each.dim() - p_x.event_dim], -1).sum(-1)
