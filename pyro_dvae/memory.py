"""The memory that is available, so that work that does not fit is refused before it begins."""

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
    """The bytes that this process can still allocate.

    It is the minimum of the machine's free memory, and of what is left under the limits of the
    container and of the process (`ulimit -v`). It is `sys.maxsize` if none of them is known.

    Args:
        device: if it is a CUDA device, its free memory is included in the minimum.
    """
    known = [_machine(), _container(), _process()]
    if device is not None and device.type == "cuda":
        import torch

        known.append(torch.cuda.mem_get_info(device)[0])
    return max(0, min(known))


def refuse_bytes(
    purpose: str, needed: float, lower: str, device: torch.device | None = None
) -> None:
    """Refuse an allocation that is larger than the available memory.

    Args:
        purpose: what needs the memory, for the message.
        needed: lower bound on the bytes that it needs.
        lower: the setting that the user can lower, for the message.
        device: device of the memory; None for the CPU.

    Raises:
        ValueError: it needs more than is available.
    """
    available = available_memory(device)
    if needed > available:
        raise ValueError(
            f"Expected {purpose} within the {in_gib(available)} of memory that are available; got "
            f"at least {in_gib(needed)}. Lower {lower}."
        )


def in_gib(number: float) -> str:
    """A number of bytes as text: "1.5 GiB"."""
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
        with suppress(OSError, ValueError):  # "max" means that there is no limit
            most, taken = int((root / limit).read_text()), int((root / used).read_text())
            lines = (root / limit).with_name("memory.stat").read_text().splitlines()
            statistics = dict(line.split() for line in lines)
            # The memory of cached files is freed when it is needed.
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
