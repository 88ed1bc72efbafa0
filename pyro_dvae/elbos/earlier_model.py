"""An earlier model: its weights, and its observed sites at all codes."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyro.poutine as poutine
import torch
from pyro.distributions.util import scale_and_mask
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn

from pyro_dvae.codes import total
from pyro_dvae.elbos.enumeration import Enumeration, SumLayout, log_density, sum_layout
from pyro_dvae.elbos.exact import EnumeratedELBO, log_codes
from pyro_dvae.elbos.listed import score_listed
from pyro_dvae.elbos.pair import Program, untouched
from pyro_dvae.elbos.plates import DataPlates
from pyro_dvae.elbos.sites import NoStraightThrough
from pyro_dvae.elbos.sketch import sketched
from pyro_dvae.elbos.terms import Terms

Programs = tuple[Program, Program, Any, Any]
"""Model, guide, and the positional and keyword arguments of both."""


class Table(NamedTuple):
    """The observed sites of a model at all codes, without gradient."""

    fns: dict[str, Any]
    """Observed site -> its distribution."""
    codes: tuple[int, ...]
    """The sizes of the dimensions left of the plates, which hold the codes."""
    plates: DataPlates
    """The plates of the run."""
    layout: SumLayout
    """The sites of the guide whose codes these are."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(C, *batch)."""
        return (math.prod(self.codes), *self.plates.flat_sizes[1:])

    def flat(self, value: Tensor) -> Tensor:
        """The log-probability of a site per code and datum, (C, *batch)."""
        sizes = self.plates.flat_sizes
        return self.plates.flat(value).expand(*self.codes, *sizes).reshape(self.shape)

    def log_likelihoods(self, observed: Mapping[str, Any]) -> Tensor:
        """(C, *batch) log p(x|z) of observed sites with these values, scales and masks, in nats.

        Where it is not finite, it is 0, since a control variate may be any number.
        """
        each = (self.flat(_log_prob(fn, observed[name])) for name, fn in self.fns.items())
        return total(each).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)

    def is_of_all_data(self, observed: Mapping[str, Any]) -> bool:
        """Whether p(x|z) is the same for all data: data in another order have the same numbers."""
        plain = {name: {**site, "scale": 1.0, "mask": None} for name, site in observed.items()}
        known = self.log_likelihoods(plain)
        tolerance = torch.finfo(known.dtype).eps ** 0.5
        for place, frame in enumerate(self.plates.frames, 1):
            moved = {
                name: {**site, "value": _rolled(site, self.fns[name], frame.dim)}
                for name, site in plain.items()
            }
            other = self.log_likelihoods(moved)
            if not torch.allclose(known.roll(1, place), other, rtol=tolerance, atol=tolerance):
                return False
        return True


class Snapshot(nn.Module):
    """The weights of an earlier model, and its observed sites at all codes.

    Args:
        every: the number of steps between two snapshots.
        max_codes: the largest number of joint codes.
        bfloat16: whether matrix products that score data under all codes are in bfloat16.
    """

    weights: Tensor
    """(W,) all weights of the model, as they were."""

    def __init__(self, every: int, max_codes: int, *, bfloat16: bool = False) -> None:
        super().__init__()
        if every < 1:
            raise ValueError(f"Expected at least 1 step per snapshot; got {every}. Raise it.")
        self.every, self.max_codes, self.in_bfloat16 = every, max_codes, bfloat16
        self.register_buffer("weights", torch.empty(0))
        self._age = 0  # the number of steps with these weights
        self._model: Program | None = None
        self._table: Table | None = None
        self._is_of_all_data = True

    def extra_repr(self) -> str:
        """The settings, for `repr`."""
        return f"every={self.every}, max_codes={self.max_codes}, bfloat16={self.in_bfloat16}"

    def forward(
        self, programs: Programs, shape: Sequence[int], observed: Mapping[str, Any]
    ) -> Tensor | None:
        """(C, *batch) log p(x|z) of the snapshot; see `SnapshotELBO.known`."""
        is_step = torch.is_grad_enabled()
        if not is_step and len(self.weights):
            return None
        with torch.no_grad():
            if not len(self.weights) or self._age >= self.every:
                self._take(_weights_of(programs))
            self._age += is_step
            if self._model != programs[0]:
                self._model, self._table = programs[0], None
            if self._table is None or self._table.shape != shape or not self._is_of_all_data:
                self._tabulate(programs, observed)
            assert self._table is not None
            where = self.weights.device.type
            with torch.autocast(where, torch.bfloat16, enabled=self.in_bfloat16):
                return self._table.log_likelihoods(observed).to(self.weights.dtype)

    def _take(self, weights: list[Tensor]) -> None:
        flat = [weight.detach().flatten() for weight in weights]
        # A model whose weights Pyro does not know has none here, and is tabulated in each step.
        self.weights = torch.cat(flat) if flat else self.weights[:0]
        self._table, self._is_of_all_data, self._age = None, True, 0

    def score(self, programs: Programs, known: Tensor) -> Tensor:
        """(*batch) sum_z q(z|x) c(z) log q(z|x) of the guide, where q(z|x) c(z) has no gradient.

        The guide runs once more, at all codes.

        Args:
            programs: model, guide, and their arguments.
            known: (C, *batch) c(z), in nats.
        """
        table = self._table
        assert table is not None
        _, guide, args, kwargs = programs
        values = Enumeration(table.layout, None, 0, 0)
        trace = poutine.trace(values(NoStraightThrough()(guide))).get_trace(*args, **kwargs)
        sites = {name: trace.nodes[name] for name in table.layout.sizes}
        score_listed(sites, values.codes)
        trace.compute_score_parts()
        with torch.no_grad():
            q = total(table.flat(log_density(site)) for site in sites.values()).exp()
            weight = q * (known - (q * known).sum(0))
        log_q = total(table.flat(site["score_parts"].score_function) for site in sites.values())
        return (weight * torch.where(weight == 0, 0, log_q)).sum(0)

    def _tabulate(self, programs: Programs, observed: Mapping[str, Any]) -> None:
        tables: list[Table] = []

        def keep(terms: Terms, summed: Collection[str]) -> tuple[Tensor, ...]:
            pair, layout = terms.pair, sum_layout(terms.pair, marginal=False)
            codes = log_codes(pair, summed).shape[: -len(pair.plates.flat_sizes)]
            fns = {name: pair.model_sites[name]["fn"] for name in observed}
            tables.append(Table(fns, tuple(codes), pair.plates, layout))
            return ()

        weights = _weights_of(programs)
        if sum(weight.numel() for weight in weights) != len(self.weights):  # another model
            self._take(weights)
        every = EnumeratedELBO(
            max_codes=self.max_codes, chunk_size=self.max_codes, analytic_kl=False
        )
        with untouched(), self._put_into(weights):
            torch.manual_seed(0)  # so that dropout has the same masks when a saved run goes on
            every.sums(keep, *programs)
        if len(tables) > 1:
            raise ValueError(
                f"Expected at most {2**26} numbers in all one-hot codes, K^D D K; got more. Use "
                "RlooELBO."
            )
        self._table = tables[0]
        self._is_of_all_data = self._table.is_of_all_data(observed)
        if self._is_of_all_data:
            fns = {name: sketched(fn) for name, fn in self._table.fns.items()}
            self._table = self._table._replace(fns=fns)

    @contextmanager
    def _put_into(self, weights: list[Tensor]) -> Iterator[None]:
        """Inside, the weights of the model have the values of the snapshot."""
        before = [weight.data for weight in weights]
        parts = self.weights.split([weight.numel() for weight in weights])
        try:
            for weight, part in zip(weights, parts, strict=True):
                weight.data = part.view(weight.shape).to(weight.dtype)
            yield
        finally:
            for weight, data in zip(weights, before, strict=True):
                weight.data = data

    def get_extra_state(self) -> Tensor:
        """The number of steps since the snapshot was taken."""
        return torch.tensor(self._age)

    def set_extra_state(self, state: Tensor) -> None:
        """Set the number of steps since the snapshot was taken."""
        self._age, self._table, self._model = int(state), None, None

    def __getstate__(self) -> dict[str, Any]:
        """The state for copies and pickles, without the table."""
        return {**self.__dict__, "_table": None, "_model": None}

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """Make room for the weights of a state."""
        state = state_dict.get(f"{prefix}weights")
        if isinstance(state, Tensor) and self.weights.shape != state.shape:
            self.weights = torch.empty_like(state, device=self.weights.device)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def _log_prob(fn: Any, site: Any) -> Tensor:
    log_prob: Tensor = scale_and_mask(fn.log_prob(site["value"]), site["scale"], site["mask"])
    return log_prob


def _rolled(site: Any, fn: Any, dim: int) -> Tensor:
    """The value of a site, with the data of a plate of data in another order."""
    value: Tensor = site["value"]
    place = dim - fn.event_dim
    return value.roll(1, place) if value.dim() >= -place else value


class _Weights(Messenger):
    """Notes all weights of a program, in the order in which it uses them.

    If Pyro's parameter store has other weights of a module's names, the module computes with its
    own, and an attribute of a `PyroModule` is that of the store. So both are noted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[int, Tensor] = {}

    def _pyro_post_param(self, msg: Any) -> None:
        own = [given for given in msg["args"] if isinstance(given, nn.Parameter)]
        for weight in (msg["value"].unconstrained(), *own):
            self.found[id(weight)] = weight


def _weights_of(programs: Programs) -> list[Tensor]:
    """The weights of the model, in the order in which it uses them."""
    model, _, args, kwargs = programs
    with untouched(), _Weights() as weights:
        model(*args, **kwargs)
    return [*weights.found.values()]
