"""`pdvae sample`: draw from a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import Device, DeviceOption, ForceOption, SeedOption, fail, new_output, user_errors


def sample(
    run: Annotated[
        Path | None, typer.Argument(help="Run folder; the newest below runs/ if left out.")
    ] = None,
    num: Annotated[int, typer.Option("--num", "-n", help="Images to draw.")] = 64,
    output: Annotated[Path, typer.Option("--output", "-o", help="PNG to write.")] = Path(
        "grid.png"
    ),
    means: Annotated[
        bool, typer.Option("--means/--draws", help="Means of p(x|z), or binary draws from it.")
    ] = True,
    seed: SeedOption = 0,
    force: ForceOption = False,
    device: DeviceOption = Device.cpu,
) -> None:
    """Draw codes from the prior and decode them into a grid of images.

    Example: pdvae sample runs/mnist-d4k8-rloo-1 -n 64 -o grid.png
    """
    if num < 1:
        fail(f"Expected at least 1 image; got {num}. Raise -n.")
    new_output(output, force)
    with user_errors():
        from pyro_dvae import load_run
        from pyro_dvae.checkpoints import newest_run
        from pyro_dvae.plots import image_grid, save_figure
        from pyro_dvae.streams import RandomStream

        from .devices import pick_device
        from .rows import only_images

        target = pick_device(device)
        loaded = load_run(run or newest_run())
        only_images(loaded)
    vae = loaded.vae.to(target)
    with RandomStream(seed, target):
        images = vae.sample(num, means=means)
    shown = "means of p(x|z)" if means else "draws from p(x|z)"
    columns = min(num, max(1, round(num**0.5)))
    try:
        save_figure(image_grid(images, columns, f"{shown}, z from the prior"), output)
    except OSError as error:
        fail(str(error), 1)
    print(f"{output}: {num} {shown} of {loaded.folder}, seed {seed}")
