"""Processes that tests start once, and that then work together in groups of any number."""

from __future__ import annotations

import multiprocessing as mp
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


class Crew:
    """Up to four processes with one thread each, which communicate by gloo.

    Args:
        most: the number of processes to start.
    """

    def __init__(self, most: int) -> None:
        context = mp.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory()
        self._num_groups = 0
        self._members = []
        for number in range(most):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, number), daemon=True)
            process.start()
            self._members.append((process, ours))

    def run(self, size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
        """What a function returns in each of the processes of a group; or its exception.

        Args:
            size: the number of processes.
            function: of a module of the tests, for pickle takes it by its name.
            *args: its arguments.
        """
        self._num_groups += 1
        path = Path(self._folder.name) / str(self._num_groups)
        members = self._members[:size]
        for _, pipe in members:
            pipe.send((str(path), size, function, args))
        results = []
        for number, (_, pipe) in enumerate(members):
            assert pipe.poll(60), f"process {number} hangs"
            results.append(pipe.recv())
        return results

    def close(self) -> None:
        """End the processes."""
        for process, _ in self._members:
            process.kill()
            process.join()
        self._folder.cleanup()


def _work(pipe: Any, rank: int) -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    while True:
        path, size, function, args = pipe.recv()
        dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=size)
        try:
            result = function(*args)
        except Exception as error:
            result = error
        dist.destroy_process_group()
        pipe.send(result)
