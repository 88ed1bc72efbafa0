"""The exact ELBO and log p(x), as sums over all codes."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, ClassVar

import torch
from pyro.distributions.util import scale_and_mask
from torch import Tensor

from pyro_dvae.codes import expectation, total
from pyro_dvae.elbos.enumeration import log_density
from pyro_dvae.elbos.pair import Pair, Program
from pyro_dvae.elbos.plates import common_scale
from pyro_dvae.elbos.summed import SummedELBO
from pyro_dvae.elbos.terms import Terms


class EnumeratedELBO(SummedELBO):
    """sum_z q(z|x) (log p(x|z) + log p(z) - log q(z|x)), over all K^D codes.

    This is the exact ELBO, with its exact gradient. The programs run at all codes at once, of shape
    (K^D, 1, D, K). So the decoder decodes each code once, for the whole batch. If several sites
    have finitely many values (Bernoulli and binomial ones too), the sum is over all their joint
    codes. Continuous sites are drawn, with their pathwise gradient.

    Args:
        max_codes: the largest number of joint codes of all discrete sites.
        chunk_size: codes per run. Chunks are computed again for the gradient, so that memory grows
            with `chunk_size` and not with K^D. The result does not depend on it.
        **options: `beta`, `free_bits`, `analytic_kl` of `DiscreteELBO`.

    Raises:
        ValueError: when it is run, K^D exceeds `max_codes`, or a site has neither finitely many
            values nor a reparametrised draw. The message names K^D or the site.
    """

    is_unbiased: ClassVar[bool] = True
    _is_marginal = False

    def terms(self, model: Program, guide: Program, args: Any, kwargs: Any) -> Terms:
        """Expectations of the terms over all codes, in the shape of one particle."""
        centres: list[Tensor] = []  # of the first chunk, for all of them

        def expect(terms: Terms, summed: Collection[str]) -> tuple[Tensor, ...]:
            log_q = log_codes(terms.pair, summed)
            parts = (terms.log_likelihood, terms.kl, terms.penalty)
            log_q, log_likelihood, *others = _flat(terms, log_q, *parts)
            q = log_q.exp()
            if not centres:
                centres.append(_centre(q, log_likelihood))
            others = [expectation(q, value, 0) for value in others]
            return _centred(q, log_likelihood, centres[0]), *others

        chunks, pair = self.sums(expect, model, guide, args, kwargs)
        log_likelihood, kl, penalty = (
            torch.stack(parts).sum(0) for parts in zip(*chunks, strict=True)
        )
        nothing = torch.zeros_like(kl)
        return Terms(log_likelihood, kl, penalty, nothing, nothing, self.loss_scale(pair), pair)


class MarginalELBO(SummedELBO):
    """log p(x) = log sum_z p(x|z) p(z), and for the guide sum_z p(z|x) log q(z|x).

    The first formula is Eq. 29 of [JL25]. This is maximum likelihood by enumeration. The sum is
    over all latents of the model, also those that the guide does not draw. The gradient in the
    model's weights is that of log p(x), and does not depend on the guide. The guide is fitted to
    the exact posterior p(z|x), which is held fixed: its gradient minimises KL(p(z|x) || q(z|x)),
    where the ELBO has KL(q(z|x) || p(z|x)). A draw that a mask leaves out does not count there.
    **The value is log p(x)**, which no ELBO exceeds.

    Args:
        noisy: whether the model may draw random numbers outside of its sites, such as dropout
            masks m. Then the value is log p(x|m) for one draw, whose mean is a lower bound on
            log E_m[p(x|m)]. If False, such a model is refused.
        **options: `max_codes` and `chunk_size` of `EnumeratedELBO`.

    Raises:
        ValueError: `beta` or `free_bits` is given. When it is run: K^D exceeds `max_codes`, a
            latent has infinitely many values, the guide draws a site that is no latent of the
            model, or sites have different scales. The message names the site.
    """

    is_unbiased: ClassVar[bool] = True
    has_beta: ClassVar[bool] = False
    _is_marginal = True

    def __init__(self, *, noisy: bool = False, **options: Any) -> None:
        super().__init__(**options, analytic_kl=False)
        self.noisy = noisy
        if self.beta != 1 or self.free_bits != 0:
            raise ValueError(
                "Expected beta = 1 and no free bits, since log p(x) has no KL term; got "
                f"beta = {self.beta}, free_bits = {self.free_bits}. Use EnumeratedELBO."
            )

    def extra_repr(self) -> str:
        """The settings, for `repr`."""
        noisy = ", noisy=True" if self.noisy else ""
        return f"max_codes={self.max_codes}, chunk_size={self.chunk_size}{noisy}"

    def loss_scale(self, pair: Pair) -> float:
        """The common scale of all sites, a factor in front of the logarithm."""
        return common_scale(*pair.sites)

    def bound(self, terms: Terms) -> Tensor:
        """(*batch) log p(x), nats per datum."""
        return terms.log_likelihood[0]

    def surrogate(self, terms: Terms) -> Tensor:
        """(*batch) log p(x) + sum_z p(z|x) log q(z|x), in nats per datum."""
        return terms.log_likelihood[0] + terms.log_guide[0]

    def terms(self, model: Program, guide: Program, args: Any, kwargs: Any) -> Terms:
        """Terms whose `log_likelihood` is log p(x), and `log_guide` sum_z p(z|x) log q(z|x)."""

        def reduce(terms: Terms, summed: Collection[str]) -> tuple[Tensor, ...]:
            log_joint = terms.log_likelihood + _log_prior(terms.pair)
            log_joint, log_q = _flat(terms, log_joint, _counted_log_guide(terms.pair, summed))
            # Codes with q = 0 count in log p(x), but give the guide no gradient.
            log_q = torch.where(log_q > -math.inf, log_q, 0)
            return log_joint.logsumexp(0), expectation(log_joint.detach().softmax(0), log_q, 0)

        chunks, pair = self.sums(reduce, model, guide, args, kwargs)
        log_joint, log_guide = (torch.stack(parts) for parts in zip(*chunks, strict=True))
        share = log_joint.detach().softmax(0)
        log_marginal, log_guide = log_joint.logsumexp(0), (share * log_guide).sum(0)
        nothing = torch.zeros_like(log_marginal)
        scale = self.loss_scale(pair)
        return Terms(log_marginal, nothing, nothing, log_guide, nothing, scale, pair)


@torch.no_grad()
def _centre(q: Tensor, value: Tensor) -> Tensor:
    """E_q[value] over the codes of a chunk, (1, *batch); 0 where it is not finite."""
    mean = expectation(q, value, 0) / q.sum(0)
    return mean.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def _centred(q: Tensor, value: Tensor, centre: Tensor) -> Tensor:
    """sum_z q(z) value(z), whose gradient in q is value - centre.

    Over all codes sum_z q(z) is 1, so that the gradient in the guide's weights is the same. But
    values have hundreds of nats in common, whose rounding can exceed what the guide learns from.
    """
    return expectation(q, value - centre, 0) + centre * q.detach().sum(0)


def log_codes(pair: Pair, summed: Collection[str]) -> Tensor:
    """Log q(z|x) of the codes, (*codes, 1, *batch)."""
    sites = [site for name, site in pair.guide_sites.items() if name in summed]
    return total(pair.plates.flat(log_density(site)) for site in sites)


def _counted_log_guide(pair: Pair, summed: Collection[str]) -> Tensor:
    """Log q(z|x) of the codes that no mask leaves out, (*codes, 1, *batch)."""
    sites = [site for name, site in pair.guide_sites.items() if name in summed]
    return total(
        pair.plates.flat(scale_and_mask(site["unscaled_log_prob"], mask=site["mask"]))
        for site in sites
    )


def _log_prior(pair: Pair) -> Tensor:
    """Log p(z) of the codes of all latents of the model, (*codes, 1, *batch)."""
    parts = (log_density(site) for site in pair.latents.values())
    return total(pair.plates.flat(part) for part in parts)


def _flat(terms: Terms, *values: Tensor) -> list[Tensor]:
    """Broadcast values (*codes, 1, *batch), and reshape them to (C, 1, *batch)."""
    shape = terms.pair.plates.flat_sizes
    *values, _ = torch.broadcast_tensors(*values, values[0].new_empty(shape))
    return [value.reshape(-1, *shape) for value in values]
