"""What must end in one line, within limits of memory and time, as tables.

A row is a way to go wrong; `hostile` runs the command (see `tests/hostile.py`), and
`Outcome.refusal` takes nothing but one line and the exit status 2. Each kind has a section:
settings x sizes, environments x commands; those of run folders and of data files may have files
of their own, `test_hostile_runs.py` and `test_hostile_data.py`.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hostile import Hostile
from PIL import Image

SMALL = ("--batch-size", "100", "--hidden", "8", "--latents", "2", "--categories", "4")
"""With `--data d.npy --epochs 1` a training that takes a tenth of a second."""


@pytest.fixture(scope="module")
def trained(hostile_server: Hostile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 600 images of 8 x 8 zeros and ones, and a run of one epoch on them."""
    folder = tmp_path_factory.mktemp("trained")
    bits = np.random.default_rng(0).random((600, 8, 8)) < 0.3
    np.save(folder / "d.npy", bits.astype(np.uint8))
    outcome = hostile_server("fit", "run", "--data=d.npy", "--epochs=1", *SMALL, cwd=folder)
    assert (outcome.status, outcome.err) == (0, "")
    return folder


@pytest.fixture
def images(hostile: Hostile, trained: Path) -> Path:
    """The images, in the test's folder."""
    return Path(shutil.copy(trained / "d.npy", "d.npy"))


# The harness itself.


@pytest.mark.slow
def test_time_limit(hostile: Hostile) -> None:
    assert hostile("--version", seconds=1, prelude="while True: pass").status == 124
    assert hostile("--version", seconds=0, prelude="import time; time.sleep(60)").status == 124


def test_memory_limit(hostile: Hostile) -> None:
    gibibyte = "import numpy; numpy.empty(2**30, numpy.uint8)"
    outcome = hostile("--version", memory=500, prelude=gibibyte)
    assert outcome.status == 1
    assert "_ArrayMemoryError" in outcome.err.splitlines()[-1]
    outcome = hostile("--version", memory=1500, prelude=gibibyte)
    assert (outcome.status, outcome.err) == (0, "")


# Settings x sizes.


TOO_LARGE = {
    "--latents": "the number of latents",
    "--categories": "the number of categories",
    "--particles": "the number of particles",
    "--hidden": "the widths of the hidden layers",
    "--prior mixture:": "the number after mixture:",
    "--prior vamp:": "the number after vamp:",
    "--prior autoregressive:": "the number after autoregressive:",
    "--likelihood categorical:": "the number after categorical:",
    "--likelihood logistic-mixture:": "the number after logistic-mixture:",
    "--guide autoregressive:": "the number after autoregressive:",
    "--network conv:": "the number after conv:",
    "--prior boltzmann --latents": "the number of latents",
    "--prior rbm --latents": "the number of latents",
}


def test_settings_larger_than_memory(hostile: Hostile, images: Path) -> None:
    for number, (option, lower) in enumerate(TOO_LARGE.items()):
        size = 10 ** (18 if number % 2 else 11)
        words = f"{option}{size}" if option.endswith(":") else f"{option} {size}"
        outcome = hostile("fit", "run", "--data", images, *SMALL, *words.split(), memory=3000)
        refusal = outcome.refusal()
        assert "of memory that are available; got at least" in refusal, (option, refusal)
        assert refusal.endswith(f" GiB. Lower {lower}."), (option, refusal)
        assert outcome.peak < 300, (option, outcome)
    assert not Path("run").exists()


def test_a_large_picture_takes_little_memory(hostile: Hostile, run: Path) -> None:
    outcome = hostile("sample", run, "-n", "30000", memory=600)
    assert (outcome.status, outcome.err) == (0, "")
    with Image.open("grid.png") as picture:  # 173 images of 8 and gaps of 1 per row
        assert picture.size == (173 * 9 - 1, 174 * 9 - 1)
    refusal = hostile("sample", run, "-n", "100000", "-o", "x.png", memory=90).refusal()
    assert refusal.startswith("Expected a picture of 100000 images within the 0.")
    assert refusal.endswith(" GiB. Lower -n, or write rows with -o samples.csv.")


DRAWS = {
    ("score", "--bound", "importance", "--iw-samples"): 10**9,
    ("evaluate", "--iw-samples"): 10**21,
    ("evaluate", "--no-exact", "--iw-samples"): 10**350,
}


@pytest.mark.parametrize(("command", "number"), DRAWS.items())
def test_more_draws_than_memory_holds(
    hostile: Hostile, run: Path, command: tuple[str, ...], number: int
) -> None:
    outcome = hostile(command[0], run, *command[1:], number, memory=1000, seconds=6)
    refusal = outcome.refusal()
    assert refusal.startswith(f"Expected {number} importance samples for each datum within the ")
    assert refusal.endswith(" GiB. Lower the number of importance samples.")
    assert outcome.peak < 300


def test_a_batch_of_more_than_all_data_is_one_of_all_data(hostile: Hostile, run: Path) -> None:
    outcome = hostile("evaluate", run, "--batch-size", 10**20, "--iw-samples", "0", memory=600)
    assert (outcome.status, outcome.err) == (0, "")


@pytest.mark.slow
def test_a_table_of_draws_takes_the_memory_of_a_block(hostile: Hostile, run: Path) -> None:
    outcome = hostile("sample", run, "-n", "60000", "-o", "x.csv", memory=600)
    assert (outcome.status, outcome.err) == (0, "")
    with Path("x.csv").open() as lines:
        assert sum(1 for _ in lines) == 60_001


def test_sizes_that_only_sound_large(hostile: Hostile, images: Path) -> None:
    outcome = hostile(
        "fit", "run", "--data", images, "--epochs=1", *SMALL, "--batch-size", str(10**18)
    )
    assert (outcome.status, outcome.err) == (0, "")


# Environments x commands.


ASCII = {"PYTHONIOENCODING": "ascii"}
NOTEBOOK = {"MPLBACKEND": "module://matplotlib_inline.backend_nowhere"}


@pytest.fixture
def run(images: Path, trained: Path) -> Path:
    """The run, in the test's folder beside its images."""
    return Path(shutil.copytree(trained / "run", "run"))


@pytest.mark.usefixtures("run")
def test_odd_environments_cost_nothing(hostile: Hostile) -> None:
    Path("matplotlibrc").write_text("text.usetex: True\nsavefig.format: nonsense\n")
    new = ("fit", "new", "--data", "d.npy", "--epochs", "1", *SMALL)
    cases = (
        (new, {"MPLBACKEND": "nonsense"}),
        (("sample", "run", "-n", "2", "-o", "new.png"), NOTEBOOK),
        (("evaluate", "run", "--iw-samples", "3", "--no-exact"), ASCII),
    )
    for command, env in cases:
        outcome = hostile(*command, env=env)
        assert (outcome.status, outcome.err) == (0, ""), (command, outcome)
    assert " +- " in outcome.out
    assert len(list(Path("new").glob("*.png"))) == 4


def test_output_that_cannot_be_written_costs_no_work(hostile: Hostile, run: Path) -> None:
    new = ("fit", "new", "--data", "d.npy", "--epochs", "1", *SMALL)
    cases = (
        (new, "pipe", 1, "cannot write to standard output (Broken pipe); all else was done"),
        (("info", run), "full", 1, "cannot write to standard output (No space left on device)"),
        (("info", run), "closed", 0, ""),
        (("--help",), "closed", 0, ""),
    )
    for command, stdout, status, message in cases:
        outcome = hostile(*command, stdout=stdout)
        assert (outcome.status, outcome.err.count("\n")) == (status, status), outcome
        assert message in outcome.err, outcome
    assert {path.name for path in Path("new").iterdir()} == {path.name for path in run.iterdir()}


def test_a_picture_that_fails_costs_no_run(hostile: Hostile) -> None:
    np.save("d.npy", np.eye(8, dtype=np.uint8)[:, None].repeat(8, 1).repeat(9, 0))
    broken = "import pyro_dvae.runs.plots as plots\ndef fail(*_): raise KeyError('font')\n"
    command = ("fit", "run", "--data", "d.npy", "--epochs", "1", *SMALL)
    outcome = hostile(*command, prelude=f"{broken}plots.latents_figure = fail")
    assert (outcome.status, outcome.err) == (0, "pdvae: run/latents.png was not drawn: 'font'\n")
    assert Path("run/samples.png").is_file()


def test_python_without_docstrings_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-OO", "-m", "pdvae_cli.main", "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "got -OO. Use -O." in done.stderr


# Signals.


@pytest.mark.parametrize(
    ("signals", "status", "ignored"),
    [
        ((signal.SIGINT, signal.SIGTERM), (130, 143), None),
        ((signal.SIGHUP,), (129,), None),
        ((signal.SIGHUP, signal.SIGTERM), (143,), signal.SIGHUP),
    ],
    ids=["Ctrl-C and SIGTERM at once", "a terminal that closes", "nohup"],
)
@pytest.mark.usefixtures("images")
def test_signals_save_and_stop(
    hostile: Hostile, signals: tuple[int, ...], status: tuple[int, ...], ignored: int | None
) -> None:
    long = ("--data", "d.npy", "--epochs", "3000", "--patience", "0", *SMALL)
    prelude = (
        "" if ignored is None else f"import signal; signal.signal({ignored:d}, signal.SIG_IGN)"
    )
    options = {"signals": signals, "after": "run/metrics.jsonl", "prelude": prelude}
    outcome = hostile("fit", "run", *long, **options)  # type: ignore[arg-type]
    assert outcome.status in status, outcome
    finishing, saved = outcome.err.splitlines()
    assert finishing == "pdvae: finishing the step and saving; again to stop at once"
    assert "and saved. Continue with pdvae fit --resume run" in saved


@pytest.mark.usefixtures("images")
def test_ctrl_c_while_the_data_are_read_is_one_line(hostile: Hostile) -> None:
    raising = "import pyro_dvae.data as data\ndef stop(*_, **__): raise KeyboardInterrupt\n"
    outcome = hostile("data", "d.npy", prelude=f"{raising}data.open_source = stop")
    assert outcome.refusal(130) == "interrupted"
