"""One code per datum, kept from one step of training to the next by the row number of the datum."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn

from pyro_dvae.codes import code_logits, code_value, draw_codes, is_one_hot, one_hot
from pyro_dvae.elbos.pair import Pair, Program, scored_codes
from pyro_dvae.elbos.plates import PARTICLES, is_subsample


class Rows(NamedTuple):
    """Which of all data are in a batch."""

    numbers: Tensor
    """(*batch) int64, from 0 to `total` - 1."""
    total: int
    """N, the number of all data."""


class Columns(NamedTuple):
    """What the columns of `KeptCodes.codes` are."""

    plates: tuple[str, ...]
    """The names of the plates of data."""
    slices: dict[str, slice]
    """Code site -> the columns of its variables."""

    def __str__(self) -> str:
        sizes = {name: columns.stop - columns.start for name, columns in self.slices.items()}
        sites = ", ".join(f"site '{name}' (D = {size})" for name, size in sizes.items())
        return f"{sites or 'no site'} in plate {', '.join(map(repr, self.plates)) or 'none'}"


class KeptCodes(nn.Module):
    """The last code of each of N data, as a buffer, which `state_dict` holds.

    The row numbers of a batch come from `at_rows`; or from a plate that holds a subsample of the
    data, `pyro.plate("data", N, subsample_size=B)`, around all sites of model and guide. If there
    are neither, no code is kept: the plate of a batch does not tell which data are in it.
    """

    codes: Tensor
    """(N, D) int32, the categories of all variables of all code sites; -1 if there is none yet."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codes", torch.empty(0, 0, dtype=torch.int32))
        self.columns: Columns | None = None
        self._told: Rows | None = None

    def extra_repr(self) -> str:
        """The size, for `repr`."""
        return f"{self.codes.shape[0]} rows of {self.codes.shape[1]} variables"

    @contextmanager
    def at_rows(self, numbers: Tensor, total: int) -> Iterator[None]:
        """Inside, the data of the one plate of data are these rows of all data.

        Args:
            numbers: (B,) int64, from 0 to N - 1, each at most once.
            total: N, the number of all data.

        Raises:
            ValueError: a number is out of range. This is checked on the CPU alone, since a step
                must not wait for a GPU.
        """
        if numbers.device.type == "cpu" and not ((numbers >= 0) & (numbers < total)).all():
            raise ValueError(
                f"Expected row numbers from 0 to {total - 1}; got {int(numbers.min())} to "
                f"{int(numbers.max())}. Pass the number of all rows as the second argument."
            )
        before, self._told = self._told, Rows(numbers, total)
        try:
            yield
        finally:
            self._told = before

    def find_columns(self, pair: Pair) -> None:
        """Learn the sites of a program, whose codes an earlier state may hold already."""
        self.columns = _columns(pair)

    def prepare(self, pair: Pair) -> None:
        """Make room for the codes at the first run whose rows are known; check all later runs.

        Raises:
            ValueError: the number of rows or the sites are not those of the codes that are kept.
        """
        rows = self._rows(pair.plates.frames, pair.subsamples)
        if rows is None:
            return
        columns = _columns(pair)
        size = rows.total, max((its.stop for its in columns.slices.values()), default=0)
        if not len(self.codes):
            device = next((s["value"].device for s in pair.guide_sites.values()), None)
            with torch.inference_mode(False):
                self.codes = torch.full(size, -1, dtype=torch.int32, device=device)
            self.columns = columns
        elif size != self.codes.shape or columns != self.columns:
            raise ValueError(
                f"Expected the data whose codes are kept, {len(self.codes)} rows of "
                f"{self.columns}; got {rows.total} rows of {columns}. Use a new ELBO for other "
                "data or for another model."
            )

    def starting(self, guide: Program) -> Program:
        """The guide, in which the first particle of a datum is its kept code where it has one."""
        return _Start(self)(guide)

    @torch.no_grad()
    def keep(self, pair: Pair, probabilities: Tensor) -> None:
        """Draw one particle per datum, and keep its code, if the rows are known.

        Args:
            pair: after `prepare`.
            probabilities: (S, *batch) of the particles.
        """
        rows = self._rows(pair.plates.frames, pair.subsamples)
        if rows is None or self.columns is None or not self.columns.slices:
            return
        chosen = draw_codes(probabilities.log().movedim(0, -1)).movedim(-1, 0).long()
        parts = []
        for name in self.columns.slices:
            site = pair.guide_sites[name]
            index = _by_datum(_categories(site), site, self.columns.plates)
            parts.append((index.reshape(*chosen.shape, -1) * chosen.unsqueeze(-1)).sum(0))
        self.codes[rows.numbers] = torch.cat(parts, -1).int()

    def replace_start(self, site: Any, subsamples: Mapping[str, Tensor]) -> None:
        """Set the kept codes in the first particle of a site that was drawn.

        Args:
            site: of the guide, while it runs.
            subsamples: the indices in the plates that have been entered so far.
        """
        frames = {frame.name: frame for frame in site["cond_indep_stack"]}
        columns = self.columns
        # `prepare` refuses a program of other sites or plates.
        if columns is None or not frames.keys() >= {PARTICLES, *columns.plates}:
            return
        rows = self._rows([frames[name] for name in columns.plates], subsamples)
        if rows is None or rows.total != len(self.codes):
            return
        index = _categories(site).clone()
        start = _by_datum(index, site, columns.plates)[0]
        kept = self.codes[rows.numbers][..., columns.slices[site["name"]]]
        if kept.numel() != start.numel():
            return
        kept = kept.reshape(start.shape)
        logits = code_logits(site["fn"])
        assert logits is not None
        num_categories = logits.shape[-1]
        is_code = (kept >= 0) & (kept < num_categories)  # a model before may have had more
        start.copy_(torch.where(is_code, kept.long(), start))
        site["value"] = code_value(site["fn"], one_hot(index, num_categories, dtype=logits.dtype))

    def _rows(self, frames: Sequence[Any], subsamples: Mapping[str, Tensor]) -> Rows | None:
        """The rows of the data in these plates of data; None if they are not known."""
        sizes = {frame.name: (frame.size, frame.full_size or frame.size) for frame in frames}
        if self._told is not None:
            numbers, total = self._told
            if [size for size, _ in sizes.values()] != [len(numbers)]:
                held = ", ".join(f"'{name}' of {size}" for name, (size, _) in sizes.items())
                raise ValueError(
                    f"Expected one plate around all sites, of the {len(numbers)} data whose row "
                    f"numbers are told; got {held or 'none'}. Put all sites of model and guide "
                    'into pyro.plate("data", len(x)), or use WakeSleepELBO.'
                )
            return Rows(numbers.to(self.codes.device), total)
        cut = {name for name, (size, full) in sizes.items() if size < full}
        if not cut or not cut <= subsamples.keys():
            return None
        device = self.codes.device
        numbers, total = torch.zeros((), dtype=torch.int64, device=device), 1
        for name, (_, full) in sizes.items():
            every = torch.arange(full, device=device)
            own = torch.as_tensor(subsamples[name]).to(device) if name in cut else every
            numbers, total = numbers.unsqueeze(-1) * full + own, total * full
        return Rows(numbers, total)

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """Make room for the codes of a state, if none are kept yet."""
        state = state_dict.get(f"{prefix}codes")
        if isinstance(state, Tensor) and not len(self.codes):
            self.codes = torch.empty_like(state, device=self.codes.device)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


class _Start(Messenger):
    """Lets the first particle of each datum be its kept code, where it has one."""

    def __init__(self, kept: KeptCodes) -> None:
        super().__init__()
        self.kept = kept
        self.subsamples: dict[str, Tensor] = {}

    def _pyro_sample(self, msg: Any) -> None:
        columns = self.kept.columns
        is_kept = columns is not None and msg["name"] in columns.slices
        if is_kept and msg["value"] is not None and not msg["is_observed"]:
            self.kept.replace_start(msg, self.subsamples)

    def _pyro_post_sample(self, msg: Any) -> None:
        if is_subsample(msg):
            self.subsamples[msg["name"]] = msg["value"]


def _columns(pair: Pair) -> Columns:
    num_codes = math.prod(pair.plates.flat_sizes)  # of all particles and data
    slices, start = {}, 0
    for name in scored_codes(pair):
        stop = start + _categories(pair.guide_sites[name]).numel() // num_codes
        slices[name], start = slice(start, stop), stop
    return Columns(tuple(frame.name for frame in pair.plates.frames), slices)


def _categories(site: Any) -> Tensor:
    """The categories of the value of a code site, (*plates, *variables) int64."""
    value: Tensor = site["value"]
    return value.argmax(-1) if is_one_hot(site["fn"]) else value


def _by_datum(categories: Tensor, site: Any, plates: Sequence[str]) -> Tensor:
    """A view of the categories with the particles first, and then the data: (S, *batch, ...)."""
    dims = {frame.name: frame.dim for frame in site["cond_indep_stack"]}
    num_event = categories.dim() - len(site["fn"].batch_shape)
    first = [dims[name] - num_event for name in (PARTICLES, *plates)]
    return categories.movedim(first, list(range(len(first))))
