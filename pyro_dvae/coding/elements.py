"""How the elements of a datum are coded, given its code: one distribution per element."""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_dvae.coding.grid import log_probs_on_grid, logits_on_grid
from pyro_dvae.coding.stack import Checksum, Stack
from pyro_dvae.likelihoods import Bernoulli, Categorical, Likelihood, Masked, Mixed
from pyro_dvae.likelihoods.masked import is_dependent, unmasked

MOST_WINDOW = 4096
"""The most counts, from 0 on, that have a symbol each. Those above share one symbol."""
_MOST_NUMBERS = 2**20
"""Numbers that are computed at once, of the log-probabilities of symbols."""
_DISCRETE = ("bits", "levels", "counts")


class Elements(NamedTuple):
    """Elements in a row that have the same likelihood."""

    likelihood: Likelihood
    columns: slice
    """Which of the P elements of a flat datum they are."""
    num_symbols: int
    """L, the number of symbols: with the one that stands for all counts above the window."""

    @property
    def escapes(self) -> bool:
        """Whether the last symbol stands for all counts from L - 1 on."""
        return self.likelihood.kind == "counts"


def elements_of(likelihood: Likelihood, num_elements: int, window: int) -> list[Elements]:
    """The elements of a flat datum, by their likelihoods.

    Args:
        likelihood: of the model.
        num_elements: P.
        window: the number of counts, from 0 on, that have a symbol each.

    Raises:
        ValueError: a likelihood gives densities, or no probability to each element by itself.
    """
    its = unmasked(likelihood)
    blocks = [(its, num_elements)]
    if isinstance(its, Mixed):
        blocks = [(cast(Likelihood, b), n) for b, n in zip(its.blocks, its.sizes, strict=True)]
    found, start = [], 0
    for block, size in blocks:
        columns = slice(start, start + size)
        _refuse(block, columns, is_column=isinstance(its, Mixed))
        symbols = {"bits": 2, "levels": block.levels, "counts": window + 1}
        found.append(Elements(block, columns, symbols[block.kind]))
        start += size
    return found


def _refuse(block: Likelihood, columns: slice, *, is_column: bool) -> None:
    name = type(block).__name__
    where = f" in columns {columns.start} to {columns.stop - 1}" if is_column else ""
    if block.kind not in _DISCRETE:
        raise ValueError(
            f"Expected data of bits, levels or counts to compress without loss; got {name}, a "
            f"density of {'real numbers' if block.kind == 'real' else block.kind + ' values'}"
            f"{where}. Use a likelihood of levels, such as logistic-mixture, or leave such columns "
            "out."
        )
    own_forward = type(block).forward is not Likelihood.forward
    if not isinstance(block, Bernoulli) and (own_forward or is_dependent(block)):
        raise ValueError(
            f"Expected a likelihood whose elements are independent given the code, to compress; "
            f"got {name}{where}. Use poisson or negative-binomial for counts, or define "
            "element_log_probs in a likelihood of your own."
        )


class ElementCoder:
    """Pushes and pops data, given what the decoder makes of their codes.

    Args:
        likelihood: of the model.
        num_elements: P, of a flat datum.
        window: the number of counts, from 0 on, that have a symbol each.

    Raises:
        ValueError: data of this likelihood cannot be coded.
    """

    def __init__(self, likelihood: Likelihood, num_elements: int, window: int) -> None:
        self.likelihood = unmasked(likelihood)
        self.parts = elements_of(likelihood, num_elements, window)
        self.takes_missing = isinstance(likelihood, Masked)
        self.numbers = sum(
            (part.columns.stop - part.columns.start) * part.num_symbols for part in self.parts
        )
        """Probabilities of one datum, at most."""

    def grids(self, params: Tensor) -> list[NDArray[np.int16]]:
        """What each part of the elements is coded by.

        Args:
            params: (B, P), or (B, P, num_params), the parameters of flat data.
        """
        return [_grid(part, self._own(part, params)) for part in self.parts]

    def _own(self, part: Elements, params: Tensor) -> Tensor:
        if self.likelihood.num_params > 1:
            own = params[:, part.columns, : part.likelihood.num_params]
            return own if part.likelihood.num_params > 1 else own[..., 0]
        return params[:, part.columns]

    def push(
        self, stack: Stack, x: NDArray[np.int64], grids: list[NDArray[np.int16]], check: Checksum
    ) -> None:
        """Push data (n, P), whole numbers, given their grids."""
        for grid in grids:
            check.add(grid)
        for part, grid in reversed(list(zip(self.parts, grids, strict=True))):
            symbols = x[:, part.columns]
            last = part.num_symbols - 1
            if part.escapes:
                stack.push_numbers(symbols[symbols >= last] - last + 1)
                symbols = np.minimum(symbols, last)
            push = stack.push_bits if _is_logit(part) else stack.push
            push(symbols.astype(np.int32), grid)

    def pop(
        self, stack: Stack, grids: list[NDArray[np.int16]], check: Checksum
    ) -> NDArray[np.int64]:
        """Pop data (n, P), given their grids."""
        found = []
        for part, grid in zip(self.parts, grids, strict=True):
            check.add(grid)
            pop = stack.pop_bits if _is_logit(part) else stack.pop
            symbols = pop(grid).astype(np.int64)
            if part.escapes:
                last = part.num_symbols - 1
                above = symbols == last
                symbols[above] = stack.pop_numbers(int(above.sum())) + last - 1
            found.append(symbols)
        return np.concatenate(found, 1)


def _is_logit(part: Elements) -> bool:
    return isinstance(part.likelihood, Bernoulli)


def _grid(part: Elements, params: Tensor) -> NDArray[np.int16]:
    if _is_logit(part):
        return logits_on_grid(params)
    likelihood = part.likelihood
    if isinstance(likelihood, Categorical):
        return log_probs_on_grid(params)
    values = torch.arange(part.num_symbols - part.escapes, dtype=torch.float64)
    shape = params.shape[:-1] if likelihood.num_params > 1 else params.shape
    at_once = max(1, _MOST_NUMBERS // max(1, shape.numel() * max(1, likelihood.cost)))
    scored = [
        likelihood.element_log_probs(params, some[:, None, None].expand(-1, *shape))
        for some in values.split(at_once)
    ]
    log_p = torch.cat(scored).movedim(0, -1)
    if part.escapes:
        rest = torch.log1p(-log_p.exp().sum(-1, keepdim=True).clamp(max=1))
        rest = (rest * 4).round() / 4  # a difference, of which few digits are the same everywhere
        log_p = torch.cat([log_p, rest], -1)
    return log_probs_on_grid(log_p)
