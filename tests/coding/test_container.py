"""Damaged and lying files end in one line, and take no memory."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest
import torch
from zoo import LIKELIHOODS, P, make_vae, tiny_data, tiny_vae

from pyro_dvae.coding import compress, decompress
from pyro_dvae.coding.arithmetic import reference_model
from pyro_dvae.coding.container import _FIXED, block_sizes, num_blocks, unpack
from pyro_dvae.coding.ways import BlockCoder

_END = _FIXED.size + 16
"""Where the header of two dimensions ends."""


@pytest.fixture(scope="module")
def vae() -> Any:
    torch.manual_seed(0)
    return tiny_vae().float()


@pytest.fixture(scope="module")
def content(vae: Any) -> bytes:
    torch.manual_seed(1)
    return compress(vae, tiny_data(40).numpy().astype(np.uint8)).content


def refused(vae: Any, content: bytes) -> str:
    with pytest.raises(ValueError, match="Expected") as error:
        decompress(vae, content, "a.pdv")
    message = str(error.value)
    assert "\n" not in message
    assert "a.pdv" in message
    return message


def test_every_flipped_bit_is_found(content: bytes) -> None:
    assert len(content) < 250
    for place in range(len(content)):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[place] ^= 1 << bit
            with pytest.raises(ValueError, match="Expected"):
                unpack(bytes(damaged), "a.pdv")


def test_every_truncation_and_every_longer_file_is_found(content: bytes) -> None:
    for end in range(len(content)):
        with pytest.raises(ValueError, match="Expected"):
            unpack(content[:end], "a.pdv")
    for more in (b"\0", b"PDV\n", content):
        with pytest.raises(ValueError, match="Expected"):
            unpack(content + more, "a.pdv")


def signed(content: bytes, end: int = _END) -> bytes:
    """The content with the checksums that fit it."""
    header = content[:end]
    body = header + struct.pack("<I", zlib.crc32(header)) + content[end + 4 : -4]
    return body + struct.pack("<I", zlib.crc32(body))


def lie(content: bytes, **fields: Any) -> bytes:
    """The content with other fields in its header, and checksums that fit."""
    names = ("magic", "version", "way", "flags", "dimensions", "model", "dtype", "block", "window")
    names += ("low", "high", "words")
    fixed = dict(zip(names, _FIXED.unpack_from(content), strict=True))
    shape = fields.pop("shape", struct.unpack_from("<2Q", content, _FIXED.size))
    header = _FIXED.pack(*{**fixed, **fields}.values()) + struct.pack(f"<{len(shape)}Q", *shape)
    return signed(header + content[_END:], len(header))


@pytest.mark.parametrize(
    "fields",
    [
        {"shape": (2**62, P)},
        {"shape": (2**62, P), "block": 2**32 - 1},
        {"shape": (40, 2**62)},
        {"shape": (0, P)},
        {"shape": (41, P)},
        {"shape": (39, P)},
        {"shape": (40, P, 1), "dimensions": 3},
        {"shape": (), "dimensions": 0},
        {"dimensions": 255},
        {"block": 0},
        {"block": 1},
        {"block": 2**32 - 1},
        {"window": 2**32 - 1},
        {"words": 2**63},
        {"words": 1},
        {"way": 9},
        {"flags": 1},
        {"version": 2},
        {"model": bytes(16)},
        {"dtype": b"|O  "},
        {"dtype": b"\xff\xff\xff\xff"},
        {"dtype": b"<f9 "},
        {"low": float("nan")},
        {"high": float("inf")},
    ],
    ids=str,
)
def test_a_lying_header_takes_no_memory(vae: Any, content: bytes, fields: dict[str, Any]) -> None:
    assert lie(content) == content
    tracemalloc.start()
    refused(vae, lie(content, **fields))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6


def test_a_lying_window_of_counts_is_found() -> None:
    vae = make_vae(likelihood="poisson")
    data = LIKELIHOODS["poisson"].data((300, P)).numpy()
    content = compress(vae, data, way="code").content
    _, checksums, words = unpack(content, "a.pdv")
    for window in (0, 4097):
        block = BlockCoder(reference_model(vae), "code", max(window, 1)).size
        extra = num_blocks(300, block, "code") - len(checksums)
        fields = {"window": window, "block": block, "words": len(words) - extra}  # all else fits
        assert "in blocks of" in refused(vae, lie(content, **fields))


def test_a_header_has_a_checksum_of_its_own(vae: Any, content: bytes) -> None:
    """It is the first thing that is read, whatever the rest of the file says."""
    damaged = content[:_END] + bytes(4) + content[_END + 4 : -4]
    assert "damaged header" in refused(vae, damaged + struct.pack("<I", zlib.crc32(damaged)))


def test_other_words_are_found_by_the_checksums_of_the_blocks(vae: Any, content: bytes) -> None:
    for place in range(_END + 4, len(content) - 4):
        damaged = bytearray(content)
        damaged[place] ^= 0x10
        refused(vae, signed(bytes(damaged)))


def test_other_words_of_counts_are_found_too() -> None:
    vae = make_vae(likelihood="poisson")
    content = compress(vae, LIKELIHOODS["poisson"].data((30, P)).numpy()).content
    for seed in range(10):
        words = np.random.default_rng(seed).bytes(len(content) - _END - 12)
        refused(vae, signed(content[: _END + 8] + words + bytes(4)))


@pytest.mark.parametrize("way", ["code", "bits-back", "exact"])
def test_all_data_are_in_one_block(way: Any) -> None:
    for block in (1, 4, 16, 64):
        for number in range(1, 200):
            sizes = block_sizes(number, block, way)
            assert sum(sizes) == number
            assert 0 < min(sizes) <= max(sizes) <= block
            assert len(sizes) == num_blocks(number, block, way)
