"""`pdvae compare`: several runs in one table."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from .errors import fail, user_errors
from .figures import datum_name, progress_of, setting, stored_figures, values
from .groups import group_content, group_lines, setting_names
from .options import JsonOption, PartName, PartOption
from .tables import aligned, figure

if TYPE_CHECKING:
    from pyro_dvae import Config, EpochRecord, Evaluation
    from pyro_dvae.runs import RunInfo

_HEADINGS = {
    "num_latents": "D",
    "num_categories": "K",
    "num_particles": "particles",
    "learning_rate": "lr",
}
"""Setting with a long name -> heading of its column."""


class Row(NamedTuple):
    """One run, and what the table shows of it."""

    run: RunInfo
    settings: dict[str, Any]
    """Everything that decided the run: its settings, its data, and the version of the library."""
    measured: dict[str, Any]
    """What must be the same in all runs, so that their figures can be compared."""
    epochs: list[EpochRecord]
    scores: Evaluation | None
    notes: list[str]

    @property
    def config(self) -> Config:
        """The run's settings."""
        return self.run.config

    @property
    def datum(self) -> str:
        """What to call a datum."""
        return datum_name(self.run.event_shape)

    @property
    def seconds(self) -> float:
        """How long the training steps took."""
        return self.epochs[-1].seconds if self.epochs else 0.0


def compare(
    runs: Annotated[
        list[Path], typer.Argument(help="The folders of the runs.", show_default=False)
    ],
    split: PartOption = PartName.test,
    as_json: JsonOption = False,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="SETTINGS",
            help="Compare groups of runs over their seeds: the runs with the same values of these "
            "options of fit, with commas between, are one group. The table has the mean of the "
            "ELBO, its standard deviation, and the difference to the best group, seed by seed.",
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Show the runs even if they cannot be compared, and mark those."
        ),
    ] = False,
) -> None:
    """Compare runs in one table, best ELBO first.

    The figures are those that pdvae fit and pdvae evaluate have stored in the run folders.

    Example: pdvae compare runs/* --split test
    """
    part = split.value
    names = None if by is None else setting_names(by)
    with user_errors():
        rows = [_read(folder, part) for folder in runs]
    differences = _differences(rows)
    if differences and not force:
        fail(
            f"Expected runs that can be compared; got {'; '.join(differences)}. Leave some out, "
            "or pass --force."
        )
    if names is not None:
        _print_groups(rows, names, part, as_json)
        return
    rows.sort(key=lambda row: math.inf if row.scores is None else -row.scores.elbo)
    for row in rows:
        other = [
            name for name, value in row.measured.items() if value != rows[0].measured.get(name)
        ]
        if other:
            row.notes.insert(0, f"NOT COMPARABLE with the first: other {', '.join(other)}")
    remarks = _remarks(rows, part)
    if as_json:
        content = [_content(row) for row in rows]
        facts = {"part": part, "comparable": not differences, "remarks": remarks}
        print(json.dumps({**facts, "runs": content}))
    else:
        print(f"{part} part, nats per {rows[0].datum}, best ELBO first; gap: log p(x) - ELBO")
        print(_table(rows))
        for remark in remarks:
            print(remark)


def _print_groups(rows: list[Row], by: list[str], part: str, as_json: bool) -> None:
    from pyro_dvae.runs import group_runs

    runs = [row.run for row in rows]
    with user_errors():
        groups = group_runs(runs, by, part=part)
    if not groups:
        fail(f"Expected runs with {part} figures of their weights; got none. {rows[0].notes[-1]}.")
    if as_json:
        print(json.dumps({"part": part, "by": by, "groups": group_content(groups)}))
        return
    print(f"{part} ELBO, nats per {rows[0].datum}, best mean first")
    for line in group_lines(groups, runs, part):
        print(line)


def _read(folder: Path, part: str) -> Row:
    from pyro_dvae.runs import inspect_run

    run = inspect_run(folder)
    epochs, data = run.metrics, run.data
    scores, todo = stored_figures(run, part)
    notes = [] if run.status == "complete" else [progress_of(run.config, epochs)]
    notes += [todo] if todo else []
    which = f"{data.name} ({data.fingerprint or 'fingerprint unknown'})"
    numbers = {"train": data.num_train, "validation": data.num_validation, "test": data.num_test}
    measured: dict[str, Any] = {
        "data": which,
        "values": _values(run.config),
        "number of images": numbers[part],
    }
    measured |= {f"{part} data": data.held_out[part]} if part in data.held_out else {}
    kept = {"validation": run.config.validation, "test": run.config.test}
    if part != "test" or run.config.test is not None:  # whose rows the split chose
        measured |= {f"{name} fraction": value for name, value in kept.items()}
        measured["split"] = run.config.split
        measured["seed of the split"] = run.config.split_seed
        measured["number of copies kept together"] = (data.split and data.split.num_copies) or 0
    settings = {**asdict(run.config), "data": which, "version": run.version}
    return Row(run, settings, measured, epochs, scores, notes)


def _values(config: Config) -> str:
    """What kind of values x has. Likelihoods of the same kind can be compared."""
    from pyro_dvae.data import kind_of, levels_of
    from pyro_dvae.runs import own_code

    is_own = config.likelihood in own_code(config)  # its kind is not known without its code
    kind = "columns" if is_own else kind_of(config.likelihood)
    if kind == "columns":
        return config.likelihood
    if kind == "levels":
        kind = f"{levels_of(config.likelihood)} levels"
    given = ", given labels" if config.num_classes else ""
    return (values(config) if kind == "bits" else f"{kind}, range {setting(config.range)}") + given


def _differences(rows: list[Row]) -> list[str]:
    differences = []
    for name in dict.fromkeys(name for row in rows for name in row.measured):
        folders: dict[Any, list[str]] = {}
        for row in rows:
            folders.setdefault(row.measured.get(name), []).append(str(row.run.folder))
        if len(folders) > 1:
            groups = (f"{value} in {', '.join(where)}" for value, where in folders.items())
            differences.append(f"{name} {' and '.join(groups)}")
    return differences


def _remarks(rows: list[Row], part: str) -> list[str]:
    remarks = []
    if any(row.scores is not None and row.scores.standard_errors for row in rows):
        remarks.append(f"±: one standard error, over the draws of z for these {rows[0].datum}s")
    if _saved(rows):
        remarks.append(f"bits saved: per {rows[0].datum}, against independent elements")
    configs = [row.config for row in rows]
    drawn = {config.split_seed for config in configs if config.binarize in ("dynamic", "static")}
    if part == "test" and len(drawn) > 1:
        remarks.append(
            "Runs of another --split-seed score another binary draw of the same images: small "
            "differences may be that noise."
        )
    return remarks


def _table(rows: list[Row]) -> str:
    known = [row.scores.importance_samples for row in rows if row.scores is not None]
    bounds = sorted({k for k in known if k is not None})

    def cells(name: str, k: int | None = None) -> list[str]:
        return [
            "-"
            if row.scores is None
            or getattr(row.scores, name) is None
            or k not in (None, row.scores.importance_samples)
            else figure(row.scores, name)
            for row in rows
        ]

    columns = {
        "run": [str(row.run.folder) for row in rows],
        "ELBO": cells("elbo"),
        "log p(x)": cells("log_marginal"),
        **{f"bound({k})": cells("importance_bound", k) for k in bounds},
        "gap": cells("posterior_gap"),
        "D log K": [f"{_log_codes(row):.2f}" for row in rows],
        "active": [
            "-" if row.scores is None else f"{row.scores.active_latents}/{row.config.num_latents}"
            for row in rows
        ],
        **_saved(rows),
        "epochs": [str(len(row.epochs)) for row in rows],
        "seconds": [f"{row.seconds:.0f}" for row in rows],
    }
    for name in _differing(rows):
        columns[_HEADINGS.get(name, name)] = [setting(row.settings[name]) for row in rows]
    sides = "<" + ">" * (len(columns) - 1)
    if any(row.notes for row in rows):
        columns["notes"] = ["; ".join(row.notes) for row in rows]
        sides += "<"
    return aligned([list(columns), *zip(*columns.values(), strict=True)], sides)


def _saved(rows: list[Row]) -> dict[str, list[str]]:
    """The column of the bits that a model saves against independent elements, if any is known."""
    bits = [None if row.scores is None else row.scores.bits_saved for row in rows]
    if all(saved is None for saved in bits):
        return {}
    return {
        "bits saved": ["-" if saved is None else f"{round(saved, 2) + 0.0:.2f}" for saved in bits]
    }


def _content(row: Row) -> dict[str, Any]:
    return {
        "run": str(row.run.folder),
        "epoch": row.run.epoch,
        "status": progress_of(row.config, row.epochs),
        "epochs": len(row.epochs),
        "seconds": row.seconds,
        "d_log_k": _log_codes(row),
        "settings": row.settings,
        "figures": None if row.scores is None else asdict(row.scores),
        "bits_saved": None if row.scores is None else row.scores.bits_saved,
        "notes": row.notes,
    }


def _differing(rows: list[Row]) -> list[str]:
    """The settings that are not the same in all runs, but epochs, which has a column of its own."""
    first = rows[0].settings
    return [
        name
        for name in first
        if name != "epochs" and any(row.settings[name] != first[name] for row in rows)
    ]


def _log_codes(row: Row) -> float:
    return row.config.num_latents * math.log(row.config.num_categories)
