"""Run `pdvae`, or a script, in processes of their own, each within limits, cheaply.

A server imports the library once and forks for every case, which then costs some 50 ms. The tests
take the fixture `hostile`; what runs below `__main__` is the server. It has a single thread, so
that forking is safe, and has not imported matplotlib, which reads its settings on import.
"""

from __future__ import annotations

import json
import os
import resource
import runpy
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, TextIO


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    status: int
    """As a shell shows it: 128 + n after signal n, 124 past the time limit."""
    out: str
    err: str
    peak: float
    """MiB of memory beyond those of the library itself."""
    seconds: float
    """Of computing."""

    def refusal(self, status: int = 2) -> str:
        """The one line of a command that was refused; anything else fails the test."""
        assert self.status == status, self
        assert self.err.startswith("pdvae: "), self
        assert self.err.count("\n") == 1, self
        return self.err.removeprefix("pdvae: ").rstrip("\n")


class Hostile:
    """The client of one server; a case is a call.

    Args:
        folder: where the server writes what the commands print.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        quiet = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
        self.server = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **quiet},
            text=True,
        )

    def close(self) -> None:
        """End the server."""
        self.server.kill()
        self.server.communicate()

    def __call__(
        self,
        *argv: object,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        memory: float = 1500,
        seconds: int = 10,
        stdout: str = "file",
        prelude: str = "",
        signals: Sequence[int] = (),
        after: str = "",
        script: Path | None = None,
    ) -> Outcome:
        """Run `pdvae` with these arguments.

        Args:
            argv: arguments; anything is turned into text.
            cwd: folder to run in; the test's own, where it is None.
            env: variables to set beside the environment's.
            memory: MiB of address space beyond what the library itself takes.
            seconds: of computing, after which the command is killed; one that waits for something
                is killed after six times as long, for the machine may be busy.
            stdout: "file", which `out` shows, "full", a full disk, "closed", or "pipe", whose
                reader has gone.
            prelude: Python to run before the command: a function replaced by one that fails, say.
            signals: to send at once, as soon as `after` exists.
            after: a path in `cwd`.
            script: a file of Python to run in place of `pdvae`, with warnings as errors.
        """
        case = {
            "argv": [str(argument) for argument in argv],
            "cwd": str(cwd or Path.cwd()),
            "env": env or {},
            "memory": memory,
            "seconds": seconds,
            "stdout": stdout,
            "prelude": prelude,
            "signals": [int(number) for number in signals],
            "after": after,
            "script": str(script or ""),
            "files": [str(self.folder / name) for name in ("out", "err")],
        }
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(json.dumps(case) + "\n")
        self.server.stdin.flush()
        answer = json.loads(self.server.stdout.readline())
        texts = [Path(name).read_text("utf-8", "replace") for name in case["files"]]
        return Outcome(answer["status"], *texts, answer["peak"], answer["seconds"])

    def run_script(self, path: Path, *argv: object, cwd: Path) -> Outcome:
        """Run a script as `python -W error` does, within wide limits; it must end well."""
        outcome = self(*argv, cwd=cwd, memory=16_000, seconds=300, script=path)
        assert outcome.status == 0, outcome.err
        return outcome


def _serve() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # as a script that imports them would be run
        import pdvae_cli.main
        import torch
        import torch._dynamo  # which an optimiser imports, in seconds

        import pyro_dvae.runs
        import pyro_dvae.runs.tables

        assert pyro_dvae.evaluate  # with all that the first public name brings
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()), suppress(SystemExit):
        pdvae_cli.main.main(["info", os.devnull])  # with what Typer imports for its first command
    torch.set_num_threads(1)
    assert len(os.listdir("/proc/self/task")) == 1, "forking would lose the other threads"
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        case = json.loads(line)
        before, start = _memory()[1], time.monotonic()
        child = os.fork()
        if child == 0:
            _be_the_command(case)
        with suppress(OSError):  # the child does the same: whoever comes first
            os.setpgid(child, child)
        status, usage = _wait(child, case, start)
        peak = usage.ru_maxrss / 1024 - before
        computed = usage.ru_utime + usage.ru_stime
        answer = {"status": status, "peak": peak, "seconds": computed}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _memory() -> tuple[float, float]:
    """MiB of address space and of memory that this process has."""
    pages = Path("/proc/self/statm").read_text().split()
    space, resident = (int(number) * resource.getpagesize() / 2**20 for number in pages[:2])
    return space, resident


def _wait(child: int, case: dict[str, Any], start: float) -> tuple[int, resource.struct_rusage]:
    signals, after, late = case["signals"], Path(case["cwd"], case["after"]), False
    while True:
        ended, status, usage = os.wait4(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            late = late or code == -signal.SIGXCPU
            return 124 if late else code if code >= 0 else 128 - code, usage
        if signals and after.exists():
            for number in signals:
                os.kill(child, number)
            signals = []
        if time.monotonic() - start > 6 * case["seconds"] and not late:
            late = True
            os.killpg(child, signal.SIGKILL)
        time.sleep(0.003)


def _be_the_command(case: dict[str, Any]) -> None:
    """What a fresh interpreter would do with these arguments; never returns."""
    status: Any = 1
    try:
        os.setpgid(0, 0)
        os.chdir(case["cwd"])
        os.environ.update(case["env"])
        space = int((_memory()[0] + case["memory"]) * 2**20)
        resource.setrlimit(resource.RLIMIT_AS, (space, space))
        resource.setrlimit(resource.RLIMIT_CPU, (case["seconds"], case["seconds"] + 2))
        for number, name in ((1, case["files"][0]), (2, case["files"][1])):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if case["stdout"] == "full":
            os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
        elif case["stdout"] == "pipe":
            reader, writer = os.pipe()
            os.dup2(writer, 1)
            os.close(reader)
        elif case["stdout"] == "closed":
            os.close(1)
        sys.stdout = None if case["stdout"] == "closed" else _stream(1, "strict")
        sys.stderr = _stream(2, "backslashreplace")
        exec(case["prelude"], {})
        if case["script"]:
            _be_the_script(case["script"], case["argv"])
            status = 0
        else:
            from pdvae_cli.main import main

            main(case["argv"])
    except SystemExit as stop:
        status = 0 if stop.code is None else stop.code
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            if sys.stdout is not None:
                sys.stdout.flush()
        except (OSError, ValueError):  # as at the end of an interpreter
            traceback.print_exc()
            status = 120
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 1)


def _be_the_script(path: str, argv: list[str]) -> None:
    """What `python -W error` would do with a script."""
    warnings.simplefilter("error")
    sys.argv = [path, *argv]
    sys.path[0] = str(Path(path).parent)
    runpy.run_path(path, run_name="__main__")


def _stream(number: int, errors: str) -> TextIO:
    """Standard output or error as `PYTHONIOENCODING` wants it."""
    encoding, _, named = os.environ.get("PYTHONIOENCODING", "utf-8").partition(":")
    errors = named or errors if number == 1 else errors
    return open(number, "w", encoding=encoding, errors=errors, closefd=False)


if __name__ == "__main__":
    _serve()
