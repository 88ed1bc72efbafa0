"""Chooses how data are coded, and codes them block by block."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_dvae.codes import MAX_CODES
from pyro_dvae.coding.arithmetic import model_hash
from pyro_dvae.coding.container import Header, Way, pack
from pyro_dvae.coding.elements import MOST_WINDOW, ElementCoder
from pyro_dvae.coding.stack import Stack
from pyro_dvae.coding.table import CodeTable
from pyro_dvae.coding.values import ChangedValues, Values, restored
from pyro_dvae.coding.ways import BlockCoder
from pyro_dvae.evaluation import Inference, found_posteriors
from pyro_dvae.posteriors import posterior_of
from pyro_dvae.runs.storage import write_atomically

if TYPE_CHECKING:
    from pyro_dvae.vae import DiscreteVAE

_MOST_TABLE = 2**23
"""If the parameters of p(x|z) under all codes are more numbers than this, the exact way is only
taken where it is asked for."""
_RANDOM_WORDS = 2**16
"""Words of the stack on which a block is tried."""


class Compressed(NamedTuple):
    """Compressed data."""

    content: bytes
    """The content of a .pdv file."""
    header: Header
    """What it says of the data."""
    bits: int
    """Bits of the entropy coder; the rest of the content is the header and the checksums."""

    @property
    def bits_per_dimension(self) -> float:
        """8 times the bytes of the content, divided by the number of elements of all data."""
        return 8 * len(self.content) / math.prod(self.header.shape)

    def write(self, path: str | Path) -> None:
        """Write the content into a file.

        Args:
            path: a .pdv file.

        Raises:
            OSError: the file cannot be written. What was there stays.
        """
        write_atomically(path, lambda beside: beside.write_bytes(self.content))

    def __repr__(self) -> str:
        way, shape = self.header.way, self.header.shape
        return f"Compressed(way={way!r}, shape={shape}, {len(self.content)} bytes)"


class Encoder:
    """Compresses data. Call its methods within `reference_arithmetic`.

    Args:
        vae: the model.
        model: the same, of `reference_model`.
        values: the data.
        refine: sweeps of coordinate ascent that look for a more probable code; None for none.

    Raises:
        ValueError: the model does not take these data, or its parts cannot be coded by.
    """

    def __init__(
        self, vae: DiscreteVAE, model: DiscreteVAE, values: Values, refine: int | None
    ) -> None:
        self.vae, self.model, self.values, self.refine = vae, model, values, refine
        # Before a model is believed, its parts and the data are looked at.
        event = tuple(values.shape[1:])
        coder = BlockCoder(model, "code", 1)
        if not values.shape or not values.shape[0] or event != coder.event_shape:
            raise ValueError(
                f"Expected data of shape (N, {', '.join(map(str, coder.event_shape))}), N >= 1; "
                f"got {tuple(values.shape)}. Reshape them."
            )
        if values.dtype.kind not in "biuf" or values.dtype.itemsize > 8:
            raise ValueError(
                f"Expected numbers of at most 8 bytes; got dtype {values.dtype}. Convert them."
            )
        self.window = self._window(coder.elements, coder.size)
        self.coder = BlockCoder(model, "code", self.window) if self.window else coder
        self.table: CodeTable | None = None
        numbers = int(np.prod(event)) * model.likelihood.num_params
        self.is_cheap = coder.num_codes <= min(MAX_CODES, _MOST_TABLE // numbers)

    def _window(self, elements: ElementCoder, size: int) -> int:
        """The number of counts from 0 on that have symbols; 0 if there are no counts."""
        most = -1
        for part in elements.parts:
            if part.escapes:
                for start in range(0, self.values.shape[0], size):
                    x = self._x(start, min(start + size, self.values.shape[0])).flatten(1)
                    most = max(most, int(x[:, part.columns].max()))
        return min(most + 1, MOST_WINDOW)

    def _x(self, start: int, stop: int) -> Tensor:
        """Data as the likelihood takes them, which the stored values can be made of again."""
        x, stored = self.values.block(start, stop)
        x = x.double()
        if x.isnan().any():
            raise ValueError(
                "Expected data without missing values, to compress; got some. Fill them in, or "
                "leave such rows out."
            )
        self.model.likelihood.check(x)
        again = restored(x.numpy().astype(np.int64), self.values.dtype, self.values.values)
        if again.tobytes() != np.ascontiguousarray(stored, again.dtype).tobytes():
            place = np.argwhere(again != stored)
            first = (
                f"{stored[tuple(place[0])]} in row {start + place[0][0]}" if len(place) else "-0"
            )
            raise ChangedValues(
                f"Expected stored values that the likelihood takes as they are; got {first}, of "
                "which another number is made. Binarise or round the data first."
            )
        return x

    def choose(self) -> Way:
        """The way that takes the fewest bits, of those whose time is bearable."""
        if self.is_cheap:
            return "exact"
        num = min(self.coder.size, self.values.shape[0])
        x, sizes = self._x(0, num), {}
        words = np.random.default_rng(0).integers(1, 2**32, _RANDOM_WORDS, dtype=np.uint32)
        for way in ("code", "bits-back"):
            stack = Stack(words)
            before = stack.num_bits
            codes = self._most_probable(x) if way == "code" else None
            BlockCoder(self.model, way, self.window).push(stack, x, codes)
            sizes[way] = stack.num_bits - before
        return "bits-back" if sizes["bits-back"] < sizes["code"] else "code"

    def compress(self, way: Way) -> Compressed:
        """All of the data, coded in one way.

        Args:
            way: how codes are coded.
        """
        coder = self.coder if way == "code" else BlockCoder(self.model, way, self.window)
        shape, dtype = self.values.shape, self.values.dtype.str
        window, values = self.window, self.values.values
        header = Header(way, model_hash(self.model), dtype, shape, coder.size, window, values)
        self.table = coder.table
        stack, checksums, start = Stack(), [], 0
        for size in header.sizes:
            x = self._x(start, start + size)
            takes = way != "code" and start > 0
            checksum, _ = coder.push(stack, x, None if takes else self._most_probable(x))
            checksums.append(checksum)
            start += size
        return Compressed(pack(header, checksums, stack.words()), header, stack.num_bits)

    def _most_probable(self, x: Tensor) -> Tensor:
        """The codes to take where none are drawn, (n, D)."""
        if self.table is None and self.is_cheap:
            self.table = CodeTable(self.model, self.coder.size, self.coder.event_shape)
        if self.table is not None:
            return self.table.most_probable(x)
        if self.refine is not None:
            like = next(self.vae.parameters())
            inference = Inference("refined", self.refine)
            found = found_posteriors(self.vae, x.to(like), None, inference)
            return torch.cat([each.mode().cpu() for each in found])
        return posterior_of(self.model.posterior(x), tabulate=False).mode()
