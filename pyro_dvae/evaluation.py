"""Numbers of a trained model, in nats per datum: ELBO and its parts, exact log p(x)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_dvae.codes import MAX_CODES, describe_codes, entropy, enumerate_codes, num_codes
from pyro_dvae.streams import RandomStream

MAX_SUMMED_CODES = 2**20
"""Largest K^D that is summed over, in chunks."""

_ROWS = 256
_CHUNK_ELEMENTS = 2**26


class DatumTerms(NamedTuple):
    """The ELBO's parts for each of N data, in nats; ELBO = log_likelihood + log_prior + entropy."""

    log_likelihood: Tensor
    """(N,) E_q[log p(x|z)], -BCE for a Bernoulli likelihood."""
    log_prior: Tensor
    """(N,) E_q[log p(z)], -D log K for the uniform prior."""
    entropy: Tensor
    """(N,) Entropy(q(z|x))."""
    log_marginal: Tensor | None
    """(N,) log p(x), where all codes were summed."""

    @property
    def elbo(self) -> Tensor:
        """(N,) the ELBO (Eq. 82 of [JL25])."""
        return self.log_likelihood + self.log_prior + self.entropy


@dataclass(frozen=True)
class Evaluation:
    """Means over a data set, in nats per datum."""

    elbo: float
    log_likelihood: float
    log_prior: float
    entropy: float
    log_marginal: float | None
    """Exact mean log p(x); None where K^D is too large to sum."""
    standard_error: float
    """Of the ELBO, from the draws of z alone; 0 where the expectation is exact."""
    num_data: int


def evaluate(vae: Any, x: Tensor, *, num_samples: int = 16, seed: int = 0) -> Evaluation:
    """ELBO, its three parts and log p(x) of a data set (Eqs. 82, 83 and 86 of [JL25]).

    log p(x) - ELBO = KL(q(z|x) || p(z|x)), which is 0 where q is the posterior (Eqs. 31 to 39).
    E_q is a sum over all K^D codes up to `MAX_CODES`, beyond it a mean over draws.

    Args:
        vae: a `DiscreteVAE`.
        x: (N, *event) in the support of the likelihood, N >= 1.
        num_samples: draws of z a datum where the sum is too large, at least 2.
        seed: of those draws; the global random stream is not touched.
    """
    error = 0.0
    if num_codes(*_code_shape(vae)) <= MAX_CODES:
        terms = exact_terms(vae, x)
    else:
        terms, error = _sampled_terms(vae, x, num_samples, seed)
    means = [None if part is None else part.double().mean().item() for part in terms]
    log_likelihood, log_prior, entropy_, log_marginal_ = means
    elbo = terms.elbo.double().mean().item()
    return Evaluation(
        elbo, log_likelihood or 0.0, log_prior or 0.0, entropy_ or 0.0, log_marginal_, error, len(x)
    )


@torch.no_grad()
def exact_terms(vae: Any, x: Tensor) -> DatumTerms:
    """Every part of the ELBO as a sum over all K^D codes, (N,) each, in nats.

    Args:
        vae: a `DiscreteVAE`.
        x: (N, *event).
    """
    logits = torch.cat([vae.encode(rows) for rows in x.split(_ROWS)]).log_softmax(-1)  # (N, D, K)
    log_likelihood, log_prior = logits.new_zeros(len(x)), logits.new_zeros(len(x))
    log_marginal_ = logits.new_full((len(x),), -math.inf)
    for rows, codes, log_p_z, log_p_x in _code_chunks(vae, x, None):
        # A sum, not a matrix product: 0 * -inf must not be reached for excluded categories.
        log_q = _log_q(logits[rows], codes)  # (C, B)
        q = log_q.exp()
        log_likelihood[rows] += (q * log_p_x).sum(0)
        log_prior[rows] += (q * torch.where(q > 0, log_p_z[:, None], 0)).sum(0)
        log_marginal_[rows] = torch.logaddexp(
            log_marginal_[rows], (log_p_x + log_p_z[:, None]).logsumexp(0)
        )
    return DatumTerms(log_likelihood, log_prior, entropy(logits), log_marginal_)


def log_marginal(vae: Any, x: Tensor, *, chunk_size: int = 4096) -> Tensor:
    """Exact log p(x) = log sum_z p(x|z) p(z), over all K^D codes (Eqs. 16, 17, 28 and 29).

    Args:
        vae: a `DiscreteVAE` whose K^D codes can be summed.
        x: (N, *event) observations in the support of the likelihood.
        chunk_size: codes decoded at once; memory grows with it, the result does not change.

    Returns:
        (N,) nats per datum, differentiable in decoder and prior.

    Raises:
        ValueError: K^D exceeds `MAX_SUMMED_CODES`; the message names K^D.
    """
    total = num_codes(*_code_shape(vae))
    if total > MAX_SUMMED_CODES:
        raise ValueError(
            f"Expected at most {MAX_SUMMED_CODES} codes to sum over; got K^D = "
            f"{describe_codes(*_code_shape(vae))}. "
            "Use fewer latents or categories, or the ELBO, which bounds log p(x) from below."
        )
    parts: dict[int, list[Tensor]] = {}
    for rows, _, log_p_z, log_p_x in _code_chunks(vae, x, chunk_size):
        parts.setdefault(rows.start, []).append((log_p_x + log_p_z[:, None]).logsumexp(0))
    return torch.cat([torch.stack(chunks).logsumexp(0) for chunks in parts.values()])


def _code_shape(vae: Any) -> tuple[int, int]:
    num_latents, num_categories = vae.prior().event_shape
    return num_latents, num_categories


def _code_chunks(
    vae: Any, x: Tensor, chunk_size: int | None
) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
    """For chunks of codes and rows: rows, codes (C, D, K), log p(z) (C,), log p(x|z) (C, B)."""
    prior = vae.prior()
    num_latents, num_categories = prior.event_shape
    like = prior.sample()
    size = chunk_size or max(1, _CHUNK_ELEMENTS // (_ROWS * x[0].numel()))
    total = num_codes(num_latents, num_categories)
    for start in range(0, total, size):
        codes = enumerate_codes(
            num_latents,
            num_categories,
            start=start,
            stop=min(start + size, total),
            device=like.device,
            dtype=like.dtype,
        )
        log_p_z = prior.log_prob(codes)  # (C,)
        p_x = vae.decode(codes[:, None])  # batch (C, 1)
        for row in range(0, len(x), _ROWS):
            rows = slice(row, min(row + _ROWS, len(x)))
            yield rows, codes, log_p_z, p_x.log_prob(x[rows])


def _log_q(logits: Tensor, codes: Tensor) -> Tensor:
    """Log q(z|x) of codes (C, D, K) under normalised logits (B, D, K): (C, B)."""
    index = codes.argmax(-1)  # (C, D)
    latent = torch.arange(index.shape[-1], device=index.device)
    return logits[:, latent, index].sum(-1).T


@torch.no_grad()
def _sampled_terms(vae: Any, x: Tensor, num_samples: int, seed: int) -> tuple[DatumTerms, float]:
    prior, log_likelihood, log_prior, spread, logits = vae.prior(), [], [], [], []
    with RandomStream(seed, x.device):
        for rows in x.split(_ROWS):
            logits.append(vae.encode(rows).log_softmax(-1))
            q = torch.distributions.OneHotCategorical(logits=logits[-1], validate_args=False)
            z = q.sample((num_samples,))  # (S, B, D, K)
            log_p_x, log_p_z = vae.decode(z).log_prob(rows), prior.log_prob(z)  # (S, B)
            log_likelihood.append(log_p_x.mean(0))
            log_prior.append(log_p_z.mean(0))
            spread.append((log_p_x + log_p_z).var(0) / num_samples)
    terms = DatumTerms(
        torch.cat(log_likelihood), torch.cat(log_prior), entropy(torch.cat(logits)), None
    )
    return terms, (torch.cat(spread).double().sum().sqrt() / len(x)).item()
