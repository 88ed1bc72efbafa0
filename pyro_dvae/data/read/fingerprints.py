"""The name of data by their content."""

import hashlib

from torch import Tensor

from pyro_dvae.data.read.extent import in_blocks
from pyro_dvae.data.read.mnist import Images
from pyro_dvae.data.read.rows import Source


def fingerprint(data: Images | Source) -> str:
    """Name the data by their content: the first 16 hex digits of a SHA-256.

    Args:
        data: Data and labels, read in blocks; where they came from does not count.

    Returns:
        The same string for the same dtypes, shapes and values, and else another one.

    Raises:
        DataError: If a row cannot be read.
    """
    digest = hashlib.sha256()

    def add(tensor: Tensor, length: int | None = None) -> None:
        if length is not None:
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
