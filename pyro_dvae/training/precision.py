"""Networks in bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import torch
from torch import Tensor, nn

from pyro_dvae.vae import DiscreteVAE


class Bfloat16:
    """Inside `with`, encoder and decoder compute in bfloat16 where torch's autocast does.

    Their weights stay what they are, and so does the type of their outputs: likelihood, KL, draws
    and the optimiser's step do not run in bfloat16. Its 8 significant bits round each input,
    weight and output of a layer by a factor within 1 +- 2^-8.

    Args:
        vae: has `encoder` and `decoder`, each of one output.
    """

    def __init__(self, vae: DiscreteVAE) -> None:
        self.__setstate__([vae.encoder, vae.decoder])

    def __getstate__(self) -> list[nn.Module]:
        return [network for network, _ in self._forwards]

    def __setstate__(self, networks: list[nn.Module]) -> None:
        # The same at each entry, as what is compiled asks whether they are; of a copy its own.
        self._forwards = [(network, _autocast(network)) for network in networks]

    def __enter__(self) -> None:
        for network, forward in self._forwards:
            # On the instance it hides the method of the class, and the state knows nothing of it.
            network.__dict__["forward"] = forward

    def __exit__(self, *_: object) -> None:
        for network, _forward in self._forwards:
            network.__dict__.pop("forward", None)


def _autocast(network: nn.Module) -> Callable[..., Tensor]:
    forward, weight = network.forward, next(network.parameters())

    @wraps(forward)
    def wrapped(*args: Tensor) -> Tensor:
        # A weight is used once, so a cache of rounded weights would hold them for nothing.
        with torch.autocast(weight.device.type, torch.bfloat16, cache_enabled=False):
            output = forward(*args)
        return output.to(weight.dtype)

    return wrapped
