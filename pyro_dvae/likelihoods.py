"""Likelihoods p(x|z): modules that turn a decoder's output into a distribution over x."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from pyro.distributions import constraints
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, softplus


class Bernoulli(nn.Module):
    """p(x|z) = prod_p g_p^x_p (1 - g_p)^(1 - x_p), g = sigmoid(params) (Eqs. 12 and 48 of [JL25]).

    A likelihood is a module with `num_params` (parameters per element of a datum), `support`, and
    `forward(params, event_dim)`, which returns a distribution whose last `event_dim` dimensions
    are one datum.
    """

    num_params = 1
    support = constraints.boolean

    def forward(self, params: Tensor, event_dim: int) -> TorchDistribution:
        """The distribution over x.

        Args:
            params: (..., *event) logits.
            event_dim: number of dimensions of one datum.
        """
        return IndependentBernoulli(params, event_dim)

    def check(self, x: Tensor) -> None:
        """Refuse data outside the support, before the first step.

        Raises:
            ValueError: an element of x is neither 0 nor 1; the message names the range found.
        """
        if not ((x == 0) | (x == 1)).all():
            low, high = x.min().item(), x.max().item()
            raise ValueError(
                "Expected data in {0, 1} for the Bernoulli likelihood; got values from "
                f"{low:g} to {high:g}. Binarise it (BinaryImages for grey uint8 pixels, or "
                "(x > t).float()), or use a likelihood for grey values such as a continuous "
                "Bernoulli (examples/swap_likelihood.py)."
            )


class IndependentBernoulli(TorchDistribution):
    """Independent Bernoulli elements of one datum, with a log-probability fit for enumeration.

    Equal to `Bernoulli(logits=logits).to_event(event_dim)`, but `expand` copies nothing and
    `log_prob` of B data under C codes, logits (C, 1, *event) against x (B, *event), is one
    (C, P) x (P, B) matrix product instead of a (C, B, P) array.

    Args:
        logits: (*batch, *event).
        event_dim: number of dimensions of one datum.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {"logits": constraints.real}

    def __init__(
        self,
        logits: Tensor,
        event_dim: int,
        *,
        batch_shape: torch.Size | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self.logits = logits
        split = logits.dim() - event_dim
        super().__init__(
            logits.shape[:split] if batch_shape is None else batch_shape,
            logits.shape[split:],
            validate_args=validate_args,
        )

    @property
    def support(self) -> constraints.Constraint:
        """Binary data."""
        return constraints.independent(constraints.boolean, self.event_dim)

    @property
    def mean(self) -> Tensor:
        """E[x] = sigmoid(logits), (*batch, *event)."""
        return self.logits.sigmoid().expand(self.batch_shape + self.event_shape)

    def expand(self, batch_shape: Any, _instance: Any = None) -> IndependentBernoulli:
        """The same distribution with a larger batch shape; the logits stay as they are."""
        return IndependentBernoulli(
            self.logits,
            self.event_dim,
            batch_shape=torch.Size(batch_shape),
            validate_args=self._validate_args,
        )

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Binary draws, (*sample_shape, *batch, *event)."""
        with torch.no_grad():
            shape = torch.Size(sample_shape) + self.batch_shape + self.event_shape
            return torch.bernoulli(self.logits.sigmoid().expand(shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """-BCE(g, x) summed over the datum, in nats (Eqs. 8 and 10 of [JL25])."""
        if value.shape[value.dim() - self.event_dim :] != self.event_shape:
            raise ValueError(
                f"Expected data with event shape {tuple(self.event_shape)}; got "
                f"{tuple(value.shape)}. Reshape the data, or build the decoder with the data's "
                "event_shape."
            )
        if self._validate_args:
            Bernoulli().check(value)
        shape = torch.broadcast_shapes(
            value.shape[: value.dim() - self.event_dim], self.batch_shape
        )
        x = value.flatten(-self.event_dim) if self.event_dim else value.unsqueeze(-1)
        logits = self.logits.flatten(-self.event_dim) if self.event_dim else self.logits[..., None]
        x = x.to(logits.dtype)
        if torch.broadcast_shapes(x.shape, logits.shape) == logits.shape:
            # Element by element: exact to rounding even where x * logits and softplus cancel.
            log_prob = -binary_cross_entropy_with_logits(
                logits, x.expand_as(logits), reduction="none"
            ).sum(-1)
        else:
            log_prob = torch.einsum("...p,...p->...", logits, x) - softplus(logits).sum(-1)
        return log_prob.expand(shape)
