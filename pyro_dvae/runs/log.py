"""`metrics.jsonl`, a line per epoch of a training, and `evaluation.json`, its figures."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_type_hints

from filelock import Timeout

from pyro_dvae.evaluation import Evaluation, SimpleModels
from pyro_dvae.runs.config import Config
from pyro_dvae.runs.fields import check_fields
from pyro_dvae.runs.storage import LOCK, locked, read_json, regular, write_atomically, write_json
from pyro_dvae.training.records import EpochRecord, has_converged

METRICS, EVALUATION = "metrics.jsonl", "evaluation.json"

Status = Literal["complete", "stopped early", "unfinished"]

_LATER = {"validation_log_marginal": None, "validation_information": None, "of_guide": False}
"""What the first versions did not write, and what it is then."""
_COMPARED = ("elbo", "log_marginal", "importance_bound", "posterior_gap", "active_latents")
"""Figures that have to be finite, for runs are compared by them."""
_LONGEST = 2**24
"""The most bytes of a line: enough for the information of 800,000 latents."""
_PATIENCE = 60.0
"""How many seconds to wait for another process that adds its figures, which takes it a moment."""


def append_metrics(folder: str | Path, record: dict[str, Any]) -> None:
    """Add one line to `metrics.jsonl`, and flush it to the disk.

    Raises:
        OSError: it cannot be written. The message names the path.
    """
    path = Path(folder) / METRICS
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(f"Cannot write {path}: {error}") from error


def read_metrics(folder: str | Path) -> list[dict[str, Any]]:
    """The lines of `metrics.jsonl` in order, without a last one that a killed process left half.

    Raises:
        ValueError: a line is there that no training writes.
        OSError: the file cannot be read.
    """
    path = Path(folder) / METRICS
    records = []
    for line in _lines(path):
        try:
            record = dict(json.loads(line))
            check_fields(record, _types())
            if "epoch" not in record and "test" not in record:  # which format 1 has
                raise ValueError("no epoch")
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(
                f"Expected a JSON object a line in {path}; got {line[:40]!r} ({error}). Remove "
                "the line."
            ) from error
        records.append(record)
    return records


def _lines(path: Path) -> Iterator[bytes]:
    """The finished lines, one at a time, for the file may be long."""
    if not path.exists():
        return
    try:
        regular(path)
    except ValueError as error:
        raise ValueError(
            f"Expected the lines of a training in {path}; got {error}. Restore the file."
        ) from error
    with path.open("rb") as file:
        while line := file.readline(_LONGEST):
            if line.endswith(b"\n"):
                yield line[:-1]
            elif len(line) == _LONGEST:
                raise ValueError(
                    f"Expected lines of at most {_LONGEST:,} bytes in {path}; got a longer one, "
                    f"{line[:40]!r}. Remove the line."
                )


@cache
def _types() -> dict[str, Any]:
    return {**get_type_hints(EpochRecord), "step": int, "train_elbo": float | None}


def read_epochs(folder: str | Path) -> list[EpochRecord]:
    """The epochs that a run folder's `metrics.jsonl` tells of, in order.

    Raises:
        ValueError: a damaged file, or an epoch without one of its figures.
        OSError: the file cannot be read.
    """
    return epoch_records(folder, read_metrics(folder))


def epoch_records(folder: str | Path, lines: list[dict[str, Any]]) -> list[EpochRecord]:
    """The epochs that lines of `metrics.jsonl` tell of; what else they hold is left out.

    Args:
        folder: the run's, for the message.
        lines: as `read_metrics` gave them.

    Raises:
        ValueError: a line lacks a figure.
    """
    records = []
    names = get_type_hints(EpochRecord)
    for line in lines:
        if "epoch" in line and "step" not in line:
            known: dict[str, Any] = {**_LATER, **line}
            missing = [name for name in names if name not in known]
            if missing:
                raise ValueError(
                    f"Expected {', '.join(names)} of each epoch in {Path(folder) / METRICS}; got "
                    f"epoch {line['epoch']} without {', '.join(missing)}. Restore the file."
                )
            if known["validation_information"] is not None:
                known["validation_information"] = tuple(known["validation_information"])
            records.append(EpochRecord(**{name: known[name] for name in names}))
    return records


def training_status(config: Config, epochs: Sequence[EpochRecord]) -> Status:
    """How far a training came; one that goes on right now is "unfinished" too.

    Args:
        config: the run's settings.
        epochs: those that are complete.
    """
    model = [record for record in epochs if not record.of_guide]
    status = _status(model, config.epochs, config.patience, config.annealing or 0)
    if status == "unfinished" or not config.guide_epochs:
        return status
    done = len(model)
    guide = _status(epochs, done + config.guide_epochs, config.patience, done)
    return "unfinished" if guide == "unfinished" else status


def _status(
    epochs: Sequence[EpochRecord], most: int, patience: int | None, annealing: int
) -> Status:
    done = epochs[-1].epoch if epochs else 0
    if done >= most:
        return "complete"
    best = max((record.epoch for record in epochs if record.is_best), default=0)
    return "stopped early" if has_converged(done, best, patience, annealing) else "unfinished"


def rewind_metrics(folder: str | Path, epoch: int, step: int) -> list[dict[str, Any]]:
    """Drop the lines of `metrics.jsonl` that a training will write again.

    Args:
        folder: the run's.
        epoch: the number of complete epochs that the training continues after.
        step: the number of complete steps in the next epoch.

    Returns:
        The lines that stay.
    """

    def is_before(record: dict[str, Any]) -> bool:
        at = record.get("epoch", 0)
        return at <= epoch or (at == epoch + 1 and 0 < record.get("step", 0) <= step)

    kept = [record for record in read_metrics(folder) if is_before(record)]
    text = "".join(json.dumps(record) + "\n" for record in kept)
    path = Path(folder) / METRICS
    write_atomically(path, lambda beside: beside.write_text(text, encoding="utf-8"))
    return kept


class StoredEvaluation(NamedTuple):
    """The figures of a part of a run's data, and of which weights they are."""

    evaluation: Evaluation
    epoch: int
    """The epoch of the weights that were evaluated."""


def write_evaluation(folder: str | Path, part: str, evaluation: Evaluation, epoch: int) -> None:
    """Put the figures of a part of the data into `evaluation.json`, beside those of the others.

    Args:
        folder: the run's.
        part: "train", "validation" or "test".
        evaluation: its figures.
        epoch: the epoch of the weights that were evaluated.

    Raises:
        ValueError: a damaged file, or a lock that cannot be had.
        OSError: the file cannot be written.
    """
    write_figures(folder, part, {**asdict(evaluation), "epoch": epoch})


def write_figures(folder: str | Path, part: str, figures: dict[str, Any]) -> None:
    """Do what `write_evaluation` does, with figures that are JSON already.

    Other processes may do the same at the same time: a lock is held while the file is read,
    changed and written.
    """
    path = Path(folder) / EVALUATION
    try:
        with locked(path.with_name(f".{EVALUATION}{LOCK}"), _PATIENCE):
            before = read_evaluation(folder) if path.is_file() else {}
            write_json(path, {**before, part: figures})
    except Timeout:
        raise ValueError(
            f"Expected to write {path}; got another process that has held its lock for "
            f"{_PATIENCE:.0f} s. End it, and evaluate again."
        ) from None


def read_evaluation(folder: str | Path) -> dict[str, Any]:
    """What `evaluation.json` holds: part of the data -> figures; empty where there is no such file.

    Raises:
        ValueError: a damaged file.
    """
    path = Path(folder) / EVALUATION
    if not path.exists():
        return {}
    try:
        return read_json(path)
    except (ValueError, OSError) as error:
        raise ValueError(
            f"Expected a run's evaluation in {path}; got {error}. Remove the file, and evaluate "
            "again."
        ) from error


def stored_evaluation(folder: str | Path, part: str) -> StoredEvaluation | None:
    """The figures of one part of the data in `evaluation.json`; None where there are none.

    Args:
        folder: the run's.
        part: "train", "validation" or "test".

    Raises:
        ValueError: a damaged file, or a figure of another type, or one that is not finite.
    """
    stored = read_evaluation(folder).get(part)
    if stored is None:
        return None
    try:
        hints = {name: hint | None for name, hint in get_type_hints(Evaluation).items()}
        hints["simple_models"] = Any
        check_fields(stored, {**hints, "epoch": int})
        figures = {name: stored.get(name) for name in hints}
        figures |= {name: tuple(x) for name, x in figures.items() if isinstance(x, list)}
        if (simple := figures["simple_models"]) is not None:
            check_fields(simple, get_type_hints(SimpleModels))
            figures["simple_models"] = SimpleModels(**simple)
        known = [figures[name] for name in _COMPARED if figures[name] is not None]
        known += figures["standard_errors"].values()
        if figures["elbo"] is None or not all(map(math.isfinite, known)):
            raise ValueError("a number that is missing or not finite")
        return StoredEvaluation(Evaluation(**figures), stored["epoch"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"Expected the figures of an evaluation in {Path(folder) / EVALUATION}; got {error!r}. "
            "Remove the file, and evaluate again."
        ) from error
