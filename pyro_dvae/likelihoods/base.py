"""What the likelihoods share: a module that scores flat data, and the distribution it returns."""

from __future__ import annotations

from copy import copy
from typing import Any, ClassVar

import torch
from pyro.distributions import constraints
from pyro.distributions.torch_distribution import TorchDistribution
from pyro.distributions.util import broadcast_shape
from torch import Tensor, nn


class Likelihood(nn.Module):
    """p(x|z) = p(x; params): a subclass says how flat data are scored, averaged and drawn.

    A likelihood is a module with `num_params` (parameters per element of a datum), `support`, and
    `forward(params, event_dim)`, which returns a distribution whose last `event_dim` dimensions
    are one datum. `check(x)` refuses data outside the support. A subclass may change `features(x)`,
    what an encoder sees of x, and add `calibrate(x)`, which sets buffers from training data, and
    `before_training(x)`, which `fit` calls with data to warn of what was never calibrated. Where
    `log_prob` is a matrix product, `cancelled(params)` may tell the nats of what cancels in it.

    The methods below see a datum as P elements in a row, and its parameters as (..., P), or
    (..., P, num_params) where num_params exceeds 1.
    """

    num_params: int = 1
    cost: int = 1
    """Numbers made for an element of a datum under one code; 0 where it is a matrix product.

    Logarithms and gamma functions count as several.
    """
    support: constraints.Constraint

    def forward(self, params: Tensor, event_dim: int) -> TorchDistribution:
        """The distribution over x.

        Args:
            params: (..., *event), or (..., *event, num_params) where num_params exceeds 1.
            event_dim: number of dimensions of one datum.

        Raises:
            ValueError: the last dimension is not num_params.
        """
        if self.num_params > 1 and params.shape[-1] != self.num_params:
            raise ValueError(
                f"Expected parameters of shape (..., {self.num_params}) for "
                f"{type(self).__name__}; got {tuple(params.shape)}. Build the decoder with "
                f"num_params={self.num_params}."
            )
        return FlatDistribution(self, params, event_dim)

    def features(self, x: Tensor) -> Tensor:
        """What an encoder sees of data, (B, *event): the data, unless a subclass says else."""
        return x

    def check(self, x: Tensor) -> None:
        """Refuse data outside the support, before the first step."""
        raise NotImplementedError

    def log_prob(self, params: Tensor, x: Tensor) -> Tensor:
        """(...) nats: the batch dimensions of params and of x (..., P), broadcast."""
        raise NotImplementedError

    def mean(self, params: Tensor) -> Tensor:
        """E[x], (..., P)."""
        raise NotImplementedError

    def draw(self, params: Tensor) -> Tensor:
        """One draw for each of the batch, (..., P)."""
        raise NotImplementedError


class FlatDistribution(TorchDistribution):
    """The distribution of one datum, given a likelihood and its parameters.

    `expand` copies nothing, and `log_prob` broadcasts data (B, *event) against the parameters of
    C codes (C, 1, *event) without copies of either.

    Args:
        likelihood: scores, averages and draws flat data.
        params: (*batch, *event), or (*batch, *event, num_params).
        event_dim: number of dimensions of one datum.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {"params": constraints.real}

    def __init__(
        self,
        likelihood: Likelihood,
        params: Tensor,
        event_dim: int,
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.likelihood = likelihood
        self.params = params
        # A shape that Pyro's messengers have made of a tensor's may be a plain tuple.
        shape = torch.Size(params.shape[:-1] if likelihood.num_params > 1 else params.shape)
        split = len(shape) - event_dim
        super().__init__(shape[:split], shape[split:], validate_args=validate_args)
        self.flat_params = params.reshape(
            *shape[:split], self.event_shape.numel(), *params.shape[len(shape) :]
        )

    @property
    def support(self) -> constraints.Constraint:
        """The likelihood's, for every element."""
        return constraints.independent(self.likelihood.support, self.event_dim)

    @property
    def mean(self) -> Tensor:
        """E[x], (*batch, *event)."""
        mean = self.likelihood.mean(self.flat_params)
        shape = mean.shape[:-1] + self.event_shape
        return mean.reshape(shape).expand(self.batch_shape + self.event_shape)

    def expand(self, batch_shape: Any, _instance: Any = None) -> FlatDistribution:
        """The same distribution with a larger batch shape; the parameters stay as they are."""
        new = copy(self)
        new._batch_shape = torch.Size(batch_shape)
        return new

    def double(self) -> FlatDistribution:
        """The same distribution with its parameters, and so its sums, in double precision."""
        return FlatDistribution(self.likelihood, self.params.double(), self.event_dim)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws, (*sample_shape, *batch, *event)."""
        batch = torch.Size(sample_shape) + self.batch_shape
        own = self.params.dim() - len(self.event_shape) - (self.likelihood.num_params > 1)
        with torch.no_grad():
            params = self.flat_params.expand(batch + self.flat_params.shape[own:])
            return self.likelihood.draw(params).reshape(batch + self.event_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability or log-density of a datum, in nats, (*batch) broadcast with the data."""
        split = value.dim() - self.event_dim
        if value.shape[split:] != self.event_shape:
            raise ValueError(
                f"Expected data with event shape {tuple(self.event_shape)}; got "
                f"{tuple(value.shape)}. Reshape the data, or build the decoder with the data's "
                "event_shape."
            )
        if self._validate_args:
            self.likelihood.check(value)
        # Torch's own function of that name imports sympy and takes ten times as long.
        shape = broadcast_shape(value.shape[:split], self.batch_shape)
        x = value.reshape(*value.shape[:split], self.event_shape.numel()).to(self.params.dtype)
        return self._flat_log_prob(x).expand(shape)

    def _flat_log_prob(self, x: Tensor) -> Tensor:
        return self.likelihood.log_prob(self.flat_params, x)


def linear_log_prob(x: Tensor, natural: Tensor, log_normalizer: Tensor) -> Tensor:
    """sum_p (x_p natural_p - log_normalizer_p), where it can as a (C, P) x (P, B) matrix product.

    Args:
        x: (..., P) data.
        natural: (..., P).
        log_normalizer: (..., P).
    """
    if broadcast_shape(x.shape, natural.shape) == natural.shape:
        # Element by element: exact to rounding even where the two terms cancel.
        return (x * natural - log_normalizer).sum(-1)
    return torch.einsum("...p,...p->...", natural, x) - log_normalizer.sum(-1)


def refuse_unless(ok: Tensor, x: Tensor, expected: str, advice: str) -> None:
    """Raise a ValueError that says what x holds unless `ok`, of its shape, holds everywhere."""
    if ok.all():
        return
    where = ""
    if x.dim() == 2:
        column = int((~ok).any(0).nonzero()[0, 0])
        where = f" (first bad column: {column})"
    kind = str(x.dtype).removeprefix("torch.")
    low, high = x.min().item(), x.max().item()
    raise ValueError(
        f"Expected {expected}; got {kind} values from {low:g} to {high:g}{where}. {advice}"
    )


def is_whole(x: Tensor) -> Tensor:
    """Whether each element is a finite whole number."""
    return x.isfinite() & (x == x.round()) if x.is_floating_point() else torch.ones_like(x).bool()
