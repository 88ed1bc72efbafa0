"""Training into a run folder, of the first and the second stage, which survives being killed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from pyro_dvae._version import __version__
from pyro_dvae.data import Splits
from pyro_dvae.evaluation import Evaluation, evaluate
from pyro_dvae.processes import done_by_first, rank
from pyro_dvae.runs.beside import with_simple_models
from pyro_dvae.runs.checkpoints import (
    GUIDE_STATE,
    STATE,
    read_state,
    write_state,
    write_weights,
)
from pyro_dvae.runs.config import Config
from pyro_dvae.runs.log import (
    append_metrics,
    epoch_records,
    read_evaluation,
    rewind_metrics,
    write_evaluation,
)
from pyro_dvae.runs.record import DataRecord
from pyro_dvae.runs.rows import model_batch
from pyro_dvae.runs.run import Run
from pyro_dvae.runs.settings import write_config
from pyro_dvae.runs.storage import only_writer
from pyro_dvae.runs.trackers import TrackerFactory, Trackers
from pyro_dvae.training.guide_epochs import GuideEpochs
from pyro_dvae.training.records import EpochRecord
from pyro_dvae.training.second_stage import SecondStageTrainer
from pyro_dvae.training.trainer import Trainer


class RunTrainer:
    """A training that a run folder keeps, as `start_run`, `resume_run` and others return it.

        with start_run(open_source("images.npy"), "runs/mine", epochs=20) as training:
            for record in training.epochs():
                print(record)
            print(training.finish())

    In a process group, each process makes one of the same arguments, in the same folder. They train
    one model, and process 0 writes.

    Inside `with` no other process can write into the folder. It holds the settings and the first
    weights before the first step; after every epoch its metrics, the best weights, and the state
    to continue from. Each file is replaced at once, so that a process that is killed, or a disk
    that is full, leaves what was there.

    Where the settings have `guide_epochs`, these follow the epochs of the model. `trainer` is then
    the training of the guide alone, of the same model.

    Args:
        folder: the run's, as `create_run` made it.
        trainer: the training of the model. A `SecondStageTrainer` leaves no state, and cannot be
            resumed.
        data: what the run remembers of its data, and its settings.
        splits: the data.
        resume: continue from the folder's last state, in place of starting in an empty folder.
    """

    def __init__(
        self,
        folder: Path,
        trainer: Trainer,
        data: DataRecord,
        splits: Splits,
        *,
        resume: bool = False,
    ) -> None:
        self.folder, self.trainer, self.data, self.splits = folder, trainer, data, splits
        self.resume = resume
        self.event_shape = tuple(splits.train.event_shape)
        self.records: list[EpochRecord] = []
        """Of all complete epochs, those before a resume included."""
        self.keeps_state = not isinstance(trainer, SecondStageTrainer)
        self._held = ExitStack()
        self._trackers: Trackers | None = None

    @property
    def config(self) -> Config:
        """The settings of the run."""
        return self.data.config

    def __enter__(self) -> RunTrainer:
        """Take the folder's lock, and write or read where the training begins.

        Raises:
            ValueError: another process trains in the folder, or its files are damaged.
            OSError: a file cannot be written.
        """
        with ExitStack() as held:
            done_by_first(lambda: held.enter_context(only_writer(self.folder)))
            if self.resume:
                self._continue()
            else:
                done_by_first(self._begin)
            done_by_first(lambda: write_config(self.folder, self.data, self.event_shape))
            self._held = held.pop_all()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Let go of the folder's lock."""
        self._held.close()

    def _begin(self) -> None:
        write_weights(self.folder, self.trainer.vae.state_dict(), epoch=0)
        self.save()

    def _continue(self) -> None:
        trainer = self.trainer
        trainer.load_state_dict(read_state(self.folder))
        if trainer.epoch > self.config.epochs:
            raise ValueError(
                f"Expected at least the {trainer.epoch} epochs that {self.folder} has; got "
                f"{self.config.epochs}. Raise it to epochs={trainer.epoch}, or leave it out."
            )
        read_evaluation(self.folder)  # whose damage would only tell at the end
        if self.config.guide_epochs:
            self._continue_guide()
        at = self.trainer.epoch, self.trainer.step
        lines = done_by_first(lambda: rewind_metrics(self.folder, *at))
        self.records = epoch_records(self.folder, lines)

    def _continue_guide(self) -> None:
        """Go on with the epochs of the guide; or drop them, if the model is trained further."""
        trainer, state = self.trainer, self.folder / GUIDE_STATE
        if not trainer.is_over(self.config.epochs, self.config.patience):
            if rank() == 0:
                state.unlink(missing_ok=True)
            if trainer.best is not None and rank() == 0:
                write_weights(self.folder, trainer.best_weights, trainer.best.epoch)
        elif state.exists():
            self.trainer = GuideEpochs(trainer)
            self.trainer.load_state_dict(read_state(self.folder, GUIDE_STATE))

    def save(self) -> None:
        """Write the state to continue from, after any step or epoch; process 0 writes it."""
        if self.keeps_state and rank() == 0:
            name = GUIDE_STATE if self.is_of_guide else STATE
            write_state(self.folder, self.trainer.state_dict(), name)

    @property
    def is_of_guide(self) -> bool:
        """Whether the epochs of the model are over, and those of the guide have begun."""
        return isinstance(self.trainer, GuideEpochs)

    @property
    def last_epoch(self) -> int:
        """The number of the last epoch, if the training does not stop early: of model or guide."""
        if isinstance(self.trainer, GuideEpochs):
            return self.trainer.model_epochs + self.config.guide_epochs
        return self.config.epochs

    def epochs(
        self,
        *,
        log_every: int = 0,
        on_step: Callable[[int, int], None] | None = None,
        on_guide: Callable[[], None] | None = None,
        trackers: Sequence[TrackerFactory] = (),
    ) -> Iterator[EpochRecord]:
        """Train until the epochs of the settings are complete, or the validation ELBO converged.

        The epochs of the guide follow, if there are any. Each epoch is in the folder when its
        record is yielded.

        Args:
            log_every: steps between lines in `metrics.jsonl` beside those of the epochs; 0 for no
                such lines.
            on_step: called with (step, steps) of the epoch after each step. After an exception
                from it, `save` keeps the steps up to there.
            on_guide: called when the epochs of the guide begin.
            trackers: classes or functions that get the `Run` and return a `Tracker`, such as
                `TensorBoardTracker`. Process 0 alone calls them. `finish` tells them of the end.
                One that raises is left out from then on, with a warning.

        Raises:
            FloatingPointError: the loss or its gradient is not finite, or a weight to be saved.
            OSError: a file cannot be written.
        """
        if rank() == 0:
            self._trackers = Trackers(trackers, self.run)

        def after_step(step: int, steps: int) -> None:
            if log_every and step % log_every == 0 and rank() == 0:
                trainer = self.trainer
                line = {"epoch": trainer.epoch + 1, "step": step, "train_elbo": trainer.train_elbo}
                append_metrics(self.folder, line)
                if self._trackers is not None:
                    self._trackers.on_step(trainer.epoch * steps + step, trainer.train_elbo)
            if on_step is not None:
                on_step(step, steps)

        if not self.is_of_guide:
            yield from self._run(after_step)
            if not self.config.guide_epochs:
                return
            self.trainer = GuideEpochs(self.trainer)
            if on_guide is not None:
                on_guide()
        yield from self._run(after_step)

    def _run(self, after_step: Callable[[int, int], None]) -> Iterator[EpochRecord]:
        trainer, patience = self.trainer, self.config.patience
        for record in trainer.run(self.last_epoch, patience=patience, on_step=after_step):
            self.records.append(record)
            if rank() == 0:
                append_metrics(self.folder, vars(record))
                if record.is_best:
                    write_weights(self.folder, trainer.best_weights, record.epoch)
                self.save()
            if self._trackers is not None:
                self._trackers.on_epoch(record)
            yield record

    def finish(self) -> Evaluation | None:
        """Give the model its best weights, evaluate them on the test data, and store the figures.

        Returns:
            The figures; None where there are no test data, and in other processes than 0.

        Warns:
            UserWarning: the figures cannot be stored, for `evaluation.json` is damaged.
        """
        self.trainer.keep_best()
        scores = self._scores()
        if self._trackers is not None:
            self._trackers.on_end(self.run)
        return scores

    def _scores(self) -> Evaluation | None:
        """Evaluate on the test data, and store the figures; process 0 alone has them."""
        if self.splits.test is None:
            return None
        x, labels = model_batch(self.config, self.splits, "test", self.trainer.device)
        scores = evaluate(self.trainer.vae, x, labels, seed=self.config.seed, together=True)
        if rank() > 0:
            return None
        scores = with_simple_models(scores, self.trainer.vae, self.config, self.splits, (x, labels))
        try:
            write_evaluation(self.folder, "test", scores, self.run.epoch)
        except ValueError as error:  # nothing else of the training is lost
            warnings.warn(f"The figures were not stored: {error}", stacklevel=3)
        return scores

    @property
    def run(self) -> Run:
        """The run with the model as it is now, as `load_run` would give it, on its device."""
        vae, best = self.trainer.vae, self.trainer.best
        number = sum(weight.numel() for weight in vae.parameters())
        epoch = 0 if best is None else best.epoch
        shape = self.event_shape
        return Run(self.folder, shape, self.data, __version__, epoch, number, vae)
