"""One-line errors for data that cannot be read."""

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyro_dvae.memory import available_memory, in_gib


class DataError(ValueError):
    """Data that the user asked for are missing, damaged or unsuitable; the message is one line."""


@contextmanager
def reading(
    path: Path | str, what: str, advice: str = "Check the path, or save the file anew."
) -> Iterator[None]:
    """Turn any exception of a reader into a `DataError` of one line.

    Args:
        path: The file that is read.
        what: What the file should be, with an article: "a whole image".
        advice: What the user can do, as a sentence.

    Raises:
        DataError: If the block raises any exception. A `DataError` passes as it is.
    """
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"Expected {what}; got {path} ({reason(error)}). {advice}") from error


def user_path(path: Path | str) -> Path:
    """Return the path that a user named, with ``~`` expanded.

    Raises:
        DataError: If there is no such home folder, or no file can have this name.
    """
    try:
        expanded = Path(path).expanduser()
        expanded.exists()  # raises if the name is too long
        return expanded
    except (OSError, RuntimeError, ValueError) as error:
        shown = f"{str(path)[:60]!r}"
        raise DataError(
            f"Expected the name of a file or folder; got {shown} ({reason(error)}). Check the path."
        ) from None


def regular_file(path: Path) -> Path:
    """Return a path unless it leads to a pipe or a device, whose reading might never end.

    Raises:
        DataError: If it leads to a pipe or a device.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise DataError(f"Expected a file; got {path}, which is a pipe or a device. Name another.")
    return path


def refuse_too_large(what: str, num_bytes: int, advice: str) -> None:
    """Refuse data that do not fit into the free memory.

    Args:
        what: The data, for the message.
        num_bytes: The bytes that reading and holding the data takes.
        advice: What the user can do, as a sentence.

    Raises:
        DataError: If the data do not fit.
    """
    free = available_memory()
    if num_bytes > free:
        raise DataError(
            f"Expected data that fit into memory, {in_gib(free)} free; got {what}, which takes "
            f"about {in_gib(num_bytes)}. {advice}"
        )


def reason(error: Exception) -> str:
    """Say in at most 150 characters why something failed."""
    known = error.strerror if isinstance(error, OSError) else None
    words = known or str(error) or type(error).__name__
    words = "not enough memory" if isinstance(error, MemoryError) else words
    return textwrap.shorten(words, 150, placeholder=" ...")


def shorten(names: list[str], num: int = 5) -> str:
    """The first `num` names, and how many more there are: "a, b and 7 more"."""
    more = f" and {len(names) - num:,} more" if len(names) > num else ""
    return ", ".join(names[:num]) + more
