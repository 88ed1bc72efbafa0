"""A pair of traces, of model and guide, at the guide's draws or at other codes."""

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
from pyro_dvae.elbos.listed import ListedCodes, score_listed
from pyro_dvae.elbos.noise import GuideNoise, without_batch_statistics
from pyro_dvae.elbos.plates import DataPlates, sample_sites, subsamples
from pyro_dvae.elbos.shapes import Sites, check_match, check_shapes, refuse_mixed, without_dims
from pyro_dvae.elbos.sites import CodeSite, Given, NoStraightThrough
from pyro_dvae.process import without_checks

Program = Callable[..., Any]
Shapes = Mapping[str, torch.Size]


class Pair:
    """The traces of a guide, and of the model at the guide's draws, with log-probabilities.

    Args:
        model: a Pyro program. If there are several particles, it is in their plate already.
        guide: a Pyro program, in the same plate of particles.
        args: positional arguments of both.
        kwargs: keyword arguments of both.
        nesting: the largest number of plates around a site, if the programs run at several codes at
            once. The dimensions left of these plates hold the codes. Infinite if there is one code.
        plates: the plates of data of an earlier pair, if this one is that pair at other codes. None
            to find them in the traces.
        codes: site -> the codes that a handler around the programs gives it, if it gives several.

    Raises:
        ValueError: guide and model do not match, or the shape of a site does not fit its plates.
            Shapes are checked in trial runs, in runs at several codes (where a wrong shape could
            pass as a dimension of codes), and whenever Pyro's checks are on.
    """

    def __init__(
        self,
        model: Program,
        guide: Program,
        args: Any,
        kwargs: Any,
        nesting: float,
        plates: DataPlates | None = None,
        codes: Mapping[str, ListedCodes] | None = None,
    ) -> None:
        self.programs = (model, guide, args, kwargs, nesting)
        guide = NoStraightThrough()(guide)
        self.drawn = poutine.trace(guide).get_trace(*args, **kwargs)  # with indices of subsamples
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
        if codes:
            score_listed(self.model_sites, codes)
            score_listed(self.guide_sites, codes)
        model_trace.compute_log_prob()
        guide_trace.compute_score_parts()
        if nesting < math.inf or is_validation_enabled():
            check_shapes(self.sites, nesting)
        self.plates = plates or DataPlates(model_trace, guide_trace)
        self.own_shapes: tuple[Shapes, Shapes] = ({}, {})
        """Batch shapes of the model's and of the guide's distributions, before a plate of particles
        expanded them; empty if there is no such plate."""
        self.known: Tensor | None = None
        """(C, *batch) log p(x|z) of an earlier model at all codes, for `SnapshotELBO`."""
        self.programs_alone: tuple[Program, Program, Any, Any] | None = None
        """Model, guide and their arguments, without a plate of particles."""
        self.noise: GuideNoise | None = None
        """The handler that gives later runs of the guide the same dropout masks, or None."""

    @property
    def sites(self) -> list[Any]:
        """The sites of both programs."""
        return [*self.model_sites.values(), *self.guide_sites.values()]

    @cached_property
    def codes(self) -> dict[str, CodeSite]:
        """The guide's code sites, in the order in which they were drawn."""
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
        """Run both programs again, at other codes. All other sites keep their values.

        An ELBO that calls this must set `reruns`. Then dropout in the guide keeps its masks.
        Dropout in the model draws new ones, as at each step.

        Args:
            values: site -> (*extra, S, *batch, D, K) codes, one-hot or relaxed. In the programs,
                the extra dimensions are left of all plates.
            redraw: names of sites that the guide draws anew, given the sites before them.
            sampler: a handler around the guide that makes those draws; None if the guide does.

        Returns:
            The pair at these codes. Its log-probabilities have the extra dimensions.

        Raises:
            ValueError: a site that depends on a code does not keep the extra dimensions.
            TypeError: the guide draws other random numbers than before, or a layer computes
                statistics of the batch.
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
        """Run both programs again, without the checks of `at`.

        Args:
            values: site -> values, in the shape that they have in the programs.
            redraw: as in `at`.
            sampler: as in `at`.
        """
        model, guide, args, kwargs, _ = self.programs
        given = {name: value for name, value in self._values.items() if name not in redraw}
        guide = Given({**given, **values})(guide)
        if sampler is not None:
            guide = sampler(guide)
        model = Given(self.subsamples)(model)  # of plates that only the model has
        if self.noise is not None:
            model, guide = map(without_batch_statistics, (model, guide))
        with without_checks():
            pair = Pair(model, guide, args, kwargs, self.plates.nesting, plates=self.plates)
        pair.noise = self.noise
        return pair

    def refuse_mixed(self, dims: Mapping[str, int], single: Callable[[], Pair]) -> None:
        """Refuse a program that mixes the codes that run at once, such as by a sum over them.

        Args:
            dims: code site -> the dimension that holds its several codes, counted from the right
                (-1 is the last).
            single: returns the pair at one code of each site.

        Raises:
            ValueError: a site mixes them. The message names the site and the code.
        """
        one: Pair | None = None
        for sites_of, own in zip((_model_sites, _guide_sites), self.own_shapes, strict=True):
            suspects = list(without_dims(sites_of(self), dims, own))
            if suspects:
                one = one or single()
                rerun = partial(_sites_at, one, sites_of)
                refuse_mixed(suspects, rerun, {**one.latents, **one.guide_sites})

    def dependent_sites(self) -> list[str]:
        """The guide's sites whose q or p depends on a draw of the guide, in the guide's order.

        They are found by one more run, in which all draws have a further dimension on the left. The
        distributions that depend on a draw then have this dimension too.
        """
        drawn = {name: site for name, site in self.guide_sites.items() if not site["is_observed"]}
        num_batch = {name: s["value"].dim() - s["fn"].event_dim for name, s in drawn.items()}
        most = max([self.plates.nesting, *num_batch.values()])
        given = self._values
        given |= {name: given[name][(None,) * (1 + most - num_batch[name])] for name in drawn}
        with untouched():
            varied = self.rerun(given)
        sites = ((varied.guide_sites[name], varied.latents.get(name)) for name in drawn)
        depends = (any(s and len(s["fn"].batch_shape) > most for s in both) for both in sites)
        return [name for name, does in zip(drawn, depends, strict=True) if does]

    @property
    def _values(self) -> dict[str, Tensor]:
        """The values of all sites of the guide, with the indices of subsamples."""
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
    """The guide's code sites whose draws are not reparametrised, in the guide's order.

    Raises:
        TypeError: another site is neither one of codes nor reparametrised. The message names it.
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
                "categorical distribution."
            )
    return {name: pair.codes[name] for name in scored}


def trial_run(model: Program, guide: Program, args: Any, kwargs: Any) -> Pair:
    """One run of both programs, without gradients, which leaves the random stream as it was.

    Raises:
        ValueError: guide and model do not match, or the shape of a site does not fit its plates.
            This is checked even if Pyro's checks are off.
    """
    with untouched():
        pair = Pair(model, guide, args, kwargs, math.inf)
    check_shapes(pair.sites)
    return pair


@contextmanager
def untouched() -> Iterator[None]:
    """Restore the random stream at the end. Inside are no gradients and no checks of Pyro's."""
    devices = range(torch.cuda.device_count())
    with without_checks(), torch.random.fork_rng(devices=devices), torch.no_grad():
        yield
