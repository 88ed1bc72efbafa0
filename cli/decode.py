"""`pdvae decode`: the images of codes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import Device, DeviceOption, ForceOption, SeedOption, TrustOption, fail, user_errors
from .pictures import own_settings
from .rows import KeyOption, failed_writes, file_for, only_images, open_run, weights_of

_DRAWN = 100
"""Images in a PNG, at most."""


def decode(
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="[RUN] CODES",
            help="Run folder, the newest below runs/ if left out; and a .csv, .npz or .npy of "
            "category indices, as pdvae encode writes them.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="A .npz, .npy or .png (a grid) to write.")
    ],
    key: KeyOption = None,
    means: Annotated[
        bool, typer.Option("--means/--draws", help="Means of p(x|z), or draws from it.")
    ] = True,
    seed: SeedOption = 0,
    force: ForceOption = False,
    device: DeviceOption = Device.cpu,
    trust_code: TrustOption = False,
) -> None:
    """Decode codes into images; labels and order are kept.

    Example: pdvae decode runs/mnist-d4k8-rloo-1 codes.csv -o images.npz
    """
    if len(inputs) > 2:
        fail(f"Expected a run and a file of codes; got {len(inputs)} names. Leave out the rest.")
    if inputs[-1].is_dir():
        fail(f"Expected a file of codes; got the folder {inputs[-1]}. Name the file after the run.")
    file_for(output, (".npz", ".npy", ".png"), force)
    with user_errors():
        import torch

        from pyro_dvae.runs import decode_blocks, shade_of
        from pyro_dvae.runs.tables import read_codes, write_rows

        loaded, _ = open_run(inputs[0] if len(inputs) == 2 else None, device, trust_code)
        config = loaded.config
        codes, labels, index = read_codes(
            inputs[-1], config.num_latents, config.num_categories, key
        )
    number = len(codes)
    if index is not None and torch.equal(index, torch.arange(number)):
        index = None  # it tells nothing, and alone the images need no --key
    shown = "means of p(x|z)" if means else "draws from p(x|z)"
    told = f"{number} {shown}"
    is_grid = output.suffix.lower() == ".png"
    if is_grid:
        only_images(loaded)
        codes = codes[:_DRAWN]
        if number > _DRAWN:
            told = f"the first {_DRAWN} of {told}"
    blocks = decode_blocks(loaded.vae, codes, config.num_categories, means=means, seed=seed)
    with failed_writes():
        if is_grid:
            columns = max(1, round(len(codes) ** 0.5))
            images, shade = torch.cat(list(blocks)), shade_of(loaded)
            images = images if shade is None else shade(images)
            with own_settings():
                from pyro_dvae.runs.plots import image_grid, save_figure

                save_figure(image_grid(images, columns, told), output)
        else:
            write_rows(output, "images", blocks, number, labels=labels, index=index)
    drawn = "" if means else f", seed {seed}"
    print(f"{output}: {told}, codes of {inputs[-1]}; {weights_of(loaded)}{drawn}")
