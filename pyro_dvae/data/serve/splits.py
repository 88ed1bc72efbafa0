"""The parts that a run trains, validates and tests on, the same in every command."""

from __future__ import annotations

import math
import os
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pyro_dvae.checks import one_of
from pyro_dvae.data.read.errors import DataError
from pyro_dvae.data.read.extent import Extent, row_bytes
from pyro_dvae.data.read.labels import class_labels
from pyro_dvae.data.read.mnist import DATA_SETS, Images
from pyro_dvae.data.read.rows import Rows, Source, SubsetRows, TensorRows
from pyro_dvae.data.serve.allot import allot
from pyro_dvae.data.serve.blocks import BlockData
from pyro_dvae.data.serve.prepare import Preparation
from pyro_dvae.data.serve.served import PreparedData

PARTS = ("train", "validation", "test")

IN_MEMORY = 2**28
"""Bytes as stored up to which data are read once and kept; larger data are read in blocks."""


class Part(NamedTuple):
    """The N data of one part, row by row."""

    x: Tensor
    """(N, *event) what the likelihood takes, float32, in the one draw that evaluation uses."""
    values: Tensor
    """(N, *event) the values as stored that they were made from."""
    labels: Tensor | None
    """(N,) int64."""


class Splits(NamedTuple):
    """What a run trains, validates and tests on."""

    train: PreparedData | BlockData
    """The part to train on, served as the preparation says, with labels where asked for."""
    validation: Tensor | None
    """(M, *event) what the likelihood takes, float32, drawn once; None where M = 0."""
    test: Tensor | None
    """(T, *event) what the likelihood takes, float32, drawn once; None where T = 0."""
    train_rows: Tensor
    """Rows of the source's data to train on, int64, ascending."""
    validation_rows: Tensor
    """Rows of them kept for validation, int64, ascending; empty where that has its own file."""
    stored: dict[str, Rows]
    """The rows of every part that there is, as stored."""
    seed: int

    def part(self, name: str) -> Part:
        """Serve one part for evaluation.

        Args:
            name: One of ``PARTS``. The training part, too, comes in one fixed draw.

        Returns:
            Data for the likelihood, values as stored and labels of the part.

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
    found: Extent | None = None,
) -> Splits:
    """Split and prepare data as a run's settings say.

    Args:
        data: The data. Their training rows are split at random, in proportion to the labels
            where there are some (but MNIST's); their test rows, if any, stay apart.
        binarize: One of ``POLICIES``.
        validation: Fraction (below 1) or number of the training rows kept for validation, or
            other rows.
        seed: Seed of the shuffle and of every draw made here; no global random stream is touched.
        test: The same for testing; None: the data's own test rows, if any.
        range: (low, high), the values that stand for 0 and 1; None for uint8 values of 255.
        likelihood: The likelihood whose values are wanted; or its name, or ``name:argument``.
        num_classes: C of a model that takes labels 0 to C - 1, with which it is then trained.
        found: What the training rows are, from a ``scan`` say; None to look at every value.

    Returns:
        The parts, on the device of the data. Training data of more than ``IN_MEMORY`` bytes that
        are not in memory are read in blocks.

    Raises:
        ValueError: If the policy is unknown, nothing is left to train on, a part does not fit
            into memory, or labels are wanted and missing or others.
    """
    source = as_source(data)
    preparation = Preparation(binarize, range, likelihood)
    rows = source.train
    own = source.test if test is None else test
    labels = None if source.name in DATA_SETS else rows.labels  # MNIST's split has been published
    chosen = allot(len(rows), _amount(validation), _amount(own), seed, labels)
    stored: dict[str, Rows] = {"train": SubsetRows(rows, chosen[0])}
    for name, other, index in zip(PARTS[1:], (validation, own), chosen[1:], strict=True):
        if other is not None and not isinstance(other, (int, float)):
            stored[name] = other
        elif len(index):
            stored[name] = SubsetRows(rows, index)
    if num_classes:
        for name, part in stored.items():
            class_labels(part.labels, num_classes, f"the {name} part")
    whole = _serving(rows, preparation, seed, with_labels=num_classes > 0, found=found)
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
    )


def as_source(data: Images | Source) -> Source:
    """The same data as a source."""
    if isinstance(data, Source):
        return data
    train = TensorRows(data.train, data.train_labels)
    return Source(
        data.name, data.source, train, TensorRows(data.test, data.test_labels), data.notice
    )


def _amount(part: float | Rows | None) -> float:
    return part if isinstance(part, (int, float)) else 0


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
    """Refuse a part, which is held whole, float32, where it would fill the memory."""
    wanted = 4 * len(rows) * math.prod(rows.event_shape)
    if hasattr(os, "sysconf") and wanted > IN_MEMORY:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if wanted > memory / 2:
            raise DataError(
                f"Expected a {name} part that fits into memory; got {len(rows)} rows, "
                f"{wanted / 2**30:.1f} GiB. Keep fewer, 10000 say."
            )
