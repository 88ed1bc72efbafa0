"""Kill -9 short runs at random moments and in saves; each must resume to the same end.

    python tests/cli/kill_runs.py FOLDER [NUMBER]

Children are forked from a process that has imported everything, so that a run takes half a second.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from pdvae_cli import train
from pdvae_cli.main import main

from pyro_dvae.runs.checkpoints import STATE, WEIGHTS
from pyro_dvae.runs.log import read_evaluation, read_metrics
from pyro_dvae.runs.settings import CONFIG
from pyro_dvae.runs.storage import read_tensors

OPTIONS = {
    "hidden": 8,
    "latents": 2,
    "categories": 3,
    "batch-size": 100,
    "epochs": 5,
    "estimator": "reinforce",
    "log-every": 3,
    "device": "cpu",
}
SETTINGS = [f"--{name}={value}" for name, value in OPTIONS.items()]


def in_child(arguments: list[str], before: Callable[[], None] = lambda: None) -> int:
    """Fork a child that runs the command; its process number."""
    child = os.fork()
    if child == 0:
        before()
        status: object = 1
        try:
            quietly(arguments)
        except SystemExit as stop:
            status = stop.code or 0
        finally:  # to end the interpreter would take longer than the run
            os._exit(status if isinstance(status, int) else 1)
    return child


def quietly(arguments: list[str]) -> None:
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        main(arguments)


def run(arguments: list[str]) -> None:
    _, status = os.waitpid(in_child(arguments), 0)
    if status:
        raise SystemExit(f"pdvae {' '.join(arguments)} ended with {status}")


def kill_at_save(number: int) -> Callable[[], None]:
    """The child kills itself as it flushes or replaces a file for the nth time."""

    def before() -> None:
        left = [number]

        def counted(function: Callable[..., object]) -> Callable[..., object]:
            def call(*arguments: object, **options: object) -> object:
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*arguments, **options)

            return call

        os.fsync = counted(os.fsync)  # type: ignore[assignment]
        Path.replace = counted(Path.replace)  # type: ignore[assignment, method-assign]

    return before


def compare(folder: Path, whole: Path) -> None:
    for name in (WEIGHTS, STATE):
        ours, _ = read_tensors(folder / name, "a run")
        theirs, _ = read_tensors(whole / name, "a run")
        assert ours.keys() == theirs.keys()
        different = [key for key in ours if not torch.equal(ours[key], theirs[key])]
        assert not different, (folder, name, different)
    lines, others = (
        [{**line, "seconds": 0} for line in read_metrics(path)] for path in (folder, whole)
    )
    assert lines == others
    assert read_evaluation(folder) == read_evaluation(whole)
    assert not list(folder.glob("*.part"))


def kill_runs(root: Path, number: int) -> None:
    torch.set_num_threads(1)
    train._draw = lambda *_, **__: None  # type: ignore[assignment]  # the pictures cost more than the run
    pixels = np.random.default_rng(0).integers(0, 256, (1000, 8, 8), np.uint8)
    np.save(root / "d.npy", pixels)
    settings = [f"--data={root / 'd.npy'}", *SETTINGS]
    with contextlib.suppress(SystemExit):  # what is imported late is imported here, for all
        quietly(["fit", str(root / "warm"), *settings])
    whole = root / "whole"
    start = time.monotonic()
    run(["fit", str(whole), *settings])
    duration = time.monotonic() - start
    chance = random.Random(0)
    for i in range(1, number + 1):
        folder = root / str(i)
        at_save = i % 3 == 0
        if at_save:
            moment = f"save call {(place := chance.randint(1, 60))}"
            child = in_child(["fit", str(folder), *settings], kill_at_save(place))
        else:
            moment = f"{(delay := chance.uniform(0, 0.9 * duration)):.2f} of {duration:.2f} s"
            child = in_child(["fit", str(folder), *settings])
            time.sleep(delay)
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        started = (folder / CONFIG).is_file()
        epochs = [line for line in read_metrics(folder) if "step" not in line]
        if started:
            run(["fit", "--resume", str(folder), "--log-every", "3"])
        else:
            shutil.rmtree(folder, ignore_errors=True)
            run(["fit", str(folder), *settings])
        compare(folder, whole)
        ended = "killed" if os.WIFSIGNALED(status) else "had ended"
        what = f"{ended} at {moment}, {len(epochs)} epochs done, {'' if started else 'not '}started"
        print(f"{i}/{number}: {what}: resumed to the same weights", flush=True)


if __name__ == "__main__":
    kill_runs(Path(sys.argv[1]), int((sys.argv[2:] or ["30"])[0]))
