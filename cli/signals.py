"""Ctrl-C, SIGTERM, a terminal that closes: the first asks to stop, the second stops at once."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from types import TracebackType
from typing import Any

from .console import complain

_NUMBERS = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP")
    if hasattr(signal, name)  # Windows has no SIGHUP
]


class StopRequest(Exception):
    """Raised where the user, or the system, has asked the command to stop."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.status = 128 + signum


class Signals:
    """Inside, the first signal of each kind only makes `check` raise `StopRequest`.

    A second one of the same kind acts at once. Of two kinds at the same moment, which a system
    that shuts down may send, both are one request. What the parent had ignored, as `nohup` does,
    stays ignored.
    """

    def __init__(self) -> None:
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

    def check(self) -> None:
        """Raise `StopRequest` if a signal came."""
        if self._received:
            raise StopRequest(self._received[0])

    def _remember(self, number: int, frame: object) -> None:
        # The handlers stay while a second signal may be pending: SIG_DFL in their place makes
        # Python print a traceback.
        if number in self._received:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self._received.append(number)
        if len(self._received) == 1:
            with suppress(RuntimeError):  # it came while another line was printed
                complain("finishing the step and saving; again to stop at once")
