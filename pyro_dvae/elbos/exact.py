"""Sums over every code: the exact ELBO, the oracle of the sampled estimators, and log p(x)."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, ClassVar

import torch
from torch import Tensor

from pyro_dvae.codes import expectation, total
from pyro_dvae.elbos.base import Terms
from pyro_dvae.elbos.enumeration import log_density
from pyro_dvae.elbos.pair import Pair, Program
from pyro_dvae.elbos.plates import common_scale
from pyro_dvae.elbos.summed import SummedELBO


class EnumeratedELBO(SummedELBO):
    """sum_z q(z|x) (log p(x|z) + log p(z) - log q(z|x)) over all K^D codes, without a draw.

    The exact ELBO and its exact gradient. The programs run on all the codes at once, shaped
    (K^D, 1, D, K): a decoder sees each code once, whatever the batch. Several sites of finitely
    many values (Bernoulli and binomial ones too) are enumerated jointly; a continuous site beside
    them is drawn, with its pathwise gradient.

    Args:
        max_codes: the most codes (over all discrete sites together) to enumerate.
        chunk_size: codes run at once; chunks are recomputed for the gradient, so that memory grows
            with this and not with K^D.
        **options: `beta`, `free_bits`, `analytic_kl` of `DiscreteELBO`.

    Raises:
        ValueError: when run, K^D exceeds `max_codes`, which the message names; or a site has
            neither finitely many values nor a reparametrised draw.
    """

    is_unbiased: ClassVar[bool] = True
    _is_marginal = False

    def terms(self, model: Program, guide: Program, args: Any, kwargs: Any) -> Terms:
        """Expectations over all codes, as if of one particle."""

        def expect(terms: Terms, summed: Collection[str]) -> tuple[Tensor, ...]:
            parts = (terms.log_likelihood, terms.kl, terms.penalty)
            log_codes = _log_guide(terms.pair, summed)
            return tuple(
                expectation(log_code.exp(), value, 0)
                for log_code, value in (_flat(terms, log_codes, part) for part in parts)
            )

        chunks, pair = self.sums(expect, model, guide, args, kwargs)
        log_likelihood, kl, penalty = (
            torch.stack(parts).sum(0) for parts in zip(*chunks, strict=True)
        )
        nothing = torch.zeros_like(kl)
        return Terms(log_likelihood, kl, penalty, nothing, nothing, self.loss_scale(pair), pair)


class MarginalELBO(SummedELBO):
    """log p(x) = log sum_z p(x|z) p(z) for model, sum_z p(z|x) log q(z|x) for guide (Eq. 29).

    The sum is over all latents of the model, whether the guide draws them or not. Maximum
    likelihood by enumeration: the gradient in the model's weights is that of log p(x), whatever the
    guide; the guide follows the exact posterior p(z|x), held fixed, by maximum likelihood, that is
    it lowers KL(p(z|x) || q(z|x)), not the ELBO's KL(q || p). **The value is log p(x)**, which no
    ELBO exceeds.

    Args:
        max_codes: the most codes (over all discrete sites together) to enumerate.
        chunk_size: as in `EnumeratedELBO`.
        **options: none that changes the objective; `beta` and `free_bits` are refused.

    Raises:
        ValueError: beta or free_bits given; when run, K^D exceeds `max_codes`, a latent has not
            finitely many values, or the guide draws what is no latent of the model, or sites
            differ in scale; the site is named.
    """

    is_unbiased: ClassVar[bool] = True
    has_beta: ClassVar[bool] = False
    _is_marginal = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, analytic_kl=False)
        if self.beta != 1 or self.free_bits != 0:
            raise ValueError(
                "Expected beta = 1 and no free bits, for log p(x) has no KL term; got "
                f"beta = {self.beta}, free_bits = {self.free_bits}. Use EnumeratedELBO."
            )

    def extra_repr(self) -> str:
        """The settings, for `repr`."""
        return f"max_codes={self.max_codes}, chunk_size={self.chunk_size}"

    def loss_scale(self, pair: Pair) -> float:
        """The scale of all sites, which stands outside of the logarithm."""
        return common_scale(*pair.sites)

    def bound(self, terms: Terms) -> Tensor:
        """(*batch) log p(x), nats per datum."""
        return terms.log_likelihood[0]

    def surrogate(self, terms: Terms) -> Tensor:
        """(*batch) log p(x), and the guide's log-likelihood under the posterior."""
        return terms.log_likelihood[0] + terms.log_guide[0]

    def terms(self, model: Program, guide: Program, args: Any, kwargs: Any) -> Terms:
        """Give log p(x) as the log-likelihood, the expected log q as the guide's term."""

        def reduce(terms: Terms, summed: Collection[str]) -> tuple[Tensor, ...]:
            log_joint = terms.log_likelihood + _log_prior(terms.pair)
            log_joint, log_q = _flat(terms, log_joint, _log_guide(terms.pair, summed))
            # The guide learns nothing of codes that it excludes; log p(x) counts them.
            log_q = torch.where(log_q > -math.inf, log_q, 0)
            return log_joint.logsumexp(0), expectation(log_joint.detach().softmax(0), log_q, 0)

        chunks, pair = self.sums(reduce, model, guide, args, kwargs)
        log_joint, log_guide = (torch.stack(parts) for parts in zip(*chunks, strict=True))
        share = log_joint.detach().softmax(0)
        log_marginal, log_guide = log_joint.logsumexp(0), (share * log_guide).sum(0)
        nothing = torch.zeros_like(log_marginal)
        scale = self.loss_scale(pair)
        return Terms(log_marginal, nothing, nothing, log_guide, nothing, scale, pair)


def _log_guide(pair: Pair, summed: Collection[str]) -> Tensor:
    """Log q(z|x) of the codes, (*codes, 1, *batch)."""
    sites = [site for name, site in pair.guide_sites.items() if name in summed]
    return total(pair.plates.flat(log_density(site)) for site in sites)


def _log_prior(pair: Pair) -> Tensor:
    """Log p(z) of the codes, those of the model alone too, (*codes, 1, *batch)."""
    parts = (log_density(site) for site in pair.latents.values())
    return total(pair.plates.flat(part) for part in parts)


def _flat(terms: Terms, *values: Tensor) -> list[Tensor]:
    """Values (*codes, 1, *batch), broadcast, as (C, 1, *batch)."""
    shape = terms.pair.plates.flat_sizes
    *values, _ = torch.broadcast_tensors(*values, values[0].new_empty(shape))
    return [value.reshape(-1, *shape) for value in values]
