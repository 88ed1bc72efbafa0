"""The groups and the times of rows, by which a split keeps them apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_dvae.data.read.cells import days_of, texts_of
from pyro_dvae.data.read.errors import DataError


def number_groups(column: Any, where: str) -> Tensor:
    """The number of the group of each row, (N,) int64, from 0 on.

    Args:
        column: A pandas Series, or anything that makes one: one name or number per row.
        where: The column, for messages: "column 'patient' of visits.csv".

    Raises:
        DataError: If a cell is empty.
    """
    column = _series(column, where)
    texts = texts_of(column)
    _refuse_gaps(column.isna().to_numpy() | (texts == ""), where, "group")
    return torch.from_numpy(np.unique(texts.astype(str), return_inverse=True)[1].reshape(-1))


def times_of(column: Any, where: str) -> Tensor:
    """The time of each row, (N,) float64: a number as it is, a date as days since 1970-01-01.

    Args:
        column: A pandas Series, or anything that makes one: one number or date per row.
        where: The column, for messages.

    Raises:
        DataError: If a cell is empty, or is neither a number nor a date.
    """
    import pandas as pd  # type: ignore[import-untyped, unused-ignore]

    column = _series(column, where)
    _refuse_gaps(column.isna().to_numpy(), where, "time")
    if pd.api.types.is_numeric_dtype(column.dtype):
        return torch.tensor(column.to_numpy("float64"))
    return torch.tensor(days_of(column, where))


def _series(values: Any, where: str) -> Any:
    import pandas as pd

    if isinstance(values, Tensor):
        values = values.cpu().numpy()
    if np.ndim(values) != 1:
        raise DataError(
            f"Expected one name or number per row as {where}; got an array of shape "
            f"{np.shape(values)}. Pass one for each row."
        )
    return values if isinstance(values, pd.Series) else pd.Series(np.asarray(values))


def _refuse_gaps(missing: NDArray[np.bool_], where: str, what: str) -> None:
    if missing.any():
        raise DataError(
            f"Expected a {what} for each row in {where}; got none in row {int(missing.argmax())} "
            f"(counted from 0), {int(missing.sum())} in all. Fill them in, or leave these rows out."
        )
