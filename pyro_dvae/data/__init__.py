"""Image data: MNIST or the bundled sample of it, binarization, splits, and arrays of the user."""

from pyro_dvae.data.arrays import Array, binary_inputs, load_array
from pyro_dvae.data.binary import BINARIZATIONS, BinaryImages
from pyro_dvae.data.mnist import (
    DATA_SETS,
    DataError,
    Images,
    fingerprint,
    load_images,
    read_idx,
)
from pyro_dvae.data.splits import PARTS, Part, Splits, make_splits, split

__all__ = [
    "BINARIZATIONS",
    "DATA_SETS",
    "PARTS",
    "Array",
    "BinaryImages",
    "DataError",
    "Images",
    "Part",
    "Splits",
    "binary_inputs",
    "fingerprint",
    "load_array",
    "load_images",
    "make_splits",
    "read_idx",
    "split",
]
