"""The scores of data for anomaly detection, the most unusual datum first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyro_dvae.defaults import ANOMALY_SCORE

from .rows import by_posterior

if TYPE_CHECKING:
    from torch import Tensor

    from pyro_dvae import Run
    from pyro_dvae.evaluation import Inference
    from pyro_dvae.runs import PreparedRows

_LISTED = 2**14
"""The number of figures that are Python numbers at a time. They take five times the memory of a
tensor."""

ScoreRow = list[int | float | str]
"""The cells of one datum: its rank, what names it, its score, and the error of that."""


class Bound(str, Enum):
    """How log p(x) is computed."""

    elbo = "elbo"
    importance = "importance"
    exact = "exact"


class By(str, Enum):
    """What to score by."""

    log_prob = "log-prob"
    ratio = "ratio"
    conditional = "conditional"
    excess = "excess"
    typicality = "typicality"


class RankedScores(NamedTuple):
    """A score per datum."""

    by: str
    """The name of the score."""
    bound: str
    """What the bound is called; empty where the score is none."""
    beside: Mapping[str, Tensor | Sequence[str]]
    """Columns that say which datum each is: name -> (N,)."""
    values: Tensor
    """(N,) nats."""
    variances: Tensor | None
    """(N,) over the draws; None where nothing is drawn."""
    prior_error: float
    """Standard error of log Z, which moves all scores alike; 0 where log Z is known."""

    @property
    def header(self) -> list[str]:
        """The names of the columns."""
        error = [] if self.variances is None else ["standard_error"]
        return ["rank", "index", *self.beside, "score", *error]

    def ranked(self, num: int) -> Iterator[ScoreRow]:
        """The rows of the `num` lowest scores, the lowest first."""
        order = self.values.argsort(stable=True)[:num]
        errors = [] if self.variances is None else [self.variances.sqrt()]
        known = [*self.beside.values(), self.values, *errors]
        rank = 0
        for some in order.split(_LISTED):
            columns = [some.tolist(), *(_at(some, column) for column in known)]
            for row in zip(*columns, strict=True):
                rank += 1
                yield [rank, *row]

    def mean(self) -> tuple[float, float | None]:
        """The mean, and its standard error over the draws and of log Z; None where it is exact."""
        mean = self.values.mean().item()
        if self.variances is None:
            return mean, self.prior_error or None
        error = self.variances.sum().sqrt().item() / len(self.values)
        return mean, math.hypot(error, self.prior_error)


def ranked_scores(
    run: Run,
    rows: PreparedRows,
    by: By | None,
    bound: Bound | None,
    iw_samples: int,
    seed: int,
    data_dir: Path | None,
    inference: Inference | None = None,
) -> RankedScores:
    """Score data.

    Args:
        run: the run.
        rows: its data, or others.
        by: the score; None for the default.
        bound: how log p(x) is computed, in place of another score; or None.
        iw_samples: the number of codes drawn per datum.
        seed: of the draws.
        data_dir: the folder that the run's data are in now, if that is another one.
        inference: how q(z|x) is found, for a bound; None for the guide's.
    """
    from pyro_dvae.runs import anomaly_rows, beside, score_rows

    about = beside(run.data, rows)
    draws: Any = {"importance_samples": iw_samples, "seed": seed, "together": True}
    if bound is not None:
        names = {"elbo": "ELBO", "importance": f"bound({iw_samples})", "exact": "log p(x)"}
        found = score_rows(run.vae, run.config, rows, bound.value, **draws, inference=inference)
        name = f"{names[bound.value]}{by_posterior(inference)}"
        return RankedScores("log-prob", name, about, *found)
    score: Any = ANOMALY_SCORE if by is None else by.value
    return RankedScores(
        score, "", about, *anomaly_rows(run, rows, score, data_dir=data_dir, **draws)
    )


def _at(index: Tensor, column: Tensor | Sequence[str]) -> list[Any]:
    import torch

    if isinstance(column, torch.Tensor):
        return column[index].tolist()
    return [column[i] for i in index.tolist()]
