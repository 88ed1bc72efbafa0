"""Training data that need not fit into memory: they are read in shuffled blocks."""

from __future__ import annotations

import copy
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from pyro_dvae.data.read.extent import Extent, extent, row_bytes
from pyro_dvae.data.read.rows import Rows, SubsetRows
from pyro_dvae.data.serve.bits import draw_bits
from pyro_dvae.data.serve.divide import kept_together
from pyro_dvae.data.serve.prepare import Preparation

BLOCK_BYTES = 2**19
WINDOW = 32


class BlockData:
    """Rows that are read in blocks, shuffled, and served as a likelihood takes them.

    The N rows are cut into blocks of b rows, as many as `block_bytes` holds. In every epoch the
    blocks come in random order. W consecutive blocks form a window, and the W b rows of a window
    come in random order. Every order of blocks, and of rows in a window, is equally likely. About
    two windows are held in memory.

    How this differs from a full shuffle: if one window holds all rows, it does not. Else, where b
    divides N, each row is still equally likely at each place, and moves by N / 3 places on
    average. But two neighbours stay neighbours with a probability of about 2 / (W b), not 2 / N.
    Two rows of a batch come from the same block with a probability of about 1 / W, not b / N. If
    the rows are sorted by class, and a class spans many blocks and is a share p of the data, then
    its share in a window has a standard deviation of about sqrt(p (1 - p) / W).

    `block_bytes` and `window` decide only the order of the rows: for one order, the rows that are
    served are the same, bit for bit.

    Args:
        rows: The data as stored.
        preparation: What to do to them. `"static"` bits are drawn row by row, from the seed and the
            number of the row in `rows`, and are not kept in memory.
        seed: Seed of the draw of `"static"`.
        index: (N,) numbers of the rows to train on, int64, ascending; None for all rows.
        labels: int64 labels of all `rows`, served with the data; None if there are none.
        block_bytes: Size of a block in bytes. A block has at least one row.
        window: W, the number of blocks in a window.
        found: What the values of all rows are; None to look at every value once.

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
        """What copies and pickles hold: the data, without the place in the current epoch."""
        unlike = ("_reader", "_sequence", "_place", "_held", "_rooms")
        return {name: value for name, value in vars(self).items() if name not in unlike}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def _forget(self) -> None:
        self._reader = ThreadPoolExecutor(1)
        self._sequence: Tensor | None = None  # the blocks, in the order of the epoch
        self._held: dict[int, Future[Tensor]] = {}  # number of a window -> its rows
        self._rooms: list[Tensor] = []  # memory of two windows, used again and again

    def __repr__(self) -> str:
        labels = "" if self._labels is None else ", with labels"
        data = f"{type(self).__name__} of {len(self)} data of shape {tuple(self.event_shape)}"
        return f"{data}{labels}, read in blocks of {self.block_size}: {self.preparation}"

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows) if self.index is None else len(self.index)

    @property
    def labels(self) -> Tensor | None:
        """(N,) int64 labels, served with the data; None if there are none."""
        if self._labels is None or self.index is None:
            return self._labels
        return self._labels[self.index]

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
        """Serve some rows; this is fastest in the order that `order` gives.

        Args:
            index: (B,) int64 indices of the rows.
            generator: Source of the draw of ``"dynamic"``, on any device; else not used.

        Returns:
            (B, *event_shape), float32, on `device`: what the likelihood takes. If there are labels,
            a pair of that and of the labels, (B,).
        """
        index = index.cpu()
        rows = self._rows(index)
        x = self._serve(self._read(index), rows, generator)
        return x if self._labels is None else (x, self._labels[rows].to(self.device))

    def fixed(self, seed: int) -> Tensor:
        """Serve all rows at once, without labels, with bits drawn once, as evaluation needs them.

        Args:
            seed: Seed of the draw of ``"dynamic"``, the same on every device; else not used.

        Returns:
            (N, *event_shape), float32, on `device`: what the likelihood takes.
        """
        generator = torch.Generator().manual_seed(seed)
        x = torch.empty((len(self), *self.event_shape), dtype=torch.float32, device=self.device)
        for places in torch.arange(len(self), device="cpu").split(self.block_size):
            rows = self._rows(places)
            x[places[0] : places[-1] + 1] = self._serve(self.rows.read(rows), rows, generator)
        return x

    def groups_of_copies(self) -> Tensor | None:
        """(N,) int64, the groups of equal data that are kept in one part; None for none."""
        return kept_together(self.rows if self.index is None else SubsetRows(self.rows, self.index))

    def to(self, device: torch.device | str) -> BlockData:
        """The same data, served on another device."""
        other = copy.copy(self)
        other.device = torch.device(device)
        return other

    def subset(self, index: Tensor) -> BlockData:
        """The rows at some indices (B,), int64, ascending."""
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
        if self._sequence is None:  # before the first epoch
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
        """The rows of a window, block by block. The next window is read in the background."""
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
                # The memory of the window before the last is free: nobody looks at it any more.
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
