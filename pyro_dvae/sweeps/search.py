"""A search among settings with Optuna, which several processes share by one storage."""

from __future__ import annotations

import inspect
import json
import time
import warnings
from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import Any

from filelock import Timeout

from pyro_dvae.runs.info import RunInfo
from pyro_dvae.runs.run import inspect_run
from pyro_dvae.runs.settings import CONFIG
from pyro_dvae.runs.storage import LOCK, locked
from pyro_dvae.sweeps.one_run import Runs, best_validation_elbo
from pyro_dvae.sweeps.result import Sweep
from pyro_dvae.sweeps.space import Range, Vary, is_whole, label
from pyro_dvae.training.records import EpochRecord

_HEARTBEAT, _GRACE = 10, 30
"""Seconds between two signs of life of a process; and without one, until its trial is taken up."""
_POLL = 1.0
"""Seconds between two looks at the trials of other processes."""
_STARTUP = 5
"""The trials before any is pruned."""
_FIRST, _SPEC = "first", "sweep"
"""Attributes: of a trial, the number of the one that it takes up; of the study, what is varied."""


class _Enough(Exception):
    """Another process has begun the last trial at the same moment."""


def require_optuna() -> None:
    """Raise a ModuleNotFoundError that says what to install, where Optuna is missing."""
    try:
        import optuna  # noqa: F401
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "Expected the optuna package for a search; got none. Run pip install "
            "'pyro-dvae[sweep]', or name single values and no trials."
        ) from None


def search(runs: Runs, vary: Vary, trials: int, storage: str | None, *, warmup: int) -> Sweep:
    """Search until the storage holds as many trials as are asked for; see `sweep`.

    Args:
        runs: how runs are trained.
        vary: the settings that vary.
        trials: the number of trials, of all processes together.
        storage: the URL of Optuna's storage; None for a file in the folder.
        warmup: the epochs of a trial before it may be pruned.
    """
    import optuna

    url = storage or f"sqlite:///{(runs.folder / '.sweep.db').resolve()}"
    with warnings.catch_warnings():  # heartbeats are called experimental since version 2.9
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study = _study(runs, vary, url, warmup)
        _work(runs, vary, study, trials)
    return _found(runs, vary, study)


def _work(runs: Runs, vary: Vary, study: Any, trials: int) -> None:
    """Train trials until there are as many as are asked for, of all processes together."""
    import optuna

    states = optuna.trial.TrialState
    while True:
        runs.check()
        optuna.storages.fail_stale_trials(study)
        number = Counter(trial.state for trial in study.get_trials(deepcopy=False))
        done = number[states.COMPLETE] + number[states.PRUNED]
        if done >= trials:
            return
        if number[states.WAITING] or done + number[states.RUNNING] < trials:
            objective = _Objective(runs, vary, study, trials)
            study.optimize(objective, n_trials=1, catch=(_Enough,))
        else:  # other processes are at the last trials, one of which may still be killed
            time.sleep(_POLL)


def _study(runs: Runs, vary: Vary, url: str, warmup: int) -> Any:
    import optuna

    # The argument was renamed in Optuna 4.9.
    callback = "heartbeat_stale_trial_callback"
    if callback not in inspect.signature(optuna.storages.RDBStorage).parameters:
        callback = "failed_trial_callback"
    options: dict[str, Any] = {"heartbeat_interval": _HEARTBEAT, "grace_period": _GRACE}
    options[callback] = _take_up
    if url.startswith("sqlite"):
        options["engine_kwargs"] = {"connect_args": {"timeout": 60}}
    spec = {
        "vary": {
            name: str(v) if isinstance(v, Range) else [*map(label, v)] for name, v in vary.items()
        },
        "settings": {name: label(value) for name, value in sorted(runs.settings.items())},
        "seeds": [*runs.seeds],
        "data": runs.source.name,
    }
    with locked(runs.folder / f".sweep{LOCK}", 60):  # a storage is made by one process
        try:
            kept = optuna.storages.RDBStorage(url, **options)
        except Exception as error:  # of whatever database and driver
            reason = str(error).splitlines()[0]
            raise ValueError(
                f"Expected a storage that Optuna can open; got storage={url!r} ({reason}). Use "
                "sqlite:///sweep.db, for example."
            ) from error
        study = optuna.create_study(
            storage=kept,
            study_name=runs.folder.resolve().name,
            sampler=optuna.samplers.TPESampler(constant_liar=True),
            pruner=optuna.pruners.MedianPruner(_STARTUP, warmup),
            direction="maximize",
            load_if_exists=True,
        )
        if study.user_attrs.setdefault(_SPEC, json.dumps(spec)) != json.dumps(spec):
            raise ValueError(
                f"Expected the search {study.study_name} of {url}; got another one of that name, "
                f"{study.user_attrs[_SPEC]}. Name another folder, or another storage."
            )
        study.set_user_attr(_SPEC, json.dumps(spec))
    return study


def _take_up(study: Any, trial: Any) -> None:
    """Queue the settings of a trial whose process is gone, so that its runs are taken up."""
    first = trial.user_attrs.get(_FIRST, trial.number)
    study.enqueue_trial(trial.params, user_attrs={_FIRST: first})


class _Objective:
    """Trains the runs of a trial, and returns the mean of their validation ELBOs."""

    def __init__(self, runs: Runs, vary: Vary, study: Any, trials: int) -> None:
        self._runs, self._vary, self._study, self._trials = runs, vary, study, trials

    def __call__(self, trial: Any) -> float:
        import optuna

        fail = optuna.trial.TrialState.FAIL
        before = [
            other
            for other in self._study.get_trials(deepcopy=False)
            if other.number < trial.number and other.state != fail
        ]
        if len(before) >= self._trials:
            raise _Enough
        point = {name: _suggested(trial, name, values) for name, values in self._vary.items()}
        first = trial.user_attrs.get(_FIRST, trial.number)
        told = ", ".join(f"{name}={label(value)}" for name, value in point.items())
        self._runs.tell(f"trial {first}: {told}")
        try:
            return fmean(
                self._one_run(trial, _name(first, seed), point, seed) for seed in self._runs.seeds
            )
        except FloatingPointError as error:
            self._runs.tell(f"trial {first}: diverged, {error}")
            trial.set_user_attr("diverged", str(error))
            raise optuna.TrialPruned from error
        except Timeout:  # it was taken for dead, and lives: it ends its trial itself
            raise _Enough from None
        except (optuna.TrialPruned, ValueError, OSError):
            raise
        except BaseException:  # told to stop: what the trial has done is not lost
            _take_up(self._study, self._study.trials[trial.number])
            raise

    def _one_run(self, trial: Any, name: str, point: dict[str, Any], seed: int) -> float:
        import optuna

        def on_epoch(record: EpochRecord) -> None:
            if seed != self._runs.seeds[0] or record.validation_elbo is None:
                return
            trial.report(record.validation_elbo, record.epoch)
            if trial.should_prune():
                self._runs.tell(f"{name}: pruned after epoch {record.epoch}")
                raise optuna.TrialPruned

        elbo = best_validation_elbo(self._runs.train(name, point, seed, on_epoch))
        assert elbo is not None
        return elbo


def _suggested(trial: Any, name: str, values: Any) -> Any:
    if not isinstance(values, Range):
        named = {label(value): value for value in values}
        return named[trial.suggest_categorical(name, [*named])]
    if is_whole(name):
        return trial.suggest_int(name, int(values.low), int(values.high), log=values.log)
    return trial.suggest_float(name, values.low, values.high, log=values.log)


def _name(number: int, seed: int) -> str:
    return f"trial={number:04d},seed={seed}"


def _found(runs: Runs, vary: Vary, study: Any) -> Sweep:
    """The runs of all trials, as far as their folders are on this machine."""
    import optuna

    states = optuna.trial.TrialState
    complete: list[RunInfo] = []
    left_out: dict[str, str] = {}
    for trial in study.get_trials(deepcopy=False):
        first = trial.user_attrs.get(_FIRST, trial.number)
        if trial.state == states.PRUNED:
            left_out[f"trial {first}"] = trial.user_attrs.get("diverged", "pruned")
        elif trial.state == states.COMPLETE:
            folders = [runs.folder / _name(first, seed) for seed in runs.seeds]
            complete += [inspect_run(folder) for folder in folders if _is_run(folder)]
            if not all(map(_is_run, folders)):
                left_out[f"trial {first}"] = "its folders are on another machine"
    is_known = any(trial.state == states.COMPLETE for trial in study.get_trials(deepcopy=False))
    best = dict(study.best_params) if is_known else None
    return Sweep(runs.folder, tuple(vary), tuple(complete), left_out, best)


def _is_run(folder: Path) -> bool:
    return (folder / CONFIG).is_file()
