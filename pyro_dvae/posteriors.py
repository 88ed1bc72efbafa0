"""q(z|x) of a block of data: draws by a seed, log-probabilities, entropy, marginals.

All figures are in nats, and in double precision if the device has it. Draws are made from uniform
numbers of the CPU, in double precision, one datum after the other. So the draws of a seed depend
neither on the device nor on the size of the blocks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal, overload

import torch
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor

from pyro_dvae.codes import (
    code_log_probs,
    code_logits,
    drawn_log_probs,
    entropy,
    one_hot,
    wide,
)
from pyro_dvae.sequences import SequentialCodes, batch_conditional, log_prob_table

CONDITIONALS = 16
"""Draws per datum whose mean estimates a marginal that cannot be computed as a sum."""


class Posterior(ABC):
    """q(z|x) of B data."""

    @abstractmethod
    def draw(
        self, rows: slice, num_samples: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Draw z ~ q(z|x) independently, `num_samples` times for each of some data.

        Args:
            rows: slice of b of the B data.
            num_samples: S, draws per datum.
            generator: a random number generator of the CPU.

        Returns:
            The drawn categories, (b, S, D) int64, and their log q(z|x), (b, S).
        """

    @abstractmethod
    def entropy(self) -> Tensor | None:
        """-E_q[log q(z|x)], (B,); None if it can only be estimated from draws."""

    @abstractmethod
    def marginals(self) -> Tensor:
        """Log q(z_d|x) of each latent alone, (B, D, K)."""

    @abstractmethod
    def mode(self) -> Tensor:
        """The most probable code as categories, (B, D) int64."""


class EnumerablePosterior(Posterior):
    """q(z|x) of B data, with expectations that are sums over all K^D codes."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """-E_q[log q(z|x)], (B,), without draws."""

    @abstractmethod
    def table(self) -> Tensor:
        """Log q(z|x) of all codes, (B, K^D), in the order of `enumerate_codes`."""

    @abstractmethod
    def expectation(self, value: Tensor) -> Tensor:
        """E_q[value(z)], (B,).

        Args:
            value: (1, K^D) or (B, K^D), the values of all codes.
        """


@overload
def posterior_of(q: TorchDistribution, *, tabulate: Literal[True]) -> EnumerablePosterior: ...
@overload
def posterior_of(q: TorchDistribution, *, tabulate: bool) -> Posterior: ...
def posterior_of(q: TorchDistribution, *, tabulate: bool) -> Posterior:
    """The posterior of a guide's distribution.

    Args:
        q: batch shape (B,), event shape (D, K). A product of categoricals, a `SequentialCodes`, or
            any other distribution over one-hot codes that has `log_prob`.
        tabulate: whether log q of all K^D codes may be computed. It is not needed for a product.

    Raises:
        TypeError: q is neither a product nor a `SequentialCodes`, and `tabulate` is False.
    """
    logits = code_logits(q)
    if logits is not None:
        return FactorisedPosterior(wide(logits).log_softmax(-1))
    if tabulate:
        num_latents, num_categories = q.event_shape
        return TabulatedPosterior(log_prob_table(q), num_latents, num_categories)
    if isinstance(q, SequentialCodes):
        return SequentialPosterior(q)
    raise TypeError(
        f"Expected a mean-field or sequential guide for so many codes; got {type(q).__name__}. Use "
        "fewer latents or categories."
    )


class FactorisedPosterior(EnumerablePosterior):
    """q(z|x) = prod_d q_d(z_d|x): the latents are independent.

    Args:
        log_q: log q_d, (B, D, K), normalised.
    """

    def __init__(self, log_q: Tensor) -> None:
        self.log_q = log_q

    def draw(
        self, rows: slice, num_samples: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """z_d = min {k : F_d(k) > u}, u ~ U[0, 1), F_d the distribution function of q_d."""
        log_q = self.log_q[rows]
        batch, num_latents, _ = log_q.shape
        uniforms = _uniforms(batch, num_samples, num_latents, generator).transpose(1, 2)
        index = _inverse(log_q, uniforms).transpose(1, 2)
        return index, drawn_log_probs(log_q, index)

    def entropy(self) -> Tensor:
        """-sum_d sum_k q_dk log q_dk, (B,)."""
        return entropy(self.log_q)

    def marginals(self) -> Tensor:
        """Log q_d, (B, D, K)."""
        return self.log_q

    def mode(self) -> Tensor:
        """The most probable category of each latent, (B, D)."""
        return self.log_q.argmax(-1)

    def table(self) -> Tensor:
        """sum_d log q_d(z_d|x) of all codes, (B, K^D)."""
        return code_log_probs(self.log_q)

    def expectation(self, value: Tensor) -> Tensor:
        """E_q[value(z)], (B,), summed over one latent after the other."""
        for q in self.log_q.exp().unbind(1):  # (B, K)
            value = mean_over(q, value.unflatten(-1, (q.shape[-1], -1)))
        return value.squeeze(-1)


class TabulatedPosterior(EnumerablePosterior):
    """Any q(z|x), as a table of log q(z|x) of all codes.

    Args:
        log_q: log q(z|x), (B, K^D), in the order of `enumerate_codes`.
        num_latents: D.
        num_categories: K.
    """

    def __init__(self, log_q: Tensor, num_latents: int, num_categories: int) -> None:
        self.log_q = log_q
        self.sizes = (num_categories,) * num_latents

    def draw(
        self, rows: slice, num_samples: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Code number min {c : F(c) > u}, u ~ U[0, 1), where F(c) is the sum of q over 0 ... c."""
        log_q = self.log_q[rows]
        uniforms = _uniforms(len(log_q), num_samples, 1, generator).squeeze(-1)
        number = _inverse(log_q, uniforms)
        return self._categories(number), log_q.gather(-1, number)

    def entropy(self) -> Tensor:
        """-sum_z q(z|x) log q(z|x), (B,)."""
        return entropy(self.log_q.unsqueeze(-2))

    def marginals(self) -> Tensor:
        """Log of the sums of q(z|x) over all other latents, (B, D, K)."""
        joint = self.log_q.unflatten(-1, self.sizes)
        others = [[e for e in range(1, joint.dim()) if e != d] for d in range(1, joint.dim())]
        return torch.stack([joint.logsumexp(dims) if dims else joint for dims in others], 1)

    def mode(self) -> Tensor:
        """The code with the largest entry of the table, (B, D)."""
        return self._categories(self.log_q.argmax(-1))

    def table(self) -> Tensor:
        """Log q(z|x), (B, K^D)."""
        return self.log_q

    def expectation(self, value: Tensor) -> Tensor:
        """sum_z q(z|x) value(z), (B,)."""
        return mean_over(self.log_q.exp(), value.unsqueeze(-1)).squeeze(-1)

    def _categories(self, number: Tensor) -> Tensor:
        return torch.stack(torch.unravel_index(number, self.sizes), -1)


class SequentialPosterior(Posterior):
    """q(z|x) = prod_d q(z_d | z_1 ... z_{d-1}, x), with too many codes for a table.

    Args:
        q: batch shape (B,), event shape (D, K).
    """

    def __init__(self, q: SequentialCodes) -> None:
        self.q = q

    def draw(
        self, rows: slice, num_samples: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """z_d ~ q(z_d | z_1 ... z_{d-1}, x), one latent after the other."""
        return self._ancestral(self.q.rows(rows), num_samples, generator)[:2]

    def entropy(self) -> None:
        """None: it has no closed form, and there are too many codes to sum over."""

    def marginals(self) -> Tensor:
        """Log of the mean of q(z_d | z_1 ... z_{d-1}, x) over draws of z_1 ... z_{d-1}, (B, D, K).

        There are `CONDITIONALS` draws per datum, always of the same seed.
        """
        generator = torch.Generator().manual_seed(0)
        conditionals = self._ancestral(self.q, CONDITIONALS, generator)[2]  # (B, S, D, K)
        return conditionals.exp().mean(1).log()

    def mode(self) -> Tensor:
        """The most probable category of each latent, given those of the latents before it, (B, D).

        Another code can have a higher probability as a whole.
        """
        code = self._nothing(self.q, 1)
        for _ in range(self.q.event_shape[0]):
            code = self._append(code, batch_conditional(self.q, code).argmax(-1))
        return code[0].argmax(-1)

    def _ancestral(
        self, q: SequentialCodes, num_samples: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        (batch,) = q.batch_shape
        num_latents = q.event_shape[0]
        uniforms = _uniforms(batch, num_samples, num_latents, generator)
        code, conditionals = self._nothing(q, num_samples), []
        for latent in range(num_latents):
            log_q = wide(batch_conditional(q, code)).transpose(0, 1)  # (B, S, K)
            conditionals.append(log_q)
            index = _inverse(log_q, uniforms[..., latent, None]).squeeze(-1)  # (B, S)
            code = self._append(code, index.T)
        index, log_q = code.argmax(-1).transpose(0, 1), torch.stack(conditionals, -2)
        log_prob = log_q.gather(-1, index.unsqueeze(-1)).squeeze(-1).sum(-1)
        return index, log_prob, log_q

    def _nothing(self, q: SequentialCodes, num_samples: int) -> Tensor:
        return q.like.new_empty(num_samples, *q.batch_shape, 0, q.event_shape[-1])

    def _append(self, code: Tensor, index: Tensor) -> Tensor:
        latent = one_hot(index, code.shape[-1], dtype=code.dtype)
        return torch.cat([code, latent.unsqueeze(-2)], -2)


def mean_over(q: Tensor, value: Tensor) -> Tensor:
    """sum_k q_k value_k, (B, C), with 0 * -inf = 0.

    Args:
        q: (B, K) probabilities.
        value: (1 or B, K, C).
    """
    weight = q.unsqueeze(1)
    total = (weight @ value).squeeze(1)
    if total.isnan().any():
        # A category of probability zero contributes 0, even if its value is -inf.
        total = (weight @ torch.where(q.unsqueeze(-1) > 0, value, 0)).squeeze(1)
    return total


def _uniforms(batch: int, num_samples: int, num_latents: int, generator: torch.Generator) -> Tensor:
    return torch.rand(
        batch, num_samples, num_latents, dtype=torch.float64, generator=generator, device="cpu"
    )


def _inverse(log_q: Tensor, uniforms: Tensor) -> Tensor:
    """Find min {k : F(k) > u}, (..., S), of log-probabilities (..., K) and uniforms (..., S)."""
    cumulative = log_q.cpu().double().exp().cumsum(-1)
    # Rounding cannot leave the last element below 1, so that it is above every uniform number.
    cumulative = cumulative / cumulative[..., -1:]
    index = torch.searchsorted(cumulative.contiguous(), uniforms.contiguous(), right=True)
    return index.clamp(max=log_q.shape[-1] - 1).to(log_q.device)
