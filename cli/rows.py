"""The run and the data of commands that work on data row by row."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .console import complain
from .options import Device, fail, new_output
from .reading import KeyOption as KeyOption
from .report import unit

if TYPE_CHECKING:
    from pyro_dvae import Config, Run

RunArgument = Annotated[
    Path | None, typer.Argument(help="Run folder; the newest below runs/ if left out.")
]
DataOption = Annotated[
    str,
    typer.Option(
        help="train, validation or test of the run's data, or a file like it, read as it was."
    ),
]
DataDirOption = Annotated[
    Path | None, typer.Option(help="Folder of the run's data; where they were if left out.")
]
InputOption = Annotated[
    Path | None,
    typer.Option("--input", help="A file like the run's data; its test data if left out."),
]


def file_for(path: Path, suffixes: tuple[str, ...], force: bool) -> None:
    """Refuse an output of another kind, one that exists, or whose folder does not."""
    if not os.path.isdir(path) and path.suffix.lower() not in suffixes:
        fail(f"Expected an output {' or '.join(suffixes)}; got {path}. Change its suffix.")
    new_output(path, force)


def open_run(folder: Path | None, device: Device, trust_code: bool) -> tuple[Run, Any]:
    """The run, the newest if None, with its model on the device, and the device."""
    from .devices import pick_device

    target = pick_device(device)
    run = load(folder, trust_code)
    run.vae.to(target)
    return run, target


def load(folder: Path | None, trust_code: bool) -> Run:
    """The run, the newest if None; a line says which modules are trusted."""
    from pyro_dvae.runs import load_run, newest_run

    folder = folder or newest_run()
    if trust_code:
        say_what_is_trusted(folder)
    return load_run(folder, trust_code=trust_code)


def say_what_is_trusted(folder: Path) -> None:
    """Name the code of a run that is imported because the user said so."""
    from pyro_dvae.runs import own_code, read_config

    own = own_code(read_config(folder).config)
    if own:
        complain(f"importing {' and '.join(own)}, which {folder} names")


def weights_of(run: Run) -> str:
    """Whose weights were used, for people."""
    return f"{run.folder}, weights of epoch {run.epoch}"


def only_images(run: Run) -> None:
    """Refuse to draw data that are no images."""
    if unit(run.event_shape) != "image":
        fail(
            f"Expected a run of images (H, W) to draw; got data of shape {run.event_shape} in "
            f"{run.folder}. Use pdvae decode -o images.npz, or pdvae sample -o samples.csv."
        )


def refuse_too_many_codes(config: Config, option: str, mend: str) -> None:
    """Refuse an option that sums over all K^D codes where that cannot be done."""
    from pyro_dvae.evaluation import MAX_CODES, describe_codes, num_codes

    code = (config.num_latents, config.num_categories)
    if num_codes(*code) > MAX_CODES:
        fail(
            f"Expected at most {MAX_CODES} codes for {option}; got K^D = {describe_codes(*code)}. "
            f"{mend}"
        )


@contextmanager
def failed_writes() -> Iterator[None]:
    """Turn a write that failed into one line and exit status 1."""
    try:
        yield
    except OSError as error:
        fail(str(error), 1)
