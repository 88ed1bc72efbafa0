"""`pdvae impute`: fill missing values in."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .errors import fail, user_errors
from .figures import datum_name
from .options import (
    CodeDrawsOption,
    Device,
    DeviceOption,
    ForceOption,
    KeyOption,
    RunArgument,
    RunDataDirOption,
    RunDataOption,
    SeedOption,
    TrustOption,
)
from .rows import failed_writes, file_for, open_run, weights_of

if TYPE_CHECKING:
    from pyro_dvae import Run

OutputOption = Annotated[
    Path, typer.Option("--output", "-o", help="The .csv or .npy file to write, without gaps.")
]
MeansOption = Annotated[
    bool,
    typer.Option(
        "--means/--draws",
        help="Fill in means, and the most probable category of names; or draws from p(x|z).",
    ),
]


def impute(
    output: OutputOption,
    run: RunArgument = None,
    data: RunDataOption = "test",
    means: MeansOption = True,
    iw_samples: CodeDrawsOption = 1000,
    data_dir: RunDataDirOption = None,
    key: KeyOption = None,
    seed: SeedOption = 0,
    force: ForceOption = False,
    device: DeviceOption = Device.auto,
    trust_code: TrustOption = False,
) -> None:
    """Fill the missing values of data in.

    Each is replaced by what the model says of it, given the values of its row that are there. These
    stay as they are. The model may have been trained on complete data.

    Example: pdvae impute runs/birds --data birds.csv -o filled.csv
    """
    file_for(output, (".csv", ".npy"), force)
    with user_errors():
        from pyro_dvae.runs import fill_blocks, filled_table, num_missing
        from pyro_dvae.runs.tables import write_csv, write_rows

        loaded, _ = open_run(run, device, trust_code)
        rows = loaded.rows(data, data_dir=data_dir, key=key, labelled=True, gaps=True)
        num = num_missing(rows)
        if not num:
            fail(f"Expected missing values in {rows.name}; got none. There is nothing to fill in.")
        blocks = fill_blocks(
            loaded, rows, draws=not means, importance_samples=iw_samples, seed=seed
        )
        with failed_writes():
            if output.suffix.lower() == ".csv":
                table = filled_table(loaded, rows, blocks)
                write_csv(output, next(table), table)
            else:
                values = (block.values for block in blocks)
                write_rows(output, "data", values, len(rows.stored))
    total = len(rows.stored) * math.prod(loaded.event_shape)
    what = "means and most probable categories" if means else f"draws (seed {seed})"
    print(
        f"{output}: {num:,} of {total:,} values of {len(rows.stored):,} "
        f"{datum_name(loaded.event_shape)}s of {rows.name} filled in, by {what}; "
        f"{how(loaded, iw_samples)}; {weights_of(loaded)}"
    )


def how(run: Run, iw_samples: int) -> str:
    """Whether all codes are summed over, or how many are drawn."""
    from pyro_dvae.evaluation import sums_over_codes

    code = (run.config.num_latents, run.config.num_categories)
    if sums_over_codes(run.vae, code, run.event_shape):
        return f"exact, over all {code[1]}^{code[0]} codes"
    return f"over {iw_samples} weighted codes per datum"
