"""What asks a training to stop: Ctrl-C, SIGTERM, SIGUSR1, a terminal that closes, its time."""

from __future__ import annotations

import math
import os
import signal
import time
from contextlib import suppress
from types import TracebackType
from typing import Any

from .console import complain

_NUMBERS = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
    if hasattr(signal, name)  # Windows has no SIGHUP, and no SIGUSR1
]
_WARNING = getattr(signal, "SIGUSR1", None)
STOPPED = 75
"""The exit status of a training that was asked by SIGUSR1 or by its time to save and to stop, so
that it is started again: EX_TEMPFAIL of sysexits.h."""


class StopRequest(Exception):
    """Raised where the user, the system or the time has asked the command to stop.

    Args:
        status: the exit status of the command.
    """

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Signals:
    """Inside, the first signal of each kind only sets `status`.

    A second one of the same kind acts at once. Of two kinds at the same moment, which a system
    that shuts down may send, both are one request. What the parent had ignored, as `nohup` does,
    stays ignored.

    Args:
        max_seconds: the seconds after which the time is over.
        quiet: whether to print nothing when a signal comes.
    """

    def __init__(self, max_seconds: float = math.inf, quiet: bool = False) -> None:
        self._end, self._quiet = time.monotonic() + max_seconds, quiet
        self._received: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        for number in _NUMBERS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def status(self) -> int | None:
        """The exit status of a command that was asked to stop; None where it goes on."""
        if self._received:
            number = self._received[0]
            return STOPPED if number == _WARNING else 128 + number
        return STOPPED if time.monotonic() > self._end else None

    def _remember(self, number: int, frame: object) -> None:
        # The handlers stay while a second signal may be pending: SIG_DFL in their place makes
        # Python print a traceback.
        if number in self._received:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self._received.append(number)
        if len(self._received) == 1 and not self._quiet:
            with suppress(RuntimeError):  # it came while another line was printed
                complain("finishing the step and saving; again to stop at once")
