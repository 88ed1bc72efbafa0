"""How much memory this process may still take, so that what would not fit is refused first."""

from __future__ import annotations

import math
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def available_memory(device: torch.device | None = None) -> int:
    """The bytes that this process may still take.

    The least of what the machine has free, what a container's limit leaves and what the limit on
    the process (`ulimit -v`) leaves; `sys.maxsize` where nothing of this is known.

    Args:
        device: a CUDA device, whose memory counts too.
    """
    known = [_machine(), _container(), _process()]
    if device is not None and device.type == "cuda":
        import torch

        known.append(torch.cuda.mem_get_info(device)[0])
    return max(0, min(known))


def refuse_bytes(
    purpose: str, needed: float, lower: str, device: torch.device | None = None
) -> None:
    """Refuse what takes more memory than is available.

    Args:
        purpose: what takes it, for the message.
        needed: bytes, at least.
        lower: what the user can lower, for the message.
        device: where it is taken; the CPU if None.

    Raises:
        ValueError: it takes more.
    """
    available = available_memory(device)
    if needed > available:
        raise ValueError(
            f"Expected {purpose} within the {in_gib(available)} of memory that are available; got "
            f"at least {in_gib(needed)}. Lower {lower}."
        )


def in_gib(number: float) -> str:
    """Bytes in words."""
    if math.isinf(number):
        return "2^33 GiB"  # torch counts up to 2^63 bytes
    size = number / 2**30
    return f"{size:,.1f} GiB" if size < 1e6 else f"{size:.1e} GiB"


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
