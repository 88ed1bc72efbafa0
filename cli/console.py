"""Where all prints go through: standard output and error that cost a command nothing."""

from __future__ import annotations

import io
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from .naming import with_options

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Names of files and of columns may hold what a terminal obeys."""
_PLAIN = str.maketrans({"±": "+-", "–": "-"})
"""For encodings that know no better."""


class Output(io.TextIOBase):
    """A stream to print to, which never raises.

    Characters that its encoding lacks are written in ASCII, and control characters as escapes.
    After a write that failed, all that follows is dropped.

    Args:
        stream: the real one; None where it is closed.
        plain: write control characters as they are, as a progress bar wants it.
    """

    def __init__(self, stream: TextIO | None, plain: bool = False) -> None:
        self.stream = stream
        self.plain = plain
        self.error: Exception | None = None
        """Why a write failed."""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """That of the stream."""
        return getattr(self.stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        """Write what can be written."""
        shown = text if self.plain else _CONTROL.sub(lambda c: f"\\x{ord(c[0]):02x}", text)
        if self.stream is not None and self.error is None:
            try:
                shown.encode(self.encoding)
            except UnicodeEncodeError:
                encoded = shown.translate(_PLAIN).encode(self.encoding, "backslashreplace")
                shown = encoded.decode(self.encoding)
            try:
                self.stream.write(shown)
            except (OSError, ValueError) as error:
                self._lose(error)
        return len(text)

    def flush(self) -> None:
        """Write what is buffered."""
        if self.stream is not None and self.error is None:
            try:
                self.stream.flush()
            except (OSError, ValueError) as error:
                self._lose(error)

    def _lose(self, error: Exception) -> None:
        self.error = error
        assert self.stream is not None
        with suppress(OSError, ValueError):  # what is in its buffer is tried again at the exit
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.stream.fileno())
            os.close(null)

    def isatty(self) -> bool:
        """Whether a person reads it."""
        with suppress(ValueError):
            return self.stream is not None and self.stream.isatty()
        return False

    def fileno(self) -> int:
        """Of the stream."""
        if self.stream is None:
            raise io.UnsupportedOperation("fileno")
        return self.stream.fileno()

    def writable(self) -> bool:
        """Always."""
        return True


@contextmanager
def surviving_output() -> Iterator[Output]:
    """Have standard output and error survive what they are connected to.

    Yields:
        Standard output; its `error` tells at the end whether all was written.
    """
    for number in range(3):  # else the next file that is opened becomes standard output
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    before = sys.stdout, sys.stderr
    output, complaints = Output(sys.stdout), Output(sys.stderr)
    sys.stdout, sys.stderr = output, complaints
    try:
        yield output
    finally:
        output.flush()
        complaints.flush()
        sys.stdout, sys.stderr = before


def complain(message: str) -> None:
    """Print one line to standard error, in which settings are named as options."""
    shown = with_options(" ".join(message.split()))
    print(f"pdvae: {shown}", file=sys.stderr, flush=True)


def note(message: str) -> None:
    """Print to standard error what is worth knowing, and not wrong."""
    print(with_options(message), file=sys.stderr)


@contextmanager
def warnings_in_lines() -> Iterator[None]:
    """Print warnings as all else that is wrong."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: complain(str(message))
        yield


def for_a_bar(stream: Any) -> Any:
    """The stream for a progress bar, whose control characters are meant."""
    return Output(stream.stream, plain=True) if isinstance(stream, Output) else stream
