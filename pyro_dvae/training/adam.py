"""Adam without what torch does around its fused step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

_OTHER_OPTIONS = ("weight_decay", "amsgrad", "maximize")


class FusedAdam(torch.optim.Adam):
    """torch's Adam (Kingma & Ba 2015) with a step that costs little more than its arithmetic.

    `take_step` equals `step` of `torch.optim.Adam(..., fused=True)`, bit for bit, and the state is
    the same. It leaves out the records for the profiler, and the sorting of parameters by device
    and dtype. That saves 1 to 2 % of a step of the tutorial's networks
    (examples/benchmarks/step_pieces.py). Where somebody has registered a hook, or has set another
    option of Adam than the learning rate, the betas and eps, it takes torch's own step. The step
    stays for `CapturedStep`: torch's own refuses to be captured unless the optimizer was built for
    it. It never reads from the device.

    Args:
        weights: the weights to train, all on one device, of one dtype or of several.
        learning_rate: the learning rate, torch's `lr`.
    """

    def __init__(self, weights: Sequence[Tensor], learning_rate: float) -> None:
        self._is_fused = weights[0].device.type != "mps"  # there torch has no fused Adam
        super().__init__(weights, learning_rate, fused=self._is_fused)
        self._is_plain = self._is_fused and len({weight.dtype for weight in weights}) == 1
        self.weights = list(weights)
        self.factor = 1.0
        """The factor of the learning rate in the next step."""

    def __getstate__(self) -> dict[str, Any]:
        """The state for copies and pickles, since torch's method leaves out attributes of ours."""
        own = {name: vars(self)[name] for name in ("_is_fused", "_is_plain", "weights", "factor")}
        return {**super().__getstate__(), **own}

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.weights[0].device

    @property
    def gradients(self) -> list[Tensor]:
        """The gradients of those weights that have one."""
        return [weight.grad for weight in self.weights if weight.grad is not None]

    def forget_gradients(self) -> None:
        """Set every gradient to None."""
        for weight in self.weights:
            weight.grad = None

    @torch.no_grad()
    def take_step(self, skip: Tensor) -> None:
        """Take a step, or skip it.

        Args:
            skip: a float32 scalar on the device; 0 takes the step, and 1 leaves the weights and the
                state as they are.
        """
        if not self._is_plain or self._is_changed():
            if self._is_fused:
                self.found_inf = skip
            self._step_of_torch()
            return
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if not weights:
                continue
            states = [self.state[weight] for weight in weights]
            _begin([(w, state) for w, state in zip(weights, states, strict=True) if not state])
            steps = [state["step"] for state in states]
            taken = skip == 0
            # Weights whose first gradients came in the same step share one counter of steps.
            for step in {id(step): step for step in steps}.values():
                step += taken
            torch._fused_adam_(
                weights,
                [weight.grad for weight in weights],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                steps,
                lr=group["lr"] * self.factor,
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                weight_decay=0.0,
                eps=group["eps"],
                amsgrad=False,
                maximize=False,
                found_inf=skip,
            )

    def _step_of_torch(self) -> None:
        rates = [(group, group["lr"], group["lr"] * self.factor) for group in self.param_groups]
        for group, _, scaled in rates:
            group["lr"] = scaled
        try:
            self.step()
        finally:
            for group, rate, scaled in rates:
                if group["lr"] is scaled:  # a hook may have set another one
                    group["lr"] = rate

    def _is_changed(self) -> bool:
        hooks = (self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks)
        of_all = (_global_optimizer_pre_hooks, _global_optimizer_post_hooks)
        return any((*hooks, *of_all)) or any(
            group[name] for group in self.param_groups for name in _OTHER_OPTIONS
        )


def _begin(new: list[tuple[Tensor, dict[str, Any]]]) -> None:
    if new:
        step = torch.zeros((), dtype=torch.float32, device=new[0][0].device)
        for weight, state in new:
            state |= {
                "step": step,
                "exp_avg": torch.zeros_like(weight, memory_format=torch.preserve_format),
                "exp_avg_sq": torch.zeros_like(weight, memory_format=torch.preserve_format),
            }
