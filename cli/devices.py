"""The device that `--device` names."""

from __future__ import annotations

import torch

from .errors import fail
from .options import Device


def pick_device(device: Device) -> torch.device:
    """The device to compute on. `auto` is CUDA where there is one, and else the CPU."""
    if device is Device.auto:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    there = {
        Device.cpu: True,
        Device.cuda: torch.cuda.is_available(),
        Device.mps: torch.backends.mps.is_available(),
    }
    if not there[device]:
        fail(f"Expected a device that is there; got {device.value}. Use --device auto.")
    return torch.device(device.value)
