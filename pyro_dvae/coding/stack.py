"""The entropy coder: asymmetric numeral systems of the package constriction, which is a stack."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyro_dvae.coding.grid import chances, symbol_weights

_CHUNK = 16
"""Bits of a large number that are coded at once."""


class MissingConstriction(ModuleNotFoundError):
    """The package constriction is not installed."""


def require_constriction() -> Any:
    """The package constriction.

    Raises:
        MissingConstriction: it is not there; the message says what to install.
    """
    try:
        import constriction
    except ModuleNotFoundError:
        raise MissingConstriction(
            "Expected the constriction package to compress data; got none. Run pip install "
            "'pyro-dvae[codec]'."
        ) from None
    return constriction


class Stack:
    """Symbols on a stack of 32-bit words: what is pushed last is popped first.

    An array is pushed from its end on, so that it is popped from its start on. To pop symbols that
    nobody has pushed draws them from their distribution, with the words below as random numbers. An
    empty stack stands for words of zeros.

    Args:
        words: those of `words()`; None for an empty stack.

    Raises:
        ValueError: the words are none that a stack can have.
    """

    def __init__(self, words: NDArray[np.uint32] | None = None) -> None:
        stream = require_constriction().stream
        self._coder = stream.stack.AnsCoder() if words is None else stream.stack.AnsCoder(words)
        # `perfect=False` makes integers of the weights in the same way in every version.
        self._bits = stream.model.Bernoulli(perfect=False)
        self._symbols = stream.model.Categorical(perfect=False)
        self._uniform = stream.model.Uniform

    def words(self) -> NDArray[np.uint32]:
        """All that is on the stack."""
        found: NDArray[np.uint32] = self._coder.get_compressed()
        return found

    @property
    def num_bits(self) -> int:
        """The number of bits on the stack."""
        return int(self._coder.num_valid_bits())

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left."""
        return bool(self._coder.is_empty())

    def push_bits(self, bits: NDArray[np.int32], grid: NDArray[np.int16]) -> None:
        """Push bits, whose logits are on the grid, both of the same shape."""
        if bits.size:
            self._coder.encode_reverse(bits.ravel(), self._bits, chances(grid.ravel()))

    def pop_bits(self, grid: NDArray[np.int16]) -> NDArray[np.int32]:
        """Pop bits of the shape of the grid."""
        found = self._coder.decode(self._bits, chances(grid.ravel())) if grid.size else np.empty(0)
        return found.astype(np.int32).reshape(grid.shape)

    def push(self, symbols: NDArray[np.int32], grid: NDArray[np.int16]) -> None:
        """Push symbols (...), whose log-probabilities on the grid are (..., L)."""
        if symbols.size:
            weights = symbol_weights(grid.reshape(-1, grid.shape[-1]))
            self._coder.encode_reverse(symbols.ravel(), self._symbols, weights)

    def pop(self, grid: NDArray[np.int16]) -> NDArray[np.int32]:
        """Pop symbols (...) of a grid (..., L)."""
        weights = symbol_weights(grid.reshape(-1, grid.shape[-1]))
        found = self._coder.decode(self._symbols, weights) if len(weights) else np.empty(0)
        return found.astype(np.int32).reshape(grid.shape[:-1])

    def push_numbers(self, numbers: NDArray[np.int64]) -> None:
        """Push whole numbers n >= 1, of 2 log2(n) + 1 bits or so each (Elias 1975, the code gamma).

        Args:
            numbers: (N,).
        """
        for number in reversed(numbers.tolist()):
            size = int(number).bit_length() - 1
            for place in range(0, size, _CHUNK):
                width = min(_CHUNK, size - place)
                self._push_uniform((int(number) >> place) % 2**width, 2**width)
            for step in range(size + 1):  # `size` ones, after a zero that ends them
                self._push_uniform(int(step > 0), 2)

    def pop_numbers(self, num: int) -> NDArray[np.int64]:
        """Pop `num` whole numbers.

        Raises:
            ValueError: a number is larger than 2^63, as no number that was pushed.
        """
        found = []
        for _ in range(num):
            size = 0
            while self._pop_uniform(2):
                size += 1
                if size > 62:
                    raise ValueError("a count beyond 2^63")
            number = 1
            for place in reversed(range(0, size, _CHUNK)):
                width = min(_CHUNK, size - place)
                number = (number << width) + self._pop_uniform(2**width)
            found.append(number)
        return np.array(found, dtype=np.int64)

    def _push_uniform(self, symbol: int, size: int) -> None:
        self._coder.encode_reverse(np.array([symbol], np.int32), self._uniform(size))

    def _pop_uniform(self, size: int) -> int:
        return int(self._coder.decode(self._uniform(size), 1)[0])


class Checksum:
    """The CRC-32 of grids, which says whether another machine computes the same probabilities."""

    def __init__(self) -> None:
        self.value = 0

    def add(self, grid: NDArray[np.int16]) -> None:
        """Add a grid."""
        content = np.ascontiguousarray(grid, dtype="<i2")
        self.value = zlib.crc32(content.data, self.value)
