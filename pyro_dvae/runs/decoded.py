"""Decoded rows with the names of their columns: values, or the probabilities of levels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_dvae.codes import ROWS, one_hot
from pyro_dvae.data import DataError
from pyro_dvae.evaluation import Inference
from pyro_dvae.evaluation.imputation import MOST_LEVELS, level_numbers, probabilities
from pyro_dvae.likelihoods.masked import unmasked
from pyro_dvae.runs.blocks import decode_blocks, is_nominal, sample_blocks
from pyro_dvae.runs.named import (
    beside,
    column_names,
    label_column,
    named_labels,
    named_values,
)
from pyro_dvae.runs.rows import PreparedRows
from pyro_dvae.runs.run import Run
from pyro_dvae.runs.scores import encode_blocks, posterior_labels


class LevelColumn(NamedTuple):
    """A column to write: the mean of a column of numbers, or the probability of a level."""

    column: int
    """The number of the column of the run's data."""
    name: str
    """Its name."""
    level: int | None
    """The number of the level; None for a column of numbers."""
    level_name: str
    """The name of the level, or its number; empty for a column of numbers."""

    def title(self, suffix: str = "") -> str:
        """Such as "island=Biscoe".

        Args:
            suffix: what the name of the column is followed by.
        """
        name = f"{self.name}{suffix}"
        return name if self.level is None else f"{name}={self.level_name}"


def level_columns(run: Run) -> list[LevelColumn]:
    """The columns that `decode_probabilities` gives, in the order of the run's columns.

    Args:
        run: the run of a table.

    Raises:
        ValueError: no column has levels: names, bits, or at most 64 levels.
    """
    numbers = [0]
    if len(run.event_shape) == 1:
        numbers = level_numbers(run.vae.likelihood, run.event_shape).tolist()
    if not any(0 < number <= MOST_LEVELS for number in numbers):
        raise DataError(
            f"Expected a run of a table with columns of categories or bits, for probabilities; got "
            f"{run.folder} with none. Leave probabilities=True out."
        )
    found = []
    for i, (name, number) in enumerate(
        zip(column_names(run.data, run.event_shape), numbers, strict=True)
    ):
        if not 0 < number <= MOST_LEVELS:
            found.append(LevelColumn(i, name, None, ""))
            continue
        levels = run.data.levels.get(name) or tuple(map(str, range(number)))
        found += [LevelColumn(i, name, level, levels[level]) for level in range(len(levels))]
    return found


def decode_probabilities(run: Run, codes: Tensor) -> Iterator[Tensor]:
    """E[x_p|z] of each column of numbers and p(x_p = l|z) of each level l, block by block.

    Args:
        run: the run of a table.
        codes: (N, D) categories 0 to K - 1, int64.

    Yields:
        (B, C) on the CPU, one column per item of `level_columns`.
    """
    made, weight = _probabilities_of(run), next(run.vae.parameters())
    for index in codes.split(ROWS):
        with torch.no_grad():
            z = one_hot(index.to(weight.device), run.config.num_categories, dtype=weight.dtype)
            yield made(z).cpu()


def _probabilities_of(run: Run) -> Callable[[Tensor], Tensor]:
    """A function of codes, (B, D, K) one-hot, that gives the cells of `level_columns`, (B, C)."""
    columns = level_columns(run)
    weight = next(run.vae.parameters())
    of_levels = torch.zeros(run.event_shape, dtype=torch.bool, device=weight.device)
    of_levels[[each.column for each in columns if each.level is not None]] = True
    numbers = level_numbers(run.vae.likelihood, run.event_shape).to(weight.device)
    most = max(each.level + 1 for each in columns if each.level is not None)
    missing = weight.new_full((1, *run.event_shape), torch.nan)
    filled = unmasked(run.vae.likelihood).filled(missing)

    def made(z: Tensor) -> Tensor:
        p_x = run.vae.decode(z)
        tables = [p_x.mean]
        for level in range(most):
            value = torch.where(of_levels & (numbers > level), level, filled)
            tables.append(probabilities(p_x, value))
        cells = [tables[0 if c.level is None else c.level + 1][:, c.column] for c in columns]
        return torch.stack(cells, 1)

    return made


class NamedRows(NamedTuple):
    """N rows as people know them."""

    header: list[str]
    """The names of the columns."""
    cells: Iterator[list[float | str]]
    """The N rows: numbers, and the names of levels."""


def decoded_rows(
    run: Run,
    codes: Tensor,
    *,
    means: bool = True,
    seed: int = 0,
    probabilities: bool = False,
    suffix: str = "",
) -> NamedRows:
    """What a run makes of codes: means of p(x|z) and the most probable levels, or draws.

    Args:
        run: the run.
        codes: (N, D) categories 0 to K - 1, int64.
        means: means; else draws.
        seed: of the draws.
        probabilities: the probability of each level in place of the most probable one.
        suffix: what the names of the columns are followed by.

    Raises:
        ValueError: probabilities are asked for, and no column has levels.
    """
    if probabilities:
        header = [column.title(suffix) for column in level_columns(run)]
        tables = decode_probabilities(run, codes)
        return NamedRows(header, (row for block in tables for row in block.tolist()))
    header = [f"{name}{suffix}" for name in column_names(run.data, run.event_shape)]
    number, typical = run.config.num_categories, is_nominal(run)
    blocks = decode_blocks(run.vae, codes, number, means=means, seed=seed, typical=typical)
    return NamedRows(header, (row for block in blocks for row in named_values(run.data, block)))


def sampled_rows(
    run: Run,
    num: int,
    *,
    means: bool = True,
    label: int | None = None,
    seed: int = 0,
    probabilities: bool = False,
) -> NamedRows:
    """Rows of codes that are drawn from the prior, with the name of the class where there is one.

    Args:
        run: the run.
        num: the number of rows.
        means: means of p(x|z) and the most probable levels; else draws.
        label: the one class, of a prior that is conditional; None for all classes.
        seed: of the draws.
        probabilities: the probability of each level in place of the most probable one.

    Raises:
        ValueError: probabilities are asked for, and no column has levels.
    """
    made = _probabilities_of(run) if probabilities else None
    names = column_names(run.data, run.event_shape)
    header = [column.title() for column in level_columns(run)] if probabilities else names
    before = [label_column(run.data)] if run.config.num_classes else []

    def cells() -> Iterator[list[float | str]]:
        blocks = sample_blocks(run, num, means=means, label=label, seed=seed, made=made)
        for x, labels in blocks:
            rows = x.tolist() if probabilities else named_values(run.data, x)
            known = [] if labels is None else named_labels(run.data, labels)
            classes = known.tolist() if isinstance(known, Tensor) else known
            for i, row in enumerate(rows):
                yield [*classes[i : i + 1], *row]

    return NamedRows([*before, *header], cells())


def reconstructed_rows(
    run: Run,
    rows: PreparedRows,
    number: int | None = None,
    *,
    probabilities: bool = False,
    inference: Inference | None = None,
) -> NamedRows:
    """Rows of a table, and beside each what the run makes of its most probable code.

    Args:
        run: the run.
        rows: the rows.
        number: how many of them, from the first on; None for all.
        probabilities: as for `decoded_rows`.
        inference: how q(z|x), whose most probable code is taken, is found; None for the guide's.

    Raises:
        ValueError: probabilities are asked for, and no column has levels.
    """
    inference = Inference() if inference is None else inference
    labels = posterior_labels(run.vae, run.config, rows, inference)
    number = len(rows.x) if number is None else number
    known = {name: list(values)[:number] for name, values in beside(run.data, rows).items()}
    options: dict[str, Any] = {"probabilities": probabilities, "suffix": "_reconstructed"}
    made = decoded_rows(run, torch.zeros(0, run.config.num_latents, dtype=torch.int64), **options)
    names = column_names(run.data, run.event_shape)

    def cells() -> Iterator[list[float | str]]:
        start = 0
        for codes in encode_blocks(run.vae, rows.x, labels, inference=inference):
            stop = min(start + len(codes), number)
            its_own = named_values(run.data, _as_stored(rows, start, stop))
            again = decoded_rows(run, codes[: stop - start], **options).cells
            for i, (row, other) in enumerate(zip(its_own, again, strict=True), start):
                about = (values[i] for values in known.values())
                plain = (x if isinstance(x, str) else int(x) for x in about)
                yield [i, *plain, *row, *other]
            if stop == number:
                return
            start = stop

    return NamedRows(["index", *known, *names, *made.header], cells())


def _as_stored(rows: PreparedRows, start: int, stop: int) -> Tensor:
    """Some rows as they are stored, with all of their digits, if the model takes them so."""
    x = rows.x[start:stop].cpu()
    stored = rows.stored.read(torch.arange(start, stop, device="cpu"))
    same = stored.to(x.dtype)
    return stored.double() if torch.equal(same.nan_to_num(), x.nan_to_num()) else x
