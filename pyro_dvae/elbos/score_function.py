"""Score-function estimators: REINFORCE and its baselines, leave-one-out."""

from __future__ import annotations

import math
from abc import abstractmethod
from itertools import count
from typing import Any, ClassVar, Literal, cast
from weakref import WeakKeyDictionary

import pyro
import torch
from torch import Tensor, nn

from pyro_dvae.elbos.base import DiscreteELBO, Terms


class ScoreFunctionELBO(DiscreteELBO):
    """1/S sum_s A_s grad log q(z_s|x), A the advantages: signals f less what a subclass takes off.

    With A_s = f_s - b_s and b_s independent of z_s given x it is unbiased (Eqs. 22 to 27 of
    [JL25]). A `Trainer` writes the gradient out for a plain model (`training/direct.py`), so that
    it costs little more than the networks' own.
    """

    needs_traces: bool = False
    """Whether the surrogate is more than that, so that nothing can be written out."""

    @abstractmethod
    def advantage(self, signal: Tensor) -> Tensor:
        """The factors A_s of grad log q(z_s|x), without gradient.

        Args:
            signal: (S, *batch) f_s in nats, log p(x|z_s) where the KL is in closed form; detached.

        Returns:
            (S, *batch), in nats.
        """

    def surrogate(self, terms: Terms) -> Tensor:
        """(*batch) whose gradient is the estimator."""
        advantage = self.advantage(terms.learning_signal.detach())
        return self.objective(terms) + (advantage * terms.log_guide).mean(0)


class ReinforceELBO(ScoreFunctionELBO):
    """(f(z) - b) grad log q(z|x), f the learning signal (Williams 1992; Eqs. 22 to 27 of [JL25]).

    With a prior whose KL is in closed form, f = log p(x|z) = -BCE(g(z), x): the tutorial's
    recipe (Eqs. 71 to 81, 84 and 85).
    A baseline b that does not depend on the draw leaves the mean of the gradient as it is and
    lowers its variance.

    With a network b_psi(x) it is NVIL (Mnih & Gregor 2014): b = b_psi(x) + c, c the running mean,
    and psi descends (f - b)^2 in the same step, mean over particles, summed over the data and
    times N/B as the bound is. psi gets no other gradient, model and guide none of this one. It is
    in `elbo(model, guide).parameters()` for a torch optimiser; `SVI` finds it by itself.

    Args:
        num_particles: S, draws of z a datum.
        baseline: None for b = 0; a number, in nats per datum ([JL25] uses f + 125, so b = -125);
            "running_mean", the exponential mean of f over the steps before this one; or a network,
            called with the arguments of model and guide, that gives one number a datum, (*batch)
            or (*batch, 1).
        decay: weight of the past in the running mean.
        **options: `beta`, `free_bits`, `analytic_kl`, `max_plate_nesting` of `DiscreteELBO`.

    Raises:
        ValueError: an unknown baseline, one that is not finite, or a decay outside [0, 1); when
            run, a network that does not give one number a datum.
    """

    is_unbiased: ClassVar[bool] = True
    mean: Tensor
    weight: Tensor

    def __init__(
        self,
        num_particles: int = 1,
        *,
        baseline: float | Literal["running_mean"] | nn.Module | None = None,
        decay: float = 0.99,
        **options: Any,
    ) -> None:
        super().__init__(num_particles, **options)
        number = isinstance(baseline, (int, float)) and math.isfinite(baseline)
        if not (number or baseline in (None, "running_mean") or isinstance(baseline, nn.Module)):
            raise ValueError(
                "Expected a baseline that is None, finite, a network, or 'running_mean'; got "
                f"{baseline!r}. Choose one of them."
            )
        if not 0 <= decay < 1:
            raise ValueError(f"Expected a decay in [0, 1); got {decay}. Use 0.99, say.")
        self.baseline = baseline
        self.needs_traces = isinstance(baseline, nn.Module)
        self.decay = decay
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("weight", torch.zeros(()))

    def extra_repr(self) -> str:
        """The settings, for `repr`; a network follows as a child."""
        is_network = isinstance(self.baseline, nn.Module)
        baseline = "a network" if is_network else repr(self.baseline)
        return f"{super().extra_repr()}, baseline={baseline}, decay={self.decay}"

    def advantage(self, signal: Tensor) -> Tensor:
        """(S, *batch) signals less the baseline, a network's left out."""
        return signal - self._baseline(signal)

    def surrogate(self, terms: Terms) -> Tensor:
        """(*batch) whose gradient is the estimator, and that of the network's least squares."""
        if not isinstance(self.baseline, nn.Module):
            return super().surrogate(terms)
        show_parameters_to_svi(self)
        residual = self.advantage(terms.learning_signal.detach())
        residual = residual - self._prediction(self.baseline, terms)
        surrogate = self.objective(terms) + (residual.detach() * terms.log_guide).mean(0)
        return surrogate - residual.square().mean(0) if residual.requires_grad else surrogate

    def _baseline(self, signal: Tensor) -> Tensor | float:
        if not isinstance(self.baseline, (str, nn.Module)):
            return self.baseline or 0.0
        # The weights of the past sum to `weight`; before the first step both are 0.
        baseline = self.mean / self.weight.clamp_min(torch.finfo(self.weight.dtype).tiny)
        self.mean.lerp_(signal.mean().to(self.mean.dtype), 1 - self.decay)
        self.weight.mul_(self.decay).add_(1 - self.decay)
        return baseline

    def _prediction(self, network: nn.Module, terms: Terms) -> Tensor:
        _, _, args, kwargs, _ = terms.pair.programs
        prediction: Tensor = network(*args, **kwargs)
        batch = terms.learning_signal.shape[1:]
        # Broadcasting (B, 1) against (B,) would give every datum the others' baselines.
        if prediction.shape not in (batch, (*batch, 1)):
            raise ValueError(
                f"Expected a baseline of shape {(*batch,)} or {(*batch, 1)}, one number a datum; "
                f"got {(*prediction.shape,)}. Change the network's output."
            )
        return prediction.reshape(batch)


class RlooELBO(ScoreFunctionELBO):
    """1/(S-1) sum_s (f_s - mean f) grad log q(z_s|x): REINFORCE, leave-one-out (Kool et al. 2019).

    Each particle's baseline is the mean learning signal of the datum's other particles, so it is
    independent of the draw, costs nothing and needs no tuning.

    Args:
        num_particles: S, at least 2.
        **options: `beta`, `free_bits`, `analytic_kl`, `max_plate_nesting` of `DiscreteELBO`.

    Raises:
        ValueError: num_particles < 2.
    """

    is_unbiased: ClassVar[bool] = True

    def __init__(self, num_particles: int = 4, **options: Any) -> None:
        if num_particles < 2:
            raise ValueError(
                "Expected at least 2 particles for the leave-one-out baseline; got "
                f"{num_particles}. Raise num_particles, or use ReinforceELBO."
            )
        super().__init__(num_particles, **options)

    def advantage(self, signal: Tensor) -> Tensor:
        """(S, *batch) signals less the mean of the others."""
        return signal - (signal.sum(0) - signal) / (self.num_particles - 1)


_COUNT = count(1)
_NAMES: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


def show_parameters_to_svi(elbo: nn.Module) -> None:
    """Let SVI optimise what an ELBO learns: it trains the parameters it sees during a loss.

    Each ELBO of a process has a name of its own in Pyro's parameter store, copies too. Where the
    store holds other weights under that name (it was loaded from a file), the ELBO takes them, as
    SVI would otherwise train weights that nobody uses.
    """
    if elbo not in _NAMES:
        _NAMES[elbo] = f"{type(elbo).__name__} {next(_COUNT)}"
    for key, parameter in [*elbo.named_parameters()]:
        if not parameter.requires_grad:
            continue
        name = f"{_NAMES[elbo]}$$${key}"  # as `pyro.module` would call it
        stored = pyro.param(name, parameter)
        if stored is parameter:
            continue
        if stored.shape != parameter.shape:
            raise ValueError(
                f"Expected {(*parameter.shape,)} numbers for '{name}' in Pyro's parameter store; "
                f"got {(*stored.shape,)}, of another ELBO. Clear the store, or make the ELBOs in "
                "the order in which they were when it was saved."
            )
        owner, _, own_name = key.rpartition(".")
        elbo.get_submodule(owner)._parameters[own_name] = cast(nn.Parameter, stored)
