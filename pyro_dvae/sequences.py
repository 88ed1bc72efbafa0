"""Distributions over codes in which each latent depends on the latents before it."""

from __future__ import annotations

import copy
from abc import abstractmethod
from typing import Any, ClassVar

import torch
from pyro.distributions import constraints
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor, nn

from pyro_dvae.codes import (
    code_logits,
    draw_codes,
    enumerate_codes,
    num_codes,
    total,
    wide,
)
from pyro_dvae.displays import named

_CODE_ELEMENTS = 2**23
"""Largest number of elements of the one-hot codes, (codes, D, K), that are scored at once."""


class SequentialCodes(TorchDistribution):
    """p(z) = prod_d p(z_d | z_1 ... z_{d-1}), event (D, K): D one-hot latents one after the other.

    A subclass defines `conditional`. Log-probabilities and ancestral draws follow from it, and both
    are exact.

    Args:
        batch_shape: batch shape of the distribution.
        num_latents: D.
        num_categories: K.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    has_rsample = False

    def __init__(
        self,
        batch_shape: torch.Size,
        num_latents: int,
        num_categories: int,
        *,
        validate_args: bool | None = None,
    ) -> None:
        event_shape = torch.Size((num_latents, num_categories))
        super().__init__(batch_shape, event_shape, validate_args=validate_args)

    @abstractmethod
    def conditional(self, prefix: Tensor) -> Tensor:
        """Log p(z_{d+1} | z_1 ... z_d), (..., K), normalised.

        Args:
            prefix: (..., d, K) one-hot, 0 <= d < D; its leading dimensions broadcast against the
                distribution's batch shape.
        """

    @property
    def like(self) -> Tensor:
        """A tensor of the dtype and on the device of the codes drawn here."""
        return torch.empty(0)

    def rows(self, index: slice) -> SequentialCodes:
        """The distribution of some of the B data, if the batch shape is (B,).

        The distribution of a guide must define it.

        Args:
            index: slice of the data.
        """
        raise NotImplementedError(
            f"Expected a distribution with the method rows(index), which a guide needs; got "
            f"{type(self).__name__} without it. Define rows."
        )

    @property
    def support(self) -> constraints.Constraint:
        """All (D, K) one-hot codes."""
        return constraints.independent(constraints.one_hot, 1)

    def __repr__(self) -> str:
        shapes = named(batch_shape=tuple(self.batch_shape), event_shape=tuple(self.event_shape))
        return f"{type(self).__name__}({shapes})"

    def expand(self, batch_shape: Any, _instance: Any = None) -> SequentialCodes:
        """The same distribution with a larger batch shape; nothing is copied."""
        other = copy.copy(self)
        other._batch_shape = torch.Size(batch_shape)
        return other

    def log_prob(self, value: Tensor) -> Tensor:
        """sum_d log p(z_d | z_1 ... z_{d-1}), (...), of codes (..., D, K), in nats."""
        log_p = total(
            expected_log(value[..., latent, :], self.conditional(value[..., :latent, :]))
            for latent in range(self.event_shape[0])
        )
        return log_p.expand(torch.broadcast_shapes(log_p.shape, self.batch_shape))

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw one latent after the other, (*sample_shape, *batch, D, K)."""
        shape = torch.Size(sample_shape) + self.batch_shape
        num_categories = self.event_shape[-1]
        with torch.no_grad():
            code = self.like.new_empty(*shape, 0, num_categories)
            for _ in range(self.event_shape[0]):
                logits = self.conditional(code).expand(*shape, num_categories)
                code = torch.cat([code, draw_codes(logits).unsqueeze(-2)], -2)
        return code


class CausalNetwork(nn.Module):
    """p(z_d | z_1 ... z_{d-1}, c) = softmax(V_d h_d + v_d), one layer h_d per latent.

    h_d = relu(b_d + A_d c_d + B_d [z_1 ... z_{d-1}]), and c_d are features of latent d.

    Args:
        num_latents: D.
        num_categories: K.
        width: number of units of h_d.
        num_features: number of features c_d; 0 for none.
        uniform: whether V_d and v_d begin at 0. Then every conditional is uniform at first.
    """

    def __init__(
        self,
        num_latents: int,
        num_categories: int,
        width: int,
        *,
        num_features: int = 0,
        uniform: bool = False,
    ) -> None:
        super().__init__()
        self.num_latents, self.num_categories = num_latents, num_categories
        latents = range(num_latents)
        self.from_features = nn.ModuleList(
            nn.Linear(num_features, width, bias=False) for _ in latents if num_features
        )
        self.from_latents = nn.ModuleList(
            nn.Linear(latent * num_categories, width, bias=False) for latent in latents[1:]
        )
        self.bias = nn.Parameter(torch.empty(num_latents, width).uniform_(-0.1, 0.1))
        self.to_logits = nn.ModuleList(nn.Linear(width, num_categories) for _ in range(num_latents))
        if uniform:
            for weight in self.to_logits.parameters():
                nn.init.zeros_(weight)

    def extra_repr(self) -> str:
        """The sizes, for `repr`."""
        return named(
            num_latents=self.num_latents,
            num_categories=self.num_categories,
            width=self.bias.shape[-1],
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"  # without its many layers

    def forward(self, prefix: Tensor, features: Tensor | None = None) -> Tensor:
        """Logits of z_{d+1} given z_1 ... z_d and c, (..., K).

        Args:
            prefix: (..., d, K) codes z_1 ... z_d, relaxed or one-hot.
            features: (..., D, num_features), c. Its leading dimensions broadcast against those of
                the prefix.
        """
        latent = prefix.shape[-2]
        hidden = self.bias[latent]
        if features is not None:
            hidden = hidden + self.from_features[latent](features[..., latent, :])
        if latent:
            hidden = hidden + self.from_latents[latent - 1](prefix.flatten(-2))
        return self.to_logits[latent](hidden.relu())


class CausalCodes(SequentialCodes):
    """p(z) = prod_d softmax(s_d + l_d(z_1 ... z_{d-1}))(z_d), with logits l_d of a network.

    Args:
        network: gives the logits of each latent.
        features: (*batch, D, F), or None for a network without features.
        shift: s, (*batch, D, K), or None for 0.
    """

    def __init__(
        self,
        network: CausalNetwork,
        features: Tensor | None = None,
        shift: Tensor | None = None,
    ) -> None:
        batch_shape = torch.Size() if features is None else features.shape[:-2]
        super().__init__(batch_shape, network.num_latents, network.num_categories)
        self.network, self.features, self.shift = network, features, shift

    @property
    def like(self) -> Tensor:
        """A weight of the network."""
        return self.network.bias

    def conditional(self, prefix: Tensor) -> Tensor:
        """Log p(z_{d+1} | z_1 ... z_d), (..., K)."""
        logits = self.network(prefix, self.features)
        if self.shift is not None:
            logits = logits + self.shift[..., prefix.shape[-2], :]
        return logits.log_softmax(-1)

    def rows(self, index: slice) -> CausalCodes:
        """The distribution of some of the B data, if the features have shape (B, D, F)."""
        parts = (None if part is None else part[index] for part in (self.features, self.shift))
        return CausalCodes(self.network, *parts)


def conditional_logits(codes: Any, prefix: Tensor) -> Tensor:
    """Log p(z_{d+1} | z_1 ... z_d) of a sequential or a factorised distribution, (..., K).

    Args:
        codes: a distribution with event shape (D, K).
        prefix: (..., d, K) one-hot codes z_1 ... z_d.

    Raises:
        TypeError: the distribution is neither, so that its conditionals are not known.
    """
    if isinstance(codes, SequentialCodes):
        return codes.conditional(prefix)
    logits = code_logits(codes)
    if logits is None:
        raise TypeError(
            "Expected codes with known conditionals p(z_d | z_1 ... z_{d-1}); got "
            f"{type(codes).__name__}. Use a mean-field guide with it, or another prior."
        )
    return logits[..., prefix.shape[-2], :]


def expected_log(weight: Tensor, log_prob: Tensor) -> Tensor:
    """sum_k w_k log p_k, (...), with 0 log 0 = 0.

    Args:
        weight: (..., K), w.
        log_prob: (..., K), log p.
    """
    return (weight * log_prob.masked_fill((weight == 0) & log_prob.isneginf(), 0)).sum(-1)


def batch_conditional(codes: SequentialCodes, prefix: Tensor) -> Tensor:
    """Log p(z_{d+1} | z_1 ... z_d) of S prefixes for each of B data, (S, B, K).

    Args:
        codes: batch shape (B,), event shape (D, K).
        prefix: (S, 1, d, K) or (S, B, d, K) one-hot codes z_1 ... z_d.
    """
    logits = codes.conditional(prefix)
    return logits.expand(len(prefix), *codes.batch_shape, codes.event_shape[-1])


def log_prob_table(codes: TorchDistribution) -> Tensor:
    """Log-probability of all K^D codes, (B, K^D), in the order of `enumerate_codes`.

    Args:
        codes: any distribution over one-hot codes, batch shape (B,), event shape (D, K).
    """
    num_latents, num_categories = codes.event_shape
    if isinstance(codes, SequentialCodes):
        like = codes.like
        log_p = wide(like.new_zeros(1, 1))
        for latent in range(num_latents):  # the conditional of every prefix is computed once
            prefixes = enumerate_codes(
                latent, num_categories, device=like.device, dtype=like.dtype
            ).unsqueeze(1)
            conditional = wide(batch_conditional(codes, prefixes))  # (K^d, B, K)
            log_p = (log_p.unsqueeze(-1) + conditional.transpose(0, 1)).flatten(1)
        return log_p
    # In chunks, since all K^D one-hot codes with D K elements each may not fit into memory.
    size = max(1, _CODE_ELEMENTS // (num_latents * num_categories))
    number = num_codes(num_latents, num_categories)
    chunks = (
        enumerate_codes(num_latents, num_categories, start=n, stop=min(n + size, number))
        for n in range(0, number, size)
    )
    return torch.cat([wide(codes.log_prob(some[:, None])) for some in chunks]).T
