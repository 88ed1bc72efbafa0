"""q(z|x) of a block of data, of any family: draws by a seed, scores, entropy, marginals.

All in double, where the device has that. Draws are made from uniforms of the CPU, in double and
datum by datum, so that they are the same for every device and however the data are split.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from pyro_dvae.codes import (
    code_log_probs,
    code_logits,
    drawn_log_probs,
    entropy,
    enumerate_codes,
    num_codes,
    one_hot,
    wide,
)
from pyro_dvae.sequences import SequentialCodes

CONDITIONALS = 16
"""Draws over which a marginal is averaged that cannot be summed."""


_CODE_ELEMENTS = 2**23
"""Elements of one-hot codes, (codes, D, K), that are scored at once."""


class Posterior(Protocol):
    """q(z|x) of B data."""

    def draw(
        self, rows: slice, num_samples: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Categories (b, S, D) of independent draws for some rows, and log q of them, (b, S)."""

    def entropy(self) -> Tensor | None:
        """(B,) in nats; None where it is not known without draws."""

    def marginals(self) -> Tensor:
        """Log q(z_d|x), (B, D, K)."""

    def mode(self) -> Tensor:
        """The most probable categories, (B, D)."""

    def table(self) -> Tensor:
        """Log q of all codes, (B, K^D), in the order of `enumerate_codes`."""

    def expectation(self, value: Tensor) -> Tensor:
        """E_q[value], (B,), of a value of all codes, (1 or B, K^D)."""


def posterior_of(q: Any, *, tabulate: bool) -> Posterior:
    """The posterior of a guide's distribution, batch (B,), event (D, K).

    Args:
        q: factorised, sequential, or any distribution over codes with `log_prob`.
        tabulate: score all K^D codes, where q is not factorised.

    Raises:
        TypeError: q is neither factorised nor sequential, and is not to be tabulated.
    """
    logits = code_logits(q)
    if logits is not None:
        return FactorisedPosterior(wide(logits).log_softmax(-1))
    if tabulate:
        return TabulatedPosterior(_tabulated(q), *q.event_shape)
    if isinstance(q, SequentialCodes):
        return SequentialPosterior(q)
    raise TypeError(
        f"Expected a mean-field or sequential guide for so many codes; got {type(q).__name__}. Use "
        "fewer latents or categories."
    )


class FactorisedPosterior:
    """q(z|x) = prod_d q_d.

    Args:
        log_q: (B, D, K), normalised.
    """

    def __init__(self, log_q: Tensor) -> None:
        self.log_q = log_q

    def draw(
        self, rows: slice, num_samples: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """z_d = min {k : F_d(k) > u}, u ~ U[0, 1), F the distribution function of q_d."""
        log_q = self.log_q[rows]
        batch, num_latents, _ = log_q.shape
        uniforms = _uniforms(batch, num_samples, num_latents, generator).transpose(1, 2)
        index = _inverse(log_q, uniforms).transpose(1, 2)
        return index, drawn_log_probs(log_q, index)

    def entropy(self) -> Tensor:
        """(B,), in closed form."""
        return entropy(self.log_q)

    def marginals(self) -> Tensor:
        """(B, D, K)."""
        return self.log_q

    def mode(self) -> Tensor:
        """(B, D)."""
        return self.log_q.argmax(-1)

    def table(self) -> Tensor:
        """(B, K^D)."""
        return code_log_probs(self.log_q)

    def expectation(self, value: Tensor) -> Tensor:
        """(B,), latent by latent from the last on, without q of all codes."""
        for q in reversed(self.log_q.exp().unbind(1)):  # (B, K)
            value = _mean(q, value.unflatten(-1, (-1, q.shape[-1])))
        return value.squeeze(-1)


class TabulatedPosterior:
    """Any q(z|x), as the table of all its codes.

    Args:
        log_q: (B, K^D).
        num_latents: D.
        num_categories: K.
    """

    def __init__(self, log_q: Tensor, num_latents: int, num_categories: int) -> None:
        self.log_q = log_q
        self.sizes = (num_categories,) * num_latents

    def draw(
        self, rows: slice, num_samples: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Codes by the inverse of the distribution function over the table."""
        log_q = self.log_q[rows]
        uniforms = _uniforms(len(log_q), num_samples, 1, generator).squeeze(-1)
        number = _inverse(log_q, uniforms)
        return self._categories(number), log_q.gather(-1, number)

    def entropy(self) -> Tensor:
        """(B,), a sum."""
        return entropy(self.log_q.unsqueeze(-2))

    def marginals(self) -> Tensor:
        """(B, D, K), sums."""
        joint = self.log_q.unflatten(-1, self.sizes)
        others = [[e for e in range(1, joint.dim()) if e != d] for d in range(1, joint.dim())]
        return torch.stack([joint.logsumexp(dims) if dims else joint for dims in others], 1)

    def mode(self) -> Tensor:
        """(B, D)."""
        return self._categories(self.log_q.argmax(-1))

    def table(self) -> Tensor:
        """(B, K^D)."""
        return self.log_q

    def expectation(self, value: Tensor) -> Tensor:
        """(B,), a sum."""
        return _mean(self.log_q.exp(), value.unsqueeze(-2)).squeeze(-1)

    def _categories(self, number: Tensor) -> Tensor:
        return torch.stack(torch.unravel_index(number, self.sizes), -1)


class SequentialPosterior:
    """q(z|x) = prod_d q(z_d | z_1 ... z_{d-1}, x), with too many codes for a table.

    Args:
        q: batch shape (B,).
    """

    def __init__(self, q: SequentialCodes) -> None:
        self.q = q

    def draw(
        self, rows: slice, num_samples: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """One latent after the other; only the rows asked for."""
        return self._ancestral(self.q.rows(rows), num_samples, generator)[:2]

    def entropy(self) -> None:
        """Not known without draws."""

    def marginals(self) -> Tensor:
        """(B, D, K), the mean of the conditionals over draws of the latents before, by a seed."""
        generator = torch.Generator().manual_seed(0)
        conditionals = self._ancestral(self.q, CONDITIONALS, generator)[2]  # (B, S, D, K)
        return conditionals.exp().mean(1).log()

    def mode(self) -> Tensor:
        """(B, D), latent by latent."""
        code = self._nothing(self.q, 1)
        for _ in range(self.q.event_shape[0]):
            code = self._append(code, _conditional(self.q, code).argmax(-1))
        return code[0].argmax(-1)

    def table(self) -> Tensor:
        """Refused: there are too many codes."""
        raise ValueError("Expected few enough codes for a table; got too many. Use draws.")

    def expectation(self, value: Tensor) -> Tensor:
        """Refused likewise."""
        return self.table()

    def _ancestral(
        self, q: SequentialCodes, num_samples: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        (batch,) = q.batch_shape
        num_latents = q.event_shape[0]
        uniforms = _uniforms(batch, num_samples, num_latents, generator)
        code, conditionals = self._nothing(q, num_samples), []
        for latent in range(num_latents):
            log_q = wide(_conditional(q, code)).transpose(0, 1)  # (B, S, K)
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


def _mean(q: Tensor, value: Tensor) -> Tensor:
    """sum_k q_k value_k: (B, K) and (1 or B, C, K) to (B, C)."""
    weight = q.unsqueeze(-1)
    total = (value @ weight).squeeze(-1)
    if total.isnan().any():
        # A category of probability zero contributes nothing, though its value may be -inf.
        total = (torch.where(q.unsqueeze(-2) > 0, value, 0) @ weight).squeeze(-1)
    return total


def _tabulated(q: Any) -> Tensor:
    num_latents, num_categories = q.event_shape
    if not isinstance(q, SequentialCodes):
        # Some at a time: all of them are K^D one-hot codes of D K numbers each.
        size = max(1, _CODE_ELEMENTS // (num_latents * num_categories))
        number = num_codes(num_latents, num_categories)
        starts = range(0, number, size)
        codes = (
            enumerate_codes(num_latents, num_categories, start=n, stop=min(n + size, number))
            for n in starts
        )
        return torch.cat([wide(q.log_prob(some[:, None])) for some in codes]).T
    like = q.like
    total = wide(like.new_zeros(1, 1))
    for latent in range(num_latents):  # every prefix once
        prefixes = enumerate_codes(
            latent, num_categories, device=like.device, dtype=like.dtype
        ).unsqueeze(1)
        log_q = wide(_conditional(q, prefixes))  # (K^d, B, K)
        total = (total.unsqueeze(-1) + log_q.transpose(0, 1)).flatten(1)
    return total


def _conditional(q: SequentialCodes, prefix: Tensor) -> Tensor:
    """Log q(z_{d+1} | ...) of prefixes (S, 1 or B, d, K), (S, B, K)."""
    return q.conditional(prefix).expand(len(prefix), *q.batch_shape, q.event_shape[-1])


def _uniforms(batch: int, num_samples: int, num_latents: int, generator: torch.Generator) -> Tensor:
    return torch.rand(
        batch, num_samples, num_latents, dtype=torch.float64, generator=generator, device="cpu"
    )


def _inverse(log_q: Tensor, uniforms: Tensor) -> Tensor:
    """Find min {k : F(k) > u}, (..., S), of log-probabilities (..., K) and uniforms (..., S)."""
    cumulative = log_q.cpu().double().exp().cumsum(-1)
    # The last is exactly 1, above every uniform, whatever the sum was rounded to.
    cumulative = cumulative / cumulative[..., -1:]
    index = torch.searchsorted(cumulative.contiguous(), uniforms.contiguous(), right=True)
    return index.clamp(max=log_q.shape[-1] - 1).to(log_q.device)
