"""A model and a guide, run at the guide's draws or at given values of its code sites."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

import pyro.poutine as poutine
import torch
from pyro.distributions.util import is_identically_zero
from pyro.infer.util import is_validation_enabled
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import prune_subsample_sites
from pyro.util import check_model_guide_match
from torch import Tensor

from pyro_dvae.codes import code_logits
from pyro_dvae.elbos.distributions import describe
from pyro_dvae.elbos.noise import GuideNoise, without_batch_statistics
from pyro_dvae.elbos.plates import DataPlates, sample_sites, subsamples
from pyro_dvae.elbos.shapes import Sites, check_match, check_shapes, refuse_mixed, without_dims
from pyro_dvae.elbos.sites import CodeSite, Given, NoStraightThrough
from pyro_dvae.process import without_checks

Program = Callable[..., Any]
Shapes = Mapping[str, torch.Size]


class Pair:
    """Traces of a guide and of the model replayed against it, with log-probabilities.

    Args:
        model: a Pyro program, particles already in a plate.
        guide: likewise.
        args: positional arguments of both.
        kwargs: keyword arguments of both.
        nesting: the most plates around a site; dimensions left of them hold alternative codes.
            Infinite where the programs run at one code.
        plates: those of the pair's draws, where this is a run at other codes.

    Raises:
        ValueError: guide and model do not fit each other, or the shapes of a site not its plates.
            The latter is checked in runs at several codes, whose dimensions hide mistakes, in
            trial runs, and wherever Pyro's checks are on.
    """

    def __init__(
        self,
        model: Program,
        guide: Program,
        args: Any,
        kwargs: Any,
        nesting: float,
        plates: DataPlates | None = None,
    ) -> None:
        self.programs = (model, guide, args, kwargs, nesting)
        guide = NoStraightThrough()(guide)
        self.drawn = poutine.trace(guide).get_trace(*args, **kwargs)  # with subsample indices
        replayed = NoStraightThrough()(poutine.replay(model, trace=self.drawn))
        model_trace = poutine.trace(replayed).get_trace(*args, **kwargs)
        if is_validation_enabled():
            check_model_guide_match(model_trace, self.drawn, nesting)
        self.subsamples = {**subsamples(model_trace), **subsamples(self.drawn)}
        model_trace = prune_subsample_sites(model_trace)
        guide_trace = prune_subsample_sites(self.drawn.copy())
        self.model_trace, self.guide_trace = model_trace, guide_trace
        self.model_sites = sample_sites(model_trace)
        self.guide_sites = sample_sites(guide_trace)
        self.latents = {n: s for n, s in self.model_sites.items() if not s["is_observed"]}
        check_match(self.latents, self.guide_sites, nesting)
        model_trace.compute_log_prob()
        guide_trace.compute_score_parts()
        if nesting < math.inf or is_validation_enabled():
            check_shapes(self.sites, nesting)
        self.plates = plates or DataPlates(model_trace, guide_trace)
        self.own_shapes: tuple[Shapes, Shapes] = ({}, {})
        """Of both programs' distributions before a plate of particles expanded them."""
        self.noise: GuideNoise | None = None
        """Around the guide, where an ELBO runs it again."""

    @property
    def sites(self) -> list[Any]:
        """Of both programs."""
        return [*self.model_sites.values(), *self.guide_sites.values()]

    @cached_property
    def codes(self) -> dict[str, CodeSite]:
        """The guide's code sites, in the order they were drawn."""
        return {
            name: CodeSite(site, self.plates)
            for name, site in self.guide_sites.items()
            if code_logits(site["fn"]) is not None
        }

    def at(
        self,
        values: Mapping[str, Tensor],
        *,
        redraw: Iterable[str] = (),
        sampler: Messenger | None = None,
    ) -> Pair:
        """Both programs again, at other codes; everything not named keeps its drawn value.

        Args:
            values: site -> (*extra, S, *batch, D, K) codes, one-hot or relaxed. The extra
                dimensions come to the programs left of all plates.
            redraw: sites that the guide draws anew, given what comes before them.
            sampler: a messenger around the guide that supplies those draws, if not the guide.

        Returns:
            The pair there; log-probabilities have the extra dimensions. The guide runs again too:
            an ELBO that asks for this sets `reruns`, so that dropout in the guide keeps its masks.
            That in the model draws others, as it does at each step.

        Raises:
            ValueError: a site that depends on a code does not keep the extra dimensions.
            TypeError: a guide that draws other numbers, or layers with statistics of the batch.
        """
        pair = self.rerun(
            {name: self.codes[name].value(code) for name, code in values.items()}, redraw, sampler
        )
        num_flat = len(self.plates.flat_sizes) + 2
        extra = [name for name, code in values.items() if code.shape[:-num_flat].numel() > 1]
        pair.refuse_mixed(dict.fromkeys(extra, -1 - self.plates.nesting), lambda: self)
        return pair

    def rerun(
        self,
        values: Mapping[str, Tensor],
        redraw: Iterable[str] = (),
        sampler: Messenger | None = None,
    ) -> Pair:
        """As `at`, but at values as the programs see them, and whatever their dimensions."""
        model, guide, args, kwargs, _ = self.programs
        given = {name: value for name, value in self._values.items() if name not in redraw}
        guide = Given({**given, **values})(guide)
        if sampler is not None:
            guide = sampler(guide)
        model = Given(self.subsamples)(model)  # of plates that the guide does without
        if self.noise is not None:
            model, guide = map(without_batch_statistics, (model, guide))
        with without_checks():
            pair = Pair(model, guide, args, kwargs, self.plates.nesting, plates=self.plates)
        pair.noise = self.noise
        return pair

    def refuse_mixed(self, dims: Mapping[str, int], single: Callable[[], Pair]) -> None:
        """Refuse a program that mixes codes which run at once, as by a sum over all dimensions.

        Args:
            dims: code site -> the dimension, counted from the right, of its alternatives.
            single: gives the pair at one value of each site.

        Raises:
            ValueError: the message names the site and the code.
        """
        one: Pair | None = None
        for sites_of, own in zip((_model_sites, _guide_sites), self.own_shapes, strict=True):
            suspects = list(without_dims(sites_of(self), dims, own))
            if suspects:
                one = one or single()
                rerun = partial(_sites_at, one, sites_of)
                refuse_mixed(suspects, rerun, {**one.latents, **one.guide_sites})

    def dependent_sites(self) -> list[str]:
        """The guide's sites where q or p depends on a draw of the guide, in their order.

        Found by one more run, in which all draws have a further dimension on the left: it reaches
        the distributions that depend on one.
        """
        drawn = {name: site for name, site in self.guide_sites.items() if not site["is_observed"]}
        num_batch = {name: s["value"].dim() - s["fn"].event_dim for name, s in drawn.items()}
        most = max([self.plates.nesting, *num_batch.values()])
        given = self._values
        given |= {name: given[name][(None,) * (1 + most - num_batch[name])] for name in drawn}
        with _untouched():
            varied = self.rerun(given)
        sites = ((varied.guide_sites[name], varied.latents.get(name)) for name in drawn)
        depends = (any(s and len(s["fn"].batch_shape) > most for s in both) for both in sites)
        return [name for name, does in zip(drawn, depends, strict=True) if does]

    @property
    def _values(self) -> dict[str, Tensor]:
        """Of all that the guide drew, subsample indices too."""
        return {
            name: site["value"]
            for name, site in self.drawn.nodes.items()
            if site["type"] == "sample" and site["value"] is not None
        }


def _model_sites(pair: Pair) -> Sites:
    return pair.model_sites


def _guide_sites(pair: Pair) -> Sites:
    return pair.guide_sites


def _sites_at(pair: Pair, sites_of: Callable[[Pair], Sites], values: Mapping[str, Tensor]) -> Sites:
    return sites_of(pair.rerun(values))


def scored_codes(pair: Pair) -> dict[str, CodeSite]:
    """The code sites without a reparametrised gradient, in the guide's order.

    Raises:
        TypeError: a site without a reparametrised gradient is not one of codes.
    """
    scored = [
        name
        for name, site in pair.guide_sites.items()
        if not is_identically_zero(site["score_parts"].score_function)
    ]
    for name in scored:
        if name not in pair.codes:
            raise TypeError(
                "Expected categorical discrete sites; got "
                f"{describe(pair.guide_sites[name]['fn'])} at site '{name}'. Use RlooELBO, or a "
                "categorical."
            )
    return {name: pair.codes[name] for name in scored}


def trial_run(model: Program, guide: Program, args: Any, kwargs: Any) -> Pair:
    """One run of both programs, without moving the random stream or keeping a graph.

    Raises:
        ValueError: as `Pair`, whether Pyro's checks are on or off.
    """
    with _untouched():
        pair = Pair(model, guide, args, kwargs, math.inf)
    check_shapes(pair.sites)
    return pair


@contextmanager
def _untouched() -> Iterator[None]:
    """A run inside moves no random stream, keeps no graph and is not checked by Pyro."""
    devices = range(torch.cuda.device_count())
    with without_checks(), torch.random.fork_rng(devices=devices), torch.no_grad():
        yield
