"""The file: a header, a checksum per block, the words of the entropy coder, and a checksum."""

from __future__ import annotations

import math
import struct
import zlib
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Way = Literal["code", "bits-back", "exact"]
"""Which code a datum is coded by: the most probable one, or one drawn from q(z|x) or p(z|x)."""
WAYS: tuple[Way, ...] = ("code", "bits-back", "exact")

MAGIC, VERSION = b"PDV\n", 1
_FIXED = struct.Struct("<4sBBBB16s4sIIddQ")
"""Magic, version, way, flags, dimensions, hash of the model, dtype, data per block, window of
counts, the values that stand for 0 and 1, words."""
_WORD = np.dtype("<u4")
_KINDS = "biuf"


@dataclass(frozen=True)
class Header:
    """What a compressed file says of its data."""

    way: Way
    model: bytes
    """`model_hash`, 16 bytes."""
    dtype: str
    """Of the stored values, as NumPy writes it, such as "|u1"."""
    shape: tuple[int, ...]
    """(N, *event_shape)."""
    block: int
    """B, the number of data that the networks take at once; the last block may have fewer."""
    window: int
    """The number of counts, from 0 on, that have a symbol each; 0 where there are no counts."""
    values: tuple[float, float] = (0.0, 1.0)
    """The stored values that stand for 0 and 1."""

    @property
    def sizes(self) -> list[int]:
        """The number of data of each block."""
        return block_sizes(self.shape[0], self.block, self.way)


def block_sizes(num_data: int, block: int, way: Way) -> list[int]:
    """How data are divided into blocks.

    Where bits come back, the first blocks are small, since the very first has no bits to take: it
    is coded by the most probable codes.

    Args:
        num_data: N.
        block: B.
        way: how codes are coded.
    """
    found, left = [], num_data
    for size in () if way == "code" else (block // 16, block // 4):
        if 0 < size < left:
            found.append(size)
            left -= size
    found += [block] * (left // block)
    return found + [left % block] * (left % block > 0)


def num_blocks(num_data: int, block: int, way: Way) -> int:
    """The length of `block_sizes`, which a damaged header may make very long."""
    first = [] if way == "code" else [size for size in (block // 16, block // 4) if size]
    number, left = 0, num_data
    for size in first:
        if size < left:
            number, left = number + 1, left - size
    return number + -(-left // block)


def pack(header: Header, checksums: list[int], words: NDArray[np.uint32]) -> bytes:
    """The content of a file.

    Args:
        header: what it says of its data.
        checksums: of the probabilities of each block.
        words: of the entropy coder.
    """
    way = WAYS.index(header.way)
    dtype = header.dtype.encode("ascii").ljust(4)
    fixed = _FIXED.pack(
        MAGIC, VERSION, way, 0, len(header.shape), header.model, dtype, header.block,
        header.window, *header.values, len(words),
    )  # fmt: skip
    start = fixed + struct.pack(f"<{len(header.shape)}Q", *header.shape)
    start += struct.pack("<I", zlib.crc32(start))
    body = np.array(checksums, _WORD).tobytes() + words.astype(_WORD).tobytes()
    return start + body + struct.pack("<I", zlib.crc32(start + body))


def unpack(content: bytes, what: str) -> tuple[Header, list[int], NDArray[np.uint32]]:
    """The header, the checksums of the blocks and the words of a file.

    Nothing is allocated that is not in the file itself.

    Args:
        content: the bytes of the file.
        what: what it is called in messages.

    Raises:
        ValueError: it is no such file, one of a newer version, or damaged.
    """
    if content[:4] != MAGIC[: max(1, len(content[:4]))]:
        raise ValueError(
            f"Expected data that were compressed by this library in {what}; got another file. "
            "Name a .pdv file."
        )
    try:
        return _unpack(content)
    except (struct.error, zlib.error, ValueError, TypeError, OverflowError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"Expected a whole compressed file in {what}; got: {reason}. Restore the file."
        ) from error


def _unpack(content: bytes) -> tuple[Header, list[int], NDArray[np.uint32]]:
    if len(content) < _FIXED.size:
        raise ValueError(f"{len(content)} bytes, too few for a header")
    fixed = _FIXED.unpack_from(content)
    version, way, flags, dimensions, model, dtype, block, window = fixed[1:9]
    low, high, words = fixed[9:]
    if version != VERSION:
        raise ValueError(f"format {version}, where this version reads format {VERSION}")
    end = _FIXED.size + 8 * dimensions
    if end + 8 > len(content):
        raise ValueError(f"{len(content)} bytes, too few for its header")
    if struct.unpack_from("<I", content, end)[0] != zlib.crc32(content[:end]):
        raise ValueError("a damaged header, whose checksum is another")
    shape = struct.unpack_from(f"<{dimensions}Q", content, _FIXED.size)
    if way >= len(WAYS) or flags or not dimensions or not shape[0] or not block:
        raise ValueError("a header of an unknown kind")
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError("values that are not finite")
    name = dtype.decode("ascii").rstrip()
    if np.dtype(name).kind not in _KINDS or np.dtype(name).str != name:
        raise ValueError(f"values of dtype {name!r}")
    number = num_blocks(shape[0], block, WAYS[way])
    length = end + 4 + 4 * number + 4 * words + 4
    if length != len(content):
        raise ValueError(f"{len(content)} bytes, not {length} as its header says")
    if struct.unpack_from("<I", content, len(content) - 4)[0] != zlib.crc32(content[:-4]):
        raise ValueError("damaged data, whose checksum is another")
    header = Header(WAYS[way], model, name, shape, block, window, (low, high))
    numbers = np.frombuffer(content, _WORD, number + words, end + 4).astype(np.uint32)
    return header, numbers[:number].tolist(), numbers[number:]
