"""log p(x, z) of a model, of all K^D codes or of drawn ones.

The networks and the likelihood run in the model's own precision; what they give is summed in
double, so that bounds keep their order to the last digits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor

from pyro_dvae.checks import at_least
from pyro_dvae.codes import code_logits, describe_codes, enumerate_codes, num_codes, one_hot

MAX_SUMMED_CODES = 2**20
"""Largest K^D that `log_marginal` sums over, in chunks."""

ROWS = 256
"""Data that are encoded or scored at once."""

_CHUNK_ELEMENTS = 2**23
"""Elements of data under different codes, (codes, data, P), that are held at once."""

_KEPT_ELEMENTS = 2**26
"""Decoded codes, (K^D, P), that are kept rather than decoded for every block of data."""

_LOOKED_UP = 2**21
"""Categories that are drawn at once, (data, draws, D), where their codes are looked up."""


def wide(tensor: Tensor) -> Tensor:
    """The tensor in double precision, where its device has that."""
    return tensor if tensor.device.type == "mps" else tensor.double()


def code_log_probs(log_probs: Tensor) -> Tensor:
    """Log-probability of every code, as sums over latents: (..., D, K) to (..., K^D).

    The codes come in the order of `enumerate_codes`.
    """
    total = log_probs[..., 0, :]
    for latent in log_probs.unbind(-2)[1:]:
        total = (total.unsqueeze(-1) + latent.unsqueeze(-2)).flatten(-2)
    return total


def drawn_log_probs(log_probs: Tensor, index: Tensor) -> Tensor:
    """Log q(z|x) of drawn codes: (..., D, K) and categories (..., S, D) to (..., S)."""
    # A gather, not a product with one-hot codes: 0 * -inf must not be reached.
    return log_probs.gather(-1, index.transpose(-1, -2)).sum(-2)


class Joint:
    """p(z) and p(x|z) of a model, in nats, as it is now.

    Args:
        vae: a `DiscreteVAE`.
        x: the data that will be scored, (N, *event), on the device of the model.

    Raises:
        ValueError: no data, or data outside the support of the likelihood.
    """

    def __init__(self, vae: Any, x: Tensor) -> None:
        at_least("data", len(x), 1)
        check = getattr(vae.likelihood, "check", None)
        if check is not None:
            check(x)
        self.vae = vae
        self.prior = vae.prior()
        self.num_latents, self.num_categories = self.prior.event_shape
        self.num_codes = num_codes(self.num_latents, self.num_categories)
        self.described = describe_codes(self.num_latents, self.num_categories)
        self.device = x.device
        self.dtype = next((w.dtype for w in vae.parameters()), torch.get_default_dtype())
        self.datum_size = max(1, x[0].numel() * int(vae.likelihood.num_params))
        logits = code_logits(self.prior)
        self.prior_log_probs = None if logits is None else wide(logits).log_softmax(-1)
        """(D, K) where the latents are independent under the prior, else None."""
        self._kept: list[tuple[Tensor, Any]] = []

    def codes_at_once(self, num_data: int) -> int:
        """How many codes to score so many data under in bounded memory."""
        return max(1, _CHUNK_ELEMENTS // (num_data * self.datum_size))

    def chunks(self, size: int) -> Iterator[tuple[Tensor, Any]]:
        """For one `size` codes after the other: log p(z), (C,), and p(x|z), batch shape (C, 1)."""
        for start in range(0, self.num_codes, size):
            codes = enumerate_codes(
                self.num_latents,
                self.num_categories,
                start=start,
                stop=min(start + size, self.num_codes),
                device=self.device,
                dtype=self.dtype,
            )
            yield self._log_prior(codes), self.vae.decode(codes[:, None])

    def all_codes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Log p(z), (K^D,), and log p(x|z), (B, K^D), of every code and datum (B, *event)."""
        chunks: Any = self._kept
        if not chunks:
            chunks = self.chunks(self.codes_at_once(len(x)))
            if self.num_codes * self.datum_size <= _KEPT_ELEMENTS:
                chunks = self._kept = list(chunks)
        log_prior, log_likelihood = zip(
            *((log_p_z, p_x.log_prob(x).T) for log_p_z, p_x in chunks), strict=True
        )
        return torch.cat(log_prior), wide(torch.cat(log_likelihood, 1))

    def drawn(self, x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Log p(z) and log p(x|z), (B, S) both, of categories (B, S, D) drawn for x (B, *event)."""
        codes = one_hot(index.transpose(0, 1), self.num_categories, dtype=self.dtype)
        log_likelihood = self.vae.decode(codes).log_prob(x)  # (S, B)
        return self._log_prior(codes).T, wide(log_likelihood.T)

    def _log_prior(self, codes: Tensor) -> Tensor:
        if self.prior_log_probs is None:
            return wide(self.prior.log_prob(codes))
        index = codes.argmax(-1)  # (..., D)
        latent = torch.arange(self.num_latents, device=codes.device)
        return self.prior_log_probs[latent, index].sum(-1)


class JointBlock:
    """p(z) and p(x|z) for one block of data, its draws looked up where all codes are tabulated.

    Args:
        joint: of the model.
        x: (B, *event).
        tabulate: whether to score all K^D codes, once for the whole block.
    """

    def __init__(self, joint: Joint, x: Tensor, tabulate: bool) -> None:
        self.joint = joint
        self.x = x
        self.all_codes = joint.all_codes(x) if tabulate else None
        self.draws_at_once = _LOOKED_UP // joint.num_latents if tabulate else joint.codes_at_once(1)

    def drawn(self, rows: slice, index: Tensor) -> tuple[Tensor, Tensor]:
        """Log p(z) and log p(x|z), (b, s) both, of categories (b, s, D) drawn for these rows."""
        if self.all_codes is None:
            return self.joint.drawn(self.x[rows], index)
        log_prior, log_likelihood = self.all_codes
        number = index[..., 0]
        for digit in index.unbind(-1)[1:]:
            number = number * self.joint.num_categories + digit
        return log_prior[number], log_likelihood[rows].gather(1, number)

    def log_joint(self, rows: slice, index: Tensor) -> Tensor:
        """Log p(x, z), (b, s), of the same."""
        log_prior, log_likelihood = self.drawn(rows, index)
        return log_prior + log_likelihood


def log_marginal(vae: Any, x: Tensor, *, chunk_size: int | None = None) -> Tensor:
    """Exact log p(x) = log sum_z p(x|z) p(z), over all K^D codes (Eqs. 16, 17, 28 and 29).

    Args:
        vae: a `DiscreteVAE` whose K^D codes can be summed.
        x: (N, *event) observations in the support of the likelihood.
        chunk_size: codes decoded at once, None for as many as bounded memory allows; the result
            does not change.

    Returns:
        (N,) nats per datum in double precision, differentiable in decoder and prior.

    Raises:
        ValueError: K^D exceeds `MAX_SUMMED_CODES`; the message names K^D.
    """
    joint = Joint(vae, x)
    if joint.num_codes > MAX_SUMMED_CODES:
        raise ValueError(
            f"Expected at most {MAX_SUMMED_CODES} codes to sum over; got K^D = "
            f"{joint.described}. Use fewer latents or categories, or the importance-weighted "
            "bound of evaluate(vae, x, importance_samples=1000)."
        )
    rows = x.split(ROWS)
    total: Tensor | None = None
    for log_p_z, p_x in joint.chunks(chunk_size or joint.codes_at_once(len(rows[0]))):
        if log_p_z.max() == -math.inf:
            continue  # the gradient of a log-sum-exp is NaN where every term is -inf
        part = torch.cat(
            [(wide(p_x.log_prob(some)) + log_p_z[:, None]).logsumexp(0) for some in rows]
        )
        total = part if total is None else torch.logaddexp(total, part)
    return cast(Tensor, total)
