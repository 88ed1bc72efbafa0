"""A lock for the state of torch and Pyro that all threads of a process share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import Any

import pyro
import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import _PYRO_STACK

PROCESS_STATE = threading.RLock()
"""Lock of the state that the whole process shares: torch's global generators, and Pyro's stack of
handlers, checks and parameter store. Code of this library that changes or needs this state holds
the lock, so threads take turns. Code of other threads that draws from the global generators does
not hold it."""


@contextmanager
def without_checks(off: bool = True) -> Iterator[None]:
    """Turn Pyro's checks off inside, or on if `off` is False."""
    with nullcontext() if _in_autograd() else PROCESS_STATE, pyro.validation_enabled(not off):
        yield


class OneThread(Messenger):
    """Inside, a Pyro statement in another thread raises an error in that thread.

    Otherwise, the handlers of this thread would treat it as a statement of their own program.
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
        # If another thread failed, Pyro has removed all handlers that came after its own.
        alone = _PYRO_STACK[-1:] == [self]
        if self in _PYRO_STACK:
            _PYRO_STACK.remove(self)
        if isinstance(exc, Exception) and (self._met_another or not alone):
            raise RuntimeError(_message("this one")) from exc

    def _process_message(self, msg: Any) -> None:
        if threading.current_thread() is not self._thread and not _in_autograd():
            self._met_another = True
            raise RuntimeError(_message(self._thread.name))


@contextmanager
def for_steps(draws: AbstractContextManager[Any]) -> Iterator[None]:
    """Inside, training steps run: with gradients, and with nothing of the process but its draws.

    Args:
        draws: a context in which torch's global generators are those of the training.
    """
    # The checks of Pyro would read from the device at every step. The trial run has made them.
    with (
        draws,
        OneThread(),
        torch.inference_mode(False),
        torch.enable_grad(),
        without_checks(),
        pyro.get_param_store().scope(),
    ):
        yield


def _in_autograd() -> bool:
    """Whether this is a thread of autograd, for which Python has a dummy object only.

    On a GPU it computes checkpoints again, for a thread that waits and may hold the lock.
    """
    return isinstance(threading.current_thread(), threading._DummyThread)


def _message(thread: str) -> str:
    return (
        "Expected Pyro programs of one thread at a time, since Pyro's handlers are shared by the "
        f"whole process; got one in another thread while {thread} trained a model. Run it before "
        "or after, or in its own process."
    )
