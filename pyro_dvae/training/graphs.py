"""A training step as one CUDA graph: recorded once, then replayed without Python.

This was written without a GPU at hand. The tests replay recorded operations on the CPU, and the
tests that need CUDA are skipped without it. `examples/benchmarks/gpu.py` measures it on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from pyro_dvae.elbos.snapshot import SnapshotELBO
from pyro_dvae.training.batches import OrderedData, TrainingData

T = TypeVar("T")
WARM_UP = 3
"""Full batches that run without a graph before one is recorded, while libraries initialise."""


class CaptureError(Exception):
    """CUDA could not record a step, for example because it read from the device."""


class CapturedStep(Generic[T]):
    """Calls a function of the indices of a batch; for full batches it replays one CUDA graph.

    The graph records what the function does on the device, and nothing else. So the tensors that
    the function reads and writes must keep their memory, it may not read from the device, and
    numbers that change from step to step must be tensors on the device. A shorter batch calls the
    function itself.

    Args:
        function: a function of index (B,) int64, on the device.
        batch_size: B, the number of data in a full batch.
        generators: the generators on the device that the function draws from. The global generator
            need not be among them.
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
        """The result of the function; a replay returns the same tensors again, with other values.

        Raises:
            CaptureError: the first full batch after the warm-up could not be recorded. No step was
                taken, and CUDA may not work any longer in this process.
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
    """Inside, work goes to another stream, as torch demands before a recording."""
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
    """A function that repeats what `function` does on the device. Recording does nothing there.

    At each replay the generators go on from where they are, as they would without a graph.
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


def check_capture(
    device: torch.device,
    data: TrainingData,
    elbo: Any,
    needs_no_traces: bool,
    changes: Mapping[str, int],
) -> None:
    """Refuse what cannot be recorded, before the first step.

    Args:
        device: the device to train on.
        data: the data to train on.
        elbo: the ELBO.
        needs_no_traces: the result of `backward.needs_no_traces` for the model and the ELBO.
        changes: setting -> the number of epochs or steps in which it makes a step another one.

    Raises:
        ValueError: the device is no CUDA device, a step needs Pyro's traces or a snapshot, the
            steps are not all alike, or the data are `OrderedData`, which are not on the device.
    """
    if device.type != "cuda":
        raise ValueError(
            f"Expected a CUDA device to capture the step on; got {device.type}. Move the model "
            "there, or use capture=False."
        )
    if not needs_no_traces or isinstance(elbo, SnapshotELBO):  # which decodes all codes at times
        raise ValueError(
            "Expected a model and an ELBO whose step needs no traces to capture it; got others. "
            "Use RlooELBO or ReinMaxELBO with a mean-field guide and a uniform or learned prior, "
            "or capture=False."
        )
    for name, number in changes.items():
        if number:
            raise ValueError(
                f"Expected {name}=0 to capture the step, since one learning rate and one gradient "
                f"are recorded; got {number}. Leave it out, or use capture=False."
            )
    if isinstance(data, OrderedData):
        raise ValueError(
            f"Expected data on the device to capture the step; got {type(data).__name__}, which "
            "reads blocks in an order of its own. Load the data whole, or use capture=False."
        )
