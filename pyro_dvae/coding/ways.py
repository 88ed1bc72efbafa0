"""Blocks of data on the stack, by the most probable codes, or by drawn ones whose bits return."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_dvae.codes import num_codes, one_hot
from pyro_dvae.coding.container import Way
from pyro_dvae.coding.elements import ElementCoder
from pyro_dvae.coding.latents import LatentLaw, law_of, pop_codes, push_codes
from pyro_dvae.coding.stack import Checksum, Stack
from pyro_dvae.coding.table import CodeTable, TableLaw

if TYPE_CHECKING:
    from pyro_dvae.vae import DiscreteVAE

_MOST_NUMBERS = 2**22
"""Numbers that are in memory at once, of a block's probabilities or its table of codes."""
_MOST_ELEMENTS = 2**18
"""Elements of the data of a block."""
_MOST_ROWS = 1024


class BlockCoder:
    """Pushes and pops blocks of data, by a model in double precision.

    Call its methods within `reference_arithmetic`.

    Args:
        model: of `reference_model`.
        way: how codes are coded.
        window: the number of counts, from 0 on, that have a symbol each.

    Raises:
        ValueError: the model's prior, guide or likelihood cannot be coded by, or there are too many
            codes to sum over.
    """

    def __init__(self, model: DiscreteVAE, way: Way, window: int) -> None:
        self.model, self.way = model, way
        prior = prior_of(model)
        self.num_latents, self.num_categories = prior.event_shape
        self.num_codes = num_codes(self.num_latents, self.num_categories)
        code = torch.zeros(1, self.num_latents, dtype=torch.int64)
        self.event_shape = tuple(model.decode(self._one_hot(code)).event_shape)
        num_elements = int(np.prod(self.event_shape))
        self.elements = ElementCoder(model.likelihood, num_elements, window)
        widest = max(self.elements.numbers, self.num_latents * self.num_categories)
        if way == "exact":
            widest = max(widest, self.num_codes)
        rows = min(_MOST_ROWS, _MOST_ELEMENTS // num_elements, _MOST_NUMBERS // widest)
        self.size = 2 ** max(0, rows.bit_length() - 1)
        """B, the number of data that the networks take at once."""
        self.table: CodeTable | None = None
        if way == "exact":
            self.table = CodeTable(model, self.size, self.event_shape)
        self.prior = self._law_of_prior(prior)

    def push(self, stack: Stack, x: Tensor, codes: Tensor | None = None) -> tuple[int, Tensor]:
        """Push a block of data.

        Args:
            stack: where to.
            x: (n, *event_shape), n <= B, in double precision.
            codes: (n, D) the codes to take; None to draw them from q(z|x) or p(z|x), by popping.

        Returns:
            The checksum of the block's probabilities, and the codes, (n, D).
        """
        num, checks = len(x), [Checksum() for _ in range(3)]
        padded = torch.cat([x, x.new_zeros(self.size - num, *self.event_shape)])
        if codes is None:
            index = pop_codes(stack, self._posterior(padded), self.size, num, checks[0])
        else:
            index = torch.cat([codes, codes.new_zeros(self.size - num, codes.shape[1])])
        flat = x.flatten(1).long().numpy()
        self.elements.push(stack, flat, self._grids(index, num), checks[1])
        push_codes(stack, self.prior, index, num, checks[2])
        return combined(checks), index[:num]

    def pop(self, stack: Stack, num: int, *, gives_back: bool) -> tuple[int, Tensor]:
        """Pop a block of data.

        Args:
            stack: where from.
            num: n, the number of its data.
            gives_back: whether its codes were drawn by popping, so that their bits are pushed back.

        Returns:
            The checksum of the block's probabilities, and x, (n, *event_shape).
        """
        checks = [Checksum() for _ in range(3)]
        index = pop_codes(stack, self.prior, self.size, num, checks[2])
        flat = self.elements.pop(stack, self._grids(index, num), checks[1])
        x = torch.from_numpy(flat).double().reshape(num, *self.event_shape)
        if gives_back:
            padded = torch.cat([x, x.new_zeros(self.size - num, *self.event_shape)])
            push_codes(stack, self._posterior(padded), index, num, checks[0])
        return combined(checks), x

    def _posterior(self, x: Tensor) -> LatentLaw:
        if self.table is not None:
            return self.table.posterior(x)
        return law_of(self.model.posterior(x), "guide")

    def _law_of_prior(self, prior: Any) -> LatentLaw:
        try:
            return law_of(prior, "prior")
        except ValueError:
            if self.table is None:
                raise
        return TableLaw(self.table.log_prior, self.table.shape)

    def _grids(self, index: Tensor, num: int) -> list[NDArray[np.int16]]:
        """The grids of the elements of the first `num` data of a block, given its codes."""
        params = self.model.decoder(self._one_hot(index))
        flat: Any = params.reshape(self.size, -1)
        if self.model.likelihood.num_params > 1:
            flat = flat.unflatten(-1, (-1, self.model.likelihood.num_params))
        return self.elements.grids(flat[:num])

    def _one_hot(self, index: Tensor) -> Tensor:
        return one_hot(index, self.num_categories, dtype=torch.float64)


def combined(checks: list[Checksum]) -> int:
    """One checksum of those of a block's posterior, elements and prior."""
    both = Checksum()
    both.add(np.array([check.value for check in checks], "<u4").view("<i2"))
    return both.value


def prior_of(model: DiscreteVAE) -> Any:
    """p(z) of a model, batch shape ().

    Raises:
        ValueError: it is p(z|y), conditional on labels.
    """
    if model.takes_labels:
        raise ValueError(
            f"Expected a prior p(z) without labels, to compress; got {type(model.prior).__name__}, "
            "which a decoder would need the labels for. Use another prior."
        )
    return model.prior_codes()
