"""The parts of data that a run trains, validates and tests on."""

from __future__ import annotations

import math
import os
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pyro_dvae.checks import one_of
from pyro_dvae.data.read.copies import found_among
from pyro_dvae.data.read.errors import DataError
from pyro_dvae.data.read.extent import Extent, row_bytes
from pyro_dvae.data.read.labels import class_labels
from pyro_dvae.data.read.mnist import Images
from pyro_dvae.data.read.rows import Rows, Source, SubsetRows, TensorRows
from pyro_dvae.data.serve.blocks import BlockData
from pyro_dvae.data.serve.divide import divide
from pyro_dvae.data.serve.prepare import Preparation
from pyro_dvae.data.serve.served import PreparedData
from pyro_dvae.displays import shape_of

PARTS = ("train", "validation", "test")

IN_MEMORY = 2**28
"""Stored data of at most so many bytes are read once and kept; larger data are read in blocks."""


class Part(NamedTuple):
    """The N data of one part."""

    x: Tensor
    """(N, *event) what the likelihood takes, float32. Bits that are drawn are drawn once."""
    values: Tensor
    """(N, *event) the stored values that `x` was made from."""
    labels: Tensor | None
    """(N,) int64 labels; None if there are none."""

    def __repr__(self) -> str:
        parts = ((name, shape_of(value)) for name, value in self._asdict().items())
        return f"Part({', '.join(f'{name}={shape}' for name, shape in parts)})"


class Splits(NamedTuple):
    """What a run trains, validates and tests on."""

    train: PreparedData | BlockData
    """The training data, which serve batches; with labels if the model takes labels."""
    validation: Tensor | None
    """(M, *event) what the likelihood takes, float32, drawn once; None if M = 0."""
    test: Tensor | None
    """(T, *event) what the likelihood takes, float32, drawn once; None if T = 0."""
    train_rows: Tensor
    """The numbers of the source's rows that are trained on, int64, ascending."""
    validation_rows: Tensor
    """The numbers of the source's rows that are kept for validation, int64, ascending; empty if
    the validation data are other rows."""
    stored: dict[str, Rows]
    """The name of each part that is there -> its rows as stored."""
    seed: int
    """The seed of the split and of the draws."""
    num_copies: int | None = None
    """The number of the source's training rows that are equal to an earlier one; None where it was
    not counted, because groups of copies are not kept in one part."""
    num_dropped: int = 0
    """The number of rows that were left out because they are in validation or test data of their
    own too."""

    def __repr__(self) -> str:
        held_out = {"validation": self.validation, "test": self.test}
        lines = [f"\n  {name}: {shape_of(x)}" for name, x in held_out.items()]
        return f"Splits\n  train: {self.train}{''.join(lines)}"

    def num_shared(self) -> dict[str, int]:
        """How many rows of each other part are equal to a training row; all of them are read."""
        train, shared = self.stored["train"], {}
        for name, rows in self.stored.items():
            its_own, trained = (x.rows if isinstance(x, SubsetRows) else x for x in (rows, train))
            apart = its_own is trained and self.num_copies is not None
            if name != "train":
                shared[name] = 0 if apart else int(found_among(rows, train).sum())
        return shared

    def part(self, name: str) -> Part:
        """The data of one part, for evaluation.

        Args:
            name: "train", "validation" or "test". Training data are drawn once here, too.

        Returns:
            What the likelihood takes, the stored values, and the labels.

        Raises:
            ValueError: If there is no such part.
        """
        one_of("part", name, PARTS)
        if name not in self.stored:
            raise DataError(
                f"Expected a {name} part; got a run that keeps no {name} data. Name another part, "
                "or a file."
            )
        rows = self.stored[name]
        x = {"validation": self.validation, "test": self.test}.get(name)
        return Part(
            self.train.fixed(self.seed) if x is None else x,
            rows.read(torch.arange(len(rows), device="cpu")),
            rows.labels,
        )


def make_splits(
    data: Images | Source,
    *,
    binarize: str,
    validation: float | Rows,
    seed: int,
    test: float | Rows | None = None,
    range: tuple[float, float] | None = None,
    likelihood: str | nn.Module = "bernoulli",
    num_classes: int = 0,
    partly_labelled: bool = False,
    found: Extent | None = None,
    split: str = "random",
    group_copies: bool | None = None,
    drop_copies: bool = False,
) -> Splits:
    """Split data into parts, and prepare them for a likelihood.

    Rows that are equal to one another come into one part, and so do rows of one group.

    Args:
        data: The data. Their training rows are split at random; if they have labels, every class
            has the same share in each part (except in MNIST, whose split was published before).
            If they have times, the split is by time.
        binarize: One of ``POLICIES``; see ``Preparation``.
        validation: The fraction (below 1) or the number of training rows to keep for validation;
            or other rows.
        seed: Seed of the shuffle and of every draw. No global random stream is used.
        test: The fraction (below 1) or the number of training rows to keep for testing; or other
            rows. None takes the test rows of the data themselves, if there are any.
        range: (low, high), the stored values that stand for 0 and 1; None for uint8 values of 255.
        likelihood: The likelihood that takes the data; or its name, or ``name:argument``.
        num_classes: C for a model that takes the labels 0 to C - 1 with the data; else 0.
        partly_labelled: Whether the model takes the labels of those data that have one.
        found: What the training rows are, for example ``scan(rows).extent``; None to look at every
            value once more.
        split: ``"random"``; or ``"last"``, where the last rows, or those of the latest times, are
            the test part, and those before them the validation part. Copies play no part then.
        group_copies: Whether rows that are equal to one another come into one part. None keeps
            them together unless rows of such values are equal by chance, as in a table of few
            columns of names; see ``equal_by_chance``.
        drop_copies: Whether rows that are in other validation or test rows too are left out.

    Returns:
        The parts, on the device of the data. Training data that are not in memory, and take more
        than ``IN_MEMORY`` bytes, are read in blocks.

    Raises:
        ValueError: If the policy is unknown, if nothing is left to train on, if the likelihood
            does not take a value, if a part does not fit into memory, or if the model needs labels
            that are missing or unknown.

    Example:
        >>> from pyro_dvae.data import as_rows, Source
        >>> rows = as_rows(torch.arange(20, dtype=torch.uint8).reshape(10, 2))
        >>> source = Source("counts", "memory", rows, None, None)
        >>> splits = make_splits(
        ...     source, binarize="none", likelihood="poisson", validation=2, test=1, seed=0
        ... )
        >>> len(splits.train), len(splits.validation), len(splits.test)
        (7, 2, 1)
    """
    source = as_source(data)
    preparation = Preparation(binarize, range, likelihood)
    rows = source.train
    own = source.test if test is None else test
    divided = divide(
        source,
        validation,
        own,
        seed,
        split=split,
        group_copies=group_copies,
        drop_copies=drop_copies,
    )
    chosen = divided.train, divided.validation, divided.test
    stored: dict[str, Rows] = {"train": SubsetRows(rows, chosen[0])}
    for name, other, index in zip(PARTS[1:], (validation, own), chosen[1:], strict=True):
        if other is not None and not isinstance(other, (int, float)):
            stored[name] = other
        elif len(index):
            stored[name] = SubsetRows(rows, index)
    if num_classes:
        for name, part in stored.items():
            class_labels(part.labels, num_classes, f"the {name} part")
    whole = _serving(
        rows, preparation, seed, with_labels=num_classes > 0 or partly_labelled, found=found
    )
    fixed = {}
    for name in stored.keys() - {"train"}:
        part = stored[name]
        if isinstance(part, SubsetRows) and part.rows is rows:
            served = whole.subset(part.index)
        else:
            served = _serving(part, preparation, seed)
        _refuse_too_large(name, part)
        fixed[name] = served.fixed(seed)
    return Splits(
        train=whole.subset(chosen[0]),
        validation=fixed.get("validation"),
        test=fixed.get("test"),
        train_rows=chosen[0],
        validation_rows=chosen[1],
        stored=stored,
        seed=seed,
        num_copies=divided.num_copies,
        num_dropped=divided.num_dropped,
    )


def as_source(data: Images | Source) -> Source:
    """The same data as a source."""
    if isinstance(data, Source):
        return data
    train = TensorRows(data.train, data.train_labels)
    return Source(
        data.name, data.source, train, TensorRows(data.test, data.test_labels), data.notice
    )


def _serving(
    rows: Rows,
    preparation: Preparation,
    seed: int,
    *,
    with_labels: bool = False,
    found: Extent | None = None,
) -> PreparedData | BlockData:
    labels = rows.labels if with_labels else None
    if isinstance(rows, TensorRows) or len(rows) * row_bytes(rows) <= IN_MEMORY:
        values = rows.read(torch.arange(len(rows), device="cpu"))
        return PreparedData(values, preparation, seed=seed, labels=labels, found=found)
    return BlockData(rows, preparation, seed=seed, labels=labels, found=found)


def _refuse_too_large(name: str, rows: Rows) -> None:
    """Refuse a validation or test part, which is kept as float32, if it would fill the memory."""
    wanted = 4 * len(rows) * math.prod(rows.event_shape)
    if hasattr(os, "sysconf") and wanted > IN_MEMORY:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if wanted > memory / 2:
            raise DataError(
                f"Expected a {name} part that fits into memory; got {len(rows)} rows, "
                f"{wanted / 2**30:.1f} GiB. Keep fewer rows, {name}=10000 say."
            )
