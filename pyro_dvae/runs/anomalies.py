"""How unusual the data of a run are, and what of a datum surprises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from pyro_dvae.data import DataError
from pyro_dvae.displays import html_fields
from pyro_dvae.evaluation import AnomalyScore, anomaly_scorer, explain
from pyro_dvae.processes import in_turn
from pyro_dvae.runs.beside import training_data
from pyro_dvae.runs.config import preparation_of
from pyro_dvae.runs.named import beside, column_names, named_values
from pyro_dvae.runs.rows import PreparedRows, model_batch, model_labels
from pyro_dvae.runs.scores import Scores

if TYPE_CHECKING:
    from pyro_dvae.runs.run import Run

_BLOCK = 1024
"""The number of data that are scored at once."""


def anomaly_rows(
    run: Run,
    rows: PreparedRows,
    by: AnomalyScore,
    *,
    importance_samples: int = 100,
    seed: int | None = None,
    data_dir: Any = None,
    together: bool = False,
) -> Scores:
    """Score the data of a run for anomaly detection; see `anomaly_scores`.

    Args:
        run: the run. "ratio" opens its training data, and "typicality" its validation data.
        rows: of `run.rows(..., labelled=True)`.
        by: the score.
        importance_samples: codes drawn per datum, where there are too many for a sum.
        seed: of the draws; None for the run's.
        data_dir: the folder that the run's data lie in now, if that is another one.
        together: whether all processes of the process group call this with the same arguments. Each
            then computes its part of the data, and gets all scores.

    Raises:
        ValueError: the score needs data of the run that are not there, or another likelihood.
    """
    config, weight = run.config, next(run.vae.parameters())
    draws = config.seed if seed is None else seed
    options: dict[str, Any] = {"importance_samples": importance_samples, "seed": draws}
    if by in ("ratio", "typicality"):
        splits = run.data.moved_to(data_dir=data_dir).splits()
        if by == "ratio":
            options["train"] = training_data(splits, config.seed).to(weight)
        elif splits.validation is not None:
            batch = model_batch(config, splits, "validation", weight.device)
            options["validation"], options["validation_labels"] = batch
    scorer = anomaly_scorer(run.vae, by, **options)
    labels = model_labels(config, rows.labels, rows.name)

    def block(number: int) -> Tensor:
        some = slice(number * _BLOCK, (number + 1) * _BLOCK)
        its = None if labels is None else labels[some].to(weight.device)
        return scorer(rows.x[some].to(weight), its).cpu()

    parts = [*in_turn(block, -(-len(rows.x) // _BLOCK), together=together)]
    return Scores(torch.cat(parts), None, 0.0)


class ExplainedRow(NamedTuple):
    """What of one datum surprises, given all the rest of it."""

    place: int
    """Its place among the data, from 0."""
    x: Tensor
    """(*event_shape) as the likelihood takes it."""
    expected: Tensor
    """(*event_shape) what was expected of each element, given all others."""
    surprise: Tensor
    """(*event_shape) -log p(element | all others) in nats; NaN for a missing element."""

    def _repr_html_(self) -> str:
        """What it holds, as a table for a notebook."""
        return html_fields(self, "ExplainedRow: what of one datum surprises, in nats")


def explain_row(
    run: Run,
    rows: PreparedRows,
    row: int,
    *,
    importance_samples: int = 1000,
    seed: int | None = None,
) -> ExplainedRow:
    """Say how much each element of a datum surprises; see `explain`.

    Args:
        run: the run.
        rows: of `run.rows(..., labelled=True)`.
        row: the number of the row in the run's data; of other data its place, from 0.
        importance_samples: codes drawn, where there are too many for a sum.
        seed: of the draws; None for the run's.

    Raises:
        ValueError: there is no such row, or the elements of the likelihood depend on each other
            given z.
    """
    index = _place(run, rows, row)
    weight = next(run.vae.parameters())
    labels = model_labels(run.config, rows.labels, rows.name)
    its = None if labels is None else labels[index : index + 1].to(weight.device)
    x = rows.x[index : index + 1].to(weight)
    draws = run.config.seed if seed is None else seed
    told = explain(run.vae, x, its, importance_samples=importance_samples, seed=draws)
    return ExplainedRow(index, x[0].cpu(), told.expected[0].cpu(), told.values[0].cpu())


def _place(run: Run, rows: PreparedRows, row: int) -> int:
    """The place of a row among the data, from 0."""
    numbers = beside(run.data, rows).get("row")
    known = numbers.tolist() if isinstance(numbers, Tensor) else range(len(rows.x))
    if row not in known:
        few = ", ".join(map(str, known[:5]))
        raise DataError(f"Expected a row of {rows.name}, {few}, ...; got {row}. Name one of them.")
    return known.index(row)


def explained_table(run: Run, found: ExplainedRow) -> list[list[Any]]:
    """A row per element: its column, what was observed and expected, and the surprise in nats.

    The element that surprises most comes first. Missing elements are left out.

    Args:
        run: the run.
        found: what `explain_row` returned.
    """
    restore = preparation_of(run.config, run.event_shape).restore
    pair = torch.stack([found.x.double(), found.expected.double()])
    observed, expected = named_values(run.data, restore(pair).reshape(2, -1))
    names = _places(run)
    surprise = found.surprise.flatten()
    order = [i for i in surprise.argsort(descending=True).tolist() if not surprise[i].isnan()]
    return [[names[i], observed[i], expected[i], surprise[i].item()] for i in order]


def _places(run: Run) -> list[str]:
    """The names of the columns; of images the place of each pixel, as "y,x"."""
    shape = run.event_shape
    if len(shape) < 2:
        return column_names(run.data, shape)
    return [
        ",".join(map(str, place))
        for place in torch.cartesian_prod(*map(torch.arange, shape)).tolist()
    ]
