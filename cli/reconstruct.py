"""`pdvae reconstruct`: what a model makes of images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .errors import fail, user_errors
from .options import (
    Device,
    DeviceOption,
    ForceOption,
    KeyOption,
    LevelProbabilitiesOption,
    PosteriorOption,
    RefineOption,
    RunArgument,
    RunDataDirOption,
    RunDataOption,
    SeedOption,
    TrustOption,
)
from .pictures import own_settings
from .rows import (
    asked_posterior,
    by_posterior,
    check_probabilities,
    codes_of,
    failed_writes,
    file_for,
    only_images,
    open_run,
    weights_of,
)

if TYPE_CHECKING:
    from pyro_dvae import Run
    from pyro_dvae.evaluation import Inference
    from pyro_dvae.runs import PreparedRows

_MOST = 100


NumOption = Annotated[
    int | None,
    typer.Option(
        "--num",
        "-n",
        help=f"The number of images to draw, or of rows to write, from the first on. At most "
        f"{_MOST} images are drawn. If left out: 12 images, or all rows.",
        show_default=False,
    ),
]
OutputOption = Annotated[
    Path, typer.Option("--output", "-o", help="The .png file to write, or the .csv file of rows.")
]


def reconstruct(
    run: RunArgument = None,
    data: RunDataOption = "test",
    key: KeyOption = None,
    num: NumOption = None,
    output: OutputOption = Path("reconstructions.png"),
    data_dir: RunDataDirOption = None,
    seed: SeedOption = 0,
    probabilities: LevelProbabilitiesOption = False,
    posterior: PosteriorOption = None,
    refine: RefineOption = None,
    force: ForceOption = False,
    device: DeviceOption = Device.cpu,
    trust_code: TrustOption = False,
) -> None:
    """Draw images, or write rows of a table, and what the model makes of them.

    A picture shows the images, their zeros and ones if the model takes those, the means of p(x|z)
    at their codes, and draws from p(x|z). A .csv file has the columns of the table, and beside them
    what the model makes of each: means, and the most probable categories.

    Example: pdvae reconstruct runs/mnist-d4k8-snapshot-1 -n 12 -o images.png
    """
    is_picture = output.suffix.lower() == ".png"
    if num is not None and not 1 <= num <= (_MOST if is_picture else num):
        fail(f"Expected -n from 1 to {_MOST}; got {num}. Change it.")
    file_for(output, (".png", ".csv"), force)
    if probabilities:
        check_probabilities(output)
    with user_errors():
        loaded, _ = open_run(run, device, trust_code)
        if is_picture:
            only_images(loaded)
        inference = asked_posterior(loaded.config, posterior, refine, loaded.config.seed)
        is_labelled = inference.posterior != "encoder"
        rows = loaded.rows(data, data_dir=data_dir, key=key, labelled=is_labelled)
        number = min(len(rows.x), (12 if is_picture else len(rows.x)) if num is None else num)
    if is_picture:
        _draw(loaded, rows, number, seed, output, inference)
    else:
        _write(loaded, rows, number, probabilities, output, inference)
    what = f"images of {rows.name}, means and draws of p(x|z)"
    if not is_picture:
        what = f"rows of {rows.name}, means of p(x|z)"
    drawn = f", seed {seed}" if is_picture else ""
    codes = f"at their most probable codes{by_posterior(inference)}"
    print(f"{output}: {number} {what} {codes}; {weights_of(loaded)}{drawn}")


def _draw(
    run: Run, rows: PreparedRows, number: int, seed: int, output: Path, inference: Inference
) -> None:
    import torch

    from pyro_dvae.data import extent
    from pyro_dvae.runs import brightness, shade_of

    target = next(run.vae.parameters()).device
    with user_errors():
        x, codes = rows.x[:number], codes_of(run, rows, slice(number), inference)
        values = rows.stored.read(torch.arange(len(x)))
        shown = brightness(run, x, values, extent(rows.stored).high).to(target)
    with failed_writes(), own_settings():
        from pyro_dvae.runs.plots import reconstruction_figure, save_figure

        figure = reconstruction_figure(
            run.vae, shown, x.to(target), seed, shade_of(run), codes=codes
        )
        save_figure(figure, output)


def _write(
    run: Run,
    rows: PreparedRows,
    number: int,
    probabilities: bool,
    output: Path,
    inference: Inference,
) -> None:
    """Write each row as it is, and as the model makes it of its most probable code."""
    from pyro_dvae.runs import reconstructed_rows
    from pyro_dvae.runs.tables import write_csv

    with user_errors():
        header, cells = reconstructed_rows(
            run, rows, number, probabilities=probabilities, inference=inference
        )
        with failed_writes():
            write_csv(output, header, cells)
