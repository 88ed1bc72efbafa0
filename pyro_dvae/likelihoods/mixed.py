"""A likelihood of tables whose columns hold different kinds of values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import reduce
from typing import Any, ClassVar, cast

import torch
from pyro.distributions import constraints
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor, nn

from pyro_dvae.checks import at_least
from pyro_dvae.contracts import completed
from pyro_dvae.displays import named
from pyro_dvae.likelihoods.base import Likelihood, typical_of
from pyro_dvae.likelihoods.elements import HasDouble, element_log_probs, observed_log_prob


class Mixed(Likelihood):
    """log p(x|z) = sum_j log p_j(x_j; params_j): each block j of columns has its own likelihood.

    A datum is a row (P,): the columns of the first block, then those of the second, and so on.
    Params are (..., P, M), where M is the largest `num_params` of a block, and a column uses the
    first ones; (..., P) if M is 1. The result is a probability if all columns are discrete, else a
    density, in nats.

    Args:
        blocks: pairs of a likelihood and its number of columns, in the order of the columns. A
            likelihood with a location per element is built with event_shape=(columns,).

    Raises:
        ValueError: there are no blocks, or a block has no column.

    Example:
        >>> from pyro_dvae import Bernoulli, Mixed, Normal
        >>> likelihood = Mixed([(Bernoulli(), 3), (Normal((2,)), 2)])
        >>> likelihood.num_params
        2
    """

    kind = "columns"
    support: Columns

    def __init__(self, blocks: Sequence[tuple[nn.Module, int]]) -> None:
        super().__init__()
        at_least("kinds of columns", len(blocks), 1)
        for _, columns in blocks:
            at_least("columns of a kind", columns, 1)
        likelihoods = [completed(likelihood, Likelihood) for likelihood, _ in blocks]
        self.blocks = nn.ModuleList(likelihoods)
        self.sizes = tuple(columns for _, columns in blocks)
        self.num_params = max(block.num_params for block in likelihoods)
        self.cost = max(block.cost for block in likelihoods)
        self.support = Columns([block.support for block in likelihoods], self.sizes)

    def extra_repr(self) -> str:
        """The arguments, for `repr`."""
        return named(columns=self.sizes)

    def forward(self, params: Tensor, event_dim: int = 1) -> TorchDistribution:
        """p(x|z), a distribution of batch shape (...) and event shape (P,).

        Args:
            params: (..., P, M), or (..., P) if M is 1.
            event_dim: 1, the number of dimensions of a row.

        Raises:
            ValueError: params or event_dim do not fit a row of P columns.
        """
        params = params if self.num_params > 1 else params.unsqueeze(-1)
        expected = (sum(self.sizes), self.num_params)
        if event_dim != 1 or params.shape[-2:] != expected:
            raise ValueError(
                f"Expected parameters of shape (..., {expected[0]}, {expected[1]}) for a row of "
                f"{expected[0]} columns; got {tuple(params.shape)} and event_dim={event_dim}. "
                f"Build the decoder with event_shape=({expected[0]},) and "
                f"num_params={expected[1]}."
            )
        parts = []
        for block, own in self.by_block(params, -2):
            n = block.num_params
            parts.append(block(own[..., :n] if n > 1 else own[..., 0], 1))
        return _MixedDistribution(parts, self.sizes, self)

    def check(self, x: Tensor) -> None:
        """Refuse rows (..., P) that hold a value outside the support of its column.

        Raises:
            ValueError: rows have another length, or a likelihood refuses its column; the message
                names the first such column and the first such row.
        """
        if x.shape[-1:] != (sum(self.sizes),):
            raise ValueError(
                f"Expected rows of {sum(self.sizes)} columns for the mixed likelihood; got data of "
                f"shape {tuple(x.shape)}. Name one kind for each column."
            )
        start = 0
        for block, columns in self.by_block(x):
            if _refusal(block.check, columns):
                for j, column in enumerate(columns.unbind(-1)):
                    reason = _refusal(block.check, column)
                    if reason:
                        outside = ~self.support.inside(x)[..., start + j].flatten()
                        row = int(outside.int().argmax())
                        raise ValueError(f"Column {start + j}: {reason} The first is in row {row}.")
                raise ValueError(f"Columns {start} and on: {_refusal(block.check, columns)}")
            start += columns.shape[-1]

    def features(self, x: Tensor) -> Tensor:
        """What the encoder sees of rows, (..., P): the features of each block."""
        return torch.cat([block.features(own) for block, own in self.by_block(x)], -1)

    def filled(self, x: Tensor) -> Tensor:
        """The rows, with a value that the likelihood of its column takes in place of each NaN."""
        if x.shape[-1] != sum(self.sizes):
            self.check(x)  # which says how many columns are expected
        return torch.cat([block.filled(own) for block, own in self.by_block(x)], -1)

    def calibrate(self, x: Tensor) -> None:
        """Calibrate the likelihood of each block from training data (N, P).

        Raises:
            ValueError: a value is outside the support of its column.
        """
        self.check(x)
        for block, own in self.by_block(x):
            block.calibrate(own)

    def is_calibrated(self) -> bool:
        """Whether the likelihoods of all columns are calibrated."""
        return all(cast(Likelihood, block).is_calibrated() for block in self.blocks)

    def before_training(self, x: Tensor) -> None:
        """Call `before_training` of each block, with its columns of data (N, P)."""
        for block, own in self.by_block(x):
            block.before_training(own)

    def by_block(self, x: Tensor, dim: int = -1) -> Iterator[tuple[Likelihood, Tensor]]:
        """Each block's likelihood, and its columns of x, which are along `dim`."""
        for block, columns in zip(self.blocks, x.split(self.sizes, dim), strict=True):
            yield cast(Likelihood, block), columns


class Columns(constraints.Constraint):
    """Rows whose columns lie in the supports of their blocks."""

    event_dim = 1

    def __init__(self, parts: Sequence[Any], sizes: Sequence[int]) -> None:
        self.parts, self.sizes = parts, sizes
        self.is_discrete = all(part.is_discrete for part in parts)

    def inside(self, value: Tensor) -> Tensor:
        """Whether each value of rows (..., P) lies in the support of its column, (..., P)."""
        columns = value.split(self.sizes, -1)
        inside = [part.check(own) for part, own in zip(self.parts, columns, strict=True)]
        return torch.cat(inside, -1)

    def check(self, value: Tensor) -> Tensor:
        """Whether all values of each row lie in the supports of their columns, (...)."""
        return self.inside(value).all(-1)

    def words(self, column: int) -> str:
        """The values that a column may hold, in words."""
        of_columns = [p for p, n in zip(self.parts, self.sizes, strict=True) for _ in range(n)]
        part = of_columns[column]
        what = "whole numbers" if part.is_discrete else "numbers"
        if part is constraints.boolean:
            return "0 or 1"
        if hasattr(part, "upper_bound"):
            return f"{what} from {part.lower_bound:g} to {part.upper_bound:g}"
        return f"{what} from {part.lower_bound:g} on" if hasattr(part, "lower_bound") else what


class _MixedDistribution(TorchDistribution):
    """The distribution of one row, whose columns are independent."""

    arg_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(
        self, parts: list[TorchDistribution], sizes: tuple[int, ...], likelihood: Mixed
    ) -> None:
        self.parts, self.sizes, self.likelihood = parts, sizes, likelihood
        super().__init__(parts[0].batch_shape, torch.Size([sum(sizes)]))

    @property
    def support(self) -> constraints.Constraint:
        """The supports of the columns."""
        return self.likelihood.support

    @property
    def mean(self) -> Tensor:
        """E[x], (*batch, P)."""
        return torch.cat([part.mean for part in self.parts], -1)

    @property
    def typical(self) -> Tensor:
        """E[x] of a column of numbers, the most probable level of a column of categories."""
        return torch.cat([typical_of(part) for part in self.parts], -1)

    def expand(self, batch_shape: Any, _instance: Any = None) -> _MixedDistribution:
        """The same distribution with a larger batch shape."""
        new = copy(self)
        new.parts = [part.expand(batch_shape) for part in self.parts]
        new._batch_shape = torch.Size(batch_shape)
        return new

    def cancelled(self) -> Tensor:
        """Nats of terms that cancel in `log_prob`, (*batch), of all columns."""
        cancelled = [part.cancelled() for part in self.parts if isinstance(part, HasDouble)]
        return reduce(torch.add, cancelled, torch.zeros((), device="cpu"))

    def double(self) -> _MixedDistribution:
        """The same distribution, with parameters and sums in double precision."""
        new = copy(self)
        new.parts = [
            cast(TorchDistribution, part.double()) if isinstance(part, HasDouble) else part
            for part in self.parts
        ]
        return new

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Rows, (*sample_shape, *batch, P)."""
        return torch.cat([part.sample(sample_shape) for part in self.parts], -1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability or log-density of a row, in nats."""
        if value.shape[-1:] != self.event_shape or self._validate_args:
            self.likelihood.check(value)
        scored = [part.log_prob(own) for part, own in self._by_part(value)]
        return reduce(torch.add, scored)  # the sum of a stack would be in an array of all blocks

    def observed_log_prob(self, value: Tensor, observed: Tensor) -> Tensor:
        """`log_prob` of the observed columns alone; observed is (..., P), as the rows."""
        seen = observed.split(self.sizes, -1)
        scored = [
            observed_log_prob(part, own, each)
            for (part, own), each in zip(self._by_part(value), seen, strict=True)
        ]
        return reduce(torch.add, scored)

    def element_log_probs(self, value: Tensor) -> Tensor:
        """Those of the columns of rows (..., P), (..., P)."""
        scored = [element_log_probs(part, own) for part, own in self._by_part(value)]
        return torch.cat(scored, -1)

    def _by_part(self, value: Tensor) -> Iterator[tuple[TorchDistribution, Tensor]]:
        return zip(self.parts, value.split(self.sizes, -1), strict=True)


def _refusal(check: Callable[[Tensor], None], x: Tensor) -> str | None:
    try:
        check(x)
    except ValueError as error:
        return str(error)
    return None
