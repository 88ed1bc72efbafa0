"""`profile`: what the categories of each latent mean, told by the rows of a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pyro_dvae.checks import at_least
from pyro_dvae.evaluation.blocks import found_posteriors
from pyro_dvae.evaluation.imputation import level_numbers
from pyro_dvae.evaluation.inference import PosteriorName, inference_of
from pyro_dvae.evaluation.profile_figures import Feature, Profile
from pyro_dvae.tensors import as_arguments, as_data

if TYPE_CHECKING:
    from pyro_dvae.vae import DiscreteVAE

_MOST_LEVELS = 16
"""A column of more levels than this is described by its mean, unless its levels have names."""


def profile(
    vae: DiscreteVAE,
    x: Any,
    labels: Any = None,
    *,
    values: Any = None,
    columns: Sequence[str] | None = None,
    levels: Mapping[str, Sequence[str]] | None = None,
    class_names: Sequence[str] | None = None,
    row_names: Sequence[str] | None = None,
    num_typical: int = 3,
    posterior: PosteriorName | None = None,
    refine: int | None = None,
) -> Profile:
    """mean_dk = sum_n q(z_d=k|x_n) v_n / sum_n q(z_d=k|x_n), of each column v of a table.

    A row counts for a category by its probability q(z_d=k|x_n). So a row that the guide is sure of
    counts for one category, and the numbers of rows of all categories add up to N. A column of
    categories or of bits has such a mean for each of its levels, of v_n = 1 if the row has the
    level and 0 if not: the frequency of the level. Missing cells (NaN) are left out.

    Args:
        vae: the model of a table. It is in eval mode meanwhile.
        x: (N, P) rows, N >= 1, as the likelihood takes them: a tensor, an array or a table.
        labels: (N,) integers 0, 1, ..., the classes to compare the categories with, negative where
            the class is not known; or None.
        values: (N, V) the columns to describe, as numbers, if they are not x itself: for example x
            before it was prepared, or columns that the model does not see.
        columns: the names of the columns; None for x0, x1, ...
        levels: name of a column -> the names of its levels 0, 1, .... A column of bits or of at
            most 16 levels has their numbers as names, if none are given.
        class_names: the names of the classes 0, 1, ...; None for their numbers.
        row_names: (N,) the names of the rows; None for their numbers, counted from 0.
        num_typical: rows to name per category: those with the highest q(z_d=k|x).
        posterior: the guide's q(z|x), "encoder"; "refined" by coordinate ascent; or p(z|x),
            "exact". None for "refined" if `refine` is given, else the guide's.
        refine: sweeps of coordinate ascent.

    Raises:
        ValueError: the data are no rows, or the arguments do not fit one another.

    Example:
        >>> from pyro_dvae import profile
        >>> profile(vae, x).means.shape  # 2 latents of 3 categories; 6 columns of 2 levels
        torch.Size([2, 3, 12])
    """
    at_least("num_typical", num_typical, 0)
    x, labels = as_arguments(vae, x, labels)
    if x.dim() != 2 or not len(x):
        raise ValueError(f"Expected rows (N, P); got data of shape {tuple(x.shape)}. Flatten them.")
    vae.likelihood.check(x)
    table = as_data(x if values is None else values, torch.empty(0, dtype=torch.float64)).cpu()
    if table.dim() != 2 or len(table) != len(x):
        raise ValueError(
            f"Expected values of shape ({len(x)}, V), one row per row of x; got "
            f"{tuple(table.shape)}. Pass as many rows."
        )
    number = table.shape[1]
    names = _fitting("columns", columns, number) or tuple(f"x{i}" for i in range(number))
    rows = _fitting("row_names", row_names, len(x))
    likely = [0] * number
    if number == x.shape[1]:
        likely = level_numbers(vae.likelihood, (number,)).tolist()
    found = [
        _levels(table[:, i], (levels or {}).get(name), likely[i]) for i, name in enumerate(names)
    ]
    described = torch.cat([_described(table[:, i], its) for i, its in enumerate(found)], 1)
    members, classes = _members(labels, class_names, len(x))
    whole = described.nanmean(0)
    spread = (described - whole).square().nanmean(0).sqrt()
    same = spread <= 1e-12 * whole.abs()  # by rounding alone
    totals = _Totals(described - whole, members, num_typical)
    inference = inference_of(posterior, refine)
    known = labels if vae.takes_labels else None
    for found_q in found_posteriors(vae, x, known, inference):
        totals.add(found_q.marginals().cpu().double().log_softmax(-1))
    typical = totals.typical()
    return Profile(
        num_data=len(x),
        features=tuple(
            Feature(name, level)
            for name, its in zip(names, found, strict=True)
            for level in (its or [None])
        ),
        whole=whole,
        spread=spread.masked_fill(same, 0),
        sizes=totals.sizes,
        means=whole + totals.moments / totals.weights,
        weights=totals.weights,
        information=totals.information(),
        typical=typical,
        row_names={} if rows is None else {i: rows[i] for i in typical.unique().tolist() if i >= 0},
        classes=classes,
        class_counts=totals.counts if classes else None,
    )


class _Totals:
    """Sums over the rows, each weighted by q(z_d=k|x), block by block.

    Args:
        centred: (N, F) the features of the rows less their means; NaN where a cell is missing.
        members: (N, C) 1 for the class of each row.
        num_typical: T, the rows to name per category.
    """

    def __init__(self, centred: Tensor, members: Tensor, num_typical: int) -> None:
        self.centred, self.members, self.num_typical = centred, members, num_typical
        self.num_rows = 0
        zero = torch.zeros((), dtype=torch.float64, device="cpu")
        self.sizes = self.entropy = self.weights = self.moments = self.counts = zero
        self.odds = torch.empty(0, device="cpu")
        self.best = torch.empty(0, dtype=torch.int64, device="cpu")

    def add(self, log_q: Tensor) -> None:
        """Count the next rows, by log q(z_d|x), (B, D, K)."""
        rows = torch.arange(self.num_rows, self.num_rows + len(log_q), device="cpu")
        self.num_rows += len(log_q)
        q, centred = log_q.exp(), self.centred[rows]
        self.sizes = self.sizes + q.sum(0)
        self.entropy = self.entropy - torch.where(q > 0, q * log_q, 0).sum((0, 2))
        self.weights = self.weights + _weighted(q, (~centred.isnan()).double())
        self.moments = self.moments + _weighted(q, centred.nan_to_num(0))
        self.counts = self.counts + _weighted(q, self.members[rows])
        odds = log_q - _others(log_q)
        rows = rows[:, None, None].expand_as(odds)
        if len(self.odds):
            odds, rows = torch.cat([self.odds, odds]), torch.cat([self.best, rows])
        best = odds.argsort(dim=0, descending=True, stable=True)[: self.num_typical]
        self.odds, self.best = odds.gather(0, best), rows.gather(0, best)

    def typical(self) -> Tensor:
        """(T, D, K) the rows of the highest q; -1 where q is below its mean over all rows."""
        share = self.sizes / self.num_rows * (1 - 1e-9)  # all q may be one number, up to rounding
        return self.best.masked_fill(self.odds.sigmoid() < share, -1)

    def information(self) -> Tensor:
        """I(x; z_d) in nats, (D,)."""
        share = self.sizes / self.num_rows
        entropy = -torch.where(share > 0, share * share.log(), 0).sum(-1)
        return (entropy - self.entropy / self.num_rows).clamp(min=0)


def _weighted(q: Tensor, values: Tensor) -> Tensor:
    return torch.einsum("ndk,nf->dkf", q, values)


def _others(log_q: Tensor) -> Tensor:
    """Log (1 - q); of the most probable category by the others, for many q are 1 when rounded."""
    top = log_q.argmax(-1, keepdim=True)
    rest = log_q.scatter(-1, top, -math.inf).logsumexp(-1, keepdim=True)
    return (-log_q.exp()).log1p().scatter(-1, top, rest)


def _fitting(argument: str, names: Sequence[str] | None, number: int) -> tuple[str, ...] | None:
    if names is not None and len(names) != number:
        raise ValueError(f"Expected {number} {argument}; got {len(names)}. Name each once.")
    return None if names is None else tuple(names)


def _levels(column: Tensor, names: Sequence[str] | None, number: int) -> tuple[str, ...] | None:
    """The names of the levels that describe a column; None for its mean."""
    if names is not None:
        return tuple(names)
    known = column[~column.isnan()]
    whole = bool(((known == known.round()) & (known >= 0) & (known < number)).all())
    return tuple(map(str, range(number))) if 2 <= number <= _MOST_LEVELS and whole else None


def _described(column: Tensor, levels: tuple[str, ...] | None) -> Tensor:
    """The features of one column, (N, 1) or (N, L)."""
    if levels is None:
        return column[:, None]
    has = (column[:, None] == torch.arange(len(levels), device="cpu")).double()
    return torch.where(column[:, None].isnan(), torch.nan, has)


def _members(
    labels: Tensor | None, names: Sequence[str] | None, num_data: int
) -> tuple[Tensor, tuple[str, ...]]:
    """(N, C) 1 for the class of each row, if it is known, else 0; and the names of the classes."""
    if labels is None:
        return torch.zeros(num_data, 0, dtype=torch.float64, device="cpu"), ()
    labels = labels.cpu()
    if labels.shape != (num_data,) or labels.is_floating_point():
        raise ValueError(
            f"Expected labels as {num_data} integers; got {labels.dtype} of shape "
            f"{tuple(labels.shape)}. Number the classes."
        )
    number = int(labels.max()) + 1
    if names is not None and number > len(names):
        raise ValueError(
            f"Expected labels below {len(names)}, the number of class_names; got {number - 1}. "
            "Name each class."
        )
    classes = tuple(map(str, range(number))) if names is None else tuple(names)
    return (labels[:, None] == torch.arange(len(classes), device="cpu")).double(), classes
