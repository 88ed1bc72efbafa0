"""Sums over every code: the exact ELBO, the oracle of the sampled estimators, and log p(x)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, cast

import pyro
import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pyro_dvae.codes import (
    MAX_CODES,
    code_logits,
    code_value,
    describe_codes,
    enumerate_codes,
    num_codes,
)
from pyro_dvae.elbos.base import DiscreteELBO, Terms
from pyro_dvae.elbos.pair import Pair, Program, trial_run


class _SummedELBO(DiscreteELBO):
    """Runs both programs on all joint codes, in chunks that are recomputed for the gradient.

    Args:
        max_codes: the most joint codes of all discrete sites.
        chunk_size: codes run at once; memory grows with it, the result does not change.
        **options: `beta`, `free_bits`, `analytic_kl` of `DiscreteELBO`.
    """

    def __init__(
        self, *, max_codes: int = MAX_CODES, chunk_size: int = 8192, **options: Any
    ) -> None:
        super().__init__(1, **options)
        if chunk_size < 1:
            raise ValueError(f"Expected a chunk of at least 1 code; got {chunk_size}. Raise it.")
        self.max_codes = max_codes
        self.chunk_size = chunk_size
        self._trial: Pair | None = None

    def surrogate(self, terms: Terms) -> Tensor:
        """(*batch), the objective itself: nothing is drawn."""
        return self.objective(terms)

    def sums(
        self,
        reduce: Callable[[Terms], tuple[Tensor, ...]],
        model: Program,
        guide: Program,
        args: Any,
        kwargs: Any,
    ) -> tuple[list[tuple[Tensor, ...]], float]:
        """`reduce` of the terms of each chunk of codes, (*codes, 1, *batch), and the scale."""
        if self._trial is None:
            self._trial = trial_run(model, guide, args, kwargs)
        plates = self._trial.plates
        shapes = {name: site.logits.shape[-2:] for name, site in self._trial.codes.items()}
        totals = {name: num_codes(*shape) for name, shape in shapes.items()}
        if math.prod(totals.values()) > self.max_codes:
            described = " times ".join(
                f"{describe_codes(*shape)} at site '{name}'" for name, shape in shapes.items()
            )
            raise ValueError(
                f"Expected at most {self.max_codes} codes to enumerate; got K^D = {described}. Use "
                "a sampled estimator such as RlooELBO, or fewer latents or categories."
            )
        scale = 1.0

        def run(cut: str | None, start: int, stop: int) -> tuple[Tensor, ...]:
            nonlocal scale
            enumeration = _Enumeration(plates.names, plates.nesting, cut, start, stop)
            # Pyro's checks take the dimensions of the codes for undeclared plates.
            with pyro.validation_enabled(False):
                pair = Pair(model, enumeration(guide), args, kwargs, math.inf)
            scale = pair.plates.scale
            return reduce(self.split(pair))

        cut = max(totals, key=lambda name: totals[name], default=None)
        if cut is None:
            return [run(None, 0, 0)], scale
        size = max(1, self.chunk_size * totals[cut] // math.prod(totals.values()))
        cuts = [(cut, i, min(i + size, totals[cut])) for i in range(0, totals[cut], size)]
        if len(cuts) > 1 and torch.is_grad_enabled():
            return [checkpoint(run, *part, use_reentrant=False) for part in cuts], scale
        return [run(*part) for part in cuts], scale


class EnumeratedELBO(_SummedELBO):
    """sum_z q(z|x) (log p(x|z) + log p(z) - log q(z|x)) over all K^D codes, without a draw.

    The exact ELBO and its exact gradient. The programs run on all the codes at once, shaped
    (K^D, 1, D, K): a decoder sees each code once, whatever the batch. Several discrete sites are
    enumerated jointly; a continuous site beside them is drawn, with its pathwise gradient.

    Args:
        max_codes: the most codes (over all discrete sites together) to enumerate.
        chunk_size: codes run at once; chunks are recomputed for the gradient, so that memory grows
            with this and not with K^D.
        **options: `beta`, `free_bits`, `analytic_kl` of `DiscreteELBO`.

    Raises:
        ValueError: when run, K^D exceeds `max_codes`; the message names K^D.
    """

    is_unbiased: ClassVar[bool] = True

    def terms(self, model: Program, guide: Program, args: Any, kwargs: Any) -> Terms:
        """Expectations over all codes, as if of one particle."""

        def expect(terms: Terms) -> tuple[Tensor, ...]:
            parts = (terms.log_likelihood, terms.kl, terms.penalty)
            return tuple(
                _weighted_sum(log_code.exp(), value)
                for log_code, value in (_flat(terms, terms.log_guide, part) for part in parts)
            )

        chunks, scale = self.sums(expect, model, guide, args, kwargs)
        log_likelihood, kl, penalty = (
            torch.stack(parts).sum(0) for parts in zip(*chunks, strict=True)
        )
        nothing = torch.zeros_like(kl)
        return Terms(log_likelihood, kl, penalty, nothing, nothing, scale, cast(Pair, self._trial))


class MarginalELBO(_SummedELBO):
    """log p(x) = log sum_z p(x|z) p(z) for model, sum_z p(z|x) log q(z|x) for guide (Eq. 29).

    Maximum likelihood by enumeration: the gradient in the model's weights is that of log p(x),
    whatever the guide; the guide follows the exact posterior p(z|x), held fixed, by maximum
    likelihood, that is it lowers KL(p(z|x) || q(z|x)), not the ELBO's KL(q || p). **The value is
    log p(x)**, which no ELBO exceeds.

    Args:
        max_codes: the most codes (over all discrete sites together) to enumerate.
        chunk_size: as in `EnumeratedELBO`.
        **options: none that changes the objective; `beta` and `free_bits` are refused.

    Raises:
        ValueError: beta or free_bits given; when run, K^D exceeds `max_codes`, or a site that the
            guide draws is not categorical, which is named.
    """

    is_unbiased: ClassVar[bool] = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, analytic_kl=False)
        if self.beta != 1 or self.free_bits != 0:
            raise ValueError(
                "Expected beta = 1 and no free bits, for log p(x) has no KL term; got "
                f"beta = {self.beta}, free_bits = {self.free_bits}. Use EnumeratedELBO."
            )

    def bound(self, terms: Terms) -> Tensor:
        """(*batch) log p(x), nats per datum."""
        return terms.log_likelihood[0]

    def surrogate(self, terms: Terms) -> Tensor:
        """(*batch) log p(x), and the guide's log-likelihood under the posterior."""
        return terms.log_likelihood[0] + terms.log_guide[0]

    def terms(self, model: Program, guide: Program, args: Any, kwargs: Any) -> Terms:
        """Give log p(x) as the log-likelihood, the expected log q as the guide's term."""

        def reduce(terms: Terms) -> tuple[Tensor, ...]:
            _refuse_continuous(terms.pair)
            log_q = terms.log_guide
            log_prior = log_q.detach() - terms.kl  # the KL is by the draw, its log q detached
            log_joint, log_q = _flat(terms, terms.log_likelihood + log_prior, log_q)
            posterior = log_joint.detach().softmax(0)
            return log_joint.logsumexp(0), _weighted_sum(posterior, log_q)

        chunks, scale = self.sums(reduce, model, guide, args, kwargs)
        log_joint, log_guide = (torch.stack(parts) for parts in zip(*chunks, strict=True))
        share = log_joint.detach().softmax(0)
        log_marginal, log_guide = log_joint.logsumexp(0), (share * log_guide).sum(0)
        nothing = torch.zeros_like(log_marginal)
        return Terms(
            log_marginal, nothing, nothing, log_guide, nothing, scale, cast(Pair, self._trial)
        )


def _weighted_sum(weight: Tensor, value: Tensor) -> Tensor:
    # A code of probability zero contributes nothing, though its log q is -inf.
    return (weight * torch.where(weight > 0, value, 0)).sum(0)


def _refuse_continuous(pair: Pair) -> None:
    others = [name for name in pair.guide_sites if name not in pair.codes]
    if others:
        raise ValueError(
            f"Expected a guide of categorical sites alone for log p(x); got {', '.join(others)}. "
            "Use EnumeratedELBO, which draws the others."
        )


def _flat(terms: Terms, *values: Tensor) -> list[Tensor]:
    """Values (*codes, 1, *batch), broadcast, as (C, 1, *batch)."""
    values = torch.broadcast_tensors(*values)
    shape = terms.pair.plates.flat_sizes
    return [value.reshape(-1, *shape) for value in values]


class _Enumeration(Messenger):
    """Give each discrete site of a guide all of its codes, each site in a dimension of its own.

    Args:
        shared: names of the plates that make a datum; other plates hold variables of the site.
        nesting: the most plates around a site; codes lie left of them.
        cut: the site that gets only its codes `start` to `stop`.
        start: see `cut`.
        stop: see `cut`.
    """

    def __init__(
        self, shared: set[str], nesting: int, cut: str | None, start: int, stop: int
    ) -> None:
        super().__init__()
        self.shared = shared
        self.dims = nesting
        self.cut = (cut, start, stop)

    def _pyro_sample(self, msg: Any) -> None:
        logits = code_logits(msg["fn"])
        if msg["is_observed"] or logits is None:
            return
        frames = msg["cond_indep_stack"]
        own = {f.dim: f.size for f in frames if f.vectorized and f.name not in self.shared}
        num_latents = math.prod(own.values()) * logits.shape[-2]
        cut, *limits = self.cut
        start, stop = limits if msg["name"] == cut else (0, None)
        codes = enumerate_codes(
            num_latents,
            logits.shape[-1],
            start=start,
            stop=stop,
            device=logits.device,
            dtype=logits.dtype,
        )
        batch = [own.get(dim, 1) for dim in range(-self.dims, 0)]
        value = code_value(msg["fn"], codes)
        msg["value"] = value.reshape(-1, *batch, *msg["fn"].event_shape)
        self.dims += 1
