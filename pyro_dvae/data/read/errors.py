"""Data that cannot be read, in one line."""

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyro_dvae.memory import available_memory, in_gib


class DataError(ValueError):
    """Data that the user asked for is missing or damaged; the message is one line."""


@contextmanager
def reading(
    path: Path | str, what: str, mend: str = "Check the path, or save the file anew."
) -> Iterator[None]:
    """Turn whatever a damaged file makes a reader raise into one line.

    Args:
        path: The file.
        what: What it should be, with an article.
        mend: What to do, as a sentence.

    Raises:
        DataError: If the block raises anything; a `DataError` passes as it is.
    """
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"Expected {what}; got {path} ({reason(error)}). {mend}") from error


def user_path(path: Path | str) -> Path:
    """Return a path that a user named, with ``~`` expanded.

    Raises:
        DataError: If there is no such home, or the name is none that a file can have.
    """
    try:
        expanded = Path(path).expanduser()
        expanded.exists()  # which some names are too long for
        return expanded
    except (OSError, RuntimeError, ValueError) as error:
        shown = f"{str(path)[:60]!r}"
        raise DataError(
            f"Expected the name of a file or folder; got {shown} ({reason(error)}). Check the path."
        ) from None


def regular_file(path: Path) -> Path:
    """Return a path that leads to no pipe or device, whose reading might never end.

    Raises:
        DataError: If it does.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise DataError(f"Expected a file; got {path}, which is a pipe or a device. Name another.")
    return path


def refuse_too_large(what: str, num_bytes: int, mend: str) -> None:
    """Refuse data that would not fit into the memory that is free.

    Args:
        what: The data, for the message.
        num_bytes: What reading and holding them takes.
        mend: What to do, as a sentence.

    Raises:
        DataError: If they do not fit.
    """
    free = available_memory()
    if num_bytes > free:
        raise DataError(
            f"Expected data that fit into memory, {in_gib(free)} free; got {what}, which takes "
            f"about {in_gib(num_bytes)}. {mend}"
        )


def reason(error: Exception) -> str:
    """Say in a few words why something failed."""
    words = getattr(error, "strerror", None) or str(error) or type(error).__name__
    words = "not enough memory" if isinstance(error, MemoryError) else words
    return textwrap.shorten(words, 150, placeholder=" ...")


def shorten(names: list[str], num: int = 5) -> str:
    """Name the first few of many, and how many more there are."""
    more = f" and {len(names) - num:,} more" if len(names) > num else ""
    return ", ".join(names[:num]) + more
