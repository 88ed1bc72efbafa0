"""The profile of the categories of each latent: what it holds, and its lines as a table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

LEAST_ROWS = 0.5
"""A category with fewer rows than this is unused."""
_LEAST_DIFFERENCE = 0.2
_CHANCE = 2.0
"""A difference sets a category apart if it is at least 0.2 standard deviations of all rows, and two
of its standard errors, which are 1 / sqrt(rows of the category)."""

_SHOWN = 8
"""Latents that the short text names."""

PROFILE_HEADER = (
    *("latent", "category", "rows", "share", "column", "level", "count"),
    *("value", "whole", "difference", "lift", "typical_rows"),
)
"""The columns of a profile as a table: see `Profile.lines`."""


class Feature(NamedTuple):
    """What is described: a column of numbers, or one level of a column of categories."""

    column: str
    """The name of the column."""
    level: str | None
    """The name of the level; None for a column of numbers."""

    def __str__(self) -> str:
        return self.column if self.level is None else f"{self.column}={self.level}"


@dataclass(frozen=True, repr=False, eq=False)
class Profile:
    """What the K categories of each of D latents mean, told by F features of N rows.

    `profile` returns it. Every row counts for a category by its probability q(z_d=k|x). `print`
    shows the features that set each category most apart; `to_frame` makes a table of all.
    """

    num_data: int
    """N."""
    features: tuple[Feature, ...]
    """F columns of numbers, and levels of the other columns."""
    whole: Tensor
    """(F,) the mean of all rows; of a level, its frequency."""
    spread: Tensor
    """(F,) the standard deviation of all rows; of a level with frequency f, sqrt(f (1 - f))."""
    sizes: Tensor
    """(D, K) the number of rows of each category, sum_n q(z_d=k|x_n)."""
    means: Tensor
    """(D, K, F) the mean of the rows of each category; NaN where no row has a value."""
    weights: Tensor
    """(D, K, F) the number of rows of each category that have a value."""
    information: Tensor
    """(D,) I(x; z_d) in nats, as in `Evaluation.information_per_latent`."""
    typical: Tensor
    """(T, D, K) int64, the numbers of the rows with the highest q(z_d=k|x), the highest first; -1
    where no further row has a higher one than the mean over all rows."""
    row_names: Mapping[int, str]
    """The number of a typical row -> its name; empty if the rows have no names."""
    classes: tuple[str, ...] = ()
    """The names of C classes; empty if there are no labels."""
    class_counts: Tensor | None = None
    """(D, K, C) the number of rows of each category and class, over the rows whose class is known;
    None if there are no labels."""
    class_column: str = "label"
    """What the classes are called in `lines` and in the text."""

    @property
    def shares(self) -> Tensor:
        """(D, K) the share of the rows that each category has."""
        return self.sizes / self.num_data

    @property
    def differences(self) -> Tensor:
        """(D, K, F) (means - whole) / spread: differences in standard deviations of all rows."""
        same = torch.where(self.means.isnan(), torch.nan, 0.0)
        return torch.where(self.spread > 0, (self.means - self.whole) / self.spread, same)

    @property
    def lifts(self) -> Tensor:
        """(D, K, F) means / whole of levels: how many times as often; NaN for numbers."""
        is_level = torch.tensor([f.level is not None for f in self.features], device="cpu")
        return torch.where(is_level, self.means / self.whole, torch.nan)

    @property
    def used(self) -> Tensor:
        """(D, K) bool, whether a category has at least half a row."""
        return self.sizes >= LEAST_ROWS

    @property
    def class_information(self) -> Tensor | None:
        """(D,) I(y; z_d) = sum_kc p(k, c) log p(k, c) / (p(k) p(c)) in nats, of the class y.

        It is 0 if a latent tells nothing about the class, and `class_entropy` if it tells all.
        """
        if self.class_counts is None or not self.class_counts.sum():
            return None
        joint = self.class_counts / self.class_counts.sum((1, 2), keepdim=True)
        product = joint.sum(2, keepdim=True) * joint.sum(1, keepdim=True)
        terms = torch.where(joint > 0, joint * (joint / product).log(), 0)
        return terms.sum((1, 2)).clamp(min=0)

    @property
    def class_entropy(self) -> float | None:
        """-sum_c p(c) log p(c) in nats, of the classes."""
        if self.class_counts is None or not self.class_counts.sum():
            return None
        p = self.class_counts[0].sum(0) / self.class_counts[0].sum()
        return -torch.where(p > 0, p * p.log(), 0).sum().item()

    def largest(self, latent: int, num: int = 32) -> list[int]:
        """The used categories with the most rows, in the order of their numbers.

        Args:
            latent: d, from 0.
            num: the largest number of categories.
        """
        order = self.sizes[latent].argsort(descending=True, stable=True)[:num].tolist()
        return sorted(k for k in order if self.used[latent, k])

    def distinctive(self, latent: int, category: int, num: int = 3) -> list[int]:
        """The numbers of the features that set a category most apart, at most one per column.

        Their |difference| is the largest, at least 0.2, and more than chance explains: at least
        2 / sqrt(rows of the category).

        Args:
            latent: d, from 0.
            category: k, from 0.
            num: how many features.
        """
        size = self.sizes[latent, category].item()
        if size < LEAST_ROWS:
            return []
        least = max(_LEAST_DIFFERENCE, _CHANCE / math.sqrt(size))
        difference = self.differences[latent, category].nan_to_num(0).tolist()
        # Of the two levels of a column the one that is more frequent than in all rows comes first.
        order = [(-round(abs(value), 9), value < 0, i) for i, value in enumerate(difference)]
        best: dict[str, int] = {}
        for _, _, i in sorted(order):
            if abs(difference[i]) < least or len(best) == num:
                break
            best.setdefault(self.features[i].column, i)
        return list(best.values())

    def typical_rows(self, latent: int, category: int) -> list[str]:
        """The names or the numbers of the typical rows of a category, the most typical first.

        Args:
            latent: d, from 0.
            category: k, from 0.
        """
        if not self.used[latent, category]:
            return []
        rows = self.typical[:, latent, category].tolist()
        return [self.row_names.get(row, str(row)) for row in rows if row >= 0]

    def lines(self) -> Iterator[dict[str, Any]]:
        """The profile as a table: one line per latent, category and feature, and per class.

        The columns are those of `PROFILE_HEADER`. `value` is the mean of the rows of the category,
        or the frequency of the level, and `whole` that of all rows. `count` is the number of rows
        with the level; of a column of numbers, that of the rows with a value. A category that is
        unused has one line, without a column. What is not defined is None.
        """
        told = self.with_classes()
        differences, lifts = told.differences, told.lifts
        is_level = torch.tensor([f.level is not None for f in told.features], device="cpu")
        counts = torch.where(is_level, told.weights * told.means.nan_to_num(0), told.weights)
        for d, sizes in enumerate(self.sizes.tolist()):
            for k, size in enumerate(sizes):
                rows = " ".join(self.typical_rows(d, k))
                line: dict[str, Any] = dict.fromkeys(PROFILE_HEADER)
                line |= {"latent": f"z{d + 1}", "category": k, "rows": size}
                line |= {"share": size / self.num_data, "typical_rows": rows or None}
                if size < LEAST_ROWS:
                    yield line
                    continue
                for i, (column, level) in enumerate(told.features):
                    yield line | {
                        "column": column,
                        "level": level,
                        "count": counts[d, k, i].item(),
                        "value": _known(told.means[d, k, i]),
                        "whole": _known(told.whole[i]),
                        "difference": _known(differences[d, k, i]),
                        "lift": _known(lifts[d, k, i]),
                    }

    def with_classes(self) -> Profile:
        """The same profile, with the classes as the levels of one more column."""
        if self.class_counts is None or not self.class_counts.sum():
            return self
        counts = self.class_counts
        rows = counts.sum(2, keepdim=True)
        whole = counts[0].sum(0) / counts[0].sum()
        named = tuple(Feature(self.class_column, name) for name in self.classes)
        return replace(
            self,
            features=self.features + named,
            whole=torch.cat([self.whole, whole]),
            spread=torch.cat([self.spread, (whole * (1 - whole)).sqrt()]),
            means=torch.cat([self.means, counts / rows], 2),
            weights=torch.cat([self.weights, rows.expand_as(counts)], 2),
            class_counts=None,
        )

    def to_dict(self) -> dict[str, Any]:
        """Every figure as `json` writes it: the lines, and the information of each latent."""
        told = self.class_information
        return {
            "num_data": self.num_data,
            "information": self.information.tolist(),
            "class_information": None if told is None else told.tolist(),
            "class_entropy": self.class_entropy,
            "lines": list(self.lines()),
        }

    def to_frame(self) -> Any:
        """The lines as a `pandas.DataFrame`; pandas must be installed."""
        import pandas  # type: ignore[import-untyped, unused-ignore]

        return pandas.DataFrame(list(self.lines()), columns=list(PROFILE_HEADER))

    def __repr__(self) -> str:
        each = [
            f"z{d} {nats:.2f} nats and {num} categories used"
            for d, (nats, num) in enumerate(
                zip(self.information.tolist(), self.used.sum(-1).tolist(), strict=True), 1
            )
        ]
        shown = "; ".join(each[:_SHOWN]) + ("; ..." if len(each) > _SHOWN else "")
        return f"Profile of {self.num_data} rows: {shown}"

    def __str__(self) -> str:
        from pyro_dvae.evaluation.profile_text import profile_text

        return profile_text(self)

    def _repr_html_(self) -> str:
        """What sets each category apart, as one table per latent for a notebook."""
        from pyro_dvae.evaluation.profile_text import profile_html

        return profile_html(self)


def _known(value: Tensor) -> float | None:
    number = value.item()
    return number if math.isfinite(number) else None
