"""Ctrl-C and SIGTERM: the first is a request, the second acts at once."""

from __future__ import annotations

import signal
import sys
from types import TracebackType
from typing import Any


class StopRequest(Exception):
    """The user, or the system, asked the command to stop."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.status = 128 + signum


class Signals:
    """Inside, the first Ctrl-C or SIGTERM only makes `check` raise `StopRequest`."""

    def __init__(self) -> None:
        self._received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        numbers = (signal.SIGINT, signal.SIGTERM)
        self._before = {number: signal.signal(number, self._remember) for number in numbers}
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
        if self._received is not None:
            raise StopRequest(self._received)

    def _remember(self, number: int, frame: object) -> None:
        self._received = number
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        print("pdvae: finishing the step and saving; again to stop at once", file=sys.stderr)
