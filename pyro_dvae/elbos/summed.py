"""Runs of both programs on all joint codes, in chunks."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pyro_dvae.codes import MAX_CODES, describe_codes, num_codes
from pyro_dvae.elbos.audit import check_free_bits, check_programs
from pyro_dvae.elbos.base import DiscreteELBO
from pyro_dvae.elbos.enumeration import Enumeration, SumLayout, sum_layout
from pyro_dvae.elbos.layout import LayoutChanged, with_layout
from pyro_dvae.elbos.noise import (
    GuideNoise,
    drawing_nothing,
    random_states,
    restore,
    without_batch_statistics,
)
from pyro_dvae.elbos.pair import Pair, Program, trial_run
from pyro_dvae.elbos.plates import is_subsampled_loop
from pyro_dvae.elbos.sites import Given
from pyro_dvae.elbos.terms import Terms
from pyro_dvae.process import without_checks

Reduce = Callable[[Terms, Collection[str]], tuple[Tensor, ...]]

_NUMBERS = 2**26
"""Largest number of elements of the one-hot codes of a chunk, D K per code. All codes of one latent
have K^2 elements together, so if K is large, `chunk_size` alone would not bound memory."""


class Sums(NamedTuple):
    """The results of the runs on all chunks of codes."""

    reduced: list[tuple[Tensor, ...]]
    """Of each chunk, what `reduce` returned."""
    pair: Pair
    """The traces of the first chunk."""


class SummedELBO(DiscreteELBO):
    """An ELBO that runs both programs on all joint codes, in chunks.

    Args:
        max_codes: the largest number of joint codes of all discrete sites.
        chunk_size: codes per run. Chunks are computed again for the gradient, so that memory grows
            with `chunk_size` and not with K^D. The result does not depend on it.
        **options: `beta`, `free_bits`, `analytic_kl` of `DiscreteELBO`.
    """

    _is_marginal: ClassVar[bool]
    """Whether the sum is over all latents of the model, and not only over the guide's."""
    noisy: bool = True
    """Whether the model may draw random numbers outside of its sites."""

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
        """(*batch) the objective itself, in nats per datum, since no code is drawn."""
        return self.objective(terms)

    def sums(
        self,
        reduce: Reduce,
        model: Program,
        guide: Program,
        args: Any,
        kwargs: Any,
    ) -> Sums:
        """Run both programs on all codes, chunk by chunk.

        Args:
            reduce: maps the terms of a chunk, (*codes, 1, *batch), and the names of the sites that
                are summed over, to tensors. Only these are kept.
            model: a Pyro program.
            guide: a Pyro program.
            args: positional arguments of both.
            kwargs: keyword arguments of both.

        Raises:
            ValueError: there are more than `max_codes` codes.
        """
        held: dict[str, Tensor] = {}

        def find() -> SumLayout:
            pair = trial_run(model, guide, args, kwargs)
            check_programs(pair, marginal=self._is_marginal)
            held.clear()
            if is_subsampled_loop(pair.model_trace, pair.guide_trace):
                # The names of its sites depend on the indices, so the sum must use the same ones.
                held.update(pair.subsamples)
                for index in held.values():  # move the random stream on, as drawing them would
                    torch.randperm(len(index), device=index.device)
            return sum_layout(pair, marginal=self._is_marginal)

        def run(layout: SumLayout) -> Sums:
            own, other = (Given(held)(program) for program in (model, guide))
            return self._sums_of(layout, reduce, held, own, other, args, kwargs)

        return with_layout(self, find, run)

    def _sums_of(
        self,
        layout: SumLayout,
        reduce: Reduce,
        held: dict[str, Tensor],
        model: Program,
        guide: Program,
        args: Any,
        kwargs: Any,
    ) -> Sums:
        if math.prod(num_codes(*size) for size in layout.sizes.values()) > self.max_codes:
            described = " times ".join(
                f"{describe_codes(*size)} at site '{name}'" for name, size in layout.sizes.items()
            )
            raise ValueError(
                f"Expected at most {self.max_codes} codes to enumerate; got K^D = {described}. Use "
                "a sampled estimator such as RlooELBO, or fewer latents or categories."
                + _why_one_datum(trial_run(model, guide, args, kwargs))
            )
        chunks = self._chunks(layout)
        once = len(chunks) == 1
        first: Pair | None = None
        before = after = random_states()
        same_draws = GuideNoise()(guide)

        def programs(values: Enumeration) -> tuple[Program, Program]:
            quiet = model if self.noisy else drawing_nothing(model)
            own = values(quiet) if self._is_marginal else model
            other = same_draws if once else without_batch_statistics(same_draws)
            return without_batch_statistics(own), values(other)

        def run(cut: str | None, start: int, stop: int) -> tuple[Tensor, ...]:
            nonlocal first, after
            current = random_states()
            restore(before)  # all chunks have the same minibatch, and the same draws of other sites
            values = Enumeration(layout, cut, start, stop)
            with without_checks():  # `Pair` checks the shapes itself
                pair = Pair(*programs(values), args, kwargs, layout.nesting, codes=values.codes)
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
            if first is not pair:  # such as a chunk that is computed again for the gradient
                restore(current)
            return reduce(terms, layout.sizes)

        if once or not torch.is_grad_enabled():
            reduced = [run(*chunk) for chunk in chunks]
        else:
            reduced = [checkpoint(run, *chunk, use_reentrant=False) for chunk in chunks]
        restore(after)
        assert first is not None
        return Sums(reduced, first)

    def _chunks(self, layout: SumLayout) -> list[tuple[str | None, int, int]]:
        """Per chunk, the site that is cut into chunks, its first code, and the end of its codes."""
        totals = {name: num_codes(*size) for name, size in layout.sizes.items()}
        if not totals:
            return [(None, 0, 0)]
        cut = max(totals, key=lambda name: totals[name])
        size = self.chunk_size * totals[cut] // math.prod(totals.values())
        size = max(1, min(size, _NUMBERS // math.prod(layout.sizes[cut])))
        return [(cut, i, min(i + size, totals[cut])) for i in range(0, totals[cut], size)]


def _why_one_datum(pair: Pair) -> str:
    own = {
        frame.name: site["name"]
        for frame in {frame for site in pair.sites for frame in site["cond_indep_stack"]}
        for site in pair.sites
        if frame.vectorized and frame not in site["cond_indep_stack"]
    }
    return "".join(
        f" All codes in plate '{plate}' belong to one datum, since site '{site}' lies outside it."
        for plate, site in own.items()
    )
