"""Damaged run folders x commands, each in one line within limits: see `test_hostile.py`."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile import Hostile

from pyro_dvae.runs import read_evaluation

SMALL = ("--batch-size=100", "--hidden=8", "--latents=2", "--categories=4", "--device=cpu")
NO_PICTURES = "import pdvae_cli.train as t; t._draw = lambda *_, **__: None"


@pytest.fixture(scope="module")
def trained(hostile_server: Hostile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data and the run of two epochs on them."""
    folder = tmp_path_factory.mktemp("trained")
    bits = np.random.default_rng(0).random((600, 8, 8)) < 0.3
    np.save(folder / "d.npy", bits.astype(np.uint8))
    outcome = hostile_server(
        *("fit", "r", "--data=d.npy", "--epochs=2", *SMALL), cwd=folder, prelude=NO_PICTURES
    )
    assert (outcome.status, outcome.err) == (0, "")
    return folder


@pytest.fixture
def run(hostile: Hostile, trained: Path) -> Path:
    """A copy of the run, `r`, in the test's folder, beside a whole one, `w`."""
    for name in ("r", "w"):
        shutil.copytree(trained / "r", name)
    return Path("r")


COMMANDS: dict[str, tuple[str, ...]] = {
    "info": ("info", "r"),
    "compare": ("compare", "w", "r"),
    "evaluate": ("evaluate", "r"),
    "sample": ("sample", "r", "-o", "s.csv"),
    "encode": ("encode", "r", "-o", "c.csv"),
    "resume": ("fit", "--resume", "r", "--epochs=3"),
}


def settings(**changed: Any) -> Callable[[Path], object]:
    """Change settings in config.json."""

    def damage(run: Path) -> None:
        content = json.loads((run / "config.json").read_text())
        content["config"].update(changed)
        (run / "config.json").write_text(json.dumps(content))

    return damage


def pipe(name: str) -> Callable[[Path], object]:
    """A pipe in place of a file, which whoever opens it waits for."""

    def damage(run: Path) -> None:
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)

    return damage


def flip_a_bit(name: str) -> Callable[[Path], object]:
    """Of the last byte of a file, which is a weight's."""

    def damage(run: Path) -> None:
        content = bytearray((run / name).read_bytes())
        content[-1] ^= 1
        (run / name).write_bytes(content)

    return damage


EVERY, BOTH = tuple(COMMANDS), ("info", "resume")
DAMAGES: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "a type": (settings(prior=5), EVERY),
    "10^9 latents": (settings(num_latents=10**9), BOTH),
    "10^300 latents": (settings(num_latents=10**300), BOTH),
    "100,000 layers": (settings(hidden=[1] * 100_000), BOTH),
    "a large Boltzmann machine": (settings(prior="boltzmann", num_latents=10**5), BOTH),
    "many digits": (settings(prior="autoregressive:" + "9" * 5_000), BOTH),
    "a flipped bit": (flip_a_bit("weights.safetensors"), ("info", "sample")),
    "a flipped bit of the state": (flip_a_bit("last.safetensors"), BOTH),
    "a flipped bit of the guide's state": (flip_a_bit("last-guide.safetensors"), ("info",)),
    "weights: a pipe": (pipe("weights.safetensors"), ("info", "sample")),
    "state: a pipe": (pipe("last.safetensors"), BOTH),
    "config: a pipe": (pipe("config.json"), BOTH),
    "metrics: a pipe": (pipe("metrics.jsonl"), ("info", "evaluate")),
    "evaluation: a pipe": (pipe("evaluation.json"), BOTH),
    "evaluation: half of it": (
        lambda run: (run / "evaluation.json").write_text("{"),
        BOTH,
    ),
    "evaluation: a number beyond floats": (
        lambda run: (run / "evaluation.json").write_text(
            json.dumps({"test": {"elbo": 10**400, "standard_errors": {}, "epoch": 2}})
        ),
        ("info", "compare"),
    ),
    "metrics: an empty object": (
        lambda run: (run / "metrics.jsonl").write_text("{}\n"),
        BOTH,
    ),
    "metrics: no epoch": (
        lambda run: (run / "metrics.jsonl").write_text('{"epoch": null, "is_best": true}\n'),
        BOTH,
    ),
    "metrics: an infinite epoch": (
        lambda run: (run / "metrics.jsonl").write_text('{"epoch": Infinity, "is_best": true}\n'),
        BOTH,
    ),
    "metrics: a figure less": (
        lambda run: (run / "metrics.jsonl").write_text('{"epoch": 1, "is_best": true}\n'),
        BOTH,
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_one_line(hostile: Hostile, run: Path, damage: str) -> None:
    change, commands = DAMAGES[damage]
    change(run)
    for name in commands:
        outcome = hostile(*COMMANDS[name], memory=1000, seconds=6)
        text = outcome.refusal(1 if name == "info" else 2)
        assert "Expected " in text, (name, text)
        assert len(text) < 2_500, name
        assert not (name != "info" and outcome.out), name


def test_a_line_of_a_gigabyte_takes_little_memory(hostile: Hostile, run: Path) -> None:
    with (run / "metrics.jsonl").open("r+b") as file:
        file.truncate(2**30)  # a hole, which takes no room
    assert "lines of at most" in hostile("info", "r", memory=500).refusal(1)


def test_further_keys_of_the_metrics_change_nothing(hostile: Hostile, run: Path) -> None:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    text = "".join(json.dumps({**line, "mine": [1]}) + "\n" for line in lines)
    (run / "metrics.jsonl").write_text(text)
    for name in BOTH:
        outcome = hostile(*COMMANDS[name], prelude=NO_PICTURES)
        assert (outcome.status, outcome.err) == (0, "")


def test_what_a_file_says_does_not_reach_the_terminal(hostile: Hostile, run: Path) -> None:
    content = json.loads((run / "config.json").read_text())
    content["data"].update(source="\x1b[2J", name="\ud800")
    (run / "config.json").write_text(json.dumps(content))
    for command in (("info", "r"), ("sample", "no\x1b[2J such", "-o", "s.csv"), ("compare", "r")):
        outcome = hostile(*command)
        assert "\x1b" not in outcome.out + outcome.err
        assert "Traceback" not in outcome.err


# Code that a run names.


def test_a_stranger_s_code_runs_only_where_it_is_trusted(hostile: Hostile, run: Path) -> None:
    settings(encoder="evil:make")(run)
    Path("evil.py").write_text("open('it-has-run', 'w').close()\nraise KeyError(3)\n")
    Path("z.csv").write_text("z1,z2\n0,0\n")
    for name in ("info", "compare"):
        outcome = hostile(*COMMANDS[name])
        assert (outcome.status, outcome.err) == (0, "")
    assert "evil:make, not imported here" in hostile("info", "r").out
    others = {
        "gradients": ("gradients", "r"),
        "fit-prior": ("fit-prior", "r", "new"),
        "fit-guide": ("fit-guide", "r", "new"),
        "score": ("score", "r"),
        "decode": ("decode", "r", "z.csv", "-o", "x.npz"),
        "reconstruct": ("reconstruct", "r", "-o", "x.png"),
        "traverse": ("traverse", "r", "-o", "x.png"),
        **{name: COMMANDS[name] for name in ("evaluate", "sample", "encode", "resume")},
    }
    for name, command in others.items():
        text = hostile(*command).refusal()
        assert "names evil:make: to load it would run evil. Look at this code" in text, name
    assert not Path("it-has-run").exists()
    outcome = hostile(*COMMANDS["sample"], "--trust-code")
    assert outcome.status == 2
    assert outcome.err.startswith("pdvae: importing evil:make, which r names\npdvae: Expected the")
    assert Path("it-has-run").exists()


# Surroundings of a training.

NO_LOCKS = """
import errno, fcntl
def flock(*_): raise OSError(errno.ENOLCK, "No locks available")
fcntl.flock = flock
"""
FOLDERS_CANNOT_BE_FLUSHED = """
import errno, os, stat
real = os.fsync
def fsync(descriptor):
    if stat.S_ISDIR(os.fstat(descriptor).st_mode): raise OSError(errno.EINVAL, "Invalid argument")
    return real(descriptor)
os.fsync = fsync
"""


@pytest.mark.parametrize(("what", "lines"), [(NO_LOCKS, 1), (FOLDERS_CANNOT_BE_FLUSHED, 0)])
def test_odd_file_systems(hostile: Hostile, run: Path, what: str, lines: int) -> None:
    shutil.rmtree("w")
    outcome = hostile(*COMMANDS["resume"], prelude=what + NO_PICTURES)
    assert (outcome.status, outcome.err.count("pdvae: ")) == (0, 2 * lines), outcome.err
    assert all("has no locks" in line for line in outcome.err.splitlines())


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC, errno.ELOOP])
def test_a_lock_that_cannot_be_made_leaves_no_empty_folder(
    hostile: Hostile, trained: Path, code: int
) -> None:
    prelude = f"""
import os, pathlib
def touch(*_, **__): raise OSError({code}, os.strerror({code}))
pathlib.Path.touch = touch
"""
    data = trained / "d.npy"
    command = ("fit", "new", f"--data={data}", "--epochs=1", *SMALL)
    text = hostile(*command, prelude=prelude).refusal()
    assert os.strerror(code) in text
    assert not Path("new").exists()


def test_a_lock_in_whose_place_a_link_stands(hostile: Hostile, run: Path) -> None:
    (run / ".lock").unlink()
    (run / ".lock").symlink_to("/etc/hostname")
    assert "to write the lock r/.lock into" in hostile(*COMMANDS["resume"]).refusal()


def test_killed_before_its_start_a_run_is_started_anew(hostile: Hostile, trained: Path) -> None:
    prelude = (
        "import os, pyro_dvae.runs.run_trainer as t; t.write_config = lambda *_: os.kill(0, 9)"
    )
    command = ("fit", "r", f"--data={trained / 'd.npy'}", "--epochs=2", *SMALL)
    assert hostile(*command, prelude=prelude).status == 137
    assert Path("r/weights.safetensors").exists()
    outcome = hostile(*command, prelude=NO_PICTURES)
    assert (outcome.status, outcome.err) == (0, "")
    assert "new or empty run folder" in hostile(*command).refusal()


@pytest.mark.parametrize("command", [("fit", b"\xff\xfe"), ("fit-prior", "r", b"\xff\xfe")])
def test_a_run_folder_that_could_never_be_read(
    hostile: Hostile, run: Path, trained: Path, command: tuple[Any, ...]
) -> None:
    names = [name if isinstance(name, str) else os.fsdecode(name) for name in command]
    data = (f"--data={trained / 'd.npy'}",) if names[0] == "fit" else ()
    text = hostile(*names, *data, "--epochs=1").refusal()
    assert r"whose name is UTF-8; got \udcff\udcfe" in text
    assert sorted(path.name for path in Path().iterdir()) == ["r", "w"]


def test_a_figure_is_never_lost(run: Path) -> None:
    """Several processes that each add one, at the same time."""
    (run / "evaluation.json").unlink()
    children = []
    for number in range(8):
        child = os.fork()
        if child == 0:
            from pyro_dvae.runs.log import write_figures

            for part in range(5):
                write_figures(run, f"{number}-{part}", {"elbo": 1.0})
            os._exit(0)
        children.append(child)
    assert all(os.waitpid(child, 0)[1] == 0 for child in children)
    assert len(read_evaluation(run)) == 40
