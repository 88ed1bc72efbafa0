"""The gradient of a step of training as one graph, which torch compiles."""

from __future__ import annotations

import warnings
from types import FunctionType, MethodType
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from pyro_dvae.codes import log_exponentials
from pyro_dvae.training.adam import FusedAdam
from pyro_dvae.training.backward import Backward
from pyro_dvae.training.direct import OutputGradients, gradient_without_traces
from pyro_dvae.training.originals import has_hooks, weight_has_hooks
from pyro_dvae.vae import DiscreteVAE


def torch_compiles() -> bool:
    """Whether this version of torch can compile a gradient within a graph.

    The import takes a second.
    """
    import torch._dynamo

    return hasattr(torch._dynamo.config, "trace_autograd_ops")


class CompiledBackward(Backward):
    """The same gradient, to rounding, from one compiled graph of the loss and its backward pass.

    Data and draws come from outside of the graph, so both are the same as those of `Backward`. But
    a network that draws, such as one with dropout, draws other numbers. The graph is compiled for
    full batches. A shorter batch is computed as `Backward` does, and so are all batches if
    compiling fails.

    Args:
        vae: a model that `needs_no_traces`.
        elbo: an ELBO for which the model needs none.
        optimizer: the optimizer, which holds the weights.
        rows: a few data for a trial run, as model and guide take them: x (B, *event) first.
        batch_size: B, the number of data in a full batch.
    """

    backend: ClassVar[str] = "inductor"

    def __init__(
        self,
        vae: DiscreteVAE,
        elbo: Any,
        optimizer: FusedAdam,
        rows: tuple[Tensor, ...],
        batch_size: int,
    ) -> None:
        super().__init__(vae, elbo, optimizer, rows)
        self.batch_size = batch_size
        self._compiled: Any = None
        self._failed = False
        # A float would be a constant of the graph, and each change of it would compile a new graph.
        self._beta = torch.zeros((), device=optimizer.device)
        self._draws: Tensor | None = None
        self._is_watched = self._has_hooks()

    def notice_changes(self) -> bool:
        """See `Backward`. After a change, the next step compiles a new graph."""
        changed = super().notice_changes()
        self._is_watched = self._has_hooks()
        if changed:
            self._compiled = self._draws = None
        return changed

    def _has_hooks(self) -> bool:
        # A graph does not call hooks that were registered after it was compiled.
        weights = self.optimizer.weights
        return has_hooks(self.vae.modules()) or any(map(weight_has_hooks, weights))

    def __getstate__(self) -> dict[str, Any]:
        # The graph of a copy is compiled for the copy's own weights.
        return {**super().__getstate__(), "_compiled": None}

    def __call__(self, batch: tuple[Tensor, ...], bad: Tensor) -> Tensor:
        """See `Backward`."""
        eagerly = self._failed or not self._is_plain or self._is_wrapped or self._is_watched
        if eagerly or len(batch[0]) != self.batch_size:
            return super().__call__(batch, bad)
        self.optimizer.forget_gradients()  # so that the graph writes into their memory
        beta = self.elbo.beta
        self.elbo.beta = self._beta.fill_(beta)
        draws = log_exponentials(self._like(batch))
        try:
            loss, gradients = self._run(batch, draws, bad, self._known(batch))
        finally:
            self.elbo.beta = beta
        for weight, gradient in zip(self._weights, gradients, strict=True):
            weight.grad = gradient
        return loss

    def _run(self, *args: Any) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        try:
            # A later call compiles again if a setting has changed, and may fail then.
            return self._compile(*args) if self._compiled is None else self._compiled(*args)
        except Exception as error:  # a compiler may be missing, old or broken
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]
            warnings.warn(
                f"The training step could not be compiled ({reason}); it goes on without.",
                stacklevel=2,
            )
            self._failed = True
            return self._differentiate(*args)

    def _compile(self, *args: Any) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        self._weights = [weight for weight in self.optimizer.weights if weight.requires_grad]
        if not torch_compiles():
            raise RuntimeError(f"torch {torch.__version__} is too old for this")
        # Torch finds a graph by its code object. A copy of the code keeps trainers apart.
        own = FunctionType(CompiledBackward._differentiate.__code__.replace(), globals())
        compiled = torch.compile(
            MethodType(own, self),
            fullgraph=True,
            dynamic=False,
            backend=self.backend,
        )
        with torch._dynamo.config.patch(trace_autograd_ops=True):  # the graph has a gradient in it
            result = compiled(*args)
        self._compiled = compiled
        return result

    def _differentiate(
        self, batch: tuple[Tensor, ...], draws: Tensor, bad: Tensor, known: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        found = gradient_without_traces(self.vae, self.elbo, batch, lambda _: draws, known)
        found = cast(OutputGradients, found)
        loss, gradients = found.loss, found.in_weights(self._weights)
        # 0 times a finite number is 0, and 0 times any other number is NaN. The compiler fuses this
        # product with the computation of the gradient.
        odd = loss * 0 + sum((grad * 0).sum() for grad in gradients if grad is not None)
        bad.copy_(torch.maximum(bad, (odd != 0).to(bad.dtype)))
        return loss, gradients

    def _like(self, batch: tuple[Tensor, ...]) -> Tensor:
        if self._draws is None:
            weight = next(self.vae.parameters())
            shape = self.vae.prior_codes(*batch[1:]).event_shape
            num = self.elbo.num_particles
            lead = (num, self.batch_size) if num > 1 else (self.batch_size,)
            self._draws = weight.new_empty((*lead, *shape))
        return self._draws
