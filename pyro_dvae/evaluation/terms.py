"""The figures of each datum as tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor


class DatumTerms(NamedTuple):
    """The ELBO's parts for each of N data, in nats; ELBO = log_likelihood + log_prior + entropy."""

    log_likelihood: Tensor
    """(N,) E_q[log p(x|z)], -BCE for a Bernoulli likelihood."""
    log_prior: Tensor
    """(N,) E_q[log p(z)], -D log K for the uniform prior."""
    entropy: Tensor
    """(N,) -E_q[log q(z|x)]."""
    log_marginal: Tensor | None
    """(N,) log p(x); None if the codes were not summed over."""
    importance_bound: Tensor | None
    """(N,) the importance-weighted bound on log p(x); None if it was not computed."""
    variances: Mapping[str, Tensor]
    """Name of each figure that is estimated from draws -> (N,) the variance of the estimate."""
    prior_error: float = 0.0
    """Standard error of log p(z), if log Z is an estimate. All data have the same error."""
    encoder_elbo: Tensor | None = None
    """(N,) the ELBO of the guide's q(z|x); None if posteriors were not compared."""
    refined_elbo: Tensor | None = None
    """(N,) the ELBO of q(z|x) after coordinate ascent; None as above."""
    best_elbo: Tensor | None = None
    """(N,) the largest ELBO of a factorised q(z|x) that is found; None as above, and if the codes
    were not summed over."""

    @property
    def elbo(self) -> Tensor:
        """(N,) the ELBO (Eq. 82 of [JL25])."""
        return self.log_likelihood + self.log_prior + self.entropy

    def __repr__(self) -> str:
        known = [name for name, value in self._asdict().items() if isinstance(value, Tensor)]
        return f"DatumTerms of {len(self.entropy)} data: {', '.join(known)}"


def empty_terms(terms: DatumTerms, num_data: int, device: torch.device) -> DatumTerms:
    """Uninitialised tensors for the same terms of all data, on a device.

    If the terms of each block were kept and concatenated at the end, they would lie between the
    freed memory of the blocks, which could then not be returned: 6 MB per block for a model with
    4,096 codes.
    """
    empty: dict[str, Any] = {
        name: value.new_empty(num_data, device=device)
        for name, value in terms._asdict().items()
        if isinstance(value, Tensor)
    }
    variances = {
        name: value.new_empty(num_data, device=device) for name, value in terms.variances.items()
    }
    return terms._replace(**empty, variances=variances)


def tensors_of(terms: DatumTerms) -> list[Tensor]:
    """All tensors of some terms, in one order."""
    return [value for value in (*terms, *terms.variances.values()) if isinstance(value, Tensor)]


def on_cpu(terms: DatumTerms) -> DatumTerms:
    """The same terms on the CPU."""
    moved: dict[str, Any] = {
        k: v.cpu() for k, v in terms._asdict().items() if isinstance(v, Tensor)
    }
    return terms._replace(**moved, variances={k: v.cpu() for k, v in terms.variances.items()})
