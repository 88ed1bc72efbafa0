"""How much memory a run would take, estimated from its settings before anything is built."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from pyro_dvae import memory
from pyro_dvae.runs.config import Config, build_vae, own_code
from pyro_dvae.specs import name_and_argument

_FLOAT = 4
"""Bytes of a number in float32."""
_STATES = 4
"""Numbers per weight in training: the weight, its gradient, and Adam's two moments."""
_PARTS = ("prior", "likelihood", "guide", "network")
"""Settings that may have a number after a colon."""
_WORDS = {
    "num_latents": "the number of latents",
    "num_categories": "the number of categories",
    "num_particles": "the number of particles",
    "hidden": "the widths of the hidden layers",
    "batch_size": "the batch size",
}


def refuse_too_large(
    config: Config,
    event_shape: Sequence[int],
    num_data: int | None = None,
    device: torch.device | None = None,
) -> None:
    """Refuse settings that ask for more memory than there is, before any of it is taken.

    Args:
        config: the settings.
        event_shape: the shape of a datum.
        num_data: N, the number of training data, for a batch is never larger; None for a model
            that is not trained.
        device: where the model will be; None for the CPU.

    Raises:
        ValueError: the model, or a step of its training, takes more memory than is available.
    """
    needed = memory_of(config, event_shape, num_data)
    if needed <= memory.available_memory(device):
        return
    smaller = {
        what: memory_of(other, event_shape, num_data) for what, other in _smaller(config)
    } or {"the sizes of the model": needed}
    what = min(smaller, key=smaller.__getitem__)
    purpose = "a model" if num_data is None else "a model and a training step"
    memory.refuse_bytes(purpose, needed, what, device)


def memory_of(config: Config, event_shape: Sequence[int], num_data: int | None = None) -> float:
    """A lower bound on the bytes that a model takes: 4 W, or 4 (4 W + 2 B (e + S (2 D K + d))).

    The first is for a model that is not trained, with W weights. The second is for a training step
    on a batch of B data with S particles: every weight has a gradient and two moments, and what
    the layers put out is kept for the backward pass. e and d are the numbers that the linear
    layers of the encoder put out for one datum, and those of the decoder for one code.

    Args:
        config: the settings.
        event_shape: the shape of a datum.
        num_data: N, the number of training data; None for a model that is not trained.

    Returns:
        Bytes; infinity where torch cannot count them. Networks, priors and guides of the user's own
        are left out, and a likelihood of the user's own counts as one parameter per element.
    """
    shape = tuple(event_shape)
    own = config.encoder is not None or config.decoder is not None
    ours = replace(config, encoder=None, decoder=None) if own else config
    plain: dict[str, Any] = {"prior": "uniform", "likelihood": "bernoulli", "guide": "mean-field"}
    ours = replace(ours, **{part: plain[part] for part in plain if _is_own(config, part)})
    code = (config.num_latents, config.num_categories)
    try:
        with torch.device("meta"):
            vae = build_vae(ours, shape)
            weights: int = sum(x.numel() for x in [*vae.parameters(), *vae.buffers()])
            per_datum = per_code = 0
            num_params: int = vae.likelihood.num_params
            if own:
                networks = [*vae.encoder.parameters(), *vae.decoder.parameters()]
                weights -= sum(x.numel() for x in networks)
            elif num_data is not None:
                per_datum, per_code = _outputs(vae.encoder), _outputs(vae.decoder)
    except (RuntimeError, OverflowError, TypeError, MemoryError):
        return math.inf
    if num_data is None:
        return _FLOAT * weights
    per_code = max(per_code, num_params * math.prod(shape)) + 2 * math.prod(code)
    batch = min(config.batch_size, num_data)
    step = batch * (per_datum + config.particles * per_code)
    return _FLOAT * (_STATES * weights + 2 * step)


def _outputs(network: nn.Module) -> int:
    """The numbers that the linear layers put out for one input.

    A forward pass on the meta device would count convolutions too, but it imports modules that
    take seconds.
    """
    return sum(part.out_features for part in network.modules() if isinstance(part, nn.Linear))


def _is_own(config: Config, part: str) -> bool:
    """Whether the settings name a part of the user's own."""
    return vars(config)[part] in own_code(config)


def _smaller(config: Config) -> Iterator[tuple[str, Config]]:
    """What could be lowered, and the settings with that one at its default."""
    default, settings = vars(Config()), vars(config)
    for name, what in _WORDS.items():
        usual, value = default[name], settings[name]
        if value is None:  # which the code of the user's own decides
            continue
        if value > usual or (name == "hidden" and max((*value, 0)) > min(usual)):
            changed: dict[str, Any] = {name: usual}
            yield what, replace(config, **changed)
    for part in _PARTS:
        name, argument = name_and_argument(settings[part])
        if argument is not None and name not in ("masked", "mixed") and not _is_own(config, part):
            changed = {part: name}
            yield f"the number after {name}:", replace(config, **changed)
