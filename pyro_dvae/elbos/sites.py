"""Sites with codes, in one layout for all plates, and the handlers that set their values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_dvae.codes import (
    code_logits,
    code_value,
    draw_codes,
    one_hot,
)
from pyro_dvae.elbos.distributions import without_straight_through
from pyro_dvae.elbos.plates import DataPlates


class CodeSite:
    """A code site of a guide, in the layout (*extra, S, *batch, D, K) for any plates.

    D is the number of variables per datum: the variables of the site's event, times the sizes of
    its plates that are no plates of data.

    Args:
        site: of the guide's trace.
        plates: of data and particles.
    """

    def __init__(self, site: Any, plates: DataPlates) -> None:
        self.fn = site["fn"]
        self.plates = plates
        self.drawn = site["value"]
        self.masked = site["mask"]
        own = {f.dim: f.size for f in site["cond_indep_stack"] if f.dim is not None}
        self.own = {dim: own[dim] for dim in sorted(own) if dim not in plates.sizes}

    @property
    def logits(self) -> Tensor:
        """(*extra, S, *batch, D, K) normalised logits of q."""
        return self.view(self.fn)

    @property
    def code(self) -> Tensor:
        """(*extra, S, *batch, D, K) the one-hot code of the draw."""
        logits = code_logits(self.fn)
        assert logits is not None
        value = self.drawn
        if value.dtype == torch.long:
            value = one_hot(value, logits.shape[-1], dtype=logits.dtype)
        lead = value.shape[: value.dim() - self._num_event]
        return self._flat(value.reshape(*lead, *logits.shape[-2:]))

    @property
    def mask(self) -> Tensor | None:
        """(*extra, S, *batch, D) whether each variable counts; None if there is no mask."""
        if self.masked is None:
            return None
        logits = code_logits(self.fn)
        assert logits is not None
        mask = torch.as_tensor(self.masked, device=logits.device)[..., None, None]
        return self._flat(mask.expand(*logits.shape[:-1], 1)).squeeze(-1)

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
        order = [*kept, *self.own]  # the dimensions after the extra ones, as plates
        places = [len(extra) + order.index(dim) for dim in range(-nesting, 0)]
        last = (codes.dim() - 2, codes.dim() - 1)
        codes = codes.permute(*range(len(extra)), *places, *last)
        value = code_value(self.fn, codes)
        return value.reshape((*codes.shape[:-2], *self.fn.event_shape))  # the event shape may be ()

    @property
    def _num_event(self) -> int:
        # The event of an index has no dimension K. `code` adds one before it uses this.
        return len(self.fn.event_shape) + (self.drawn.dtype == torch.long)

    def _flat(self, tensor: Tensor) -> Tensor:
        # (*extra, *plates, D, K): move the plates that are no plates of data next to D.
        nesting = self.plates.nesting
        tensor = tensor[(None,) * max(0, nesting + 2 - tensor.dim())]
        extra = tensor.shape[: tensor.dim() - 2 - nesting]
        own = [dim - 2 for dim in self.own]
        tensor = tensor.movedim(own, list(range(-2 - len(own), -2)))
        return tensor.reshape(*extra, *self.plates.flat_sizes, -1, tensor.shape[-1])


class Given(Messenger):
    """Set the values of latent sites, in place of draws. The sites do not become observed.

    Args:
        values: site -> value.
    """

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.values = values

    def _pyro_sample(self, msg: Any) -> None:
        if msg["name"] in self.values and not msg["is_observed"]:
            msg["value"] = self.values[msg["name"]]


class CodeDraws(Messenger):
    """Draw the code sites that have no value yet from their distributions."""

    def _pyro_sample(self, msg: Any) -> None:
        logits = code_logits(msg["fn"])
        if msg["value"] is None and not msg["is_observed"] and logits is not None:
            value = code_value(msg["fn"], draw_codes(logits))
            msg["value"] = value.reshape(msg["fn"].shape())


class NoStraightThrough(Messenger):
    """Replace straight-through distributions by plain ones, whose draws have no gradient."""

    def _pyro_sample(self, msg: Any) -> None:
        if msg["is_observed"]:
            return
        try:
            msg["fn"] = without_straight_through(msg["fn"])
        except TypeError as error:
            raise TypeError(f"Site '{msg['name']}': {error}") from None
