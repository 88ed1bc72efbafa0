"""The training loop (Algorithm 1 of [JL25]), which can stop at any step and continue."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pyro
import torch
from torch import Tensor, nn

from pyro_dvae.checks import at_least, training_settings
from pyro_dvae.elbos.base import DiscreteELBO
from pyro_dvae.evaluation.evaluation import evaluate
from pyro_dvae.process import PROCESS_STATE, OneThread, without_checks
from pyro_dvae.streams import RandomStream
from pyro_dvae.training.adam import FusedAdam
from pyro_dvae.training.averaging import WeightAverage
from pyro_dvae.training.backward import Backward, CompiledBackward, needs_no_traces
from pyro_dvae.training.batches import (
    Batch,
    TrainingData,
    arguments,
    as_batch,
    check_data,
    check_weights,
    epoch_order,
    served,
    show_likelihood,
    training_data,
)
from pyro_dvae.training.failures import describe_failure
from pyro_dvae.training.graphs import CapturedStep, check_capture
from pyro_dvae.training.precision import Bfloat16
from pyro_dvae.training.records import EpochRecord
from pyro_dvae.training.resume import TrainingState, pack, unpack


class Trainer:
    """Ascends the ELBO by Adam on batches without replacement; stops and continues at any step.

    Each step follows the gradient of the mean loss per datum of its batch. All parameters of `vae`
    are trained, and those of an ELBO that learns a baseline or a control variate, whatever Pyro's
    parameter store holds: the store is left as it was. A step whose loss or gradient is not finite
    is not taken.

    Args:
        vae: a `DiscreteVAE`, on the device to train on.
        elbo: a `DiscreteELBO`, or one of Pyro's own.
        data: (N, *event) in the support of the likelihood: a tensor of any type, an array or a
            table; or a pair (x, labels (N,)) where the prior is conditional on labels; or
            `TrainingData`, which serves batches on vae's device.
        validation: (M, *event), or likewise a pair, or None.
        batch_size: B; the last batch of an epoch may be shorter.
        learning_rate: Adam's.
        averaging: decay of the `WeightAverage` that is validated and kept; 0 keeps the weights.
        annealing: epochs over which the ELBO's beta falls, linearly, from `initial_beta` to its
            own. More than 1 keeps the guide's entropy up until the decoder has learnt something;
            a guide that commits to codes early stays with bad ones.
        initial_beta: where beta starts, if it is annealed.
        seed: of the shuffling, the data's random parts and the draws of z, a stream each.
        compiled: get the gradient of full batches from one graph that `torch.compile` makes in the
            first step, in seconds; the same to rounding, and sooner. Where that fails, a warning
            says so and training goes on without.
        capture: on a CUDA device, replay the whole step of full batches as one CUDA graph; see
            `CapturedStep`. It was written without such a device at hand.
        bfloat16: encoder and decoder compute in it in training steps, and nowhere else.

    Raises:
        ValueError: an argument out of range, an ELBO without beta that is to be annealed, data
            outside the likelihood's support, or a step to compile or to capture that needs Pyro's
            traces, or is not to be captured on CUDA from data there.
    """

    check_every = 1
    """Steps between looks at whether all was finite; each is a read from the device."""

    def __init__(
        self,
        vae: nn.Module,
        elbo: Any,
        data: TrainingData | Batch,
        validation: Batch | None = None,
        *,
        batch_size: int = 100,
        learning_rate: float = 1e-3,
        averaging: float = 0.0,
        annealing: int = 0,
        initial_beta: float = 1.0,
        seed: int = 0,
        compiled: bool = False,
        capture: bool = False,
        bfloat16: bool = False,
    ) -> None:
        check_weights(vae, "a model")
        training_settings(batch_size, learning_rate, averaging, annealing, initial_beta)
        if annealing and not isinstance(elbo, DiscreteELBO):
            raise ValueError(
                f"Expected an ELBO with beta to anneal; got {type(elbo).__name__}. Use "
                "annealing=0, or a DiscreteELBO."
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
                f"{type(vae).__name__}. Use ReinforceELBO or RlooELBO with a mean-field guide and "
                "a uniform or learned prior, or compiled=False."
            )
        self._backward = (
            CompiledBackward(vae, elbo, self.optimizer, rows, batch_size)
            if compiled
            else Backward(vae, elbo, self.optimizer, rows)
        )
        if capture:
            check_capture(self.device, self.data, needs_no_traces(vae, elbo, rows))
        self.capture = capture
        self._precision = Bfloat16(vae) if bfloat16 else nullcontext()
        self.average = WeightAverage(vae, averaging, captured=capture)
        self.annealing, self.initial_beta = annealing, initial_beta
        self.final_beta = elbo.beta if annealing else 1.0
        self.seed = seed
        self.shuffling = torch.Generator().manual_seed(seed)
        if self.device.type == "cuda":
            self.check_every = 100

        self.epoch = 0
        """Epochs completed."""
        self.seconds = 0.0
        self.best: EpochRecord | None = None
        self.best_weights: dict[str, Tensor] = {}
        # These stay where they are, as a captured step writes there.
        self.total = torch.zeros((), device=self.device)
        self._num_good = torch.zeros((), dtype=torch.float64, device=self.device)
        self._bad = torch.zeros((), dtype=torch.float32, device=self.device)
        self._beta = torch.zeros((), dtype=torch.float64, device=self.device) if capture else None
        self._open: Generator[EpochRecord, None, None] | None = None
        self.restart_streams()
        self._start_epoch()
        self._record_anew()

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: the same training after the same step, its graphs made anew."""
        own = {"shuffling": self.shuffling.get_state(), "noise": self.noise.get_state()}
        return {**self.__dict__, **own, "_open": None, "_on_device": None}

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
        """Begin the device's streams of random numbers, at another place for each epoch."""
        seed = self.seed + 1_000_003 * self.epoch
        self.noise = torch.Generator(self.device).manual_seed(seed + 1)
        self.draws = RandomStream(seed + 2, self.device)

    def _start_epoch(self) -> None:
        self.step, self.num_seen = 0, 0
        for tensor in (self.total, self._num_good, self._bad):
            tensor.zero_()
        self.order = self.shuffling.get_state()

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        return math.ceil(len(self.data) / self.batch_size)

    @property
    def train_elbo(self) -> float:
        """Mean of the training estimates since the epoch's start; reads from the device."""
        return -self.total.item() / max(1, self.num_seen)

    def run(
        self,
        epochs: int,
        *,
        patience: int | None = None,
        max_seconds: float = math.inf,
        clock: Callable[[], float] = time.perf_counter,
        on_step: Callable[[int, int], None] | None = None,
    ) -> Iterator[EpochRecord]:
        """Train until so many epochs are complete in all; yields one record an epoch.

        Whenever a record is yielded, `vae` holds the averaged weights that the record scores.
        After an exception from `on_step` the state is that after the step, and another `run` goes
        on from there. One run of a trainer is open at a time: `run`, `keep_best` and
        `load_state_dict` end one that waits at a record.

        Args:
            epochs: the most epochs, those before included.
            patience: stop after so many epochs without a better validation ELBO (Algorithm 1's
                "until the validation ELBO has converged"); None never stops early.
            max_seconds: stop when so much time was spent in steps, within an epoch if need be.
            clock: the seconds' clock; `time.process_time` is fair on a machine that others share.
            on_step: called with (step, steps) of the epoch after each step.

        Raises:
            FloatingPointError: the loss or its gradient is NaN or infinite; names step and term,
                and `vae` holds the weights before that step.
        """
        at_least("epochs", epochs, 0)
        if patience is not None:
            at_least("patience", patience, 1)
            if self.validation is None:
                raise ValueError(
                    "Expected validation data for early stopping; got none. Pass validation, or "
                    "patience=None."
                )
        self._end_run()
        self._open = self._epochs(epochs, patience, max_seconds, clock, on_step)
        yield from self._open

    def _end_run(self) -> None:
        """End a run that waits at a record, where `vae` holds the average for the time being."""
        try:
            if self._open is not None:
                self._open.close()
        except ValueError as error:  # it is being executed
            raise RuntimeError(
                "Expected one run of a trainer at a time; got another in the middle of its step. "
                "Wait for the first, or build a second trainer."
            ) from error

    def _epochs(
        self,
        epochs: int,
        patience: int | None,
        max_seconds: float,
        clock: Callable[[], float],
        on_step: Callable[[int, int], None] | None,
    ) -> Generator[EpochRecord, None, None]:
        while self.epoch < epochs and not self._converged(patience) and self.seconds <= max_seconds:
            start = clock() - self.seconds
            self.shuffling.set_state(self.order)  # also in the middle of an epoch
            batches = epoch_order(self.data, self.shuffling, self.device)
            with PROCESS_STATE:
                check_weights(self.vae, "a model")
                self.vae.train()
                if self._backward.notice_changes():
                    self._record_anew()
            left = batches.split(min(self.batch_size, len(batches)))[self.step :]
            at_once = 1 if on_step is not None else max(1, len(left))
            for first in range(0, len(left), at_once):
                with self._stepping():
                    for index in left[first : first + at_once]:
                        self._take_step(index)
                        self.seconds = clock() - start
                        if self.seconds > max_seconds:
                            break
                if on_step is not None:  # which finds the process as its caller left it
                    on_step(self.step, self.steps)
                if self.seconds > max_seconds:
                    break
            with PROCESS_STATE:
                record = self._end_epoch()
            try:
                yield record
            finally:
                with PROCESS_STATE:
                    self.average.take_out()

    @contextmanager
    def _stepping(self) -> Iterator[None]:
        """What steps need of the process and of the model, given back after them."""
        # Pyro's checks read from the device at every step; the trial run has made them.
        with (
            self.draws,
            OneThread(),
            torch.inference_mode(False),
            torch.enable_grad(),
            without_checks(),
            pyro.get_param_store().scope(),
            self._precision,
        ):
            try:
                yield
            finally:
                if self.annealing:
                    self.elbo.beta = self.final_beta

    @property
    def beta(self) -> float:
        """The weight of the KL term in the next step."""
        done = self.epoch + self.step / self.steps
        left = max(0.0, 1 - done / self.annealing) if self.annealing else 0.0
        return self.final_beta + left * (self.initial_beta - self.final_beta)

    def _take_step(self, index: Tensor) -> None:
        if self.annealing:
            self.elbo.beta = self.beta if self._beta is None else self._beta.fill_(self.beta)
        self.average.prepare()
        self._batch: tuple[Tensor, ...] = ()
        try:
            self._batch = self._on_device(index)
        except (RuntimeError, ValueError) as error:
            # Torch's own words where a sampler meets NaN; any other error is the caller's.
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
        """What a step does on the device: the batch; between looks it reads nothing from there."""
        self._batch = served(self.data, index, self.noise, self._dtype)
        loss = self._backward(self._batch, self._bad)
        if self.check_every == 1:
            self._look()
        self._num_good += self._bad == 0
        self.optimizer.take_step(self._bad)  # which withholds a bad step, and those after it
        self.average.update()
        self.total += loss
        return self._batch

    def _look(self) -> None:
        if self._bad:
            why = describe_failure(self.vae, *self._batch) or "the loss or its gradient"
            raise self._not_finite(int(self._num_good) + 1, why)

    def _end_epoch(self) -> EpochRecord:
        """Score the average, which the module then holds."""
        if self._bad:
            raise self._not_finite(int(self._num_good) + 1, "the loss or its gradient")
        self.vae.eval()
        self.average.put_in()
        try:
            held_out = self.validation
            scores = None if held_out is None else evaluate(self.vae, *arguments(held_out))
        except BaseException:
            self.average.take_out()
            raise
        best = None if self.best is None else self.best.validation_elbo
        is_best = scores is None or best is None or math.isnan(best) or scores.elbo > best
        self.epoch += 1
        record = EpochRecord(
            self.epoch,
            self.train_elbo,
            None if scores is None else scores.elbo,
            None if scores is None else scores.log_marginal,
            None if scores is None else scores.information_per_latent,
            is_best,
            self.seconds,
        )
        if is_best:
            self.best = record
            self._keep_weights()
        self._start_epoch()
        return record

    @torch.no_grad()
    def _keep_weights(self) -> None:
        weights = self.vae.state_dict()
        if not self.best_weights:
            self.best_weights = {name: value.detach().clone() for name, value in weights.items()}
            return
        for name, value in weights.items():  # into the same memory: new pages cost more than copies
            self.best_weights[name].copy_(value)

    def _converged(self, patience: int | None) -> bool:
        best = self.epoch if self.best is None else self.best.epoch
        return patience is not None and self.epoch - best >= patience

    def keep_best(self) -> None:
        """Give `vae` the weights of the best epoch; training is over."""
        self._end_run()
        if self.best_weights:
            with PROCESS_STATE:
                self.vae.load_state_dict(self.best_weights)

    def state_dict(self) -> TrainingState:
        """A copy of everything that the next step depends on, after any step or epoch."""
        with PROCESS_STATE:
            return pack(self)

    def load_state_dict(self, state: TrainingState) -> None:
        """Continue from the state of a trainer of the same arguments.

        On the same kind of device the next steps are, bit for bit, those that would have followed;
        on another the streams of random numbers start anew, from the seed and the epoch.

        Raises:
            ValueError: the state is not one of such a trainer; nothing was loaded.
        """
        self._end_run()
        with PROCESS_STATE:
            unpack(self, state)
            self._num_good.fill_(self.step)
            self._bad.zero_()
            self._record_anew()

    def _not_finite(self, step: int, what: str) -> FloatingPointError:
        return FloatingPointError(
            f"Expected a finite loss and gradient; got NaN or infinity in {what}, at step {step} "
            f"of {self.steps} of epoch {self.epoch + 1}; the step was not taken. Lower the "
            "learning rate, or look at the data's range."
        )


def fit(
    vae: nn.Module,
    elbo: Any,
    data: TrainingData | Batch,
    validation: Batch | None = None,
    *,
    epochs: int = 50,
    patience: int | None = None,
    max_seconds: float = math.inf,
    clock: Callable[[], float] = time.perf_counter,
    on_step: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Iterator[EpochRecord]:
    """Train from the start, and keep the best weights: a `Trainer`'s `run` and `keep_best`.

    When the iterator is exhausted, `vae` holds the weights of the best validation epoch (without
    validation data, of the last).

    Args:
        vae: see `Trainer`, as for `elbo`, `data` and `validation`.
        elbo: as above.
        data: as above.
        validation: as above.
        epochs: see `Trainer.run`, as for the next four.
        patience: as above.
        max_seconds: as above.
        clock: as above.
        on_step: as above.
        **options: what else a `Trainer` takes: `batch_size`, `learning_rate`, ..., `seed`.
    """
    trainer = Trainer(vae, elbo, data, validation, **options)
    yield from trainer.run(
        epochs, patience=patience, max_seconds=max_seconds, clock=clock, on_step=on_step
    )
    trainer.keep_best()
