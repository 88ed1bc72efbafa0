"""`pdvae sample`: draw from a trained model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .errors import fail, user_errors
from .options import (
    Device,
    DeviceOption,
    ForceOption,
    LevelProbabilitiesOption,
    MeansOption,
    RunArgument,
    SeedOption,
    TrustOption,
)
from .pictures import own_settings
from .rows import check_probabilities, failed_writes, file_for, only_images, open_run

if TYPE_CHECKING:
    from pyro_dvae import Run

_LOWER = "-n, or write rows with -o samples.csv"
_MOST = 100_000
"""The most data that one command draws."""
_FIGURE_POINTS = 2**24
"""The most points of a picture that matplotlib draws, which takes 36 bytes for each."""


NumOption = Annotated[
    int, typer.Option("--num", "-n", help="The number of images or rows to draw.")
]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="The .png file, or the .csv file of rows, to write. If left out: grid.png.",
    ),
]
LabelOption = Annotated[
    str | None,
    typer.Option(
        help="The label of the class to draw from. It needs a run of --prior conditional. If "
        "left out: labels are drawn too."
    ),
]


def sample(
    run: RunArgument = None,
    num: NumOption = 64,
    output: OutputOption = None,
    label: LabelOption = None,
    means: MeansOption = True,
    probabilities: LevelProbabilitiesOption = False,
    seed: SeedOption = 0,
    force: ForceOption = False,
    device: DeviceOption = Device.cpu,
    trust_code: TrustOption = False,
) -> None:
    """Draw images or rows from a trained model.

    Codes are drawn from the prior, and the decoder turns them into data.

    Example: pdvae sample runs/mnist-d4k8-snapshot-1 -n 64 -o grid.png
    """
    if not 1 <= num <= _MOST:
        fail(f"Expected at least 1 image, and at most {_MOST}; got {num}. Change -n.")
    output = Path("grid.png") if output is None else output
    file_for(output, (".png", ".csv"), force)
    if probabilities:
        check_probabilities(output, means)
    with user_errors():
        from pyro_dvae.runs import sampled_rows
        from pyro_dvae.runs.tables import write_csv

        loaded, _ = open_run(run, device, trust_code)
        wanted = None if label is None else loaded.class_number(label)
        is_picture = output.suffix.lower() == ".png"
        if is_picture:
            _check_picture(loaded, num)
        how: dict[str, Any] = {"means": means, "label": wanted, "seed": seed}
        rows = None if is_picture else sampled_rows(loaded, num, probabilities=probabilities, **how)
    with failed_writes():
        if rows is None:
            _draw(loaded, num, output, **how)
        else:
            write_csv(output, *rows)
    shown = "means of p(x|z)" if means else "draws from p(x|z)"
    of = "" if label is None else f" of label {label}"
    print(f"{output}: {num} {shown}{of} of {loaded.folder}, seed {seed}")


def _check_picture(run: Run, num: int) -> None:
    from pyro_dvae.runs import refuse_bytes

    only_images(run)
    refuse_bytes(f"a picture of {num} images", 16 * num * math.prod(run.event_shape), _LOWER)


def _draw(run: Run, num: int, output: Path, **how: Any) -> None:
    from pyro_dvae.runs import sample_grid

    grid = sample_grid(run, num, **how)
    with own_settings():
        from pyro_dvae.runs.plots import image_grid, save_figure, save_mosaic

        if _points(num, run.event_shape) <= _FIGURE_POINTS:
            save_figure(image_grid(*grid), output)
        else:
            save_mosaic(grid.images, grid.num_columns, output)


def _points(num: int, event_shape: tuple[int, ...]) -> float:
    """How many points the figure has that `image_grid` makes, at 150 points per inch."""
    side = num**0.5 * 0.55 * 150
    return side * side * event_shape[-2] / event_shape[-1]
