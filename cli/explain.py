"""What of one datum surprises: `pdvae score --explain`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .figures import datum_name
from .pictures import draw
from .rows import failed_writes, weights_of
from .tables import aligned

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pyro_dvae import Run
    from pyro_dvae.runs import ExplainedRow, PreparedRows

_HEADER = ["element", "observed", "expected", "surprise"]


def explained(
    run: Run,
    rows: PreparedRows,
    row: int,
    output: Path | None,
    top: int,
    seed: int,
    as_json: bool,
) -> None:
    """Print the columns or pixels of a datum that surprise most; write all of them, or a map.

    Args:
        run: the run.
        rows: the data.
        row: the number of the datum.
        output: a .csv or .png file; None for none.
        top: how many are printed.
        seed: of the draws of codes, where they are too many for a sum.
        as_json: whether to print for programs.
    """
    from pyro_dvae.runs import explain_row, explained_table

    is_image = datum_name(run.event_shape) == "image"
    if output is not None and output.suffix.lower() == ".png" and not is_image:
        from .errors import fail

        fail(f"Expected a .csv file for a row of a table; got {output}. Change its suffix.")
    found = explain_row(run, rows, row, seed=seed)
    table = explained_table(run, found)
    if output is not None:
        _write(run, found, table, output)
    shown = [dict(zip(_HEADER, line, strict=True)) for line in table[:top]]
    total = float(found.surprise.nansum())
    if as_json:
        print(json.dumps({"row": row, "sum": total, "data": rows.name, "elements": shown}))
        return
    where = "" if output is None else f"{output}: "
    print(
        f"{where}row {row} of {rows.name}, -log p(element | all others), in nats; their sum is "
        f"{total:.2f}; {weights_of(run)}"
    )
    texts = [[str(cell), _text(seen), _text(told), f"{s:.2f}"] for cell, seen, told, s in table]
    head = ["pixel" if is_image else "column", "observed", "expected", "surprise"]
    print(aligned([head, *texts[:top]], "<>>>"))


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _write(run: Run, found: ExplainedRow, table: list[list[Any]], output: Path) -> None:
    if output.suffix.lower() == ".csv":
        from pyro_dvae.runs.tables import write_csv

        with failed_writes():
            write_csv(output, _HEADER, table)
        return

    def figure() -> Figure:
        from pyro_dvae.runs import shade_of
        from pyro_dvae.runs.plots import surprise_figure

        return surprise_figure(found.x, found.expected, found.surprise, shade_of(run))

    draw(output, figure)
