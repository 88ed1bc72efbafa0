"""`Likelihood`, which all likelihoods are, and the distribution that most of them return."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any, ClassVar

import torch
from pyro.distributions import constraints
from pyro.distributions.torch_distribution import TorchDistribution
from pyro.distributions.util import broadcast_shape
from torch import Tensor

from pyro_dvae.contracts import Contract
from pyro_dvae.likelihoods.refusals import dtype_name

KINDS = ("bits", "unit", "open", "levels", "counts", "real", "columns")
"""The kinds of values that an element of a datum may have: see `Likelihood.kind`."""


class Likelihood(Contract):
    """p(x|z) = p(x; params), where the decoder computes the parameters of x from z.

    There are two ways to write a likelihood:

    - Subclass this, set `num_params` and `support`, and override `forward(params, event_dim)` to
      return any Pyro distribution over x. A plain `nn.Module` with `num_params` and `forward` will
      do as well: `DiscreteVAE` gives it the defaults of all other members.
    - Or leave `forward` as it is, and write `element_log_probs`, `mean` and `draw` for flat data: a
      datum is P elements in a row, and its parameters are (..., P), or (..., P, num_params) where
      num_params exceeds 1. Write `log_prob` too where B data under C codes need no (C, B, P) array,
      or in place of `element_log_probs` where the elements are not independent given z.
    """

    REQUIRED = ("num_params",)
    # fmt: off
    OPTIONAL = (
        "param_meanings", "support", "kind", "levels", "cost", "takes_missing", "features",
        "feature_shape", "filled", "check", "calibrate", "is_calibrated", "before_training",
        "cancelled",
    )
    # fmt: on

    num_params: int = 1
    """Parameters that the decoder computes for each element of a datum."""
    param_meanings: tuple[str, ...] = ()
    """What each of these parameters means, in order, for people; () if nobody has said so."""
    support: constraints.Constraint = constraints.real
    """The values that an element of a datum may have."""
    kind: str = "real"
    """What the values are, which decides how stored data become them:

    "bits" (0 or 1), "unit" (numbers in [0, 1]), "open" (numbers in (0, 1)), "levels" (0 to
    `levels` - 1), "counts" (0, 1, 2, ...), "real" (any numbers), or "columns" (`Mixed` alone).
    """
    levels: int = 256
    """L, where `kind` is "levels"."""
    cost: int = 1
    """Numbers computed per element of a datum and code; 0 where `log_prob` is a matrix product.

    Logarithms and gamma functions count as several numbers. Evaluation decides by the cost whether
    it sums over all codes.
    """
    takes_missing: bool = False
    """Whether an element of a datum may be NaN, which means that it is missing: see `Masked`."""

    def forward(self, params: Tensor, event_dim: int) -> TorchDistribution:
        """p(x|z), a distribution of batch shape (...) and event shape *event.

        Args:
            params: (..., *event), or (..., *event, num_params) if num_params exceeds 1.
            event_dim: the number of dimensions of one datum: 2 for images (H, W).

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
        """What the encoder sees of data (B, *event), (B, *feature_shape(event)).

        Here levels become numbers in [0, 1], and counts x become log(1 + x); all other data stay
        as they are.
        """
        if self.kind == "levels":
            return x / (self.levels - 1)
        return x.log1p() if self.kind == "counts" else x

    def feature_shape(self, event_shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of `features` of one datum: here that of the datum itself."""
        return tuple(event_shape)

    def filled(self, x: Tensor) -> Tensor:
        """The data (..., *event), with a value of the support in place of each NaN: here 0.

        `Masked` leaves the term of such an element out. So the value does not matter.
        """
        return torch.where(x.isnan(), 0, x)

    def check(self, x: Tensor) -> None:
        """Refuse data outside the support; called with all data, before training and evaluation.

        Raises:
            ValueError: a value of x is outside the support; the message names the range found.
        """
        if not self.support.check(x).all():
            raise ValueError(
                f"Expected data in the support of {type(self).__name__}, {self.support}; got "
                f"{dtype_name(x)} values from {x.min().item():g} to {x.max().item():g}. Transform "
                "the data, or use a likelihood of such values."
            )

    def calibrate(self, x: Tensor) -> None:
        """Set buffers, such as units of the data, from training data (N, *event)."""

    def is_calibrated(self) -> bool:
        """Whether there is nothing to do before training: no `calibrate`, no `before_training`.

        A likelihood with a `calibrate` of its own overrides this, and says whether it was called.
        """
        own = [vars(kind) for kind in type(self).__mro__ if kind is not Likelihood]
        return not any("calibrate" in each or "before_training" in each for each in own)

    def before_training(self, x: Tensor) -> None:
        """Warn of a missing `calibrate`, say; `fit` calls this with data (N, *event)."""

    def cancelled(self, params: Tensor) -> Tensor:
        """Nats of terms that cancel in `log_prob`, (...), of params (..., P): here none.

        Where this exceeds some thousands, evaluation computes `log_prob` in double precision.
        """
        return params.new_zeros(())

    def log_prob(self, params: Tensor, x: Tensor) -> Tensor:
        """Log-probability of data x (..., P) in nats, (...): here the sum over its elements.

        The leading dimensions of params and of x are broadcast against each other.
        """
        return self.element_log_probs(params, x).sum(-1)

    def observed_log_prob(self, params: Tensor, x: Tensor, observed: Tensor | None) -> Tensor:
        """The sum of log p(x_p|z) over the observed elements of a datum in nats, (...).

        Args:
            params: (..., P), or (..., P, num_params).
            x: (..., P) data, with a value of the support at each missing element.
            observed: (..., P), whether an element is observed; None if all are.
        """
        elements = self.element_log_probs(params, x)
        # The gradient of a missing element is 0, since its value was replaced before it was scored.
        return (elements if observed is None else torch.where(observed, elements, 0)).sum(-1)

    def element_log_probs(self, params: Tensor, x: Tensor) -> Tensor:
        """Log-probability of each element of data x (..., P) in nats, (..., P).

        It is defined where the elements are independent given z. Else there is only `log_prob`.
        """
        raise NotImplementedError

    def mean(self, params: Tensor) -> Tensor:
        """E[x], (..., P), of params (..., P)."""
        raise NotImplementedError

    def typical(self, params: Tensor) -> Tensor:
        """A value that stands for x, (..., P): E[x], or the most probable level of categories."""
        return self.mean(params)

    def draw(self, params: Tensor) -> Tensor:
        """One draw of x, (..., P), for each of the leading dimensions of params (..., P)."""
        raise NotImplementedError


class FlatDistribution(TorchDistribution):
    """The distribution of one datum, by a likelihood that has `log_prob`, `mean` and `draw`.

    `expand` copies nothing. `log_prob` broadcasts data (B, *event) against the parameters of C
    codes, (C, 1, *event), without copies of either.

    Args:
        likelihood: the likelihood.
        params: (*batch, *event), or (*batch, *event, num_params) if num_params exceeds 1.
        event_dim: the number of dimensions of one datum.
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
        # Pyro's messengers may turn the shape of a tensor into a plain tuple.
        shape = torch.Size(params.shape[:-1] if likelihood.num_params > 1 else params.shape)
        split = len(shape) - event_dim
        super().__init__(shape[:split], shape[split:], validate_args=validate_args)
        self.flat_params = params.reshape(
            *shape[:split], self.event_shape.numel(), *params.shape[len(shape) :]
        )

    @property
    def support(self) -> constraints.Constraint:
        """The support of the likelihood, for every element."""
        return constraints.independent(self.likelihood.support, self.event_dim)

    @property
    def mean(self) -> Tensor:
        """E[x], (*batch, *event)."""
        mean = self.likelihood.mean(self.flat_params)
        shape = mean.shape[:-1] + self.event_shape
        return mean.reshape(shape).expand(self.batch_shape + self.event_shape)

    @property
    def typical(self) -> Tensor:
        """A value that stands for x, (*batch, *event): see `Likelihood.typical`."""
        typical = self.likelihood.typical(self.flat_params)
        shape = typical.shape[:-1] + self.event_shape
        return typical.reshape(shape).expand(self.batch_shape + self.event_shape)

    def expand(self, batch_shape: Any, _instance: Any = None) -> FlatDistribution:
        """The same distribution with a larger batch shape; the parameters are not copied."""
        new = copy(self)
        new._batch_shape = torch.Size(batch_shape)
        return new

    def double(self) -> FlatDistribution:
        """The same distribution, with parameters and sums in double precision."""
        return FlatDistribution(self.likelihood, self.params.double(), self.event_dim)

    def cancelled(self) -> Tensor:
        """Nats of terms that cancel in `log_prob`, (*batch): see `Likelihood.cancelled`."""
        return self.likelihood.cancelled(self.flat_params)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws, (*sample_shape, *batch, *event)."""
        batch = torch.Size(sample_shape) + self.batch_shape
        own = self.params.dim() - len(self.event_shape) - (self.likelihood.num_params > 1)
        with torch.no_grad():
            params = self.flat_params.expand(batch + self.flat_params.shape[own:])
            return self.likelihood.draw(params).reshape(batch + self.event_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability or log-density of data (..., *event), in nats, (...).

        The leading dimensions of the data are broadcast against the batch shape.
        """
        x = self._flat(value)
        if self._validate_args:
            self.likelihood.check(value)
        # Torch's own function of that name imports sympy and takes ten times as long.
        shape = broadcast_shape(x.shape[:-1], self.batch_shape)
        return self._flat_log_prob(x).expand(shape)

    def observed_log_prob(self, value: Tensor, observed: Tensor) -> Tensor:
        """`log_prob` of the observed elements alone; observed is (..., *event), as the data."""
        x = self._flat(value)
        shape = broadcast_shape(x.shape[:-1], self.batch_shape)
        seen = observed.reshape(x.shape)
        return self.likelihood.observed_log_prob(self.flat_params, x, seen).expand(shape)

    def element_log_probs(self, value: Tensor) -> Tensor:
        """Those of the elements of data (..., *event), (..., *event)."""
        found = self.likelihood.element_log_probs(self.flat_params, self._flat(value))
        return found.reshape(found.shape[:-1] + self.event_shape)

    def _flat(self, value: Tensor) -> Tensor:
        """Data (..., *event) as (..., P), in the dtype of the parameters."""
        split = value.dim() - self.event_dim
        if value.shape[split:] != self.event_shape:
            raise ValueError(
                f"Expected data with event shape {tuple(self.event_shape)}; got "
                f"{tuple(value.shape)}. Reshape the data, or build the decoder with the data's "
                "event_shape."
            )
        return value.reshape(*value.shape[:split], self.event_shape.numel()).to(self.params.dtype)

    def _flat_log_prob(self, x: Tensor) -> Tensor:
        return self.likelihood.log_prob(self.flat_params, x)


def typical_of(distribution: TorchDistribution) -> Tensor:
    """A value that stands for a datum, (*batch, *event): its mean, or its most probable category.

    Args:
        distribution: what a likelihood returned, of the library or of the user's own.
    """
    return distribution.typical if hasattr(distribution, "typical") else distribution.mean
