"""A training step as one CUDA graph: recorded once, then replayed without Python.

Written without a card at hand: the tests replay recorded operations on the CPU, and those that
need CUDA are skipped where there is none. `examples/benchmarks/gpu.py` runs it on one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch
from torch import Tensor

from pyro_dvae.training.batches import OrderedData, TrainingData

T = TypeVar("T")
WARM_UP = 3
"""Full batches taken as they are before one is recorded: libraries set themselves up in these."""


class CaptureError(Exception):
    """A step that CUDA could not record: it read from the device, say."""


class CapturedStep(Generic[T]):
    """Calls a function of a batch's indices, for full batches by replaying one CUDA graph of it.

    What the function does on the device is recorded, and nothing else: whatever it reads and
    writes must stay where it is, it may not read from the device, and numbers that change from
    step to step must be tensors there. A shorter batch is not replayed.

    Args:
        function: of index (B,) int64, on the device.
        batch_size: B of a full batch.
        generators: on the device, that the function draws from; the global one needs no mention.
        device: a CUDA device.
    """

    def __init__(
        self,
        function: Callable[[Tensor], T],
        batch_size: int,
        generators: Sequence[torch.Generator],
        device: torch.device,
    ) -> None:
        self.function, self.generators = function, generators
        self._index = torch.zeros(batch_size, dtype=torch.int64, device=device)
        self._num_warm = 0
        self._replay: Callable[[], T] | None = None

    def __call__(self, index: Tensor) -> T:
        """What the function returns; of a replay always the same tensors, with other contents.

        Raises:
            CaptureError: the first full batch after the warm-up could not be recorded; it was not
                taken, and what CUDA does next in this process is not certain.
        """
        if len(index) != len(self._index):
            return self.function(index)
        if self._num_warm < WARM_UP:
            self._num_warm += 1
            with aside(self._index.device):
                return self.function(index)
        self._index.copy_(index)
        if self._replay is None:
            try:
                self._replay = self._record()
            except RuntimeError as error:
                raise CaptureError(
                    "Expected a step that CUDA can record as a graph; got "
                    f"'{str(error).strip().splitlines()[0]}'. Use capture=False."
                ) from error
        return self._replay()

    def _record(self) -> Callable[[], T]:
        device = self._index.device
        return record(lambda: self.function(self._index), self.generators, device)


@contextmanager
def aside(device: torch.device) -> Iterator[None]:
    """Inside, work goes to another stream, as torch asks of what precedes a recording."""
    current, side = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    side.wait_stream(current)
    try:
        with torch.cuda.stream(side):
            yield
    finally:
        current.wait_stream(side)


def record(
    function: Callable[[], T], generators: Sequence[torch.Generator], device: torch.device
) -> Callable[[], T]:
    """A function that does again what `function` does on the device; to record does nothing there.

    The generators go on from where they are at each replay, as they would without a graph.
    """
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph, stream=torch.cuda.Stream(device)):
        result = function()

    def replay() -> T:
        graph.replay()
        return result

    return replay


def check_capture(device: torch.device, data: TrainingData, needs_no_traces: bool) -> None:
    """Refuse what cannot be recorded, before the first step.

    Args:
        device: to train on.
        data: to train on.
        needs_no_traces: of the model under the ELBO: see `backward.needs_no_traces`.

    Raises:
        ValueError: the device is not CUDA's, Pyro would trace the model at each step, or the data
            are read in an order of their own, from outside of the device.
    """
    if device.type != "cuda":
        raise ValueError(
            f"Expected a CUDA device to capture the step on; got {device.type}. Move the model "
            "there, or use capture=False."
        )
    if not needs_no_traces:
        raise ValueError(
            "Expected a model and an ELBO whose step needs no traces to capture it; got others. "
            "Use ReinforceELBO or RlooELBO with a mean-field guide and a uniform or learned prior, "
            "or capture=False."
        )
    if isinstance(data, OrderedData):
        raise ValueError(
            f"Expected data on the device to capture the step; got {type(data).__name__}, which "
            "reads blocks in an order of its own. Load the data whole, or use capture=False."
        )
