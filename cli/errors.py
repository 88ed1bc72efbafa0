"""How a command stops: one line, and an exit status. Nothing here imports torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

_LONGEST = 2_000
"""The most characters of a message."""


class CommandError(Exception):
    """A failure that the user can mend: the line to print, and the exit status."""

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
