"""Averages of the weights over the steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


class WeightAverage:
    """a <- c a + (1 - c) w after step n, c = min(decay, (1 + n) / (10 + n)).

    The noise of a constant learning rate averages out of `a`, so it scores better than the weights
    w that training continues from (Polyak & Juditsky 1992, with an exponential window); c grows
    from 0 so that the first weights are forgotten soon.

    Args:
        module: whose parameters to average.
        decay: c after many steps, in [0, 1); 0 makes the average the weights themselves.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.num_steps = 0
        self._weights: list[torch.Tensor] = list(module.parameters())
        self._average = [weight.detach().clone() for weight in self._weights]

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights after a step."""
        if self.decay == 0:
            return
        self.num_steps += 1
        decay = min(self.decay, (1 + self.num_steps) / (10 + self.num_steps))
        torch._foreach_lerp_(self._average, self._weights, 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the module holds the average."""
        if self.decay == 0:
            yield
            return
        kept = [weight.detach().clone() for weight in self._weights]
        self._copy(self._average)
        try:
            yield
        finally:
            self._copy(kept)

    @torch.no_grad()
    def _copy(self, values: list[torch.Tensor]) -> None:
        torch._foreach_copy_(self._weights, values)
