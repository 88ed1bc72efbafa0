"""Runs in groups of the same settings, compared over their seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pyro_dvae.evaluation import Evaluation, GroupFigures, compare_groups
from pyro_dvae.runs.info import RunInfo

FigureName = Literal["elbo", "log_marginal", "importance_bound"]


@dataclass(frozen=True)
class RunGroup:
    """Runs of the same settings, and what their figures say over their seeds."""

    settings: dict[str, Any]
    """The settings that all runs of the group share, of those that the groups are told apart by."""
    runs: tuple[RunInfo, ...]
    figures: GroupFigures
    other: tuple[str, ...]
    """Further settings that differ within the group, but for the seed: the spread is theirs too."""


def group_runs(
    runs: Iterable[RunInfo],
    by: Sequence[str],
    *,
    part: str = "test",
    figure: FigureName = "elbo",
) -> list[RunGroup]:
    """Put runs into groups of the same settings, and compare the groups over their seeds.

    `group_runs(map(inspect_run, Path("runs").iterdir()), by=["learning_rate"])` has a group for
    each learning rate. `compare_groups` has the formulas.

    Args:
        runs: of `inspect_run` or `load_run`, on the same data.
        by: the names of settings of `Config` that the groups are told apart by; empty for one
            group.
        part: the part of the data, "train", "validation" or "test".
        figure: the figure that is compared, in nats per datum.

    Returns:
        The groups, the largest mean first. A run without that figure of its weights is in none.

    Raises:
        ValueError: a name is no setting, or is the seed.
    """
    groups: dict[tuple[Any, ...], list[tuple[RunInfo, float]]] = {}
    for run in runs:
        settings = vars(run.config)
        _check_names(by, settings)
        value = _value(run.evaluation.get(part), figure)
        if value is not None:
            groups.setdefault(tuple(settings[name] for name in by), []).append((run, value))
    seeds: list[dict[int, list[float]]] = []
    for rows in groups.values():
        seeds.append({})
        for run, value in rows:
            seeds[-1].setdefault(run.config.seed, []).append(value)
    compared = compare_groups(seeds) if seeds else []
    found = [
        RunGroup(
            dict(zip(by, key, strict=True)),
            members := tuple(run for run, _ in rows),
            figures,
            _other(members),
        )
        for (key, rows), figures in zip(groups.items(), compared, strict=True)
    ]
    return sorted(found, key=lambda group: -group.figures.mean)


def _value(scores: Evaluation | None, figure: FigureName) -> float | None:
    return None if scores is None else vars(scores)[figure]


def _check_names(by: Sequence[str], settings: dict[str, Any]) -> None:
    for name in by:
        if name == "seed":
            raise ValueError(
                "Expected settings other than the seed, over which the figures of a group vary; "
                "got seed. Leave it out."
            )
        if name not in settings:
            raise ValueError(
                f"Expected the names of settings; got {name!r}. Choose from {', '.join(settings)}."
            )


def _other(runs: Sequence[RunInfo]) -> tuple[str, ...]:
    first = vars(runs[0].config)
    return tuple(
        name
        for name in first
        if name != "seed" and any(vars(run.config)[name] != first[name] for run in runs)
    )
