"""Sums over every code: the exact ELBO, the oracle of the sampled estimators, and log p(x)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pyro_dvae.codes import MAX_CODES, describe_codes, expectation, num_codes, total
from pyro_dvae.elbos.audit import check_free_bits, check_programs
from pyro_dvae.elbos.base import DiscreteELBO, Terms
from pyro_dvae.elbos.enumeration import Enumeration, SumLayout, log_density, sum_layout
from pyro_dvae.elbos.layout import LayoutChanged, with_layout
from pyro_dvae.elbos.noise import (
    GuideNoise,
    drawing_nothing,
    random_states,
    restore,
    without_batch_statistics,
)
from pyro_dvae.elbos.pair import Pair, Program, trial_run
from pyro_dvae.elbos.plates import common_scale, is_subsampled_loop
from pyro_dvae.elbos.sites import Given
from pyro_dvae.process import without_checks

_NUMBERS = 2**26
"""Numbers, D K each, of the codes that run at once, whatever the chunk: with one latent of many
categories its codes alone would take K^2."""


class Sums(NamedTuple):
    """What is left of all codes."""

    chunks: list[tuple[Tensor, ...]]
    """What each chunk was reduced to."""
    pair: Pair
    """The traces of the first chunk."""


class _SummedELBO(DiscreteELBO):
    """Runs both programs on all joint codes, in chunks that are recomputed for the gradient.

    Args:
        max_codes: the most joint codes of all discrete sites.
        chunk_size: codes run at once; memory grows with it, the result does not change.
        **options: `beta`, `free_bits`, `analytic_kl` of `DiscreteELBO`.
    """

    _is_marginal: ClassVar[bool]
    """Whether the sum is over every latent, those of the model alone too."""

    def __init__(
        self, *, max_codes: int = MAX_CODES, chunk_size: int = 8192, **options: Any
    ) -> None:
        super().__init__(1, **options)
        if chunk_size < 1:
            raise ValueError(f"Expected a chunk of at least 1 code; got {chunk_size}. Raise it.")
        self.max_codes = max_codes
        self.chunk_size = chunk_size

    def extra_repr(self) -> str:
        """The settings, for `repr`."""
        return (
            f"max_codes={self.max_codes}, chunk_size={self.chunk_size}, beta={self.beta}, "
            f"free_bits={self.free_bits}, analytic_kl={self.analytic_kl}"
        )

    def surrogate(self, terms: Terms) -> Tensor:
        """(*batch), the objective itself: nothing is drawn."""
        return self.objective(terms)

    def sums(
        self,
        reduce: Callable[[Terms, Collection[str]], tuple[Tensor, ...]],
        model: Program,
        guide: Program,
        args: Any,
        kwargs: Any,
    ) -> Sums:
        """`reduce` of the terms of each chunk of codes, (*codes, 1, *batch), and their sites."""
        held: dict[str, Tensor] = {}

        def find() -> SumLayout:
            pair = trial_run(model, guide, args, kwargs)
            check_programs(pair, marginal=self._is_marginal)
            held.clear()
            if is_subsampled_loop(pair.model_trace, pair.guide_trace):
                # The names of its sites depend on the indices, which the sum must then share.
                held.update(pair.subsamples)
                for index in held.values():  # the trial did not move the random stream
                    torch.randperm(len(index), device=index.device)
            return sum_layout(pair, marginal=self._is_marginal)

        def run(layout: SumLayout) -> Sums:
            own, other = (Given(held)(program) for program in (model, guide))
            return self._sums_of(layout, reduce, held, own, other, args, kwargs)

        return with_layout(self, find, run)

    def _sums_of(
        self,
        layout: SumLayout,
        reduce: Callable[[Terms, Collection[str]], tuple[Tensor, ...]],
        held: dict[str, Tensor],
        model: Program,
        guide: Program,
        args: Any,
        kwargs: Any,
    ) -> Sums:
        totals = {name: num_codes(*size) for name, size in layout.sizes.items()}
        if math.prod(totals.values()) > self.max_codes:
            described = " times ".join(
                f"{describe_codes(*size)} at site '{name}'" for name, size in layout.sizes.items()
            )
            raise ValueError(
                f"Expected at most {self.max_codes} codes to enumerate; got K^D = {described}. Use "
                "a sampled estimator such as RlooELBO, or fewer latents or categories."
                + _why_one_datum(trial_run(model, guide, args, kwargs))
            )
        cut = max(totals, key=lambda name: totals[name], default=None)
        cuts: list[tuple[str | None, int, int]] = [(None, 0, 0)]
        if cut is not None:
            size = self.chunk_size * totals[cut] // math.prod(totals.values())
            size = max(1, min(size, _NUMBERS // math.prod(layout.sizes[cut])))
            cuts = [(cut, i, min(i + size, totals[cut])) for i in range(0, totals[cut], size)]
        once = len(cuts) == 1
        first: Pair | None = None
        before = after = random_states()
        same_draws = GuideNoise()(guide)

        def programs(values: Enumeration) -> tuple[Program, Program]:
            own = values(drawing_nothing(model)) if self._is_marginal else model
            other = same_draws if once else without_batch_statistics(same_draws)
            return without_batch_statistics(own), values(other)

        def run(cut: str | None, start: int, stop: int) -> tuple[Tensor, ...]:
            nonlocal first, after
            current = random_states()
            restore(before)  # all chunks are of one minibatch and of one draw of each other site
            values = Enumeration(layout, cut, start, stop)
            with without_checks():  # what concerns shapes, `Pair` checks
                pair = Pair(*programs(values), args, kwargs, layout.nesting)
            held.update(pair.subsamples)
            found = sum_layout(pair, marginal=self._is_marginal)
            if found != layout:
                raise LayoutChanged.between(layout, found)
            check_programs(pair, marginal=self._is_marginal)
            if first is None:
                first, after = pair, random_states()
                pair.refuse_mixed(values.places, lambda: trial_run(model, guide, args, kwargs))
            terms = self.split(pair)
            if self.free_bits and first is pair:
                check_free_bits(pair)
            if first is not pair:  # as when this run is made again for its gradient
                restore(current)
            return reduce(terms, layout.sizes)

        if once or not torch.is_grad_enabled():
            chunks = [run(*part) for part in cuts]
        else:
            chunks = [checkpoint(run, *part, use_reentrant=False) for part in cuts]
        restore(after)
        assert first is not None
        return Sums(chunks, first)


class EnumeratedELBO(_SummedELBO):
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


class MarginalELBO(_SummedELBO):
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


def _why_one_datum(pair: Pair) -> str:
    own = {
        frame.name: site["name"]
        for frame in {frame for site in pair.sites for frame in site["cond_indep_stack"]}
        for site in pair.sites
        if frame.vectorized and frame not in site["cond_indep_stack"]
    }
    return "".join(
        f" All codes in plate '{plate}' belong to one datum, for site '{site}' lies outside of it."
        for plate, site in own.items()
    )


def _flat(terms: Terms, *values: Tensor) -> list[Tensor]:
    """Values (*codes, 1, *batch), broadcast, as (C, 1, *batch)."""
    shape = terms.pair.plates.flat_sizes
    *values, _ = torch.broadcast_tensors(*values, values[0].new_empty(shape))
    return [value.reshape(-1, *shape) for value in values]
