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


def refuse_gaps(labels: Tensor, where: str) -> None:
    """Refuse labels of which some are missing, or are negative.

    Args:
        labels: (N,) int64.
        where: Whose labels they are, for the message: "the test part".

    Raises:
        DataError: If a label is negative.
    """
    gaps = (labels < 0).nonzero().flatten().tolist()
    if gaps:
        raise DataError(
            f"Expected a label for each row in {where}; got none, or a negative one, in row "
            f"{gaps[0]} (counted from 0), {len(gaps)} in all. Fill in classes from 0 on, or train "
            "with alpha=0.1, which takes labels for some of the rows."
        )


def partial_labels(labels: Tensor, num_categories: int, where: str) -> Tensor:
    """Return labels, negative where there is none, if a model takes them as its first latent.

    Args:
        labels: (N,) int64.
        num_categories: K.
        where: Whose labels they are, for the message: "the test part".

    Raises:
        DataError: If one is K or above.
    """
    most = int(labels.max()) if labels.numel() else 0
    if most >= num_categories:
        raise DataError(
            f"Expected labels 0 to {num_categories - 1} for {where}, the categories of the first "
            f"latent; got {most}. Use num_categories={most + 1}, or leave out classes that the "
            "model was not trained on."
        )
    return labels


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
    refuse_gaps(labels, where)
    low, high = int(labels.min()), int(labels.max())
    most = num_classes or MOST_CLASSES
    if high >= most:
        raise DataError(
            f"Expected labels 0 to {most - 1} for {where}; got {low} to {high}. Number the "
            "classes from 0, or leave out those that the model was not trained on."
        )
    return labels


def number_classes(values: NDArray[Any], where: str) -> Labels:
    """Turn one label per datum, a number or a text, into numbers.

    Whole numbers stay as they are, even if they are stored as text. Other texts are numbered in
    sorted order. An empty text, or NaN, is no label, and becomes -1.

    Args:
        values: (N,) numbers or strings.
        where: Where they come from, for the message.

    Returns:
        The labels, and their names if the values are texts.

    Raises:
        DataError: If all labels are missing, or the values are neither whole numbers nor texts.
    """
    if values.ndim != 1 or values.dtype.kind not in "biufUSO":
        raise DataError(
            f"Expected whole numbers or names, shape (N,), as labels in {where}; got "
            f"{values.dtype} of shape {values.shape}. Save one label for each row."
        )
    if values.dtype.kind in "USO":
        text = [v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in values]
        text = [value.strip() for value in text]
        try:
            values = np.array([float(value or "nan") for value in text])
        except ValueError:
            names = sorted(set(text) - {""})
            number = {name: i for i, name in enumerate(names)}
            numbered = [number.get(name, -1) for name in text]
            return torch.tensor(numbered, device="cpu"), tuple(names)
    if values.dtype.kind == "f" and len(values):
        missing = np.isnan(values)
        if missing.all():
            raise DataError(
                f"Expected a label for some of the rows in {where}; got none at all. Fill in "
                "classes, or leave labels=... out."
            )
        values = np.where(missing, -1, values)
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
