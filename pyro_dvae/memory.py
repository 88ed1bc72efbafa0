"""How much memory this process may still take, so that what would not fit is refused first."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path


def available_memory() -> int:
    """The bytes that this process may still take.

    The least of what the machine has free, what a container's limit leaves and what the limit on
    the process (`ulimit -v`) leaves; `sys.maxsize` where nothing of this is known.
    """
    return max(0, min(_machine(), _container(), _process()))


def _machine() -> int:
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        line = next(line for line in lines if line.startswith("MemAvailable:"))
        return int(line.split()[1]) * 1024
    with suppress(AttributeError, OSError, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return sys.maxsize


def _container(folder: Path = Path("/sys/fs/cgroup")) -> int:
    with suppress(OSError, ValueError):  # "max" is no number, and no limit
        limit = int((folder / "memory.max").read_text())
        used = int((folder / "memory.current").read_text())
        statistics = dict(
            line.split() for line in (folder / "memory.stat").read_text().splitlines()
        )
        return limit - used + int(statistics.get("inactive_file", 0))  # a cache, freed at need
    return sys.maxsize


def _process() -> int:
    with suppress(ImportError, OSError, ValueError):  # Windows has no such limits
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            return limit - pages * os.sysconf("SC_PAGE_SIZE")
    return sys.maxsize
