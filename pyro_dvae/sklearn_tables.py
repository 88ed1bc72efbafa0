"""The tables that the scikit-learn estimator takes and gives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped, unused-ignore]
import torch
from pandas.api.types import (  # type: ignore[import-untyped, unused-ignore]
    is_bool_dtype,
    is_numeric_dtype,
)
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from pyro_dvae.data import DataError
from pyro_dvae.runs import DataRecord, named_values


def checked_table(
    estimator: BaseEstimator, X: Any, event_shape: Sequence[int] | None, *, reset: bool = False
) -> Any:
    """X as rows are made of it: a data frame, or an array (N, *event_shape).

    Args:
        estimator: The estimator, which has to know the columns of X, or learns them.
        X: (N, columns) finite numbers, or NaN where one is missing; or a data frame that also has
            columns of names.
        event_shape: The shape of a datum; None for rows of columns.
        reset: Whether the estimator is trained on X.

    Raises:
        ValueError: X is none of these, or has other columns than those of the training.
    """
    least = 2 if reset else 1
    if isinstance(X, pd.DataFrame) and not all(map(_holds_numbers, X.dtypes)):
        if event_shape is not None or len(X) < least:
            raise DataError(
                f"Expected at least {least} rows of columns; got {len(X)}, with event_shape="
                f"{event_shape}. Add rows, or leave event_shape out."
            )
        validate_data(estimator, X, reset=reset, skip_check_array=True)
        return X.set_axis([str(name) for name in X.columns], axis=1)
    X = validate_data(
        estimator,
        X,
        reset=reset,
        dtype=np.float64,
        ensure_all_finite="allow-nan",
        ensure_min_samples=least,
    )
    if event_shape is None:
        return pd.DataFrame(X, columns=[str(i) for i in range(X.shape[1])])
    if math.prod(event_shape) != X.shape[1]:
        raise ValueError(
            f"Expected {math.prod(event_shape)} columns for event_shape={tuple(event_shape)}; got "
            f"{X.shape[1]}. Change event_shape."
        )
    return X.reshape(len(X), *event_shape)


def named_table(data: DataRecord, x: torch.Tensor) -> Any:
    """Rows with the names of levels: a data frame, or an array where all of these are numbers.

    Args:
        data: The record of the data of the training.
        x: (N, columns), what the likelihood gives.
    """
    frame, all_numbers = pd.DataFrame(named_values(data, x), columns=data.columns), True
    for name, levels in data.levels.items():
        try:
            frame[name] = frame[name].astype(np.float64)
        except ValueError:
            all_numbers = False
            if levels == ("False", "True"):
                frame[name] = frame[name] == "True"
    return frame.to_numpy(np.float64) if all_numbers else frame


def _holds_numbers(dtype: Any) -> bool:
    return bool(is_numeric_dtype(dtype) and not is_bool_dtype(dtype))
