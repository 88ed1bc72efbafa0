"""`pdvae reconstruct`: what a model makes of images."""

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
    SeedOption,
    TrustOption,
)
from .pictures import own_settings
from .rows import failed_writes, file_for, only_images, open_run, weights_of

_MOST = 100


NumOption = Annotated[
    int,
    typer.Option(
        "--num",
        "-n",
        help=f"The number of images to draw, from the first on. It is at most {_MOST}.",
    ),
]
OutputOption = Annotated[Path, typer.Option("--output", "-o", help="The .png file to write.")]


def reconstruct(
    run: RunArgument = None,
    input_file: InputOption = None,
    key: KeyOption = None,
    num: NumOption = 12,
    output: OutputOption = Path("reconstructions.png"),
    data_dir: RunDataDirOption = None,
    seed: SeedOption = 0,
    force: ForceOption = False,
    device: DeviceOption = Device.cpu,
    trust_code: TrustOption = False,
) -> None:
    """Draw images, and what the model makes of them.

    The rows show the images, their zeros and ones if the model takes those, the means of p(x|z) at
    their codes, and draws from p(x|z).

    Example: pdvae reconstruct runs/mnist-d4k8-rloo-1 -n 12 -o images.png
    """
    if not 1 <= num <= _MOST:
        fail(f"Expected -n from 1 to {_MOST}; got {num}. Change it.")
    file_for(output, (".png",), force)
    with user_errors():
        import torch

        from pyro_dvae.data import extent
        from pyro_dvae.runs import brightness, shade_of

        loaded, target = open_run(run, device, trust_code)
        only_images(loaded)
        rows = loaded.rows(input_file or "test", data_dir=data_dir, key=key)
        x = rows.x[:num]
        values = rows.stored.read(torch.arange(len(x)))
        shown = brightness(loaded, x, values, extent(rows.stored).high).to(target)
    with failed_writes(), own_settings():
        from pyro_dvae.runs.plots import reconstruction_figure, save_figure

        shade = shade_of(loaded)
        save_figure(reconstruction_figure(loaded.vae, shown, x.to(target), seed, shade), output)
    print(
        f"{output}: {len(x)} images of {rows.name}, means and draws of p(x|z) at their most "
        f"probable codes; {weights_of(loaded)}, seed {seed}"
    )
