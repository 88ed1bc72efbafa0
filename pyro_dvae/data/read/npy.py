"""A look at the header of a ``.npy`` file before NumPy believes it."""

from __future__ import annotations

import math
from typing import IO
from zipfile import ZipFile

from numpy.lib import format as npy

from pyro_dvae.data.read.errors import refuse_too_large

_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def check_npy(file: IO[bytes], num_bytes: int, what: str, *, mapped: bool = False) -> None:
    """Refuse a header that states more than the file holds, or more than memory does.

    NumPy multiplies the shape in 64 bits, which may overflow, and makes room for all of it before
    it reads a number.

    Args:
        file: At its beginning; it is read up to the numbers.
        num_bytes: Of the whole file.
        what: The file, for the message.
        mapped: Whether the numbers stay in the file.

    Raises:
        DataError: If the array does not fit into memory.
        ValueError: If the file is damaged.
    """
    reader = _READERS.get(npy.read_magic(file))
    if reader is None:
        return  # of named fields, which are refused as no numbers
    shape, _, dtype = reader(file)
    if dtype.hasobject:
        return  # a pickle, which NumPy refuses to load
    if any(not isinstance(size, int) or isinstance(size, bool) or size < 0 for size in shape):
        raise ValueError(f"its header states the shape {shape}")
    stated, held = math.prod(shape) * dtype.itemsize, num_bytes - file.tell()
    if stated > held or max(shape, default=0) >= 2**63:
        raise ValueError(f"it holds {held} bytes of numbers, not {stated} for its shape {shape}")
    if not mapped:
        refuse_too_large(f"{what}, an array of shape {shape}", stated, "Save it as a .npy file.")


def check_npz(archive: ZipFile, name: str, what: str) -> None:
    """Likewise for one array of a ``.npz``, whose members may be compressed.

    Args:
        archive: The file.
        name: Of the array.
        what: The file, for the message.

    Raises:
        DataError: If the array does not fit into memory.
        ValueError: If it is damaged.
    """
    member = f"{name}.npy" if f"{name}.npy" in archive.namelist() else name
    num_bytes = archive.getinfo(member).file_size
    with archive.open(member) as file:
        if file.read(6) == npy.MAGIC_PREFIX:
            file.seek(0)
            check_npy(file, num_bytes, f"{what}, array {name!r}")
        else:  # NumPy gives its bytes, which are refused as no array
            refuse_too_large(f"{what}, {name!r}", num_bytes, "Save arrays.")
