"""A check of the header of a ``.npy`` file, before NumPy believes it."""

from __future__ import annotations

import math
from typing import IO
from zipfile import ZipFile

from numpy.lib import format as npy

from pyro_dvae.data.read.errors import refuse_too_large

_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def check_npy(file: IO[bytes], num_bytes: int, what: str, *, mapped: bool = False) -> None:
    """Refuse a header that states more numbers than the file or the memory can hold.

    This is needed because NumPy multiplies the shape in 64 bits, which may overflow, and allocates
    the whole array before it reads a number.

    Args:
        file: The file, at its start; it is read up to the numbers.
        num_bytes: The size of the file.
        what: The file, for the message.
        mapped: Whether the numbers stay in the file, so that they need not fit into memory.

    Raises:
        DataError: If the array does not fit into memory.
        ValueError: If the file is damaged.
    """
    reader = _READERS.get(npy.read_magic(file))
    if reader is None:
        return  # an array of named fields, which is refused later: it does not hold numbers
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
    """Refuse an array of a ``.npz`` whose header states more numbers than can be held.

    Args:
        archive: The file, whose arrays may be compressed.
        name: The name of the array.
        what: The file, for the message.

    Raises:
        DataError: If the array does not fit into memory.
        ValueError: If the array is damaged.
    """
    member = f"{name}.npy" if f"{name}.npy" in archive.namelist() else name
    num_bytes = archive.getinfo(member).file_size
    with archive.open(member) as file:
        if file.read(6) == npy.MAGIC_PREFIX:
            file.seek(0)
            check_npy(file, num_bytes, f"{what}, array {name!r}")
        else:  # NumPy returns the bytes, which are refused later: they are not an array
            refuse_too_large(f"{what}, {name!r}", num_bytes, "Save arrays.")
