"""Score-function estimators: REINFORCE with several baselines, and leave-one-out."""

from __future__ import annotations

import math
from abc import abstractmethod
from itertools import count
from typing import Any, ClassVar, Literal, cast
from weakref import WeakKeyDictionary

import pyro
import torch
from torch import Tensor, nn

from pyro_dvae.elbos.base import DiscreteELBO
from pyro_dvae.elbos.terms import Terms


class ScoreFunctionELBO(DiscreteELBO):
    """1/S sum_s A_s grad log q(z_s|x), with advantages A_s that a subclass defines.

    f_s is the learning signal of particle s: the part of the objective that depends on the draw
    z_s. If A_s = f_s - b_s, and b_s is independent of z_s given x, the gradient is unbiased (Eqs.
    22 to 27 of [JL25]). For most models, `Trainer` computes this gradient without traces
    (`training/direct.py`), so that a step takes little more time than the networks.
    """

    needs_traces: bool = False
    """Whether the surrogate has further terms, so that `Trainer` must run it on traces."""
    decoder_particles: int | None = None
    """The number of particles at which log p(x|z) is differentiated; None for all of them."""

    @abstractmethod
    def advantage(self, signal: Tensor) -> Tensor:
        """The factors A_s of grad log q(z_s|x), without gradient.

        Args:
            signal: (S, *batch), f_s in nats, detached. If the KL is in closed form, it is
                log p(x|z_s).

        Returns:
            (S, *batch), in nats.
        """

    def surrogate(self, terms: Terms) -> Tensor:
        """(*batch) nats. Its gradient is the estimate."""
        advantage = self.advantage(terms.learning_signal.detach())
        return self.objective(terms) + (advantage * terms.log_guide).mean(0)

    def objective(self, terms: Terms) -> Tensor:
        """(*batch) mean of log p(x|z) over `decoder_particles`, minus the mean penalty, in nats."""
        if self.decoder_particles is None:
            return super().objective(terms)
        penalty = terms.penalty.expand_as(terms.log_likelihood)
        return terms.log_likelihood[: self.decoder_particles].mean(0) - penalty.mean(0)


class ReinforceELBO(ScoreFunctionELBO):
    """(f(z) - b) grad log q(z|x) (Williams 1992; Eqs. 22 to 27 of [JL25]).

    f is the learning signal: the part of the objective that depends on the draw. If the KL is in
    closed form, f = log p(x|z) = -BCE(g(z), x), with the decoder g. This is the tutorial's recipe
    (Eqs. 71 to 81, 84 and 85). A baseline b that does not depend on the draw lowers the variance of
    the gradient, and does not change its mean.

    With a network b_psi(x) it is NVIL (Mnih & Gregor 2014): b = b_psi(x) + c, where c is the
    running mean of f. In the same step, psi is trained to minimise (f - b)^2: a mean
    over particles, and a sum over the data, scaled as the bound is. psi gets no other gradient, and
    model and guide get none from it. For a torch optimiser, psi is in
    `elbo(model, guide).parameters()`. `SVI` finds it by itself.

    Args:
        num_particles: S, draws of z per datum.
        baseline: None for b = 0; a number in nats per datum ([JL25] uses f + 125, so b = -125);
            "running_mean" for the exponential mean of f over all earlier steps; or a network. The
            network is called with the arguments of model and guide, and returns one number per
            datum, (*batch) or (*batch, 1).
        decay: weight of the past in the running mean, in [0, 1).
        **options: `beta`, `free_bits`, `analytic_kl`, `max_plate_nesting` of `DiscreteELBO`.

    Raises:
        ValueError: the baseline is unknown or not finite, or the decay is outside [0, 1). When it
            is run: the network does not return one number per datum.
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
            raise ValueError(f"Expected a decay in [0, 1); got {decay}. Use, for example, 0.99.")
        self.baseline = baseline
        self.needs_traces = isinstance(baseline, nn.Module)
        self.decay = decay
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("weight", torch.zeros(()))

    def extra_repr(self) -> str:
        """The settings, for `repr`. Torch adds the network, as a child."""
        is_network = isinstance(self.baseline, nn.Module)
        baseline = "a network" if is_network else repr(self.baseline)
        return f"{super().extra_repr()}, baseline={baseline}, decay={self.decay}"

    def advantage(self, signal: Tensor) -> Tensor:
        """(S, *batch) f_s - b, or f_s - c if the baseline is a network."""
        return signal - self._baseline(signal)

    def surrogate(self, terms: Terms) -> Tensor:
        """(*batch) nats. Its gradient is the estimate, and that of -(f - b)^2 in the network."""
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
        # The weights of all past signals sum to `weight`. Before the first step, both are 0.
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
                f"Expected a baseline of shape {(*batch,)} or {(*batch, 1)}, one number per "
                f"datum; got {(*prediction.shape,)}. Change the network's output."
            )
        return prediction.reshape(batch)


class RlooELBO(ScoreFunctionELBO):
    """1/(S-1) sum_s (f_s - mean f) grad log q(z_s|x): REINFORCE, leave-one-out (Kool et al. 2019).

    f_s is the learning signal of particle s: the part of the objective that depends on the draw.
    The baseline of a particle is the mean of the learning signals of the datum's other particles.
    It does not depend on the particle's own draw, costs nothing, and needs no tuning.

    With `decoder_particles` = M < S, log p(x|z) is differentiated at M draws alone: its gradient is
    that of 1/M sum_{s <= M} log p(x|z_s). It is unbiased, as the draws are independent of one
    another. The score function and the KL still have all S draws. `Trainer` then differentiates the
    decoder at M codes per datum and only evaluates it at the others, wherever it needs no traces: a
    step with S = 4 and M = 1 takes 0.7 of the time of one with M = 4
    (examples/benchmarks/step_time.py). What the draws of one datum would average out is small
    beside what differs between the data of a batch.

    Args:
        num_particles: S, draws of z per datum, at least 2.
        decoder_particles: M, the number of draws at which log p(x|z) is differentiated, from 1 to
            S. None means all of them.
        **options: `beta`, `free_bits`, `analytic_kl`, `max_plate_nesting` of `DiscreteELBO`.

    Raises:
        ValueError: num_particles < 2, or decoder_particles is not from 1 to num_particles.
    """

    is_unbiased: ClassVar[bool] = True

    def __init__(
        self, num_particles: int = 4, *, decoder_particles: int | None = None, **options: Any
    ) -> None:
        if num_particles < 2:
            raise ValueError(
                "Expected at least 2 particles for the leave-one-out baseline; got "
                f"{num_particles}. Raise num_particles, or use ReinforceELBO."
            )
        if decoder_particles is not None and not 1 <= decoder_particles <= num_particles:
            raise ValueError(
                f"Expected decoder_particles from 1 to num_particles = {num_particles}; got "
                f"{decoder_particles}. Change one of them."
            )
        super().__init__(num_particles, **options)
        self.decoder_particles = decoder_particles

    def extra_repr(self) -> str:
        """The settings, for `repr`."""
        own = self.decoder_particles
        return super().extra_repr() + (f", decoder_particles={own}" if own is not None else "")

    def advantage(self, signal: Tensor) -> Tensor:
        """(S, *batch) f_s minus the mean of the other particles' f."""
        return signal - (signal.sum(0) - signal) / (self.num_particles - 1)


_COUNT = count(1)
_NAMES: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


def show_parameters_to_svi(elbo: nn.Module) -> None:
    """Register an ELBO's own weights with Pyro, so that SVI trains them.

    SVI trains the parameters that Pyro's parameter store gives out during a loss. There each ELBO
    of a process has its own name, and so has each copy of it. If the store has other weights of
    that name, because it was loaded from a file, the ELBO takes those. Otherwise SVI would train
    weights that the ELBO does not use.

    Raises:
        ValueError: the weights in the store have another shape.
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
                "the same order as when the store was saved."
            )
        owner, _, own_name = key.rpartition(".")
        elbo.get_submodule(owner)._parameters[own_name] = cast(nn.Parameter, stored)
