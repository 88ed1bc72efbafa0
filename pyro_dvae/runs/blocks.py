"""Data of a run in blocks: decoded and drawn, however many there are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor

from pyro_dvae.codes import ROWS, one_hot
from pyro_dvae.likelihoods.base import typical_of
from pyro_dvae.runs.config import Config
from pyro_dvae.runs.run import Run
from pyro_dvae.streams import RandomStream
from pyro_dvae.vae import DiscreteVAE

_NUMBERS = 2**22
"""Elements of data and codes that are drawn at once."""


def decode_blocks(
    vae: DiscreteVAE,
    codes: Tensor,
    num_categories: int,
    *,
    means: bool = True,
    seed: int = 0,
    typical: bool = False,
) -> Iterator[Tensor]:
    """The means of p(x|z), or draws from it, at codes, block by block on the CPU.

    Args:
        vae: the model.
        codes: (N, D) categories 0 to K - 1, int64.
        num_categories: K.
        means: yield means; else draws.
        seed: of the draws.
        typical: among the means, give categories their most probable level; see `is_nominal`.

    Yields:
        (B, *event_shape).
    """
    weight = next(vae.parameters())
    stream = RandomStream(seed, weight.device)
    for index in codes.split(ROWS):
        with stream, torch.no_grad():
            x = vae.decode(one_hot(index.to(weight.device), num_categories, dtype=weight.dtype))
            block = _shown(x, means, typical)
        yield block.cpu()


def is_nominal(run: Run) -> bool:
    """Whether some elements are categories without a mean, as columns of a table may be."""
    return bool(run.data.levels) or run.vae.likelihood.kind == "columns"


def _shown(x: TorchDistribution, means: bool, typical: bool) -> Tensor:
    if not means:
        return x.sample()
    return typical_of(x) if typical else x.mean


class Samples(NamedTuple):
    """Data drawn from a model."""

    x: Tensor
    """(B, *event_shape), on the CPU."""
    labels: Tensor | None
    """(B,) int64, the classes that they were drawn for, where the prior is conditional."""


def draw_samples(
    run: Run, num: int, *, means: bool = True, label: int | None = None, seed: int = 0
) -> Samples:
    """Draw codes from a run's prior and decode them, all at once.

    Args:
        run: the run.
        num: N, data to draw.
        means: the means of p(x|z), and of columns of categories the most probable level; else draws
            from it.
        label: the one class to draw, of a prior that is conditional; None for all classes, as many
            data of each.
        seed: of the draws.
    """
    return next(_samples(run, num, num, means, label, seed))


def sample_blocks(
    run: Run,
    num: int,
    *,
    means: bool = True,
    label: int | None = None,
    seed: int = 0,
    made: Callable[[Tensor], Tensor] | None = None,
) -> Iterator[Samples]:
    """Draw codes from a run's prior and decode them, in blocks that take little memory.

    Args:
        run: the run.
        num: N, data to draw.
        means: the means of p(x|z), and of columns of categories the most probable level; else draws
            from it.
        label: the one class to draw, of a prior that is conditional; None for all classes, as many
            data of each.
        seed: of the draws.
        made: what to make of codes, (B, D, K) one-hot, in place of data.
    """
    code = run.config.num_latents * run.config.num_categories
    size = max(1, _NUMBERS // (math.prod(run.event_shape) + code))
    return _samples(run, num, size, means, label, seed, made)


def _samples(
    run: Run,
    num: int,
    size: int,
    means: bool,
    label: int | None,
    seed: int,
    made: Callable[[Tensor], Tensor] | None = None,
) -> Iterator[Samples]:
    labels = sample_labels(run.config, num, label)
    device = next(run.vae.parameters()).device
    stream = RandomStream(seed, device)
    for start in range(0, num, size):
        stop = min(start + size, num)
        given = None if labels is None else labels[start:stop]
        on_device = None if given is None else given.to(device)
        with stream, torch.no_grad():
            z = run.vae.sample_codes(stop - start, on_device)
            block = _shown(run.vae.decode(z), means, is_nominal(run)) if made is None else made(z)
        yield Samples(block.cpu(), given)


def sample_labels(config: Config, num: int, label: int | None = None) -> Tensor | None:
    """(N,) the one class, or all of them in turn; None where the prior knows no labels.

    Args:
        config: the run's settings.
        num: N.
        label: the one class; None for all.
    """
    if not config.num_classes:
        return None
    if label is not None:
        return torch.full((num,), label)
    return torch.arange(num) * config.num_classes // max(num, config.num_classes)
