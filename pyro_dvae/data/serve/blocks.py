"""Training data that need not fit into memory, read in shuffled blocks."""

from __future__ import annotations

import copy
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from pyro_dvae.data.read.extent import Extent, extent, row_bytes
from pyro_dvae.data.read.rows import Rows
from pyro_dvae.data.serve.prepare import Preparation, draw_bits

BLOCK_BYTES = 2**19
WINDOW = 32


class BlockData:
    """Rows read in blocks, shuffled, and served as a likelihood takes them.

    The N rows are cut into blocks of b, what `block_bytes` holds. In every epoch the blocks come
    in random order, any order alike; W of them at a time are a window, in which the rows, W b of
    them, come in random order, any order alike. About two windows are held in memory.

    So, where b divides N, a row is as likely at any place as at another, and moves by N / 3 in
    the mean, as after a full shuffle; if one window holds all rows it is one. What differs: two
    neighbours stay neighbours with a chance of about 2 / (W b) rather than 2 / N, and two rows of
    a batch come from the same block with one of about 1 / W rather than b / N. Where rows are
    sorted by class, a class that spans many blocks and is a share p of the data has a share in
    each window that varies with a standard deviation of about sqrt(p (1 - p) / W).

    `block_bytes` and `window` decide that order alone: for the same order, what is served is the
    same, bit for bit.

    Args:
        rows: The data as stored.
        preparation: What to do to them; `"static"` bits are drawn row by row, from the seed and
            the row's number in `rows`, and are never held.
        seed: Of the draw of `"static"`.
        index: (N,) the rows to train on, int64, ascending; all if None.
        labels: Of all `rows`, int64, served with the data, or None.
        block_bytes: Size of a block, of one row at least.
        window: W.
        found: What the values of all rows are; None to look at every value, once.

    Raises:
        DataError: If the preparation does not take the values.
    """

    def __init__(
        self,
        rows: Rows,
        preparation: Preparation,
        *,
        seed: int = 0,
        index: Tensor | None = None,
        labels: Tensor | None = None,
        block_bytes: int = BLOCK_BYTES,
        window: int = WINDOW,
        found: Extent | None = None,
    ) -> None:
        if found is None and preparation.looks_at_values:
            found = extent(rows)
        if found is not None:
            preparation.check(found)
        self.rows, self.preparation, self.seed = rows, preparation, seed
        self.index, self._labels = index, labels
        self.event_shape = torch.Size(rows.event_shape)
        self.block_size = max(1, block_bytes // row_bytes(rows))
        self.window = window
        self.device = torch.device("cpu")
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: the data; where in an epoch they are is no part of them."""
        unlike = ("_reader", "_sequence", "_place", "_held", "_rooms")
        return {name: value for name, value in vars(self).items() if name not in unlike}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def _forget(self) -> None:
        self._reader = ThreadPoolExecutor(1)
        self._sequence: Tensor | None = None  # the blocks in the epoch's order
        self._held: dict[int, Future[Tensor]] = {}  # windows of the epoch
        self._rooms: list[Tensor] = []  # of two windows; room made anew for each would fragment

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows) if self.index is None else len(self.index)

    def order(self, generator: torch.Generator) -> Tensor:
        """The rows in the order of one epoch, (N,) int64, on the CPU."""
        size = self.block_size
        blocks = torch.randperm(-(-len(self) // size), generator=generator, device="cpu")
        order, start = torch.empty(len(self), dtype=torch.int64, device="cpu"), 0
        for window in blocks.split(self.window):
            rows = (window[:, None] * size + torch.arange(size, device="cpu")).flatten()
            rows = rows[rows < len(self)]  # the last block may be shorter
            rows = rows[torch.randperm(len(rows), generator=generator, device="cpu")]
            order[start : start + len(rows)] = rows
            start += len(rows)
        self._sequence, self._place, self._held = blocks, blocks.argsort(), {}
        return order

    def batch(self, index: Tensor, generator: torch.Generator) -> Tensor | tuple[Tensor, Tensor]:
        """Serve the rows at some indices, best in the order of `order`.

        Args:
            index: Indices, int64, shape (B,).
            generator: Source of the draw of ``"dynamic"``, on any device; else unused.

        Returns:
            What the likelihood takes, float32, shape (B, *event_shape), on `device`; where there
            are labels these too, (B,).
        """
        index = index.cpu()
        rows = self._rows(index)
        x = self._serve(self._read(index), rows, generator)
        return x if self._labels is None else (x, self._labels[rows].to(self.device))

    def fixed(self, seed: int) -> Tensor:
        """Serve all rows, without labels, in the one draw that evaluation uses, held in memory.

        Args:
            seed: Seed of the draw of ``"dynamic"``, the same on every device; else unused.

        Returns:
            What the likelihood takes, float32, shape (N, *event_shape), on `device`.
        """
        generator = torch.Generator().manual_seed(seed)
        x = torch.empty((len(self), *self.event_shape), dtype=torch.float32, device=self.device)
        for places in torch.arange(len(self), device="cpu").split(self.block_size):
            rows = self._rows(places)
            x[places[0] : places[-1] + 1] = self._serve(self.rows.read(rows), rows, generator)
        return x

    def to(self, device: torch.device | str) -> BlockData:
        """Return the same data, served on another device."""
        other = copy.copy(self)
        other.device = torch.device(device)
        return other

    def subset(self, index: Tensor) -> BlockData:
        """Return the rows at some indices, ascending."""
        other = copy.copy(self)
        other.index = self._rows(index)
        return other

    def _rows(self, index: Tensor) -> Tensor:
        return index if self.index is None else self.index[index]

    def _serve(self, values: Tensor, rows: Tensor, generator: torch.Generator) -> Tensor:
        kept = self.preparation.convert(values).to(self.device)
        if self.preparation.binarize == "static":
            streams = (_stream(self.seed, row) for row in rows.tolist())
            pairs = zip(kept, streams, strict=True)
            kept = torch.stack([draw_bits(grey, stream) for grey, stream in pairs])
        return self.preparation.serve(kept, generator)

    def _read(self, index: Tensor) -> Tensor:
        if self._sequence is None:  # no epoch has begun
            return self.rows.read(self._rows(index))
        size = self.block_size
        slots = self._place[index // size] * size + index % size
        windows = slots // (self.window * size)
        values = torch.empty((len(index), *self.event_shape), dtype=self.rows.dtype, device="cpu")
        for number in windows.unique().tolist():
            here = windows == number
            values[here] = self._window(number)[slots[here] - number * self.window * size]
        return values

    def _window(self, number: int) -> Tensor:
        """The rows of a window, block by block; those of the next are on their way then."""
        for other in [held for held in self._held if held not in (number, number + 1)]:
            del self._held[other]
        blocks = cast(Tensor, self._sequence).split(self.window)
        if not self._rooms:
            shape = (len(blocks[0]) * self.block_size, *self.event_shape)
            self._rooms = [
                torch.empty(shape, dtype=self.rows.dtype, device="cpu") for _ in blocks[:2]
            ]
        for wanted in range(number, min(number + 2, len(blocks))):
            if wanted not in self._held:
                # Nobody looks at the window before the last, and the one reader fills in turn.
                room = self._rooms[wanted % 2]
                self._held[wanted] = self._reader.submit(self._load, blocks[wanted], room)
        return self._held[number].result()

    def _load(self, blocks: Tensor, values: Tensor) -> Tensor:
        size = self.block_size
        for slot, block in enumerate(blocks.tolist()):
            stop = min((block + 1) * size, len(self))
            rows = self._rows(torch.arange(block * size, stop, device="cpu"))
            values[slot * size : slot * size + len(rows)] = self.rows.read(rows)
        return values


def _stream(seed: int, row: int) -> torch.Generator:
    mixed = np.random.SeedSequence((seed, row)).generate_state(1)[0]
    return torch.Generator().manual_seed(int(mixed))
