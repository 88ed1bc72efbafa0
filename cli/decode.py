"""`pdvae decode`: the images of codes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .errors import fail, user_errors
from .options import (
    Device,
    DeviceOption,
    ForceOption,
    KeyOption,
    LevelProbabilitiesOption,
    MeansOption,
    SeedOption,
    TrustOption,
)
from .pictures import own_settings
from .rows import check_probabilities, failed_writes, file_for, only_images, open_run, weights_of

if TYPE_CHECKING:
    from torch import Tensor

    from pyro_dvae import Run
    from pyro_dvae.runs import NamedRows
    from pyro_dvae.runs.tables import CodeTable

_DRAWN = 100
"""The largest number of images in a .png file."""


def decode(
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="[RUN] CODES",
            help="The folder of the run, and a .csv, .npz or .npy file of codes, as pdvae encode "
            "writes them. If the folder is left out: the newest run below runs/.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="The .csv, .npz or .npy file to write, or the .png file of a grid.",
        ),
    ],
    key: KeyOption = None,
    means: MeansOption = True,
    probabilities: LevelProbabilitiesOption = False,
    seed: SeedOption = 0,
    force: ForceOption = False,
    device: DeviceOption = Device.cpu,
    trust_code: TrustOption = False,
) -> None:
    """Decode codes into images, or into rows.

    The order of the codes is kept, and so are the columns index, row, id and label beside them.

    Example: pdvae decode runs/mnist-d4k8-snapshot-1 codes.csv -o images.npz
    """
    if len(inputs) > 2:
        fail(f"Expected a run and a file of codes; got {len(inputs)} names. Leave out the rest.")
    if inputs[-1].is_dir():
        fail(f"Expected a file of codes; got the folder {inputs[-1]}. Name the file after the run.")
    file_for(output, (".csv", ".npz", ".npy", ".png"), force)
    if probabilities:
        check_probabilities(output, means)
    with user_errors():
        from pyro_dvae.runs import decoded_rows
        from pyro_dvae.runs.tables import read_codes

        loaded, _ = open_run(inputs[0] if len(inputs) == 2 else None, device, trust_code)
        config = loaded.config
        table = read_codes(inputs[-1], config.num_latents, config.num_categories, key)
        how: dict[str, Any] = {"means": means, "seed": seed, "probabilities": probabilities}
        rows = decoded_rows(loaded, table.codes, **how) if output.suffix.lower() == ".csv" else None
    title = f"{len(table.codes)} {'means of p(x|z)' if means else 'draws from p(x|z)'}"
    if output.suffix.lower() == ".png":
        only_images(loaded)
        if len(table.codes) > _DRAWN:
            title = f"the first {_DRAWN} of {title}"
        _draw(loaded, table.codes[:_DRAWN], means, seed, title, output)
    elif rows is not None:
        _write_csv(loaded, table, rows, output)
    else:
        _write(loaded, table, means, seed, output)
    drawn = "" if means else f", seed {seed}"
    print(f"{output}: {title}, codes of {inputs[-1]}; {weights_of(loaded)}{drawn}")


def _draw(run: Run, codes: Tensor, means: bool, seed: int, title: str, output: Path) -> None:
    import torch

    from pyro_dvae.runs import decode_blocks, shade_of

    blocks = decode_blocks(run.vae, codes, run.config.num_categories, means=means, seed=seed)
    images, shade = torch.cat(list(blocks)), shade_of(run)
    with failed_writes(), own_settings():
        from pyro_dvae.runs.plots import image_grid, save_figure

        columns = max(1, round(len(codes) ** 0.5))
        save_figure(image_grid(images if shade is None else shade(images), columns, title), output)


def _write(run: Run, table: CodeTable, means: bool, seed: int, output: Path) -> None:
    """Write an array of data, and beside it what the codes say of each."""
    import torch

    from pyro_dvae.runs import decode_blocks, is_nominal, number_labels
    from pyro_dvae.runs.tables import write_rows

    codes, labels, index, about = table
    if isinstance(labels, tuple):
        labels = number_labels(run.data, labels)
    if index is not None and torch.equal(index, torch.arange(len(codes))):
        index = None  # it says nothing new
    number, typical = run.config.num_categories, is_nominal(run)
    blocks = decode_blocks(run.vae, codes, number, means=means, seed=seed, typical=typical)
    with failed_writes():
        write_rows(output, "images", blocks, len(codes), labels=labels, index=index, others=about)


def _write_csv(run: Run, table: CodeTable, rows: NamedRows, output: Path) -> None:
    """Write the rows of a table, in the order of the codes, with the names of its columns."""
    from pyro_dvae.runs import label_column, name_numbered
    from pyro_dvae.runs.tables import write_csv

    labels = table.labels
    known: dict[str, Any] = {"index": table.rows, **table.about}
    known[label_column(run.data)] = labels if labels is None else name_numbered(run.data, labels)
    beside = {name: list(values) for name, values in known.items() if values is not None}
    lists = zip(rows.cells, *beside.values(), strict=True)
    lines = ([*map(_plain, before), *row] for row, *before in lists)
    with failed_writes():
        write_csv(output, [*beside, *rows.header], lines)


def _plain(value: Tensor | str) -> int | str:
    return value if isinstance(value, str) else int(value)
