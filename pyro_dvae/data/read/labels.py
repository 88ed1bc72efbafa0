"""Labels: the class of each datum, as a number, and the names of the classes."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_dvae.data.read.errors import DataError, shorten

MOST_CLASSES = 10_000
"""The most classes of a model. Labels above that are probably measurements."""

Labels = tuple[Tensor, tuple[str, ...] | None]
"""(N,) int64 labels, and the name of each label 0, 1, ...; None if they have no names."""


def checked_labels(labels: Tensor | None, num_data: int, where: str = "") -> Tensor | None:
    """Return labels as int64, shape (num_data,).

    Args:
        labels: One whole number per datum, of any dtype; None if there are no labels.
        num_data: The number of data.
        where: Where the labels come from, for the message: " in FILE".

    Returns:
        The labels, or None if there are none.

    Raises:
        DataError: If the shape is not (num_data,), or a label is not a whole number.
    """
    if labels is None:
        return None
    if labels.shape != (num_data,):
        raise DataError(
            f"Expected labels of shape ({num_data},){where}, one for each row; got "
            f"{tuple(labels.shape)}. Give as many labels as rows."
        )
    numbers = labels.to(torch.int64)
    if (numbers != labels).any():
        raise DataError(
            f"Expected whole numbers as labels{where}; got {labels.dtype} with fractions. "
            "Number the classes."
        )
    return numbers


def class_labels(labels: Tensor | None, num_classes: int, where: str) -> Tensor:
    """Return labels if a model of C classes takes them.

    Args:
        labels: (N,) int64, or None.
        num_classes: C; 0 if the labels themselves are to say how many classes there are. Then only
            `MOST_CLASSES` is checked.
        where: Whose labels they are, for the message: "the test part".

    Raises:
        DataError: If there are no labels, or one is not in 0 to C - 1.
    """
    if labels is None:
        raise DataError(
            f"Expected labels for {where}, which the model is conditional on; got none. Name them "
            'with labels="COLUMN", or choose another prior, prior="learned" say.'
        )
    low, high = int(labels.min()), int(labels.max())
    most = num_classes or MOST_CLASSES
    if low < 0 or high >= most:
        raise DataError(
            f"Expected labels 0 to {most - 1} for {where}; got {low} to {high}. Number the "
            "classes from 0, or leave out those that the model was not trained on."
        )
    return labels


def number_classes(values: NDArray[Any], where: str) -> Labels:
    """Turn one label per datum, a number or a text, into numbers.

    Whole numbers stay as they are, even if they are stored as text. Other texts are numbered in
    sorted order.

    Args:
        values: (N,) numbers or strings.
        where: Where they come from, for the message.

    Returns:
        The labels, and their names if the values are texts.

    Raises:
        DataError: If a label is missing, or the values are neither whole numbers nor texts.
    """
    if values.ndim != 1 or values.dtype.kind not in "biufUSO":
        raise DataError(
            f"Expected whole numbers or names, shape (N,), as labels in {where}; got "
            f"{values.dtype} of shape {values.shape}. Save one label for each row."
        )
    if values.dtype.kind in "USO":
        text = [v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in values]
        text = [value.strip() for value in text]
        if "" in text:
            raise DataError(
                f"Expected a label for each row in {where}; got none in row {text.index('')} "
                f"(counted from 0), {text.count('')} in all. Fill in a class."
            )
        try:
            values = np.array([float(value) for value in text])
        except ValueError:
            names = sorted(set(text))
            number = {name: i for i, name in enumerate(names)}
            return torch.tensor([number[name] for name in text], device="cpu"), tuple(names)
    with np.errstate(invalid="ignore"):
        numbers = values.astype(np.int64)
    wrong = numbers != values
    if wrong.any():
        found = shorten([f"{value:g}" for value in np.unique(values[wrong])], 3)
        raise DataError(
            f"Expected whole numbers or names as labels in {where}; got {found}. "
            "Number the classes."
        )
    return torch.from_numpy(np.ascontiguousarray(numbers)), None
