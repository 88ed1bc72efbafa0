"""A step of training of several processes: each computes its part, and all take the same step."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor, nn

from pyro_dvae import processes
from pyro_dvae.elbos.base import DiscreteELBO
from pyro_dvae.elbos.earlier_model import Snapshot
from pyro_dvae.processes import ProcessError
from pyro_dvae.training.adam import FusedAdam
from pyro_dvae.training.batches import arguments
from pyro_dvae.training.summing import SumOfAll

if TYPE_CHECKING:
    from pyro_dvae.training.steps import GradientSteps

_FAILED, _OVER, _STOP = range(3)
"""The places of what a process tells the others beside its gradient: it has failed; its time is
over, which process 0 alone tells; it was asked to stop."""


class StepTogether:
    """Adds up the gradients of a step over all processes, so that all take the same step.

    The gradient of the mean loss per datum is sum_r B_r / B * gradient_r, where process r computes
    gradient_r of its B_r of the B data. One flat sum, a `SumOfAll`, holds all that the processes
    tell one another. So it costs one exchange of 4 W bytes per step for W weights in float32. The
    gradients of the weights are views of the sums. Those of each process come from graphs of torch
    and from `torch.autograd.grad`, which do not call the hooks of `DistributedDataParallel`.

    Args:
        optimizer: the optimizer, which holds the weights.
        elbo: the ELBO, whose buffers are running means over the data of the steps.
    """

    def __init__(self, optimizer: FusedAdam, elbo: Any) -> None:
        self.optimizer = optimizer
        parts = elbo.modules() if isinstance(elbo, nn.Module) else ()
        # The weights of a snapshot are those of all processes.
        means = (part.buffers(recurse=False) for part in parts if not isinstance(part, Snapshot))
        self._means = [b for own in means for b in own if b.is_floating_point()]
        self._dtype = reduce(torch.promote_types, {w.dtype for w in optimizer.weights})
        self._dtype = torch.promote_types(self._dtype, torch.float32)
        self._sizes: list[int] = []
        self._tells_over = self._tells_stop = False  # what this process tells in the next step
        self._is_over = self._stops = False  # what any has told in the last step
        self.own_is_bad = torch.zeros((), device=optimizer.device)
        """Whether this process's own loss or gradient was not finite, in some step so far."""

    def __call__(
        self, differentiate: Callable[[], Tensor], share: float, bad: Tensor, *, reads: bool
    ) -> Tensor:
        """Set the gradients, the running means and `bad` of the whole batch.

        Args:
            differentiate: sets those of this process's part of the batch, and returns its loss,
                summed over the data.
            share: the size of this part, divided by that of the batch.
            bad: becomes 1 if the loss or a gradient of some process is not finite.
            reads: whether to read from the device what the other processes tell.

        Returns:
            The loss, summed over the whole batch.

        Raises:
            ProcessError: another process has failed in this step, or has ended.
        """
        self._prepare()
        old = [mean.clone() for mean in self._means]
        try:
            with processes.sharing(share):
                loss = differentiate()
        except Exception as error:
            self._fail(error)
            raise
        self.own_is_bad = bad.clone()
        weights = self._trained()
        has_gradient = [weight.grad is not None for weight in weights]
        own = iter(self._own)
        for weight in weights:
            _put(weight.grad, share, next(own))
        for new, before in zip(self._means, old, strict=True):
            _put(new - before, share, next(own))
        next(own).copy_(loss if share else torch.zeros_like(loss))
        next(own).copy_(bad)
        numbers = [0.0, float(self._tells_over), float(self._tells_stop), *map(float, has_gradient)]
        next(own).copy_(torch.tensor(numbers, dtype=self._dtype))
        *sums, total, num_bad, told = self._sum().split(self._sizes)
        if reads:
            self._read(told)
        bad.copy_(num_bad[0].clamp(max=1))
        is_used = has_gradient if all(has_gradient) else (told[_STOP + 1 :] > 0).tolist()
        for weight, summed, used in zip(weights, sums, is_used, strict=False):
            weight.grad = summed.view(weight.shape).to(weight.dtype) if used else None
        for mean, before, change in zip(self._means, old, sums[len(weights) :], strict=True):
            mean.copy_(before + change.view(mean.shape).to(mean.dtype))
        return total[0].to(loss.dtype, copy=True)

    def agree_to_end(self, is_over: bool) -> bool:
        """Whether process 0 has told that its time is over; the others' clocks do not count."""
        self._tells_over = is_over and processes.rank() == 0
        return self._is_over

    def agree_to_stop(self, wish: bool) -> bool:
        """Whether a process was asked to stop; see `Trainer.agree_to_stop`."""
        self._tells_stop = wish
        return self._stops

    def _fail(self, error: Exception) -> None:
        """Tell the others, which wait for this process's gradient, that there is none."""
        if self.optimizer.device.type == "cuda":  # there nobody would listen before some steps
            return
        for part in self._own:
            part.zero_()
        self._own[-1][_FAILED] = 1
        try:
            self._sum()
            processes.gathered(f"{type(error).__name__}: {error}")
        except ProcessError:  # they have ended too
            return

    def _prepare(self) -> None:
        """Make room for what is summed, in the first step and where other weights are trained."""
        weights = self._trained()
        sizes = [value.numel() for value in (*weights, *self._means)]
        sizes += [1, 1, _STOP + 1 + len(weights)]
        if sizes != self._sizes:
            self._sizes = sizes
            self._sum = SumOfAll(sum(sizes), self._dtype, self.optimizer.device)
            self._own = self._sum.own.split(sizes)

    def _trained(self) -> list[Tensor]:
        return [weight for weight in self.optimizer.weights if weight.requires_grad]

    def __getstate__(self) -> dict[str, Any]:
        """The state for copies and pickles; a copy makes room of its own."""
        kept = {name: value for name, value in vars(self).items() if name not in ("_sum", "_own")}
        return {**kept, "_sizes": []}

    def _read(self, told: Tensor) -> None:
        failed, over, stop = told[: _STOP + 1].tolist()
        if failed:
            self._raise(processes.gathered(None))
        self._is_over, self._stops = over > 0, stop > 0

    def _raise(self, errors: list[str | None]) -> NoReturn:
        number, error = next((i, each) for i, each in enumerate(errors) if each is not None)
        raise ProcessError(
            f"Expected a step of all {len(errors)} processes; got an error in process {number}, "
            f"{error}"
        )


@torch.no_grad()
def _put(value: Tensor | None, share: float, target: Tensor) -> None:
    """Write a share of a value, or 0 where there is none, into a flat tensor."""
    if value is None:
        target.zero_()
    else:
        torch.mul(value, share, out=target.view(value.shape))


def begin_together(trainer: GradientSteps, **settings: Any) -> StepTogether | None:
    """Let all processes begin with the weights of process 0; None in one process.

    Args:
        trainer: the training, with its model, its ELBO and its optimizer.
        **settings: further settings, which must be the same in all processes.

    Raises:
        ValueError: the settings differ, there are more processes than data in a batch, a step is
            to be captured, or the ELBO keeps codes.
    """
    num = processes.world_size()
    if num == 1:
        return None
    batch_size, held_out = trainer.batch_size, trainer.validation
    alike = {
        "number of training data": len(trainer.data),
        "number of validation data": 0 if held_out is None else len(arguments(held_out)[0]),
        "number of weights": sum(weight.numel() for weight in trainer.optimizer.weights),
        "batch_size": batch_size,
        "learning_rate": trainer.optimizer.param_groups[0]["lr"],
        "annealing": trainer.annealing,
        "warmup": trainer.warmup,
        "cooldown": trainer.cooldown,
        "reinmax_steps": trainer.reinmax_steps,
        "seed": trainer.seed,
    }
    processes.agree({**alike, **settings})
    if batch_size < num:
        raise ValueError(
            f"Expected a batch of at least one datum per process, of which there are {num}; got "
            f"batch_size={batch_size}, which all processes share. Raise it."
        )
    if settings.get("capture"):
        raise ValueError(
            f"Expected capture=False in several processes; got capture=True in {num}, whose "
            "exchange no graph holds. Leave it out."
        )
    if isinstance(trainer.elbo, DiscreteELBO) and trainer.elbo.keeps_codes:
        raise ValueError(
            f"Expected an ELBO that keeps no codes, since there are {num} processes, each with "
            f"other data at each epoch; got {type(trainer.elbo).__name__}. Use WakeSleepELBO, or "
            "one process."
        )
    for part in (trainer.vae, trainer.elbo):
        if isinstance(part, nn.Module):
            processes.take_from_first(part.state_dict().values())
    return StepTogether(trainer.optimizer, trainer.elbo)


def first_told(what: str | None) -> str:
    """What the first process tells that has something to tell, with its number."""
    everywhere = processes.gathered(what)
    those = ((i, each) for i, each in enumerate(everywhere) if each is not None)
    number, told = next(those, (0, "the loss or its gradient"))
    return told if len(everywhere) == 1 else f"{told} of process {number}"
