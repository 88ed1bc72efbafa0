"""The run and the data of commands that work on data row by row."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from .console import complain
from .options import Device, fail, new_output
from .reading import KeyOption as KeyOption
from .report import unit

if TYPE_CHECKING:
    from torch import Tensor

    from pyro_dvae import Config, Run
    from pyro_dvae.data import Rows as StoredRows
    from pyro_dvae.data import ServedRows

BLOCK = 256
"""Rows that go through a network at once."""

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


class Rows(NamedTuple):
    """N data, as a run takes them."""

    x: Tensor | ServedRows
    """(N, *event), what the likelihood takes, by slices; those of a file are read as asked for."""
    stored: StoredRows
    """The same as stored."""
    labels: Tensor | None
    """(N,) int64."""
    name: str
    """For people."""


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
    from pyro_dvae.runs.checkpoints import load_run, newest_run

    folder = folder or newest_run()
    if trust_code:
        say_what_is_trusted(folder)
    return load_run(folder, trust_code=trust_code)


def say_what_is_trusted(folder: Path) -> None:
    """Name the code of a run that is imported because the user said so."""
    from pyro_dvae.runs.checkpoints import own_code, read_config

    own = own_code(read_config(folder).config)
    if own:
        complain(f"importing {' and '.join(own)}, which {folder} names")


def weights_of(run: Run) -> str:
    """Whose weights were used, for people."""
    return f"{run.folder}, weights of epoch {run.epoch}"


def shade(config: Config, facts: dict[str, Any]) -> Callable[[Tensor], Tensor] | None:
    """How to show what the likelihood takes, or its means, in [0, 1]; None for bits.

    Args:
        config: the run's settings.
        facts: what it remembers of its data.
    """
    from pyro_dvae.data import kind_of, levels_of

    kind = kind_of(config.likelihood)
    if kind == "bits":
        return None
    low, high = facts.get("span", (0.0, 1.0))
    if kind == "levels":
        low, high = 0.0, levels_of(config.likelihood) - 1.0
    elif kind in ("unit", "open"):
        low, high = 0.0, 1.0
    return lambda x: ((x - low) / ((high - low) or 1.0)).clamp(0, 1)


def labels_for(config: Config, labels: Tensor | None, where: str) -> Tensor | None:
    """The labels that a run's model wants with data, or None.

    Args:
        config: the run's settings.
        labels: of the data.
        where: whose they are, for the message.

    Raises:
        ValueError: they are missing, or others than those that it was trained with.
    """
    from pyro_dvae.data import class_labels

    if not config.num_classes:
        return None
    if labels is None:
        fail(
            f"Expected labels for {where}, which the model is conditional on; got none. Use data "
            "that hold them as the run's do."
        )
    return class_labels(labels, config.num_classes, where)


def label_values(labels: Tensor | None, facts: dict[str, Any]) -> Tensor | None:
    """Labels as people know them: numbers of classes, or the numbers that the classes are called.

    Args:
        labels: (N,) int64, counted by a run's names, or None.
        facts: what it remembers of its data.
    """
    import torch

    from pyro_dvae.data import all_numbers

    names = facts.get("label_names")
    if labels is None or not names or not all_numbers(names) or int(labels.max()) >= len(names):
        return labels
    return torch.tensor([int(name) for name in names])[labels]


def grey(x: Tensor, values: Tensor, high: float, config: Config, facts: dict[str, Any]) -> Tensor:
    """(N, *event) in [0, 1], what data were drawn from.

    Args:
        x: (N, *event), what the likelihood takes: zeros and ones drawn from the values, say.
        values: the same as stored.
        high: greatest value of all data like these.
        config: the run's settings.
        facts: what it remembers of its data.
    """
    import torch

    shaded = shade(config, facts)
    if shaded is not None:
        return shaded(x)
    if config.range is not None:
        low, high = config.range
        return (values.double() - low).float() / (high - low)
    return values / 255 if values.dtype == torch.uint8 and high > 1 else x


def only_images(run: Run) -> None:
    """Refuse to draw data that are no images."""
    if unit(run.event_shape) != "image":
        fail(
            f"Expected a run of images (H, W) to draw; got data of shape {run.event_shape} in "
            f"{run.folder}. Use pdvae decode -o images.npz, or pdvae sample -o samples.csv."
        )


def refuse_too_many_codes(config: Config, option: str, mend: str) -> None:
    """Refuse an option that sums over all K^D codes where that cannot be done."""
    from pyro_dvae.codes import MAX_CODES, describe_codes, num_codes

    code = (config.num_latents, config.num_categories)
    if num_codes(*code) > MAX_CODES:
        fail(
            f"Expected at most {MAX_CODES} codes for {option}; got K^D = {describe_codes(*code)}. "
            f"{mend}"
        )


def read_rows(
    run: Run,
    data: str | Path,
    data_dir: Path | None,
    key: str | None,
    *,
    labelled: bool = False,
) -> Rows:
    """Data under a run's settings: a part of its own, or a file's.

    Args:
        run: the run.
        data: the part, or the file.
        data_dir: the folder that the run's data lie in now, if that is another one.
        key: of a `.npz`, where that is another one.
        labelled: whether a model that knows labels cannot do without them here.

    Raises:
        ValueError: they are not there, or the run cannot take them.
    """
    from pyro_dvae.data import (
        PARTS,
        Preparation,
        ServedRows,
        check_shape,
        complaint,
        refuse_unseen,
        scan,
    )

    from .inputs import open_file, run_splits

    config = run.config
    if isinstance(data, str) and data in PARTS:
        if key is not None:
            fail(f"Expected --key with a .npz file; got it with {data}. Leave it out.")
        splits = run_splits(config, run.data, data_dir)
        part = splits.part(data)
        name = f"the {data} part of {run.data.get('name')}"
        return Rows(part.x, splits.stored[data], part.labels, name)
    if data_dir is not None:
        fail(f"Expected --data-dir with a part of the run's data; got {data}. Leave it out.")
    if isinstance(data, str) and not Path(data).suffix and not os.path.exists(data):
        fail(f"Expected {', '.join(PARTS)}, or a file; got {data[:80]!r}. Name one.")
    rows = open_file(data, run.data, key, labelled=labelled and config.num_classes > 0)
    found = scan(rows)
    wrong = complaint(found)
    if wrong is not None:
        fail(f"{data}: {wrong}")
    check_shape((len(rows), *rows.event_shape), tuple(run.event_shape))
    preparation = Preparation(config.binarize, config.range, config.likelihood)
    names = run.data.get("columns")
    refuse_unseen(rows, preparation, run.vae.likelihood, str(data), names)
    x = ServedRows(rows, preparation, config.seed, found.extent)
    return Rows(x, rows, rows.labels, str(data))


@contextmanager
def failed_writes() -> Iterator[None]:
    """Turn a write that failed into one line and exit status 1."""
    try:
        yield
    except OSError as error:
        fail(str(error), 1)
