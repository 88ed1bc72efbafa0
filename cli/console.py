"""Standard output and error: what is printed can never end a command."""

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
"""Characters that a terminal obeys. The names of files and columns may hold them."""
_PLAIN = str.maketrans({"±": "+-", "–": "-"})
"""What to write in their place where the encoding lacks them."""


class Output(io.TextIOBase):
    """A stream to print to that never raises.

    Characters that its encoding lacks are written in ASCII, and control characters as escapes.
    After a failed write, everything that follows is dropped.

    Args:
        stream: the real stream; None where it is closed.
        plain: whether to write control characters as they are, which a progress bar needs.
        twin: another `Output` of the same stream, which learns of a failed write too.
    """

    def __init__(
        self, stream: TextIO | None, plain: bool = False, twin: Output | None = None
    ) -> None:
        self.stream = stream
        self.plain = plain
        self.twin = twin
        self.error: Exception | None = None
        """Why a write failed; None where all were written."""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the stream."""
        return getattr(self.stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        """Write as much as can be written."""
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
        if self.twin is not None:
            self.twin.error = error
        assert self.stream is not None
        with suppress(OSError, ValueError):  # what is in its buffer is tried again at the exit
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.stream.fileno())
            os.close(null)

    def isatty(self) -> bool:
        """Whether it is a terminal, which a person reads."""
        with suppress(ValueError):
            return self.stream is not None and self.stream.isatty()
        return False

    def fileno(self) -> int:
        """The number of the stream's file."""
        if self.stream is None:
            raise io.UnsupportedOperation("fileno")
        return self.stream.fileno()

    def writable(self) -> bool:
        """It can be written to, even if nothing comes of it."""
        return True


@contextmanager
def surviving_output() -> Iterator[Output]:
    """Let standard output and error survive a closed pipe, a full disk, or no terminal at all.

    Yields:
        Standard output. At the end, its `error` is None if everything was written.
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
    """Print one line to standard error, with options in place of the library's settings."""
    shown = with_options(" ".join(message.split()))
    print(f"pdvae: {shown}", file=sys.stderr, flush=True)


def note(message: str) -> None:
    """Print to standard error what the user should know, although nothing is wrong."""
    print(with_options(message), file=sys.stderr)


@contextmanager
def warnings_in_lines() -> Iterator[None]:
    """Print each warning as one line, as `complain` does."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: complain(str(message))
        yield


def for_a_bar(stream: Any) -> Any:
    """The same stream for a progress bar, which writes control characters on purpose."""
    return Output(stream.stream, True, stream) if isinstance(stream, Output) else stream
