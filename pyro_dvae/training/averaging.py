"""Averages of the weights over the steps, and copies of the best weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class WeightAverage:
    """a <- c a + (1 - c) w after step n, c = min(decay, (1 + n) / (10 + n)).

    The noise of a constant learning rate averages out of `a`. So `a` scores better than the weights
    w, from which training continues (Polyak & Juditsky 1992, with an exponential window). c grows
    from 0, so that the average forgets the first weights soon.

    Args:
        module: the module whose parameters are averaged.
        decay: c after many steps, in [0, 1); 0 makes the average the weights themselves.
        captured: whether `update` can be part of a `CapturedStep`; c is then on the device.
    """

    def __init__(self, module: nn.Module, decay: float, *, captured: bool = False) -> None:
        self.decay = decay
        self.num_steps = 0
        self._names = [name for name, _ in module.named_parameters()]
        self._weights: list[Tensor] = list(module.parameters())
        self._average = [weight.detach().clone() for weight in self._weights] if decay else []
        self._kept: list[Tensor] | None = None
        self._share: float | Tensor = 0.0  # 1 - c
        if captured and self._average:
            self._share = self._average[0].new_zeros((), dtype=torch.float64)

    def prepare(self) -> None:
        """Compute c before a step. This is not part of a captured step."""
        num = self.num_steps + 1
        share = 1 - min(self.decay, (1 + num) / (10 + num))
        self._share = self._share.fill_(share) if isinstance(self._share, Tensor) else share

    def update(self) -> None:
        """Add the weights to the average after a step, between `prepare` and `count`."""
        if self.decay:
            self._update()

    def count(self) -> None:
        """Count a step that was taken. This is not part of a captured step either."""
        if self.decay:
            self.num_steps += 1

    @torch.no_grad()
    def _update(self) -> None:
        if isinstance(self._share, Tensor):
            for average, weight in zip(self._average, self._weights, strict=True):
                average.lerp_(weight, self._share.to(average.dtype))
        else:
            torch._foreach_lerp_(self._average, self._weights, self._share)

    def put_in(self) -> None:
        """Put the average into the module, until `take_out`."""
        if self.decay and self._kept is None:
            self._kept = [weight.detach().clone() for weight in self._weights]
            _copy(self._weights, self._average)

    def take_out(self) -> None:
        """Put the weights back into the module, if it holds the average."""
        if self._kept is not None:
            _copy(self._weights, self._kept)
            self._kept = None

    @property
    def weights(self) -> dict[str, Tensor]:
        """The weights w by name, even while the module holds the average."""
        return dict(zip(self._names, self._kept or self._weights, strict=True))

    @property
    def average(self) -> dict[str, Tensor]:
        """The average a by name; empty if decay is 0."""
        return dict(zip(self._names, self._average, strict=False))

    def load(self, average: dict[str, Tensor], num_steps: int) -> None:
        """Continue from an average that the property `average` returned after `num_steps` steps."""
        _copy(self._average, [average[name] for name in self._names[: len(self._average)]])
        self.num_steps = num_steps


@torch.no_grad()
def copy_weights(module: nn.Module, kept: dict[str, Tensor]) -> None:
    """Copy the state of a module into `kept`, whose tensors keep their memory.

    New memory at every epoch would cost more than the copy.

    Args:
        module: the module.
        kept: name -> an earlier copy; empty before the first.
    """
    for name, value in module.state_dict().items():
        if name in kept:
            kept[name].copy_(value)
        else:
            kept[name] = value.detach().clone()


@torch.no_grad()
def _copy(targets: list[Tensor], values: list[Tensor]) -> None:
    if targets:
        torch._foreach_copy_(targets, values)
