"""`pdvae decode`: the images of codes."""

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
    MeansOption,
    SeedOption,
    TrustOption,
)
from .pictures import own_settings
from .rows import failed_writes, file_for, only_images, open_run, weights_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from pyro_dvae import Run
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
    seed: SeedOption = 0,
    force: ForceOption = False,
    device: DeviceOption = Device.cpu,
    trust_code: TrustOption = False,
) -> None:
    """Decode codes into images, or into rows.

    The order and the labels of the codes are kept.

    Example: pdvae decode runs/mnist-d4k8-rloo-1 codes.csv -o images.npz
    """
    if len(inputs) > 2:
        fail(f"Expected a run and a file of codes; got {len(inputs)} names. Leave out the rest.")
    if inputs[-1].is_dir():
        fail(f"Expected a file of codes; got the folder {inputs[-1]}. Name the file after the run.")
    file_for(output, (".csv", ".npz", ".npy", ".png"), force)
    with user_errors():
        from pyro_dvae.runs.tables import read_codes

        loaded, _ = open_run(inputs[0] if len(inputs) == 2 else None, device, trust_code)
        config = loaded.config
        table = read_codes(inputs[-1], config.num_latents, config.num_categories, key)
    title = f"{len(table.codes)} {'means of p(x|z)' if means else 'draws from p(x|z)'}"
    if output.suffix.lower() == ".png":
        only_images(loaded)
        if len(table.codes) > _DRAWN:
            title = f"the first {_DRAWN} of {title}"
        _draw(loaded, table.codes[:_DRAWN], means, seed, title, output)
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
    import torch

    from pyro_dvae.runs import decode_blocks, is_nominal, number_labels
    from pyro_dvae.runs.tables import write_rows

    codes, labels, index = table
    if isinstance(labels, tuple):
        labels = number_labels(run.data, labels)
    number, typical = run.config.num_categories, is_nominal(run)
    blocks = decode_blocks(run.vae, codes, number, means=means, seed=seed, typical=typical)
    with failed_writes():
        if output.suffix.lower() == ".csv":
            _write_csv(run, blocks, index, table.labels, output)
            return
        if index is not None and torch.equal(index, torch.arange(len(codes))):
            index = None  # it says nothing new, and images alone can be read without --key
        write_rows(output, "images", blocks, len(codes), labels=labels, index=index)


def _write_csv(
    run: Run,
    blocks: Iterator[Tensor],
    index: Tensor | None,
    labels: Tensor | Sequence[str] | None,
    output: Path,
) -> None:
    """Write the rows of a table, in the order of the codes, with the names of its columns."""
    from pyro_dvae.runs import column_names, label_column, named_values
    from pyro_dvae.runs.tables import write_csv

    known = {"index": index, label_column(run.data): labels}
    beside = {name: list(values) for name, values in known.items() if values is not None}
    header = [*beside, *column_names(run.data, run.event_shape)]
    rows = (row for block in blocks for row in named_values(run.data, block))
    lists = zip(rows, *beside.values(), strict=True)
    write_csv(output, header, ([*map(_plain, before), *row] for row, *before in lists))


def _plain(value: Tensor | str) -> int | str:
    return value if isinstance(value, str) else int(value)
