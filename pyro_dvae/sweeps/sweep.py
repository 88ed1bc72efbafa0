"""`sweep`: many runs by one call, in any number of processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from filelock import Timeout

from pyro_dvae.data import Scan, Source
from pyro_dvae.runs.info import RunInfo
from pyro_dvae.runs.resolve import check_source
from pyro_dvae.runs.start import plan_run
from pyro_dvae.runs.trackers import TrackerFactory
from pyro_dvae.sweeps.one_run import Runs, nothing
from pyro_dvae.sweeps.result import Sweep
from pyro_dvae.sweeps.search import require_optuna, search
from pyro_dvae.sweeps.space import Vary, check_vary, folder_name, points

_POLL = 1.0
"""Seconds between two looks at the runs that other processes train."""


def sweep(
    source: Source,
    folder: str | Path,
    vary: Vary | None = None,
    *,
    seeds: int | Sequence[int] = 1,
    trials: int | None = None,
    storage: str | None = None,
    found: Scan | None = None,
    device: torch.device | str = "cpu",
    trust_code: bool = False,
    tell: Callable[[str], None] | None = None,
    check: Callable[[], None] | None = None,
    trackers: Sequence[TrackerFactory] = (),
    **settings: Any,
) -> Sweep:
    """Train every combination of settings with every seed; or search the best settings.

        found = sweep(open_source("images.npy"), "runs/both", {"estimator": ["rloo", "vimco"]},
                      seeds=5, epochs=20)
        for group in found.groups():
            print(group.settings, group.figures)

    Every run is an ordinary run folder in `folder`. A call with the same arguments takes up the
    runs that were killed, and trains none again that is complete. Several processes may make the
    same call at the same time: each run is trained by one of them, and all return all runs.

    A search needs Optuna. A trial is one point of the search: its settings, trained with every
    seed. The search maximises the mean over the seeds of the best validation ELBO. A trial whose
    first seed is below the median of the other trials at the same epoch is pruned.

    Args:
        source: the data, as `open_source` gives them.
        folder: the folder of all runs.
        vary: setting -> its values, or a `Range` for a search. None varies the seed alone.
        seeds: the seeds of the runs; or how many, from the setting `seed` on.
        trials: the number of trials of a search. None trains every combination.
        storage: where Optuna keeps the search, "sqlite:///sweep.db" or the URL of another database
            that all processes reach. None for `.sweep.db` in the folder.
        found: the result of `check_source`, if it has been called already.
        device: where to train.
        trust_code: import modules that runs name which are taken up, whoever made them.
        tell: called with a line for each run that starts or ends.
        check: called after each step and while waiting. After an exception from it the sweep ends;
            the steps up to there are kept.
        trackers: what makes the trackers of each run; see `RunTrainer.epochs`.
        **settings: settings of `Config` that all runs have in common, by name.

    Raises:
        ValueError: settings that cannot be varied or combined, before anything is trained; or the
            folder holds runs of another sweep.
        ModuleNotFoundError: a search without Optuna.
    """
    vary = dict(vary or {})
    check_vary(vary, is_search=trials is not None)
    both = sorted(vary.keys() & settings.keys())
    if both:
        raise ValueError(
            f"Expected settings that vary or are fixed; got both of {both[0]}. Leave one out."
        )
    if trials is None and storage is not None:
        raise ValueError(
            f"Expected a storage for a search alone; got storage={storage!r} without trials. Name "
            "the number of trials, or leave the storage out: the runs of a grid are shared by "
            "their folder."
        )
    if trials is not None and trials < 1:
        raise ValueError(f"Expected at least 1 trial; got {trials}. Raise it.")
    if trials is not None:
        require_optuna()
    known = _seeds(seeds, settings.pop("seed", 0))
    found = check_source(source) if found is None else found
    config = None
    for point in points(vary):  # so that a bad setting is reported before anything is trained
        config = plan_run(source, found, **{**settings, **point})[1]
    assert config is not None
    runs = Runs(
        Path(folder),
        source,
        found,
        settings,
        known,
        torch.device(device),
        trust_code,
        tell or nothing,
        check or nothing,
        tuple(trackers),
    )
    if trials is None:
        runs.folder.mkdir(parents=True, exist_ok=True)
        return _grid(runs, vary)
    if not config.validation:
        raise ValueError(
            "Expected validation data for a search, which goes by their ELBO; got validation=0. "
            "Leave it out."
        )
    runs.folder.mkdir(parents=True, exist_ok=True)
    return search(runs, vary, trials, storage, warmup=config.epochs // 5)


def _seeds(seeds: int | Sequence[int], first: int) -> tuple[int, ...]:
    known = tuple(range(first, first + seeds)) if isinstance(seeds, int) else tuple(seeds)
    if not known or len(set(known)) < len(known) or min(known) < 0:
        raise ValueError(
            f"Expected one seed or more, all different and none below 0; got {seeds}. Use seeds=5, "
            "for example."
        )
    return known


def _grid(runs: Runs, vary: Vary) -> Sweep:
    """Every combination; the seed varies slowest, so that what is done early can be compared."""
    todo = [(point, seed) for seed in runs.seeds for point in points(vary)]
    done: dict[str, RunInfo] = {}
    left_out: dict[str, str] = {}
    while todo:
        others = []
        for point, seed in todo:
            name = folder_name(point, seed)
            try:
                done[name] = runs.train(name, point, seed)
            except Timeout:  # another process trains it
                others.append((point, seed))
            except FloatingPointError as error:
                left_out[name] = str(error)
                runs.tell(f"{name}: diverged, {error}")
        if len(others) == len(todo):
            runs.check()
            time.sleep(_POLL)
        todo = others
    return Sweep(runs.folder, tuple(vary), tuple(done.values()), left_out)
