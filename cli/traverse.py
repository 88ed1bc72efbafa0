"""`pdvae traverse`: what each latent does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .errors import fail, user_errors
from .options import (
    Device,
    DeviceOption,
    ForceOption,
    InputOption,
    KeyOption,
    RunArgument,
    RunDataDirOption,
    TrustOption,
)
from .pictures import own_settings
from .rows import failed_writes, file_for, only_images, open_run, weights_of


def traverse(
    run: RunArgument = None,
    index: Annotated[
        int,
        typer.Option(
            help="The number of the image in the test part, or in the file. The first one is 0."
        ),
    ] = 0,
    input_file: InputOption = None,
    key: KeyOption = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The .png file to write.")] = Path(
        "traverse.png"
    ),
    data_dir: RunDataDirOption = None,
    force: ForceOption = False,
    device: DeviceOption = Device.cpu,
    trust_code: TrustOption = False,
) -> None:
    """Draw what each latent does to an image.

    In each row one latent of its code takes all K categories, and the others stay as they are. The
    images are the means of p(x|z).

    Example: pdvae traverse runs/mnist-d4k8-rloo-1 --index 3 -o traverse.png
    """
    file_for(output, (".png",), force)
    with user_errors():
        loaded, target = open_run(run, device, trust_code)
        only_images(loaded)
        rows = loaded.rows(input_file or "test", data_dir=data_dir, key=key)
        if not 0 <= index < len(rows.x):
            fail(f"Expected --index from 0 to {len(rows.x) - 1}; got {index}. Change it.")
        x = rows.x[index : index + 1][0].to(target)
    with failed_writes(), own_settings():
        from pyro_dvae.runs import shade_of
        from pyro_dvae.runs.plots import latents_figure, save_figure

        save_figure(latents_figure(loaded.vae, x, shade_of(loaded)), output)
    config = loaded.config
    print(
        f"{output}: means of p(x|z), D={config.num_latents} latents varied over K="
        f"{config.num_categories} categories around the code of image {index} of {rows.name}; "
        f"{weights_of(loaded)}"
    )
