"""Data that cannot be read, in one line."""

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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


def reason(error: Exception) -> str:
    """Say in a few words why something failed."""
    words = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return textwrap.shorten(words, 150, placeholder=" ...")


def shorten(names: list[str], num: int = 5) -> str:
    """Name the first few of many, and how many more there are."""
    more = f" and {len(names) - num:,} more" if len(names) > num else ""
    return ", ".join(names[:num]) + more
