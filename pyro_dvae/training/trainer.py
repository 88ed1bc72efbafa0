"""The training loop (Algorithm 1 of [JL25]), which can stop at any step and continue."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

from torch import Tensor

from pyro_dvae.checks import at_least
from pyro_dvae.defaults import TrainingSettings
from pyro_dvae.elbos.exact import MarginalELBO
from pyro_dvae.evaluation.evaluation import evaluate
from pyro_dvae.process import PROCESS_STATE
from pyro_dvae.processes import from_first, take_from_first
from pyro_dvae.training.averaging import copy_weights
from pyro_dvae.training.batches import Batch, TrainingData, arguments, check_weights, epoch_order
from pyro_dvae.training.described import description
from pyro_dvae.training.records import EpochRecord, has_converged
from pyro_dvae.training.resume import TrainingState, pack, unpack
from pyro_dvae.training.steps import GradientSteps
from pyro_dvae.vae import DiscreteVAE


class Trainer(GradientSteps):
    """Maximises the ELBO by Adam on batches without replacement; stops and continues at any step.

    Each step follows the gradient of the mean loss per datum of its batch. All parameters of `vae`
    are trained, and so are those of an ELBO that learns a baseline or a control variate. Training
    does not depend on Pyro's parameter store, and leaves it as it was. A step whose loss or
    gradient is not finite is not taken.

    Args:
        vae: a `DiscreteVAE`, on the device to train on.
        elbo: a `DiscreteELBO`, or one of Pyro's own for discrete draws, such as `Trace_ELBO`,
            `TraceGraph_ELBO`, `RenyiELBO` and `ReweightedWakeSleep` (with `insomnia=1.0`).
        data: (N, *event) in the support of the likelihood: a tensor of any type, an array or a
            table; or a pair (x, labels (N,)) where the prior is conditional on labels; or
            `TrainingData`, which serves batches on vae's device.
        validation: other data (M, *event), or a pair (x, labels (M,)); None for no validation.
        batch_size: B, the number of data per step; the last batch of an epoch may have fewer.
        learning_rate: the learning rate of Adam.
        averaging: the decay of the average of the weights, a `WeightAverage`, which is validated
            and kept; 0 keeps the weights themselves.
        annealing: the number of epochs over which beta, the weight of the KL term, falls linearly
            from `initial_beta` to that of the ELBO. It keeps the guide's entropy up until the
            decoder has learnt something, since a guide stays with the codes that it commits to.
            None means 10 epochs, or 0 where the ELBO has no beta; 0 does not anneal.
        initial_beta: the beta of the first step, where it is annealed.
        warmup: the number of epochs over which the learning rate grows linearly from 0. A guide
            that commits to codes in the first, large steps of Adam stays with them.
        cooldown: the number of last epochs of `run` over which it falls linearly to 0. A training
            that goes on for more epochs goes back to the whole rate.
        reinmax_steps: the number of first steps by ReinMax; see `ReinMaxSteps`.
        seed: the seed of the shuffling, of the random parts of the data, and of the draws of z.
            Each has a random stream of its own.
        compiled: compute the gradient of full batches by one graph, which `torch.compile` makes in
            the first step. The gradient is the same to rounding. If compiling fails, there is a
            warning. None does not compile, because the number of steps is not known yet: see
            `compile_if_long`.
        capture: on a CUDA device, replay the whole step of full batches as one CUDA graph, by
            `CapturedStep`, which was written without such a device at hand.
        bfloat16: let the encoder and the decoder compute in bfloat16 in training steps.

    Raises:
        ValueError: an argument is out of range; `annealing` is given for an ELBO without beta; data
            are outside the support of the likelihood; a step that needs Pyro's traces is to be
            compiled or captured; or a step is to be captured without a CUDA device, or with data
            that are not on the device.
    """

    def __init__(
        self,
        vae: DiscreteVAE,
        elbo: Any,
        data: TrainingData | Batch,
        validation: Batch | None = None,
        *,
        batch_size: int = TrainingSettings.batch_size,
        learning_rate: float = TrainingSettings.learning_rate,
        averaging: float = TrainingSettings.averaging,
        annealing: int | None = TrainingSettings.annealing,
        initial_beta: float = TrainingSettings.initial_beta,
        warmup: int = TrainingSettings.warmup,
        cooldown: int = TrainingSettings.cooldown,
        reinmax_steps: int = TrainingSettings.reinmax_steps,
        seed: int = TrainingSettings.seed,
        compiled: bool | None = TrainingSettings.compile,
        capture: bool = False,
        bfloat16: bool = TrainingSettings.bfloat16,
    ) -> None:
        super().__init__(
            vae,
            elbo,
            data,
            validation,
            batch_size=batch_size,
            learning_rate=learning_rate,
            averaging=averaging,
            annealing=annealing,
            initial_beta=initial_beta,
            warmup=warmup,
            cooldown=cooldown,
            reinmax_steps=reinmax_steps,
            seed=seed,
            compiled=compiled,
            capture=capture,
            bfloat16=bfloat16,
        )
        self.best: EpochRecord | None = None
        self.best_weights: dict[str, Tensor] = {}
        self.seconds = 0.0
        self._open: Generator[EpochRecord, None, None] | None = None

    def __repr__(self) -> str:
        return description(self)

    def __getstate__(self) -> dict[str, Any]:
        """The state for copies and pickles, which have no open run."""
        return {**super().__getstate__(), "_open": None}

    def run(
        self,
        epochs: int,
        *,
        patience: int | None = None,
        max_seconds: float = math.inf,
        clock: Callable[[], float] = time.perf_counter,
        on_step: Callable[[int, int], None] | None = None,
    ) -> Iterator[EpochRecord]:
        """Train until `epochs` epochs are complete; yields one record per epoch.

        When a record is yielded, `vae` holds the averaged weights that the record scores. After an
        exception from `on_step` the state is that after the step, and another `run` continues from
        there. A trainer has one open run at a time: `run`, `keep_best` and `load_state_dict` end a
        run that waits at a record.

        Args:
            epochs: the number of epochs to train at most, including those before this call.
            patience: stop after this many epochs without a better validation ELBO (Algorithm 1's
                "until the validation ELBO has converged"); None never stops early.
            max_seconds: stop when the steps have taken this many seconds, within an epoch if need
                be.
            clock: the clock of these seconds; `time.process_time` is fair on a machine that others
                share.
            on_step: called with (step, steps) of the epoch after each step.

        Raises:
            FloatingPointError: the loss or its gradient is NaN or infinite. The message names the
                step and the term, and `vae` holds the weights before that step.
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
        """End a run that waits at a record, so that `vae` no longer holds the average."""
        try:
            if self._open is not None:
                self._open.close()
        except ValueError as error:  # the generator is running
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
        self.last_epoch = epochs
        while not self.is_over(epochs, patience) and self.seconds <= max_seconds:
            start = clock() - self.seconds
            self.shuffling.set_state(self.order)  # a run may begin in the middle of an epoch
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
                        is_over = self.seconds > max_seconds
                        if self._together is not None:
                            is_over = self._together.agree_to_end(is_over)
                        if is_over:
                            break
                if on_step is not None:  # called with the process as the caller left it
                    on_step(self.step, self.steps)
                if is_over:
                    break
            with PROCESS_STATE:
                record = self._end_epoch()
            try:
                yield record
            finally:
                with PROCESS_STATE:
                    self.average.take_out()

    def _end_epoch(self) -> EpochRecord:
        """Put the average into the model, and score it."""
        if self._bad:
            raise self._not_finite(int(self._num_good) + 1, "the loss or its gradient")
        self.vae.eval()
        take_from_first(self.vae.buffers())  # those of batch norm are of each process's own data
        self.average.put_in()
        try:
            scores = None
            if self.validation is not None:
                together = self._together is not None
                scores = evaluate(self.vae, *arguments(self.validation), together=together)
        except BaseException:
            self.average.take_out()
            raise
        self.epoch += 1
        record = EpochRecord.of(
            self.epoch,
            self.train_elbo,
            scores,
            self.best,
            self.seconds,
            by_marginal=isinstance(self.elbo, MarginalELBO),
        )
        record = from_first(record)  # others may round otherwise, or be slower
        self.seconds = record.seconds
        if record.is_best:
            self.best = record
            copy_weights(self.vae, self.best_weights)
        self._start_epoch()
        return record

    def agree_to_stop(self, wish: bool) -> bool:
        """Whether to stop after this step: of several processes, all do after the same step.

        Args:
            wish: whether this process is to stop. Of several, it tells the others with the next
                step, after which the result is True in all of them.
        """
        return wish if self._together is None else self._together.agree_to_stop(wish)

    def is_over(self, epochs: int, patience: int | None) -> bool:
        """Whether `run` with these arguments would take no step.

        Args:
            epochs: the number of epochs to train at most.
            patience: stop after this many epochs without a better validation ELBO; None never stops
                early.
        """
        return self.epoch >= epochs or self._converged(patience)

    def _converged(self, patience: int | None) -> bool:
        best = self.epoch if self.best is None else self.best.epoch
        return has_converged(self.epoch, best, patience, self.annealing)

    def keep_best(self) -> None:
        """Load the weights of the best epoch into `vae`, at the end of training."""
        self._end_run()
        if self.best_weights:
            with PROCESS_STATE:
                self.vae.load_state_dict(self.best_weights)

    def state_dict(self) -> TrainingState:
        """A copy of everything that the next step depends on, after any step or epoch."""
        with PROCESS_STATE:
            return pack(self)

    def load_state_dict(self, state: TrainingState) -> None:
        """Continue from the state of a trainer with the same arguments.

        On the same kind of device the next steps are, bit for bit, those that would have followed.
        On another kind the random streams start again, from the seed and the number of the epoch.

        Raises:
            ValueError: the state is not that of such a trainer; nothing was loaded.
        """
        self._end_run()
        with PROCESS_STATE:
            unpack(self, state)
            self._num_good.fill_(self.step)
            self._bad.zero_()
            self._record_anew()
