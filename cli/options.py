"""Options and messages that commands share; nothing here imports torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Annotated, NoReturn

import typer


class Device(str, Enum):
    """Where to compute."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    mps = "mps"


class PartName(str, Enum):
    """The name of a part of a run's data."""

    train = "train"
    validation = "validation"
    test = "test"


DeviceOption = Annotated[
    Device, typer.Option(help="auto: CUDA where there is one, else the CPU. One device is used.")
]
SeedOption = Annotated[int, typer.Option(help="Seed of everything random.", min=0, max=2**62)]
RunSeedOption = Annotated[
    int | None, typer.Option(help="Of the draws; the run's if left out.", min=0, max=2**62)
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace the output if it exists.")]

TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust-code", help="Import the modules that the run names, though it was not made here."
    ),
]

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


_LONGEST = 2_000
"""Characters of a message."""


class CommandError(Exception):
    """A failure that the user can mend: one line, and the exit status."""

    def __init__(self, message: str, status: int = 2) -> None:
        line = " ".join(message.split())
        if len(line) > _LONGEST:  # some files hold whatever they like
            line = f"{line[: _LONGEST // 2]} ... {line[-_LONGEST // 2 :]}"
        super().__init__(line)
        self.status = status


def is_out_of_memory(error: Exception) -> bool:
    """Whether Python, NumPy or torch says that memory has run out."""
    words = ("can't allocate memory", "not enough memory", "out of memory")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in words)
    )


@contextmanager
def user_errors() -> Iterator[None]:
    """Turn the library's complaints about input into one line and exit status 2."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise CommandError(str(error)) from error


def fail(message: str, status: int = 2) -> NoReturn:
    """Stop with one line."""
    raise CommandError(message, status)


def new_output(path: Path, force: bool) -> None:
    """Refuse an output that exists, or whose folder does not, or whose name no file can have."""
    if os.path.isdir(path):
        fail(f"Expected a file to write; got the folder {path}. Add a file name.")
    try:  # the file that it is written into first has a longer name
        path.with_name(f".{path.name}.{os.getpid()}.part").exists()
    except OSError as error:
        fail(f"Expected a file to write; got {str(path)[:80]!r} ({error.strerror}). Name another.")
    if path.exists() and not force:
        fail(f"Expected a new file; got {path}, which exists. Use --force, or another -o.")
    if not path.parent.is_dir():
        fail(f"Expected a folder to write into; got {path.parent}, which is not there. Make it.")
