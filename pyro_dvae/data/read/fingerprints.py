"""Fingerprints, which name data by their content."""

import hashlib

from torch import Tensor

from pyro_dvae.data.read.extent import in_blocks
from pyro_dvae.data.read.mnist import Images
from pyro_dvae.data.read.rows import Source


def fingerprint(data: Images | Source) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of data and labels.

    Args:
        data: Data and labels, which are read in blocks. Where they came from does not matter.

    Returns:
        Equal strings for equal dtypes, shapes and values, and different strings otherwise.

    Raises:
        DataError: If a row cannot be read.
    """
    digest = hashlib.sha256()

    def add(tensor: Tensor, length: int | None = None) -> None:
        if length is not None:  # the first block of these rows
            shape = (length, *tensor.shape[1:])
            digest.update(f"{tensor.dtype} {shape};".encode())
        digest.update(tensor.cpu().contiguous().numpy().data)

    if isinstance(data, Images):
        for tensor in (data.train, data.train_labels, data.test, data.test_labels):
            add(tensor, len(tensor))
        return digest.hexdigest()[:16]
    for rows in (data.train, data.test):
        if rows is not None:
            for index in in_blocks(rows):
                add(rows.read(index), len(rows) if index[0] == 0 else None)
            if rows.labels is not None:
                add(rows.labels, len(rows.labels))
    return digest.hexdigest()[:16]
