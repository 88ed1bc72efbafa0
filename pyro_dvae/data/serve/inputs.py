"""New data, prepared as a trained model takes them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from pyro_dvae.data.read.errors import DataError
from pyro_dvae.data.read.extent import Extent, extent_of
from pyro_dvae.data.read.rows import Rows, TensorRows, rows_of
from pyro_dvae.data.serve.prepare import Preparation

_BLOCK_NUMBERS = 2**20
"""Values that are drawn at once when rows are skipped."""


def binary_inputs(
    values: Tensor,
    event_shape: tuple[int, ...],
    policy: str,
    seed: int,
    range: tuple[float, float] | None = None,
    likelihood: str | nn.Module = "bernoulli",
) -> Tensor:
    """Prepare new data as the training data of a run were prepared.

    For a likelihood of bits, grey values (uint8 values, or any values under a range) become zeros
    and ones by the run's policy. ``"dynamic"`` draws them once, so that the same data always give
    the same bits. Without a range, zeros and ones of any dtype stay as they are: uint8 data
    without a value above 1 are taken for bits, not for very dark grey.

    Args:
        values: (N, *event_shape) data, N >= 1.
        event_shape: Shape of one datum of the run.
        policy: The policy of the run, one of ``POLICIES``; see ``Preparation``.
        seed: Seed of the draw. No global random stream is used.
        range: (low, high), the range of the run; None if it has none.
        likelihood: That of the run; or its name, or ``name:argument``.

    Returns:
        (N, *event_shape), float32: what the likelihood takes.

    Raises:
        DataError: If the shape is another one, or if the likelihood does not take the values.
        ValueError: If the policy is unknown.
    """
    preparation = Preparation(policy, range, likelihood)
    check_shape(tuple(values.shape), tuple(event_shape))
    return ServedRows(TensorRows(values), preparation, seed, extent_of(values))[:]


def check_shape(shape: tuple[int, ...], event_shape: tuple[int, ...]) -> None:
    """Refuse data whose shape is not that of a run's data.

    Args:
        shape: The shape of the data, which should be (N, *event_shape).
        event_shape: Shape of one datum of the run.

    Raises:
        DataError: If the data have another shape.
    """
    if not shape or shape[0] == 0 or shape[1:] != event_shape:
        wanted = f"({', '.join(['N', *map(str, event_shape)])}) with N > 0"
        mend = "Reshape or resize them"
        if shape == event_shape:
            mend = "Add a leading axis"
        elif shape[:1] == (0,):
            mend = "Pass at least one datum"
        raise DataError(f"Expected data of shape {wanted}; got {shape}. {mend}.")


class ServedRows:
    """Rows in a file, served as a likelihood takes them by slices, `x[start:stop]`, as of a tensor.

    A row is read when a slice asks for it, and its bits are drawn then. The bits are those that
    `binary_inputs` draws for all rows at once, wherever a slice begins. A slice that does not
    begin where the last one ended repeats the draws before it, which takes time.

    Args:
        rows: The data as stored, of the shape of the run's data.
        preparation: What to do to them.
        seed: Seed of the draw. No global random stream is used.
        found: What the values of all rows are.
        like: A tensor of the device and dtype that the data are served in; None for float32 on
            the CPU.

    Raises:
        DataError: If the preparation does not take the values.
    """

    def __init__(
        self,
        rows: Rows,
        preparation: Preparation,
        seed: int,
        found: Extent,
        like: Tensor | None = None,
    ) -> None:
        preparation.refuse_missing(found)
        is_bits = preparation.makes_bits and preparation.range is None and found.is_binary
        if not is_bits:
            if preparation.makes_bits and preparation.range is None and found.dtype != torch.uint8:
                raise DataError(
                    f"Expected uint8 values 0 to 255, or only zeros and ones; got {found}. Rescale "
                    "the values to 0 to 255 and round them to uint8, or binarise them first."
                )
            preparation.check(found)
        self.rows, self.preparation, self.seed, self.found = rows, preparation, seed, found
        self.like = torch.empty(0, device="cpu", dtype=torch.float32) if like is None else like
        self._is_bits = is_bits
        self._draws = not is_bits and preparation.binarize in ("dynamic", "static")
        self._place, self._generator = 0, torch.Generator().manual_seed(seed)

    def __repr__(self) -> str:
        return f"{type(self).__name__} of {rows_of(self.rows)}: {self.preparation}"

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    def __getitem__(self, some: slice) -> Tensor:
        """Serve consecutive rows, (B, *event_shape)."""
        start, stop, _ = some.indices(len(self))
        if start < self._place:
            self._place, self._generator = 0, torch.Generator().manual_seed(self.seed)
        if not self._draws:
            self._place = start
        step = max(1, _BLOCK_NUMBERS // max(1, math.prod(self.rows.event_shape)))
        while self._place < start:
            self._next(min(start, self._place + step))
        return self._next(stop).to(self.like)

    def to(self, like: Tensor) -> ServedRows:
        """The same data, served on the device and in the dtype of a tensor."""
        return ServedRows(self.rows, self.preparation, self.seed, self.found, like)

    def _next(self, stop: int) -> Tensor:
        values = self.rows.read(torch.arange(self._place, stop, device="cpu"))
        self._place = stop
        if self._is_bits and not self.found.has_missing:
            return (values == 1).to(torch.float32)
        return self.preparation.serve(self.preparation.convert(values), self._generator)
