"""Networks in bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import torch
from torch import Tensor, nn

from pyro_dvae.vae import DiscreteVAE


class Bfloat16:
    """Inside `with`, the encoder and the decoder compute in bfloat16, by torch's autocast.

    Their weights and the dtype of their outputs stay as they are, so the likelihood, the KL, the
    draws and the step of the optimizer do not run in bfloat16. A number in bfloat16 has 8
    significant bits: each input, weight and output of a layer is rounded by a factor between
    1 - 2^-8 and 1 + 2^-8.

    Args:
        vae: the model, whose encoder and decoder each return one tensor.
    """

    def __init__(self, vae: DiscreteVAE) -> None:
        self.__setstate__([vae.encoder, vae.decoder])

    def __getstate__(self) -> list[nn.Module]:
        return [network for network, _ in self._forwards]

    def __setstate__(self, networks: list[nn.Module]) -> None:
        # The wrappers are the same at each entry, because a compiled graph checks their identity.
        # A copy of the model has its own.
        self._forwards = [(network, _autocast(network)) for network in networks]

    def __enter__(self) -> None:
        for network, forward in self._forwards:
            # An attribute of the instance hides the method of the class, and no state holds it.
            network.__dict__["forward"] = forward

    def __exit__(self, *_: object) -> None:
        for network, _forward in self._forwards:
            network.__dict__.pop("forward", None)


def _autocast(network: nn.Module) -> Callable[..., Tensor]:
    forward, weight = network.forward, next(network.parameters())

    @wraps(forward)
    def wrapped(*args: Tensor) -> Tensor:
        # Each weight is used once per pass, so a cache of rounded weights saves nothing.
        with torch.autocast(weight.device.type, torch.bfloat16, cache_enabled=False):
            output = forward(*args)
        return output.to(weight.dtype)

    return wrapped
