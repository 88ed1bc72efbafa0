"""log p(x_p|z) of each element of a datum by itself, and of those that are observed."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor


@runtime_checkable
class _Elementwise(Protocol):
    """A distribution that scores each element of a datum."""

    def element_log_probs(self, value: Tensor) -> Tensor:
        """Log-probabilities of the elements of data (..., *event), in nats, (..., *event)."""


def element_log_probs(p_x: TorchDistribution, x: Tensor) -> Tensor:
    """Log p(x_p|z) of each element, which sum to log p(x|z), in nats.

    Args:
        p_x: p(x|z), of batch shape (...) and event shape *event. Its elements are independent.
        x: data (..., *event), whose leading dimensions are broadcast against the batch shape.

    Returns:
        (..., *event).

    Raises:
        ValueError: the elements are not independent given z, or the distribution cannot score them
            one by one.
    """
    if isinstance(p_x, _Elementwise):
        return p_x.element_log_probs(x)
    if isinstance(p_x, torch.distributions.Independent) and not p_x.base_dist.event_shape:
        return p_x.base_dist.log_prob(x)
    raise ValueError(
        f"Expected p(x|z) whose elements are independent, for data with missing elements; got "
        f"{type(p_x).__name__}. Return dist.Normal(...).to_event(event_dim), say."
    )


@runtime_checkable
class _OfObserved(Protocol):
    """A distribution that scores the observed elements of a datum at once."""

    def observed_log_prob(self, value: Tensor, observed: Tensor) -> Tensor:
        """Log-probabilities of the observed elements of data (..., *event), in nats, (...)."""


@runtime_checkable
class HasDouble(Protocol):
    """A distribution that knows how many nats cancel in its `log_prob`, and how to keep them."""

    def cancelled(self) -> Tensor:
        """Nats of terms that cancel, (*batch)."""

    def double(self) -> TorchDistribution:
        """The same distribution in double precision."""


def observed_log_prob(p_x: TorchDistribution, x: Tensor, observed: Tensor) -> Tensor:
    """Sum of log p(x_p|z) over the observed elements, in nats, (...).

    Args:
        p_x: p(x|z), of batch shape (...) and event shape *event. Its elements are independent.
        x: data (..., *event), with a value of the support at each missing element.
        observed: (..., *event), whether an element is observed.

    Raises:
        ValueError: as `element_log_probs`.
    """
    if isinstance(p_x, _OfObserved):
        return p_x.observed_log_prob(x, observed)
    # The gradient of a missing element is 0, since its value was replaced before it was scored.
    found = torch.where(observed, element_log_probs(p_x, x), 0)
    return found.reshape(*found.shape[: found.dim() - p_x.event_dim], -1).sum(-1)
