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


def _container(root: Path = Path("/sys/fs/cgroup")) -> int:
    first = ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")  # of version 1
    for limit, used in (("memory.max", "memory.current"), first):
        with suppress(OSError, ValueError):  # "max" is no number, and no limit
            most, taken = int((root / limit).read_text()), int((root / used).read_text())
            lines = (root / limit).with_name("memory.stat").read_text().splitlines()
            statistics = dict(line.split() for line in lines)
            # Files that are cached are freed at need.
            return most - taken + int(statistics.get("inactive_file", 0))
    return sys.maxsize


def _process() -> int:
    with suppress(ImportError, OSError, ValueError):  # Windows has no such limits
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            return limit - pages * os.sysconf("SC_PAGE_SIZE")
    return sys.maxsize
