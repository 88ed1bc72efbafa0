"""Data of a run, compressed as they are stored; and files of decompressed data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_dvae.coding.codec import compress_values, decompress
from pyro_dvae.coding.container import Way
from pyro_dvae.coding.encoder import Compressed
from pyro_dvae.coding.values import ChangedValues
from pyro_dvae.data.read.arrays import read_arrays
from pyro_dvae.data.read.extent import extent_of
from pyro_dvae.runs.config import preparation_of
from pyro_dvae.runs.named import column_names, named_values
from pyro_dvae.runs.rows import PreparedRows
from pyro_dvae.runs.run import Run
from pyro_dvae.runs.storage import regular, write_atomically
from pyro_dvae.runs.tables import write_csv

_ROWS = 1024


class RowValues:
    """Rows of a run as they are stored.

    Args:
        run: the run.
        rows: the rows.
        dtype: of the stored values; None for that which torch knows them by.
        as_bits: compress the zeros and ones that the model takes, in place of what is stored.
    """

    def __init__(
        self, run: Run, rows: PreparedRows, dtype: np.dtype[Any] | None, as_bits: bool
    ) -> None:
        self._rows, self._as_bits = rows, as_bits
        self.shape = (len(rows.x), *run.event_shape)
        self.values = (0.0, 1.0)
        self.dtype = np.dtype(np.uint8)
        if not as_bits:
            self.dtype = dtype or np.dtype(str(rows.stored.dtype).removeprefix("torch."))
            self.values = self._two_values(run)

    def _two_values(self, run: Run) -> tuple[float, float]:
        """The stored values that stand for 0 and 1."""
        preparation = preparation_of(run.config, run.event_shape)
        if not preparation.makes_bits:
            return 0.0, 1.0
        if all(extent_of(self._stored(i, i + _ROWS)).is_binary for i in self._starts()):
            return 0.0, 1.0
        return preparation.range or (0.0, 255.0)

    def _starts(self) -> range:
        return range(0, self.shape[0], _ROWS)

    def _stored(self, start: int, stop: int) -> Tensor:
        return self._rows.stored.read(torch.arange(start, min(stop, self.shape[0]), device="cpu"))

    def block(self, start: int, stop: int) -> tuple[Tensor, NDArray[Any]]:
        """Some of the data."""
        x = self._rows.x[start:stop].cpu()
        stored = x if self._as_bits else self._stored(start, stop)
        return x, stored.numpy().astype(self.dtype)


def compress_rows(
    run: Run,
    what: Any,
    *,
    as_bits: bool = False,
    way: Way | None = None,
    refine: int | None = None,
    data_dir: str | Path | None = None,
    key: str | None = None,
) -> tuple[Compressed, PreparedRows]:
    """Compress data as the model of a run takes them.

    Args:
        run: the run.
        what: "train", "validation" or "test"; or a file or values, as for `Run.rows`.
        as_bits: where the model takes zeros and ones, compress those that the run makes of grey
            values, as uint8. Grey values themselves cannot be made of them again.
        way: as of `compress`.
        refine: as of `compress`.
        data_dir: as for `Run.rows`.
        key: as for `Run.rows`.

    Returns:
        The compressed data, and the rows that they are.

    Raises:
        ValueError: there are no such data, or the model cannot compress them without loss.
    """
    rows = run.rows(what, data_dir=data_dir, key=key)
    dtype = _stored_dtype(run, what, key)
    makes_bits = preparation_of(run.config, run.event_shape).makes_bits
    if as_bits and not makes_bits:
        raise ValueError(
            "Expected a model of zeros and ones with as_bits=True; got the likelihood "
            f"{run.config.likelihood}. Leave it out."
        )
    values = RowValues(run, rows, dtype, as_bits)
    try:
        return compress_values(run.vae, values, way=way, refine=refine), rows
    except ChangedValues as error:
        if not makes_bits:
            raise
        raise ChangedValues(
            f"{rows.name}: Expected values that all are {values.values[0]:g} or "
            f"{values.values[1]:g}, since the model takes zeros and ones; got others. Use "
            "as_bits=True, which compresses the zeros and ones that the run makes of them."
        ) from error


def _stored_dtype(run: Run, what: Any, key: str | None) -> np.dtype[Any] | None:
    """The dtype in a .npy or .npz file, which torch may know by another one."""
    if isinstance(what, (str, Path)) and Path(what).suffix.lower() in (".npy", ".npz"):
        key = key or (run.data.reading.key if Path(what).suffix.lower() == ".npz" else None)
        return np.asarray(read_arrays(Path(what), key, None, mapped=True)[0]).dtype
    return what.dtype if isinstance(what, np.ndarray) else None


def decompress_file(run: Run, path: str | Path) -> NDArray[Any]:
    """The data in a .pdv file, (N, *event_shape), as they were stored.

    Args:
        run: the run that compressed them.
        path: the file.

    Raises:
        OSError: there is no such file, or it cannot be read.
        ValueError: the file is damaged, or of another model.
    """
    path = Path(path)
    regular(path)
    return decompress(run.vae, path.read_bytes(), str(path))


def write_values(run: Run, values: NDArray[Any], path: str | Path) -> None:
    """Write decompressed data.

    Args:
        run: the run that compressed them.
        values: (N, *event_shape).
        path: a .npy file; a .npz file, where they are the array "data"; or, for rows, a .csv file
            with the names of the run's columns and of their levels.

    Raises:
        OSError: the file cannot be written. What was there stays.
        ValueError: images are to be written as a .csv file.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix == ".csv":
        if values.ndim != 2:
            raise ValueError(
                f"Expected rows to write as a .csv file; got data of shape {values.shape}. Write "
                "a .npy file."
            )
        write_csv(path, column_names(run.data, run.event_shape), _cells(run, values))
        return

    def write(beside: Path) -> None:
        with beside.open("wb") as file:
            if suffix == ".npz":
                np.savez_compressed(file, data=values)
            else:
                np.save(file, values, allow_pickle=False)

    write_atomically(path, write)


def _cells(run: Run, values: NDArray[Any]) -> Any:
    """The rows of a table: whole numbers, and the names of levels."""
    for start in range(0, len(values), _ROWS):
        some = torch.from_numpy(values[start : start + _ROWS].astype(np.float64))
        for row in named_values(run.data, some):
            yield [int(cell) if isinstance(cell, float) else cell for cell in row]
