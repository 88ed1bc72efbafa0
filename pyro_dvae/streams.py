"""Random streams that are independent of one another."""

from __future__ import annotations

from types import TracebackType

import numpy as np
import torch
from torch import Tensor

from pyro_dvae.process import PROCESS_STATE


class RandomStream:
    """A separate stream of random numbers, for code that draws from torch's global generators.

    Inside `with stream:`, the global generators continue this stream. Afterwards, they have their
    old state again. So neither validation nor the caller's own draws change the stream of the
    training. Only one thread is inside at a time, and others wait. But a thread that uses the
    global generators without a `RandomStream` draws from the stream that is in use, and changes it.

    Args:
        seed: seed of the stream.
        device: a device whose generator belongs to the stream, besides the CPU's.
    """

    def __init__(self, seed: int, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        cpu = torch.device("cpu")
        devices = [cpu] if self.device.type == "cpu" else [cpu, self.device]
        self._inside = [torch.Generator(where).manual_seed(seed).get_state() for where in devices]
        self._outside: list[Tensor] | None = None

    @property
    def state(self) -> list[Tensor]:
        """The present states of its generators, the CPU's first."""
        return self._inside if self._outside is None else self._get()

    @state.setter
    def state(self, state: list[Tensor]) -> None:
        self._inside = state

    def __enter__(self) -> RandomStream:
        PROCESS_STATE.acquire()
        self._outside = self._get()
        self._set(self._inside)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._inside = self._get()
        outside, self._outside = self._outside, None
        if outside is not None:
            self._set(outside)
        PROCESS_STATE.release()

    def _get(self) -> list[Tensor]:
        states = [torch.get_rng_state()]
        if self.device.type == "cuda":
            states.append(torch.cuda.get_rng_state(self.device))
        elif self.device.type == "mps":
            states.append(torch.mps.get_rng_state())
        return states

    def _set(self, states: list[Tensor]) -> None:
        torch.set_rng_state(states[0])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(states[1], self.device)
        elif self.device.type == "mps":
            torch.mps.set_rng_state(states[1])


def seed_of_part(seed: int, number: int, step: int = 0) -> int:
    """The seed of the random streams of a part of a computation, independent of other parts.

    Args:
        seed: the seed of part 0.
        number: which part it is, from 0: the number of a process, or of a section of the data.
        step: the step at which it begins.
    """
    if number == 0:
        return seed
    # The generator of the CPU takes no more than 32 bits of its seed.
    return int(np.random.SeedSequence((seed % 2**63, number, step)).generate_state(1)[0])
