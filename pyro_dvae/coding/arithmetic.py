"""The same numbers every time: a model's networks in double precision, with one thread."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from pyro_dvae.process import PROCESS_STATE, without_checks

if TYPE_CHECKING:
    from pyro_dvae.vae import DiscreteVAE


@contextmanager
def reference_arithmetic() -> Iterator[None]:
    """One thread, no autocast, no gradients, and torch's own defaults but for double precision.

    What the user has set is set again afterwards. A sum of floating point numbers depends on how
    many threads make it, and on the precision.
    """
    with (
        PROCESS_STATE,
        without_checks(),
        torch.no_grad(),
        torch.device("cpu"),
        torch.autocast("cpu", enabled=False),
    ):
        threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
        torch.set_num_threads(1)
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
            torch.set_num_threads(threads)


def reference_model(vae: DiscreteVAE) -> DiscreteVAE:
    """A copy of a model in double precision on the CPU, in eval mode, not compiled."""
    model = cast("DiscreteVAE", copy.deepcopy(_original(vae)))
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if child is not _original(child):
                setattr(parent, name, _original(child))
    model = model.to("cpu").double().eval()
    model.requires_grad_(False)
    model.prior.refresh()
    return model


def _original(module: Any) -> nn.Module:
    """The module that `torch.compile` was given, of what it returned; else the module itself."""
    while type(module).__name__ == "OptimizedModule":
        module = module._orig_mod
    return cast(nn.Module, module)


def model_hash(model: DiscreteVAE) -> bytes:
    """16 bytes that stand for a model: its parts, by name and settings, and all its weights.

    Args:
        model: of `reference_model`, so that the hash does not depend on dtype and device.
    """
    found = hashlib.sha256()
    for name, module in model.named_modules():
        # What the modules of torch say of themselves may change from version to version.
        own = module.extra_repr() if type(module).__module__.startswith("pyro_dvae") else ""
        found.update(f"{name}={type(module).__name__}({own})\n".encode())
    for name, value in model.state_dict().items():
        found.update(f"{name}{tuple(value.shape)}\n".encode())
        found.update(value.double().contiguous().numpy().astype("<f8").tobytes())
    return found.digest()[:16]
