"""The steps of a training: each draws a batch, computes a gradient and changes the weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from pyro_dvae import processes
from pyro_dvae.checks import at_least, training_settings
from pyro_dvae.defaults import ANNEALING, LONG_RUN
from pyro_dvae.elbos.base import DiscreteELBO
from pyro_dvae.process import for_steps
from pyro_dvae.streams import RandomStream, seed_of_part
from pyro_dvae.training.adam import FusedAdam
from pyro_dvae.training.averaging import WeightAverage
from pyro_dvae.training.backward import Backward, needs_no_traces
from pyro_dvae.training.batches import (
    Batch,
    TrainingData,
    as_batch,
    check_data,
    check_weights,
    rows_told,
    served,
    show_likelihood,
    training_data,
)
from pyro_dvae.training.compiled import CompiledBackward, torch_compiles
from pyro_dvae.training.failures import describe_failure, not_finite
from pyro_dvae.training.first_steps import ReinMaxSteps
from pyro_dvae.training.graphs import CapturedStep, check_capture
from pyro_dvae.training.precision import Bfloat16
from pyro_dvae.training.schedules import annealed, rate_factor
from pyro_dvae.training.together import begin_together, first_told
from pyro_dvae.vae import DiscreteVAE


class GradientSteps:
    """Takes the steps of a `Trainer`: each draws a batch, and updates weights and average.

    It holds everything that the next step depends on: the position in the epoch, beta, the state of
    the optimizer and the streams of random numbers. `Trainer` divides training into epochs, scores
    them, and decides when training ends. It also documents the arguments, and has their defaults.
    """

    check_every = 1
    """The number of steps between checks that all is finite; each check reads from the device."""

    def __init__(
        self,
        vae: DiscreteVAE,
        elbo: Any,
        data: TrainingData | Batch,
        validation: Batch | None,
        *,
        batch_size: int,
        learning_rate: float,
        averaging: float,
        annealing: int | None,
        initial_beta: float,
        warmup: int,
        cooldown: int,
        reinmax_steps: int,
        seed: int,
        compiled: bool | None,
        capture: bool,
        bfloat16: bool,
    ) -> None:
        check_weights(vae, "a model")
        has_beta = isinstance(elbo, DiscreteELBO) and elbo.has_beta
        annealing = (ANNEALING if has_beta else 0) if annealing is None else annealing
        rates = (learning_rate, warmup, cooldown)
        training_settings(batch_size, averaging, annealing, initial_beta, *rates, reinmax_steps)
        if annealing and not has_beta:
            raise ValueError(
                f"Expected an ELBO with beta to anneal; got {type(elbo).__name__}. Use "
                "annealing=0, or another estimator."
            )
        self.vae, self.elbo = vae, elbo
        self.data = training_data(vae, data)
        self.validation = None if validation is None else as_batch(vae, validation)
        at_least("training data", len(self.data), 1)
        self.batch_size = batch_size
        weight = next(vae.parameters())
        self.device, self._dtype = weight.device, weight.dtype
        if isinstance(elbo, nn.Module):
            elbo.to(self.device)
        rows = check_data(vae, elbo, self.data, self.validation, self.device)
        show_likelihood(vae, self.data, self.device)
        weights = [*vae.parameters()]
        if isinstance(elbo, nn.Module):
            weights += elbo.parameters()
        self.optimizer = FusedAdam(weights, learning_rate)
        if compiled and not needs_no_traces(vae, elbo, rows):
            raise ValueError(
                f"Expected a model and an ELBO whose step compiles; got {type(elbo).__name__} and "
                f"{type(vae).__name__}. Use RlooELBO or ReinMaxELBO with a mean-field guide and a "
                "uniform or learned prior, or compiled=False."
            )
        self._trial_rows = rows
        self.compiled = bool(compiled) and not self._means_are_shared
        self._backward = self._new_backward()
        self.reinmax_steps = reinmax_steps
        self._first = ReinMaxSteps(vae, elbo, self.optimizer, rows) if reinmax_steps else None
        self.annealing, self.initial_beta = annealing, initial_beta
        self.warmup, self.cooldown, self.seed = warmup, cooldown, seed
        self._together = begin_together(self, averaging=averaging, capture=capture)
        if capture:
            no_traces = needs_no_traces(vae, elbo, rows)
            fixed = {"warmup": warmup, "cooldown": cooldown, "reinmax_steps": reinmax_steps}
            check_capture(self.device, self.data, elbo, no_traces, fixed)
        self.capture = capture
        self._precision = Bfloat16(vae) if bfloat16 else nullcontext()
        self.average = WeightAverage(vae, averaging, captured=capture)
        self.final_beta = elbo.beta if annealing else 1.0
        self.shuffling = torch.Generator().manual_seed(seed)
        self.check_every = 100 if self.device.type == "cuda" else self.check_every

        self.epoch = self.step = self.last_epoch = 0
        """Epochs completed, steps of the epoch, and the epochs to complete."""
        # These tensors keep their memory, because a captured step writes into it.
        self.total = torch.zeros((), device=self.device)
        self._num_good = torch.zeros((), dtype=torch.float64, device=self.device)
        self._bad = torch.zeros((), dtype=torch.float32, device=self.device)
        self._beta = torch.zeros((), dtype=torch.float64, device=self.device) if capture else None
        self.restart_streams()
        self._start_epoch()
        self._record_anew()

    def _new_backward(self) -> Backward:
        parts = self.vae, self.elbo, self.optimizer, self._trial_rows
        if not self.compiled:
            return Backward(*parts)
        size = len(processes.portion(torch.empty(self.batch_size)))
        return CompiledBackward(*parts, size)

    @property
    def _means_are_shared(self) -> bool:
        """Whether a step exchanges means of its batch too, which no graph of torch can hold."""
        has_free_bits = isinstance(self.elbo, DiscreteELBO) and self.elbo.free_bits > 0
        return has_free_bits and processes.world_size() > 1

    def compile_if_long(self, epochs: int) -> bool:
        """Compile the step before the first one, if that is possible and saves time.

        On the CPU it saves time if there are at least 20,000 steps. On a CUDA device it has not
        been measured.

        Args:
            epochs: the number of epochs to train.

        Returns:
            Whether the step is compiled.
        """
        is_long = self.device.type == "cpu" and epochs * self.steps >= LONG_RUN
        is_long = is_long and not self._means_are_shared
        if is_long and not self.compiled and torch_compiles():
            self.compiled = needs_no_traces(self.vae, self.elbo, self._trial_rows)
            self._backward = self._new_backward()
        return self.compiled

    def __getstate__(self) -> dict[str, Any]:
        """The state for copies and pickles; a copy makes new graphs."""
        own = {"shuffling": self.shuffling.get_state(), "noise": self.noise.get_state()}
        return {**self.__dict__, **own, "_on_device": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.shuffling = torch.Generator()
        self.shuffling.set_state(state["shuffling"])
        self.noise = torch.Generator(self.device)
        self.noise.set_state(state["noise"])
        self.average.take_out()
        self._record_anew()

    def _record_anew(self) -> None:
        self._on_device: Callable[[Tensor], tuple[Tensor, ...]] = self._advance
        if self.capture:
            self._on_device = CapturedStep(
                self._advance, self.batch_size, [self.noise], self.device
            )

    def restart_streams(self) -> None:
        """Start the random streams of the device, from the seed and the number of the epoch.

        Of several processes, each has its own streams.
        """
        seed = seed_of_part(self.seed + 1_000_003 * self.epoch, processes.rank(), self.step)
        self.noise = torch.Generator(self.device).manual_seed(seed + 1)
        self.draws = RandomStream(seed + 2, self.device)

    def _start_epoch(self) -> None:
        self.step, self.num_seen = 0, 0
        for tensor in (self.total, self._num_good, self._bad):
            tensor.zero_()
        self.order = self.shuffling.get_state()

    @property
    def steps(self) -> int:
        """The number of steps in an epoch."""
        return math.ceil(len(self.data) / self.batch_size)

    @property
    def train_elbo(self) -> float:
        """The mean estimate of the ELBO since the epoch began; this reads from the device."""
        return -self.total.item() / max(1, self.num_seen)

    @contextmanager
    def _stepping(self) -> Iterator[None]:
        """Prepare the process and the model for steps, and restore both afterwards."""
        with for_steps(self.draws), self._precision:
            try:
                yield
            finally:
                if self.annealing:
                    self.elbo.beta = self.final_beta

    @property
    def _done(self) -> float:
        return self.epoch + self.step / self.steps

    @property
    def beta(self) -> float:
        """The weight of the KL term in the next step."""
        return annealed(self._done, self.annealing, self.initial_beta, self.final_beta)

    def _take_step(self, index: Tensor) -> None:
        if self.annealing:
            self.elbo.beta = self.beta if self._beta is None else self._beta.fill_(self.beta)
        spans = self._done + 1 / self.steps, self.last_epoch - self._done
        self.optimizer.factor = rate_factor(*spans, self.warmup, self.cooldown)
        self.average.prepare()
        self._batch: tuple[Tensor, ...] = ()
        own = processes.portion(index)
        self._share = len(own) / len(index)
        try:
            # A process without data in a short last batch computes a gradient that does not count.
            self._batch = self._on_device(own if len(own) else index[:1])
        except (RuntimeError, ValueError) as error:
            # A sampler of torch raises an error if it meets NaN. Any other error is the caller's.
            why = describe_failure(self.vae, *self._batch) if self._batch else None
            if why is None:
                raise
            raise self._not_finite(self.step + 1, why) from error
        if self.check_every > 1 and (self.step + 1) % self.check_every == 0:
            self._look()
        self.average.count()
        self.num_seen += index.shape[0]
        self.step += 1

    def _advance(self, index: Tensor) -> tuple[Tensor, ...]:
        """Do the part of a step that runs on the device, and return the batch.

        Nothing is read from the device, except where `_look` checks.
        """
        loss = self._differentiate(index)
        if self.check_every == 1:
            self._look()
        self._num_good += self._bad == 0
        self.optimizer.take_step(self._bad)  # skips a bad step and all after it
        self.average.update()
        self.total += loss
        return self._batch

    def _differentiate(self, index: Tensor) -> Tensor:
        """Set the gradients of the whole batch, of which `index` is this process's part.

        Returns:
            The loss, summed over the whole batch.
        """
        is_first = self.epoch * self.steps + self.step < self.reinmax_steps
        backward = self._first if self._first is not None and is_first else self._backward

        def differentiate() -> Tensor:
            self._batch = served(self.data, index, self.noise, self._dtype)
            with rows_told(self.elbo, index, self.data):
                return backward(self._batch, self._bad)

        if self._together is None:
            return differentiate()
        reads = (self.step + 1) % self.check_every == 0
        return self._together(differentiate, self._share, self._bad, reads=reads)

    def _look(self) -> None:
        if self._bad:
            why: str | None = None
            if self._together is None or self._together.own_is_bad:
                why = describe_failure(self.vae, *self._batch) or "the loss or its gradient"
            raise self._not_finite(int(self._num_good) + 1, first_told(why))

    def _not_finite(self, step: int, what: str) -> FloatingPointError:
        return not_finite(what, step, self.steps, self.epoch + 1)
