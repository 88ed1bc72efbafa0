"""How far the training of a run folder came, and the figures that are stored in it."""

from __future__ import annotations

import math
import shlex
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, get_type_hints

if TYPE_CHECKING:
    from pyro_dvae import Config, Evaluation

_FIGURES = ("elbo", "log_marginal", "importance_bound", "posterior_gap", "active_latents")
"""What `compare` and `info` show."""


class History(NamedTuple):
    """What `metrics.jsonl` tells of a training."""

    epochs: int
    """Complete."""
    best: int
    """The epoch of the best validation ELBO; 0 where none is complete."""
    best_elbo: float | None
    seconds: float
    """Spent in training steps."""
    information: list[tuple[float, ...]]
    """Of each latent about the validation data, one row an epoch; empty where one is missing."""

    def status(self, config: Config) -> str:
        """In words; a training that goes on right now is "unfinished" too."""
        done = f"{self.epochs} of {config.epochs} epochs"
        if self.epochs >= config.epochs:
            return f"complete, {done}"
        if config.patience is not None and self.epochs - self.best >= config.patience:
            return f"stopped early, {done}"
        return f"unfinished, {done}"


def read_history(folder: Path) -> History:
    """Read `metrics.jsonl`, of this format or an older one.

    Raises:
        ValueError: a damaged file.
    """
    from pyro_dvae.runs.checkpoints import METRICS, read_metrics

    try:
        records = [line for line in read_metrics(folder) if "epoch" in line and "step" not in line]
        best = next((line for line in reversed(records) if line["is_best"]), None)
        elbo = None if best is None else best["validation_elbo"]
        rows = [tuple(line.get("validation_information") or ()) for line in records]
        return History(
            epochs=int(records[-1]["epoch"]) if records else 0,
            best=0 if best is None else int(best["epoch"]),
            best_elbo=None if elbo is None else float(elbo),
            seconds=float(records[-1]["seconds"]) if records else 0.0,
            information=rows if all(rows) else [],
        )
    except (KeyError, TypeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(
            f"Expected the epochs of a training in {folder / METRICS}; got {error!r}. "
            "Restore the file."
        ) from error


def stored_figures(folder: Path, part: str, epoch: int) -> tuple[Evaluation | None, str]:
    """The figures of a part of the data in `evaluation.json`, or None and what to do.

    Args:
        folder: the run's.
        part: "test", say.
        epoch: whose weights the folder holds now; figures of others do not count.

    Raises:
        ValueError: a damaged file.
    """
    from pyro_dvae import Evaluation
    from pyro_dvae.runs.checkpoints import EVALUATION, read_evaluation
    from pyro_dvae.runs.fields import check_fields

    stored = read_evaluation(folder).get(part)
    option = "" if part == "test" else f" --split {part}"
    todo = f"run pdvae evaluate {shlex.quote(str(folder))}{option}"
    if stored is None:
        return None, f"no {part} figures: {todo}"
    try:
        hints = {name: hint | None for name, hint in get_type_hints(Evaluation).items()}
        check_fields(stored, {**hints, "epoch": int})
        figures = {field.name: stored.get(field.name) for field in fields(Evaluation)}
        errors = figures["standard_errors"].values()
        known = [figures[name] for name in _FIGURES if figures[name] is not None]
        if figures["elbo"] is None or not all(map(math.isfinite, [*known, *errors])):
            raise ValueError("a number that is missing or not finite")
        if stored["epoch"] != epoch:
            return None, f"{part} figures of epoch {stored['epoch']}, weights of {epoch}: {todo}"
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"Expected the figures of an evaluation in {folder / EVALUATION}; got {error!r}. "
            f"Remove the file, and {todo}."
        ) from error
    return Evaluation(**figures), ""
