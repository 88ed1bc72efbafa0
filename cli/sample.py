"""`pdvae sample`: draw from a trained model."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import Device, DeviceOption, ForceOption, SeedOption, TrustOption, fail, user_errors
from .pictures import own_settings
from .rows import failed_writes, file_for, label_values, only_images, open_run, shade

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from pyro_dvae import Config, Run

_LOWER = "-n, or write rows with -o samples.csv"
_MOST = 100_000
"""Data drawn by one command."""
_FIGURE_POINTS = 2**24
"""Points of a picture that matplotlib draws, with its title, at 36 bytes each."""
_BLOCK_NUMBERS = 2**22
"""Elements of data and codes that are in memory at once while a table is written."""


def sample(
    run: Annotated[
        Path | None, typer.Argument(help="Run folder; the newest below runs/ if left out.")
    ] = None,
    num: Annotated[int, typer.Option("--num", "-n", help="Images or rows to draw.")] = 64,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="PNG, or a .csv of rows; grid.png if left out."),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(help="Draw this class alone, of a run with --prior conditional."),
    ] = None,
    means: Annotated[
        bool, typer.Option("--means/--draws", help="Means of p(x|z), or draws from it.")
    ] = True,
    seed: SeedOption = 0,
    force: ForceOption = False,
    device: DeviceOption = Device.cpu,
    trust_code: TrustOption = False,
) -> None:
    """Draw codes from the prior and decode them into a grid of images, or a table of rows.

    Example: pdvae sample runs/mnist-d4k8-rloo-1 -n 64 -o grid.png
    """
    if not 1 <= num <= _MOST:
        fail(f"Expected at least 1 image, and at most {_MOST}; got {num}. Change -n.")
    output = Path("grid.png") if output is None else output
    file_for(output, (".png", ".csv"), force)
    with user_errors():
        from pyro_dvae.memory import refuse_bytes

        loaded, target = open_run(run, device, trust_code)
        config = loaded.config
        wanted = None if label is None else _class(label, loaded)
        if output.suffix.lower() == ".png":
            only_images(loaded)
            is_figure = _points(num, loaded.event_shape) <= _FIGURE_POINTS
            needed = 16 * num * math.prod(loaded.event_shape)
            refuse_bytes(f"a picture of {num} images", needed, _LOWER)
        names = _columns(loaded)
    vae, facts = loaded.vae, loaded.data
    shown = "means of p(x|z)" if means else "draws from p(x|z)"
    with failed_writes():
        if output.suffix.lower() == ".png":
            options: dict[str, Any] = {"means": means, "label": wanted}
            with own_settings():
                from pyro_dvae.runs.plots import save_figure, save_mosaic

                if is_figure:
                    figure = sample_grid(vae, config, facts, num, seed, target, **options)
                    save_figure(figure, output)
                else:
                    images, columns, *_ = _images(vae, config, facts, num, seed, target, **options)
                    save_mosaic(images, columns, output)
        else:
            from pyro_dvae.runs.tables import write_csv

            labels = _labels(config, num, wanted)
            header = names if labels is None else ["label", *names]
            write_csv(output, header, _rows(loaded, num, means, labels, seed, target))
    of = "" if label is None else f" of label {label}"
    print(f"{output}: {num} {shown}{of} of {loaded.folder}, seed {seed}")


def _rows(
    run: Run, num: int, means: bool, labels: Tensor | None, seed: int, device: Any
) -> Iterator[list[Any]]:
    """Rows of a table, the label first where there are labels; memory holds one block of them."""
    from pyro_dvae.streams import RandomStream

    code = run.config.num_latents * run.config.num_categories
    block = max(1, _BLOCK_NUMBERS // (math.prod(run.event_shape) + code))
    known = label_values(labels, run.data)
    stream = RandomStream(seed, device)
    for start in range(0, num, block):
        stop = min(start + block, num)
        given = None if labels is None else labels[start:stop].to(device)
        with stream:
            x = run.vae.sample(stop - start, means=means, labels=given)
        before = [[]] * len(x) if known is None else known[start:stop, None].tolist()
        for y, row in zip(before, x.cpu().flatten(1).tolist(), strict=True):
            yield [*y, *row]


def _points(num: int, event_shape: tuple[int, ...]) -> float:
    """Of the figure that `image_grid` makes, at 150 points per inch."""
    side = num**0.5 * 0.55 * 150
    return side * side * event_shape[-2] / event_shape[-1]


def sample_grid(
    vae: Any,
    config: Config,
    facts: dict[str, Any],
    num: int,
    seed: int,
    device: Any,
    *,
    means: bool = True,
    label: int | None = None,
) -> Figure:
    """A grid of images, a row a class where the prior is conditional and no label is named.

    Args:
        vae: the model, on the device.
        config: the run's settings.
        facts: what it remembers of its data.
        num: images.
        seed: of the draws.
        device: the model's.
        means: of p(x|z), in place of draws from it.
        label: the one class to draw.
    """
    from pyro_dvae.runs.plots import image_grid

    return image_grid(*_images(vae, config, facts, num, seed, device, means, label))


def _images(
    vae: Any,
    config: Config,
    facts: dict[str, Any],
    num: int,
    seed: int,
    device: Any,
    means: bool,
    label: int | None,
) -> tuple[Tensor, int, str, list[str]]:
    """The images of `sample_grid`, how many stand in a row, its title and the names of rows."""
    labels = _labels(config, num, label)
    x = _draw(vae, num, means, labels, seed, device)
    shaded = shade(config, facts)
    images = x if shaded is None else shaded(x)
    shown = f"{'means of' if means else 'draws from'} p(x|z), z from the prior"
    columns, rows = min(num, max(1, round(num**0.5))), []
    if labels is not None and label is None and num >= config.num_classes:
        columns = num // config.num_classes
        images = images[: columns * config.num_classes]
        names = facts.get("label_names") or range(config.num_classes)
        rows, shown = [str(name) for name in names], f"{shown} given the label"
    return images, columns, shown, rows


def _draw(vae: Any, num: int, means: bool, labels: Tensor | None, seed: int, device: Any) -> Tensor:
    from pyro_dvae.streams import RandomStream

    with RandomStream(seed, device):
        x = vae.sample(num, means=means, labels=None if labels is None else labels.to(device))
    return x.cpu()


def _labels(config: Config, num: int, label: int | None) -> Tensor | None:
    """(num,) the one class, or all of them in turn, as many of each."""
    import torch

    if not config.num_classes:
        return None
    if label is not None:
        return torch.full((num,), label)
    each = max(1, num // config.num_classes)
    return (torch.arange(num) // each).clamp(max=config.num_classes - 1)


def _class(label: str, run: Run) -> int:
    if not run.config.num_classes:
        fail(
            f"Expected no --label for {run.folder}, whose prior knows none; got {label}. Leave it "
            "out, or train with --prior conditional."
        )
    names = [str(i) for i in range(run.config.num_classes)]
    names = list(run.data.get("label_names") or names)
    if label in names:
        return names.index(label)
    shown = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
    fail(f"Expected a label of {run.folder}: {shown}; got {label!r}. Name one.")


def _columns(run: Run) -> list[str]:
    """The names of a datum's elements."""
    import math

    names = run.data.get("columns")
    number = math.prod(run.event_shape)
    return list(names) if names and len(names) == number else [f"x{i}" for i in range(number)]
