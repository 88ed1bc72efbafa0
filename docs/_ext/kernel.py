"""The kernels that run the cells of the pages, as if in the root folder of the repository."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import warm


def prepare(folder: Path, root: Path) -> None:
    """Let every kernel run `start` first, and find the command `pdvae` of this Python.

    Args:
        folder: an empty folder for the profile of IPython.
        root: the root of the repository, whose folders the cells see.
    """
    startup = folder / "profile_default" / "startup"
    startup.mkdir(parents=True)
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    code += f"import kernel; kernel.start({str(root)!r}); del kernel, sys\n"
    (startup / "start.py").write_text(code)
    os.environ["IPYTHONDIR"] = str(folder)
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    # Runs of the pages are one's own by a secret of the build: see `networks/trust.py`.
    os.environ["XDG_STATE_HOME"] = str(folder / "state")
    os.environ["COLUMNS"] = "96"
    os.environ["PYTHONWARNINGS"] = "ignore"
    os.environ["OMP_NUM_THREADS"] = "1"  # one thread is as fast on such small models
    warm.specify_kernel(folder / "jupyter")
    warm.start(folder)


def start(root: str) -> None:
    """Link the folders of the repository into the one of the page; let `!command` fail loudly."""
    from IPython import get_ipython

    for name in ("docs", "examples", "pyro_dvae", ".github"):
        link = Path(name)
        if not link.exists():
            link.symlink_to(Path(root) / name)
    get_ipython().system = run
    get_ipython().run_line_magic("config", "InlineBackend.figure_formats = ['svg']")


def run(command: str) -> None:
    """Run one command of a page, and print what it prints.

    A command that ends in "# refused" must exit with status 2, as bad input does.

    Raises:
        RuntimeError: it ended with another status than the page says.
    """
    done = warm.run(command)
    if done is None:
        shell = subprocess.run(
            ["bash", "-c", command],
            env=warm.plain_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        done = shell.returncode, shell.stdout
    status, printed = done
    print(printed, end="", flush=True)
    expected = 2 if command.endswith("# refused") else 0
    if status != expected:
        raise RuntimeError(f"Expected exit status {expected}; got {status}: {command}")
