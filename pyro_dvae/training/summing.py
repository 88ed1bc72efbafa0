"""Sums over all processes: by memory that those of one machine share, else by messages."""

from __future__ import annotations

import mmap
import os
import shutil
import socket
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from pyro_dvae import processes

_MEMORY = Path("/dev/shm")
"""Where Linux keeps files in memory alone."""
_SECONDS = 1800.0
"""How long a process waits for another one, as `torch.distributed` does."""


class SumOfAll:
    """sum_r x_r of the numbers x_r (N,) that each process r writes into its `own`.

    Processes of one machine that compute on CPUs write them into memory that they share. Each adds
    up its part of the N sums, and all copy all sums from there. Other processes use
    `torch.distributed.all_reduce`. On one machine, gloo's sends the numbers from process to
    process, which copies them several times, and takes 3 times as long
    (examples/benchmarks/processes.py).

    All processes must make the same calls, in the same order.

    Args:
        num: N.
        dtype: the dtype of the numbers.
        device: the device of the numbers.
    """

    def __init__(self, num: int, dtype: torch.dtype, device: torch.device) -> None:
        self._all: Tensor | None = None
        self._meeting: _Meeting | None = None
        if device.type == "cpu" and processes.communicates_by_gloo():
            found = _shared((processes.world_size() + 1) * num * dtype.itemsize)
            if found is not None:
                memory, self._meeting = found
                self._all = torch.frombuffer(memory, dtype=dtype).view(-1, num)
        if self._all is None:
            self.own = torch.zeros(num, dtype=dtype, device=device)
        else:  # a row for each process, and the last for the sums
            self.own = self._all[processes.rank()]
            # A hook of the user may change gradients in place, in each process.
            self._sums = torch.empty_like(self.own)

    @property
    def is_shared(self) -> bool:
        """Whether the processes share the memory."""
        return self._all is not None

    def __call__(self) -> Tensor:
        """The sums (N,), in memory of this process alone, which are valid until the next call.

        Raises:
            ProcessError: another process has ended.
        """
        if self._all is None or self._meeting is None:
            return processes.add_up(self.own)
        first, second, *others, total = map(processes.portion, self._all)
        self._meeting.wait_for_all()  # until each has written its numbers
        torch.add(first, second, out=total)
        for other in others:
            total += other
        self._meeting.wait_for_all()  # until each has added up its part
        return self._sums.copy_(self._all[-1])


class _Meeting:
    """Connections between process 0 and each other process of a machine.

    A meeting by them takes a fifth of the processor time of gloo's, which uses several threads.

    Args:
        links: in process 0 one per other process, and in each other process that to process 0.
    """

    def __init__(self, links: list[socket.socket]) -> None:
        self._links = links
        for link in links:
            link.settimeout(_SECONDS)

    def __del__(self) -> None:
        self._close()

    def _close(self) -> None:
        for link in self._links:
            link.close()

    def wait_for_all(self) -> None:
        """Wait until all processes have come here.

        Raises:
            ProcessError: another process has ended. All others then notice it too.
        """
        with processes.noticing_ends():
            try:
                if processes.rank() == 0:
                    self._hear()
                    self._tell()
                else:
                    self._tell()
                    self._hear()
            except OSError as error:
                self._close()
                raise RuntimeError(str(error)) from error

    def _tell(self) -> None:
        for link in self._links:
            link.send(b".")

    def _hear(self) -> None:
        if not all([link.recv(1) for link in self._links]):
            raise ConnectionError("Connection closed by peer")


def _shared(num_bytes: int) -> tuple[mmap.mmap, _Meeting] | None:
    """Zeros in memory that all processes share, and their meeting; None if they cannot share."""
    is_first = processes.rank() == 0
    folder = processes.from_first(_new_folder(num_bytes) if is_first else None)
    if folder is None:
        return None
    try:
        memory = _opened(folder, num_bytes)
        everywhere = processes.gathered(memory is not None)
        if memory is None or not all(everywhere):
            return None
        return memory, _Meeting(_links(folder / "meeting", is_first))
    finally:
        if is_first:  # memory and connections last until the processes end
            shutil.rmtree(folder, ignore_errors=True)


def _new_folder(num_bytes: int) -> Path | None:
    """A new folder with a file of zeros in memory; None where there is no room for one."""
    if not (_MEMORY.is_dir() and hasattr(os, "posix_fallocate")):
        return None
    try:
        folder = Path(tempfile.mkdtemp(prefix="pyro_dvae-", dir=_MEMORY))
    except OSError:
        return None
    try:
        with open(folder / "numbers", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, num_bytes)  # a full memory fails here, not later
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        return None
    return folder


def _opened(folder: Path, num_bytes: int) -> mmap.mmap | None:
    """The memory of process 0; None on another machine, which does not have it."""
    try:
        with open(folder / "numbers", "r+b") as file:
            return mmap.mmap(file.fileno(), num_bytes)
    except (OSError, ValueError):
        return None


def _links(path: Path, is_first: bool) -> list[socket.socket]:
    """The connections of a `_Meeting`."""
    own = socket.socket(socket.AF_UNIX)
    if not is_first:
        processes.wait_for_all()
        own.connect(str(path))
        return [own]
    with own:
        own.settimeout(_SECONDS)
        own.bind(str(path))
        own.listen(processes.world_size())
        processes.wait_for_all()
        return [own.accept()[0] for _ in range(processes.world_size() - 1)]
