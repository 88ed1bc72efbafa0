"""What torch and Pyro keep once per process, for one thread at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import TracebackType
from typing import Any

import pyro
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import _PYRO_STACK

PROCESS_STATE = threading.RLock()
"""Held by whatever in this library sets, or relies on, what is one for the whole process: torch's
global generators, Pyro's stack of handlers, its checks and its parameter store. So threads take
turns. What a thread draws from the global generators on its own, no lock can see."""


@contextmanager
def without_checks(off: bool = True) -> Iterator[None]:
    """Without Pyro's checks, unless `off` is False."""
    with nullcontext() if _in_autograd() else PROCESS_STATE, pyro.validation_enabled(not off):
        yield


class OneThread(Messenger):
    """Inside, a Pyro statement of another thread raises an error there.

    The handlers of this thread would take it for a statement of their own program.
    """

    def __enter__(self) -> OneThread:
        self._thread = threading.current_thread()
        self._met_another = False
        super().__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Where another thread failed, Pyro has removed all handlers that came after its own.
        alone = _PYRO_STACK[-1:] == [self]
        if self in _PYRO_STACK:
            _PYRO_STACK.remove(self)
        if isinstance(exc, Exception) and (self._met_another or not alone):
            raise RuntimeError(_message("this one")) from exc

    def _process_message(self, msg: Any) -> None:
        if threading.current_thread() is not self._thread and not _in_autograd():
            self._met_another = True
            raise RuntimeError(_message(self._thread.name))


def _in_autograd() -> bool:
    """Whether this is a thread of autograd's own, which Python knows only as a dummy.

    On a GPU it runs a checkpoint anew, for a thread that waits and may hold the lock.
    """
    return isinstance(threading.current_thread(), threading._DummyThread)


def _message(thread: str) -> str:
    return (
        "Expected Pyro programs of one thread at a time, whose handlers the whole process shares; "
        f"got some of another thread while {thread} trained a model. Run them before or after, or "
        "in a process of their own."
    )
