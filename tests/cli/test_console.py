"""Printing costs a command nothing: see `cli/console.py`."""

from __future__ import annotations

import io
import sys

import pytest
from pdvae_cli.console import Output, for_a_bar, surviving_output


def _printed(text: str, encoding: str, plain: bool = False) -> str:
    buffer = io.BytesIO()
    output = Output(io.TextIOWrapper(buffer, encoding), plain)
    assert print(text, end="", file=output) is None
    output.flush()
    return buffer.getvalue().decode(encoding)


@pytest.mark.parametrize(
    ("text", "encoding", "printed"),
    [
        ("3.1 ± 0.2\n\tnats", "utf-8", "3.1 ± 0.2\n\tnats"),
        ("3.1 ± 0.2, Eqs. 6–9", "ascii", "3.1 +- 0.2, Eqs. 6-9"),
        ("naïve 数", "ascii", "na\\xefve \\u6570"),
        ("naïve 数", "latin-1", "naïve \\u6570"),
        ("a name that is not UTF-8: \udcff", "utf-8", "a name that is not UTF-8: \\udcff"),
        (
            "red \x1b[31m, bell \x07, back \r\x9b",
            "utf-8",
            "red \\x1b[31m, bell \\x07, back \\x0d\\x9b",
        ),
    ],
)
def test_what_the_encoding_lacks_or_a_terminal_obeys_is_escaped(
    text: str, encoding: str, printed: str
) -> None:
    assert _printed(text, encoding) == printed


def test_a_bar_may_move_the_cursor() -> None:
    assert _printed("\x1b[2K\r", "utf-8", plain=True) == "\x1b[2K\r"
    stream = io.StringIO()
    assert for_a_bar(stream) is stream
    bar = for_a_bar(Output(stream))
    assert isinstance(bar, Output)
    assert (bar.stream, bar.plain) == (stream, True)


class Full(io.StringIO):
    """A stream whose disk is full."""

    def flush(self) -> None:
        raise OSError(28, "No space left on device")


def test_what_a_bar_could_not_write_is_an_error_of_the_output() -> None:
    output = Output(Full())
    print("one", file=output)
    for_a_bar(output).close()  # which flushes; so does the end of a bar that nothing holds
    assert str(output.error) == "[Errno 28] No space left on device"


def test_a_failed_write_is_remembered_and_ends_the_printing() -> None:
    before = sys.stdout
    try:
        sys.stdout = stream = Full()
        with surviving_output() as output:
            print("one", flush=True)
            print("two", flush=True)
            assert (stream.getvalue(), str(output.error)) == (
                "one\n",
                "[Errno 28] No space left on device",
            )
        assert sys.stdout is stream
    finally:
        sys.stdout = before


def test_a_closed_stream_takes_everything() -> None:
    output = Output(None)
    print("anything", file=output, flush=True)
    assert (output.error, output.isatty()) == (None, False)
