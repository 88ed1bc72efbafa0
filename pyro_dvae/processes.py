"""Several processes that work as one, by `torch.distributed`.

In one process, that is where no process group is initialised, every function does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

_SHARE: list[float] = []
"""This process's share of the data of the step that is being computed; empty outside of steps."""


class ProcessError(Exception):
    """Another process has failed, or has ended, so that the processes cannot go on together."""


def world_size() -> int:
    """The number of processes that work together: 1 where no process group is initialised."""
    # Torch builds without it have no further names there.
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size()
    return 1


def rank() -> int:
    """The number of this process, from 0."""
    return torch.distributed.get_rank() if world_size() > 1 else 0


def portion(values: Tensor) -> Tensor:
    """This process's part of values (N, ...), in order; all parts together are the values.

    The lengths of two parts differ by at most 1.
    """
    size = world_size()
    return values if size == 1 else values.tensor_split(size)[rank()]


@contextmanager
def noticing_ends() -> Iterator[None]:
    """Inside, a broken connection to another process raises a `ProcessError`."""
    try:
        yield
    except RuntimeError as error:  # the connection to it was closed, or it did not answer in time
        line = str(error).strip().splitlines()[0]
        raise ProcessError(
            f"Expected {world_size()} processes that work together; got none where another one "
            f"was, as process {rank()} notices ({line[:200]}). Look for the message of the one "
            "that ended, and start all of them again."
        ) from error


def add_up(values: Tensor) -> Tensor:
    """Put the sum over all processes into a tensor of the same shape and dtype in each of them."""
    if world_size() > 1:
        with noticing_ends():
            torch.distributed.all_reduce(values)
    return values


def wait_for_all() -> None:
    """Wait until all processes have come here."""
    if world_size() > 1:
        with noticing_ends():
            torch.distributed.barrier()


def communicates_by_gloo() -> bool:
    """Whether several processes communicate by gloo alone, that is, compute on CPUs."""
    return world_size() > 1 and torch.distributed.get_backend() == "gloo"


@torch.no_grad()
def take_from_first(tensors: Iterable[Tensor]) -> None:
    """Put the values of process 0 into the tensors of all other processes."""
    if world_size() == 1:
        return
    by_kind: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        by_kind.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for (dtype, _), alike in by_kind.items():
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in alike])
        sent = flat.to(torch.uint8) if dtype == torch.bool else flat
        with noticing_ends():
            torch.distributed.broadcast(sent, src=0)
        pieces = sent.to(dtype).split([tensor.numel() for tensor in alike])
        for tensor, piece in zip(alike, pieces, strict=True):
            tensor.copy_(piece.reshape(tensor.shape))


def from_first(value: T) -> T:
    """The value that process 0 has, in every process. It must be one that pickle takes."""
    if world_size() == 1:
        return value
    values: list[Any] = [value]
    with noticing_ends():
        torch.distributed.broadcast_object_list(values, src=0)
    return values[0]


def gathered(value: T) -> list[T]:
    """The values of all processes, in their order. They must be ones that pickle takes."""
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    with noticing_ends():
        torch.distributed.all_gather_object(values, value)
    return values


def in_turn(function: Callable[[int], T], num: int, *, together: bool = True) -> Iterator[T]:
    """The values function(0), ..., function(num - 1), of which each process computes its part.

    Process r of R computes those of r, r + R, r + 2 R, ...; all processes get all values. At most R
    of them are held at once.

    Args:
        function: gives a value that pickle takes.
        num: the number of values.
        together: whether all processes call this; else this one computes all values.

    Raises:
        ValueError: (or OSError) the function has raised one, in any process.
        ProcessError: the function has raised another exception in another process.
    """
    size = world_size() if together else 1
    if size == 1:
        yield from map(function, range(num))
        return
    for start in range(0, num, size):
        own = start + rank()
        computed: Any = None
        error: Exception | None = None
        try:
            computed = function(own) if own < num else None
        except Exception as caught:
            error = caught
        everywhere = gathered((computed, _told(error)))
        if error is not None:
            raise error
        for _, told in everywhere:
            _raise(told)
        yield from (value for value, _ in everywhere[: num - start])


def done_by_first(function: Callable[[], T]) -> T:
    """What the function returns in process 0, which alone calls it.

    Raises:
        ValueError: (or OSError, as in process 0) the function has raised one there.
    """
    if world_size() == 1:
        return function()
    error: Exception | None = None
    result: Any = None
    if rank() == 0:
        try:
            result = function()
        except Exception as caught:
            error = caught
    result, told = from_first((result, _told(error)))
    if error is not None:
        raise error
    _raise(told)
    return result


def _told(error: Exception | None) -> tuple[str, str] | None:
    """An exception as other processes are told it: the name of its kind, and its message."""
    if error is None:
        return None
    kinds = (ValueError, OSError)
    kind = next((kind.__name__ for kind in kinds if isinstance(error, kind)), "")
    return kind, str(error) if kind else f"{type(error).__name__}: {error}"


def _raise(told: tuple[str, str] | None) -> None:
    """Raise what another process was told, if anything."""
    if told is not None:
        kind, message = told
        raise {"ValueError": ValueError, "OSError": OSError}.get(kind, ProcessError)(message)


def agree(what: Mapping[str, Any]) -> None:
    """Refuse processes that would not do the same.

    Args:
        what: name -> value, of settings that must be the same in all processes.

    Raises:
        ValueError: a value is another one in another process. Every process raises it.
    """
    everywhere = gathered(dict(what))
    for name in what:
        values = [each[name] for each in everywhere]
        if any(value != values[0] for value in values):
            raise ValueError(
                f"Expected the same {name} in all {len(values)} processes of the group; got "
                f"{', '.join(map(str, values[:8]))}. Pass the same data and settings in each, for "
                "a trainer takes each process's part by itself. Destroy the process group to train "
                "a model in each."
            )


@contextmanager
def sharing(share: float) -> Iterator[None]:
    """Inside, `mean_of_all` takes the mean over the data of all processes.

    Args:
        share: this process's data of a step, divided by those of all processes.
    """
    _SHARE.append(share)
    try:
        yield
    finally:
        _SHARE.pop()


def mean_of_all(mean: Tensor) -> Tensor:
    """A mean over the data of a step, of this process's part or, inside `sharing`, of all parts."""
    return add_up(mean * _SHARE[-1]) if _SHARE else mean
