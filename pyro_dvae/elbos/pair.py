"""A model and a guide, run at the guide's draws or at given values of its code sites."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, cast

import pyro
import pyro.poutine as poutine
import torch
from pyro.distributions.util import is_identically_zero
from pyro.infer.util import is_validation_enabled
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import prune_subsample_sites
from pyro.util import check_model_guide_match, check_site_shape
from torch import Tensor

from pyro_dvae.codes import (
    code_logits,
    code_value,
    draw_codes,
    one_hot,
    without_straight_through,
)
from pyro_dvae.elbos.plates import PARTICLES, DataPlates, sample_sites
from pyro_dvae.process import without_checks

Program = Callable[..., Any]


class Pair:
    """Traces of a guide and of the model replayed against it, with log-probabilities.

    Args:
        model: a Pyro program, particles already in a plate.
        guide: likewise.
        args: positional arguments of both.
        kwargs: keyword arguments of both.
        nesting: the most plates around a site, for Pyro's checks.
        plates: those of the pair's draws, where this is a run at other codes.
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
        guide = _NoStraightThrough()(guide)
        self.drawn = poutine.trace(guide).get_trace(*args, **kwargs)  # with subsample indices
        replayed = _NoStraightThrough()(poutine.replay(model, trace=self.drawn))
        model_trace = poutine.trace(replayed).get_trace(*args, **kwargs)
        if plates is None and is_validation_enabled():
            check_model_guide_match(model_trace, self.drawn, nesting)
        model_trace = prune_subsample_sites(model_trace)
        guide_trace = prune_subsample_sites(self.drawn.copy())
        model_trace.compute_log_prob()
        guide_trace.compute_score_parts()
        if plates is None and is_validation_enabled():
            for site in (*sample_sites(model_trace).values(), *sample_sites(guide_trace).values()):
                check_site_shape(site, cast(int, nesting))  # or infinite
        self.model_trace, self.guide_trace = model_trace, guide_trace
        self.model_sites = sample_sites(model_trace)
        self.guide_sites = sample_sites(guide_trace)
        self.latents = {n: s for n, s in self.model_sites.items() if not s["is_observed"]}
        self.plates = plates or DataPlates(model_trace, guide_trace)

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
            The pair there; log-probabilities have the extra dimensions. The guide runs again too,
            so a layer that draws (dropout) would draw anew: leave such layers out.
        """
        model, guide, args, kwargs, nesting = self.programs
        given = {name: value for name, value in self._values.items() if name not in redraw}
        given |= {name: self.codes[name].value(code) for name, code in values.items()}
        guide = Given(given)(guide)
        if sampler is not None:
            guide = sampler(guide)
        with without_checks():
            return Pair(model, guide, args, kwargs, nesting, plates=self.plates)

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
        model, guide, args, kwargs, nesting = self.programs
        with _untouched():
            varied = Pair(model, Given(given)(guide), args, kwargs, nesting, plates=self.plates)
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


class CodeSite:
    """One code site of a guide, in the layout (*extra, S, *batch, D, K) whatever its plates.

    D counts all of a datum's variables at the site: those of its event and those in plates of
    their own.
    """

    def __init__(self, site: Any, plates: DataPlates) -> None:
        self.fn = site["fn"]
        self.plates = plates
        self.drawn = site["value"]
        own = {f.dim: f.size for f in site["cond_indep_stack"] if f.dim is not None}
        self.own = {dim: own[dim] for dim in sorted(own) if dim not in plates.sizes}

    @property
    def logits(self) -> Tensor:
        """(*extra, S, *batch, D, K) normalised logits of q."""
        return self.view(self.fn)

    @property
    def code(self) -> Tensor:
        """(*extra, S, *batch, D, K) the drawn code, one-hot."""
        logits = code_logits(self.fn)
        assert logits is not None
        value = self.drawn
        if value.dtype == torch.long:
            value = one_hot(value, logits.shape[-1], dtype=logits.dtype)
        lead = value.shape[: value.dim() - self._num_event]
        return self._flat(value.reshape(*lead, *logits.shape[-2:]))

    def view(self, fn: object) -> Tensor:
        """The logits of another distribution over the site's codes, in the same layout."""
        logits = code_logits(fn)
        if logits is None:
            raise TypeError(f"Expected a distribution over codes; got {fn}. Use a categorical.")
        return self._flat(logits)

    def value(self, codes: Tensor) -> Tensor:
        """Codes in the layout (*extra, S, *batch, D, K) as a value of the site."""
        sizes, nesting = self.plates.sizes, self.plates.nesting
        num_flat = len(self.plates.flat_sizes) + 2
        extra = codes.shape[: codes.dim() - num_flat]
        kept = [dim for dim in range(-nesting, 0) if dim not in self.own]
        event = (-1, codes.shape[-1])
        codes = codes.reshape(
            *extra, *(sizes.get(dim, 1) for dim in kept), *self.own.values(), *event
        )
        order = [*kept, *self.own]  # plate dimension now at each place after the extra ones
        places = [len(extra) + order.index(dim) for dim in range(-nesting, 0)]
        last = (codes.dim() - 2, codes.dim() - 1)
        codes = codes.permute(*range(len(extra)), *places, *last)
        value = code_value(self.fn, codes)
        return value.reshape((*codes.shape[:-2], *self.fn.event_shape))  # which may be ()

    @property
    def _num_event(self) -> int:
        # A one-hot value's event ends in K; an index's does not, but gets it before this is used.
        return len(self.fn.event_shape) + (self.drawn.dtype == torch.long)

    def _flat(self, tensor: Tensor) -> Tensor:
        # (*extra, *plates, D, K): bring the plates of the site's own beside D.
        nesting = self.plates.nesting
        tensor = tensor[(None,) * max(0, nesting + 2 - tensor.dim())]
        extra = tensor.shape[: tensor.dim() - 2 - nesting]
        own = [dim - 2 for dim in self.own]
        tensor = tensor.movedim(own, list(range(-2 - len(own), -2)))
        return tensor.reshape(*extra, *self.plates.flat_sizes, -1, tensor.shape[-1])


class Given(Messenger):
    """Sites take these values instead of draws; they are not observed."""

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.values = values

    def _pyro_sample(self, msg: Any) -> None:
        if msg["name"] in self.values and not msg["is_observed"]:
            msg["value"] = self.values[msg["name"]]


class CodeDraws(Messenger):
    """Draw the code sites that nothing else has given a value, each as its distribution says."""

    def _pyro_sample(self, msg: Any) -> None:
        logits = code_logits(msg["fn"])
        if msg["value"] is None and not msg["is_observed"] and logits is not None:
            value = code_value(msg["fn"], draw_codes(logits))
            msg["value"] = value.reshape(msg["fn"].shape())


class _NoStraightThrough(Messenger):
    """Sites draw without the biased gradient of straight-through distributions."""

    def _pyro_sample(self, msg: Any) -> None:
        if msg["is_observed"]:
            return
        try:
            msg["fn"] = without_straight_through(msg["fn"])
        except TypeError as error:
            raise TypeError(f"Site '{msg['name']}': {error}") from None


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


def describe(fn: object) -> str:
    """The name of a site's distribution, for a message: "Independent of Bernoulli"."""
    names = [type(fn).__name__]
    while (fn := getattr(fn, "base_dist", None)) is not None:
        names.append(type(fn).__name__)
    return " of ".join(names)


def trial_run(model: Program, guide: Program, args: Any, kwargs: Any) -> Pair:
    """One run of both programs, without moving the random stream or keeping a graph."""
    with _untouched():
        return Pair(model, guide, args, kwargs, math.inf)


@contextmanager
def _untouched() -> Iterator[None]:
    """A run inside moves no random stream, keeps no graph and is not checked by Pyro."""
    devices = range(torch.cuda.device_count())
    with without_checks(), torch.random.fork_rng(devices=devices), torch.no_grad():
        yield


def with_particles(program: Program, num_particles: int, nesting: float) -> Program:
    """The program in a plate of particles, left of its own plates."""
    if num_particles == 1:
        return program
    plate: Any = pyro.plate(PARTICLES, num_particles, dim=-1 - int(nesting))
    return plate(program)
