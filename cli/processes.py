"""A command in the processes that torchrun starts: `torchrun --nproc-per-node 2 -m pdvae_cli`."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from .console import Output, note
from .errors import fail
from .signals import STOPPED

TOGETHER = ("fit", "encode", "evaluate", "score")
"""The commands that several processes run together."""
_TOLD, _STOPPED = "pdvae told", "pdvae stopped"
"""Names in the store that torchrun shares among the processes."""


def _number(name: str, default: int) -> int:
    return int(os.environ.get(name, default)) if "TORCHELASTIC_RUN_ID" in os.environ else default


def world_size() -> int:
    """The number of processes that torchrun has started for this command; 1 without it."""
    return _number("WORLD_SIZE", 1)


def is_first() -> bool:
    """Whether this process prints and writes for all: it is process 0, or the only one."""
    return _number("RANK", 0) == 0


def is_restart() -> bool:
    """Whether torchrun has started the command again, since a process had ended."""
    return _number("TORCHELASTIC_RESTART_COUNT", 0) > 0


def may_restart() -> bool:
    """Whether torchrun would start the command again if a process ended."""
    return _number("TORCHELASTIC_MAX_RESTARTS", 0) > 0


@contextmanager
def one_voice(arguments: list[str]) -> Iterator[None]:
    """Inside, process 0 alone prints, and the first process that fails says why.

    Args:
        arguments: the command and its options.

    Raises:
        CommandError: several processes were started for a command that one runs.
    """
    if world_size() == 1:
        yield
        return
    errors = sys.stderr
    if not is_first():
        sys.stdout, sys.stderr = Output(None), Output(None)
    try:
        command = next((word for word in arguments if not word.startswith("-")), "--help")
        if command not in TOGETHER:
            fail(
                f"Expected one process for {command}; got {world_size()}, which torchrun has "
                f"started. Run pdvae {command} without it."
            )
        yield
        _leave()
    except Exception:
        sys.stderr = errors if _tells() else Output(None)
        raise


def join(device: Any) -> Any:
    """Join the other processes.

    Args:
        device: the device to compute on.

    Returns:
        The device of this process: of several CUDA devices each process takes its own.
    """
    import torch

    if world_size() == 1:
        if device.type == "cuda" and torch.cuda.device_count() > 1:
            num = torch.cuda.device_count()
            note(
                f"computing on one of the {num} GPUs of this machine; on all of them: torchrun "
                f"--nproc-per-node {num} -m pdvae_cli ..."
            )
        return device
    backend = "gloo"
    if device.type == "cuda":
        local, num = _number("LOCAL_RANK", 0), torch.cuda.device_count()
        if local >= num:
            fail(
                f"Expected at most one process per GPU, of which this machine has {num}; got "
                f"process {local + 1} here. Lower --nproc-per-node, or use --device cpu."
            )
        device, backend = torch.device("cuda", local), "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(device)
    elif device.type != "cpu":
        fail(f"Expected --device cpu or cuda in several processes; got {device.type}. Change it.")
    options: dict[str, Any] = {"timeout": timedelta(minutes=30)}
    if _number("LOCAL_WORLD_SIZE", 0) == world_size():
        # A restart would else find the addresses of processes that have ended. (The agents of
        # several machines count restarts apart.)
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]

        name = f"pdvae group {_number('TORCHELASTIC_RESTART_COUNT', 0)}"
        store = PrefixStore(name, _store(seconds=300))
        options |= {"store": store, "rank": _number("RANK", 0), "world_size": world_size()}
    try:
        torch.distributed.init_process_group(backend, **options)
    except (RuntimeError, ValueError) as error:
        line = str(error).strip().splitlines()[0]
        fail(f"Expected {world_size()} processes that reach one another; got: {line}", 1)
    if is_restart() and _store().check([_STOPPED]):
        fail("stopped and saved before; start it again with the option --resume", STOPPED)
    return device


def wait_for_first() -> None:
    """Wait until process 0 has saved, for torchrun ends all processes once one has ended.

    Its restarts end at once afterwards, since the training was told to stop.
    """
    if world_size() > 1:
        import torch

        if may_restart() and is_first():
            _store().set(_STOPPED, "1")
        torch.distributed.barrier()


def _leave() -> None:
    if "torch" in sys.modules:
        import torch

        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def _tells() -> bool:
    """Whether this process is to print why the command fails, as the first of them that fails.

    The others wait until it has, for torchrun ends all processes once one has failed.
    """
    name = f"{_TOLD} {_number('TORCHELASTIC_RESTART_COUNT', 0)}"
    try:
        store = _store()
        if store.add(name, 1) == 1:
            atexit.register(store.set, f"{name} and printed", "1")
            return True
        store.wait([f"{name} and printed"], timedelta(seconds=10))
    except Exception:  # torchrun, which holds the store, has ended
        return is_first()
    return False


def _store(seconds: float = 10) -> Any:
    """A store that outlives the processes, for torchrun holds it."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=seconds))
