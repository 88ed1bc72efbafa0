"""How a step of training gets its gradient: by autograd, or from one compiled graph."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from types import FunctionType, MethodType
from typing import Any, ClassVar, cast

import pyro
import torch
from pyro.poutine.runtime import am_i_wrapped
from torch import Tensor, nn

from pyro_dvae.codes import log_exponentials
from pyro_dvae.elbos.base import DiscreteELBO
from pyro_dvae.elbos.score_function import ReinforceELBO, RlooELBO, ScoreFunctionELBO
from pyro_dvae.guides import MeanFieldGuide
from pyro_dvae.likelihoods import Bernoulli
from pyro_dvae.likelihoods.base import FlatDistribution, Likelihood
from pyro_dvae.priors import LearnedPrior, UniformPrior
from pyro_dvae.process import without_checks
from pyro_dvae.streams import RandomStream
from pyro_dvae.training.adam import FusedAdam
from pyro_dvae.training.direct import Descent, descent
from pyro_dvae.training.originals import (
    attributes,
    has_hooks,
    is_original,
    is_unchanged,
    members,
    same,
    weight_has_hooks,
)
from pyro_dvae.vae import DiscreteVAE


class Backward:
    """Sets the gradients of a batch.

    Args:
        vae: model and guide.
        elbo: a `DiscreteELBO`, or one of Pyro's own.
        optimizer: holds the weights.
        rows: what model and guide take, x (B, *event) first: a few data for a trial run.
    """

    def __init__(self, vae: Any, elbo: Any, optimizer: FusedAdam, rows: tuple[Tensor, ...]) -> None:
        self.vae, self.elbo, self.optimizer = vae, elbo, optimizer
        self._is_plain = needs_no_traces(vae, elbo, rows)
        self._is_wrapped = am_i_wrapped()
        self._remember()
        self._one = torch.ones((), device=optimizer.device, dtype=torch.float32)

    def notice_changes(self) -> bool:
        """Before an epoch: whether something is another; then the step's graphs are not valid.

        It may be a part of the model, a setting or method of one, or a weight that was frozen or
        thawed. Also notices whether handlers of Pyro are in place, which want to see the
        programs' sites.
        """
        self._is_wrapped = am_i_wrapped()
        before = self._parts, self._settings, self._trained
        self._remember()
        same_parts = same(self._parts, before[0])
        # The traces that showed a plain model were those of other parts.
        self._is_plain = self._is_plain and same_parts and is_as_written(self.vae, self.elbo)
        return not (same_parts and same(self._settings, before[1]) and self._trained == before[2])

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._remember()  # the copies of the parts

    def _remember(self) -> None:
        self._parts = attributes(self.vae, methods=True)
        owners = [part for part in (self.vae, self.elbo) if isinstance(part, nn.Module)]
        self._settings = [each for part in owners for each in attributes(part, methods=False)]
        self._trained = [weight.requires_grad for weight in self.optimizer.weights]

    def __call__(self, batch: tuple[Tensor, ...], bad: Tensor) -> Tensor:
        """Set each weight's gradient of the mean loss per datum; never reads from the device.

        Args:
            batch: what model and guide take, x (B, *event) first.
            bad: float32 scalar, set to 1 if loss or gradient is NaN or infinite.

        Returns:
            The loss, summed over the batch, without a graph.
        """
        self.optimizer.forget_gradients()
        found = None
        if self._is_plain and not self._is_wrapped:
            found = descent(self.vae, self.elbo, batch)
        if found is not None:
            loss = found.loss
            _check_graph(bool(found.outputs))
            torch.autograd.backward(found.outputs, found.gradients)
        else:
            loss = self.elbo.differentiable_loss(self.vae.model, self.vae.guide, *batch)
            _check_graph(loss.requires_grad)
            loss.backward(torch.full_like(loss, 1 / batch[0].shape[0]))
            loss = loss.detach()
        all_finite = [loss, *self.optimizer.gradients]
        torch._amp_foreach_non_finite_check_and_unscale_(all_finite, bad, self._one)
        return loss


def _check_graph(there: bool) -> None:
    if not there:
        raise ValueError(
            "Expected a loss that depends on a weight that is trained; got one that depends on "
            "none. Unfreeze the networks: vae.requires_grad_()."
        )


def needs_no_traces(vae: Any, elbo: Any, rows: tuple[Tensor, ...]) -> bool:
    """Whether `descent` gives a model's gradient, by a trial run: its networks may hold more sites.

    Args:
        vae: model and guide.
        elbo: a `DiscreteELBO`, or one of Pyro's own.
        rows: what model and guide take, x (B, *event) first: a few data for the trial run.

    Returns:
        Whether the traces hold no site but x and z, and the KL of z is in closed form.
    """
    if am_i_wrapped() or not is_as_written(vae, elbo):
        return False
    store = pyro.get_param_store()
    with (
        RandomStream(0, rows[0].device),
        without_checks(),
        torch.no_grad(),
        store.scope(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # Pyro warns of weights that are frozen
        pair = elbo.terms(vae.model, vae.guide, rows, {}).pair
    closed = elbo.closed_form_sites(pair)
    return set(pair.model_sites) == {"z", "x"} and set(pair.guide_sites) == closed == {"z"}


def is_as_written(vae: Any, elbo: Any) -> bool:
    """Whether `descent` asks all that the traces would: nothing that it passes over was changed.

    It asks an ELBO's `advantage` alone, calls neither the model's programs nor hooks of its prior,
    guide and likelihood, and writes out what four classes of these do.
    """
    if type(vae) is not DiscreteVAE or not isinstance(elbo, ScoreFunctionELBO):
        return False
    parts = (vae.prior, vae.posterior_family, vae.likelihood)
    return (
        elbo.analytic_kl
        and not elbo.needs_traces
        and is_original(elbo, _ELBOS, free=("advantage", "_baseline"))
        and is_original(vae, _MODEL)
        and all(is_unchanged(part, _PARTS) for part in parts)
        and not has_hooks(parts)
        and (type(vae.prior) is not UniformPrior or _is_zero(vae.prior.logits))
    )


def _is_zero(logits: Tensor) -> bool:
    return logits.is_meta or not logits.any()


_ELBOS = members(DiscreteELBO, ScoreFunctionELBO, ReinforceELBO, RlooELBO)
_MODEL = members(DiscreteVAE)
_PARTS = members(
    UniformPrior, LearnedPrior, MeanFieldGuide, Likelihood, Bernoulli, FlatDistribution
)


def torch_compiles() -> bool:
    """Whether this torch can have a gradient within a graph; the import takes a second."""
    import torch._dynamo

    return hasattr(torch._dynamo.config, "trace_autograd_ops")


class CompiledBackward(Backward):
    """The same gradient, to rounding, from loss and backward pass compiled as one graph.

    Data and draws come from outside of the graph, so both are those of `Backward`; a network that
    draws, dropout say, draws others. It is compiled for the full batch; a shorter one, and all of
    them where compiling fails, go the other way.

    Args:
        vae: a model that `needs_no_traces`.
        elbo: of a loss that does not look at traces.
        optimizer: holds the weights.
        rows: see `Backward`.
        batch_size: B of a full batch.
    """

    backend: ClassVar[str] = "inductor"

    def __init__(
        self,
        vae: Any,
        elbo: Any,
        optimizer: FusedAdam,
        rows: tuple[Tensor, ...],
        batch_size: int,
    ) -> None:
        super().__init__(vae, elbo, optimizer, rows)
        self.batch_size = batch_size
        self._compiled: Any = None
        self._failed = False
        # A number would be part of the graph, and to change it would compile the graph anew.
        self._beta = torch.zeros((), device=optimizer.device)
        self._draws: Tensor | None = None
        self._is_watched = self._has_hooks()

    def notice_changes(self) -> bool:
        """See `Backward`; a graph that is no longer valid is compiled anew."""
        changed = super().notice_changes()
        self._is_watched = self._has_hooks()
        if changed:
            self._compiled = self._draws = None
        return changed

    def _has_hooks(self) -> bool:
        # A graph has no place for them; one of before they were put there would not call them.
        weights = self.optimizer.weights
        return has_hooks(self.vae.modules()) or any(map(weight_has_hooks, weights))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_compiled": None}  # of a copy's own weights it is made anew

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
            loss, gradients = self._run(batch, draws, bad)
        finally:
            self.elbo.beta = beta
        for weight, gradient in zip(self._weights, gradients, strict=True):
            weight.grad = gradient
        return loss

    def _run(self, *args: Any) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        try:
            # A later call compiles anew where a setting has changed, and may fail then.
            return self._compile(*args) if self._compiled is None else self._compiled(*args)
        except Exception as error:  # of a compiler that is missing, old or broken
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
            raise RuntimeError(f"torch {torch.__version__} is too old for it")
        # Torch keeps graphs by the code they are of, and would take another trainer's for this one.
        own = FunctionType(CompiledBackward._differentiate.__code__.replace(), globals())
        compiled = torch.compile(
            MethodType(own, self),
            fullgraph=True,
            dynamic=False,
            backend=self.backend,
            options={"guard_filter_fn": _without_networks} if self._knows_networks() else None,
        )
        with torch._dynamo.config.patch(trace_autograd_ops=True):  # a gradient within a graph
            result = compiled(*args)
        self._compiled = compiled
        return result

    def _knows_networks(self) -> bool:
        owners = {type(module).__module__.partition(".")[0] for module in self.vae.modules()}
        return owners <= {"torch", "pyro_dvae"}

    def _differentiate(
        self, batch: tuple[Tensor, ...], draws: Tensor, bad: Tensor
    ) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        found = cast(Descent, descent(self.vae, self.elbo, batch, lambda _: draws))
        loss, outputs, seeds = found
        gradients = torch.autograd.grad(outputs, self._weights, seeds, allow_unused=True)
        # 0 times a finite number is 0, and NaN of any other: as one pass with what made it.
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


def _without_networks(guards: Sequence[Any]) -> list[bool]:
    """The guards to keep: what a step asks before it uses the graph.

    Of some 400 most look whether a layer is still what it was, at each step, for longer than the
    sums over the data take. The library's own layers hold nothing but weights, which are inputs.
    """
    return [not re.search(r"\.vae\b|_weights|^G\[", guard.name) for guard in guards]
