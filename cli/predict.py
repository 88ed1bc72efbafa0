"""`pdvae predict`: one column of a table, given the others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .errors import user_errors
from .impute import how
from .options import (
    CodeDrawsOption,
    Device,
    DeviceOption,
    ForceOption,
    JsonOption,
    KeyOption,
    RunArgument,
    RunDataDirOption,
    RunDataOption,
    SeedOption,
    TrustOption,
)
from .rows import failed_writes, file_for, open_run, weights_of

if TYPE_CHECKING:
    from pyro_dvae import Prediction, Run
    from pyro_dvae.runs import PreparedRows

ColumnOption = Annotated[
    str, typer.Option(help="The column to predict, by name or by number from 0.")
]
OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="A .csv file to write, with the prediction of each row."),
]


def predict(
    column: ColumnOption,
    run: RunArgument = None,
    data: RunDataOption = "test",
    iw_samples: CodeDrawsOption = 1000,
    output: OutputOption = None,
    data_dir: RunDataDirOption = None,
    key: KeyOption = None,
    seed: SeedOption = 0,
    force: ForceOption = False,
    as_json: JsonOption = False,
    device: DeviceOption = Device.auto,
    trust_code: TrustOption = False,
) -> None:
    """Predict one column of a table from the others, by p(column | rest).

    The log score is the mean of log p(column | rest). It is compared with that of p(column), for
    which nothing of the row is known. The column may be missing in the data.

    Example: pdvae predict runs/birds --column species
    """
    if output is not None:
        file_for(output, (".csv",), force)
    with user_errors():
        from pyro_dvae.runs import column_number, predict_rows

        loaded, _ = open_run(run, device, trust_code)
        number = column_number(loaded, column)
        rows = loaded.rows(data, data_dir=data_dir, key=key, labelled=True, gaps=True)
        given, alone = predict_rows(loaded, rows, number, importance_samples=iw_samples, seed=seed)
    if output is not None:
        with failed_writes():
            from pyro_dvae.runs.tables import write_csv

            header, *cells = _table(loaded, rows, number, given)
            write_csv(output, header, cells)
    if as_json:
        print(json.dumps(_content(loaded, rows, number, given, alone)))
        return
    known = int((~given.values.isnan()).sum())
    print(
        f"{'' if output is None else f'{output}: '}{_name(loaded, number)} of {len(given.values)} "
        f"rows of {rows.name}, given the other columns: {_scores(given, known)}; without them: "
        f"{_scores(alone, known)}; {how(loaded, iw_samples)}; {weights_of(loaded)}"
    )


def _scores(found: Prediction, known: int) -> str:
    if not known:
        return "no value to compare with"
    error = f"root mean square error {found.error:.4g}"
    accuracy = error if found.accuracy is None else f"accuracy {found.accuracy:.4f}"
    return f"{accuracy}, log score {found.log_score:.4f} nats/row"


def _name(run: Run, column: int) -> str:
    from pyro_dvae.runs import column_names

    return column_names(run.data, run.event_shape)[column]


def _levels(run: Run, column: int, num: int) -> list[str]:
    """The names of the levels of a column; their numbers where they have no names."""
    return list(run.data.levels.get(_name(run, column), map(str, range(num))))


def _table(run: Run, rows: PreparedRows, column: int, found: Prediction) -> Iterator[list[Any]]:
    """The header, and the rows: which row, what it holds, what is predicted, with which p."""
    from pyro_dvae.runs import beside

    about, p = beside(run.data, rows), found.probabilities
    levels = [] if p is None else _levels(run, column, p.shape[1])
    predicted = ["mean"] if p is None else [f"p({level})" for level in levels]
    yield [*about, "value", "predicted", "log_p", *predicted]
    for i in range(len(found.values)):
        left = [part[i] for part in about.values()]
        values = [found.values[i].item(), found.best[i].item(), found.log_prob[i].item()]
        cells: list[Any] = ["" if value != value else value for value in values]
        if levels:
            cells[:2] = ["" if cell == "" else levels[int(cell)] for cell in cells[:2]]
        numbers = [found.mean[i].item()] if p is None else p[i].tolist()
        yield [*(x if isinstance(x, str) else x.item() for x in left), *cells, *numbers]


def _content(
    run: Run, rows: PreparedRows, column: int, given: Prediction, alone: Prediction
) -> dict[str, Any]:
    def figures(found: Prediction) -> dict[str, float | None]:
        known = bool((~found.values.isnan()).any())
        values = {
            "accuracy": found.accuracy,
            "error": None if found.probabilities is not None else found.error,
            "log_score": found.log_score,
        }
        return values if known else dict.fromkeys(values)

    return {
        "run": str(run.folder),
        "epoch": run.epoch,
        "version": run.version,
        "data": rows.name,
        "column": _name(run, column),
        "num_data": len(given.values),
        "num_known": int((~given.values.isnan()).sum()),
        "given_the_others": figures(given),
        "given_nothing": figures(alone),
    }
