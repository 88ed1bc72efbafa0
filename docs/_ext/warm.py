"""A process that has imported the library, and runs each command of the pages in a copy of itself.

To import PyTorch and Pyro takes three seconds of processor time. The pages have fifty commands.
"""

from __future__ import annotations

import json
import os
import runpy
import select
import shlex
import socket
import subprocess
import sys
from pathlib import Path

ADDRESS = "PDVAE_DOCS_COMMANDS"
"""The environment variable that holds the address of the process."""


def start(folder: Path) -> None:
    """Start the process. It ends with this one, which holds the other end of its input open.

    Args:
        folder: an empty folder, for the socket.
    """
    address = str(folder / "commands")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        os.environ[ADDRESS] = address
        number = listener.fileno()
        read, _ = os.pipe()
        subprocess.Popen(
            [sys.executable, __file__, str(number)],
            env=plain_environment(),
            stdin=read,
            pass_fds=[number],
        )
        os.close(read)


def plain_environment() -> dict[str, str]:
    """This environment without what asks for colours; without them there is no progress bar."""
    env = {name: value for name, value in os.environ.items() if "COLOR" not in name}
    return {**env, "TERM": "dumb"}


def run(command: str) -> tuple[int, str] | None:
    """The exit status of a command and what it printed; None if it needs a shell."""
    words = shlex.split(command.replace("\\\n", " "), comments=True)
    is_python = words[:1] == ["python"] and words[1:] and words[1].endswith(".py")
    if not (words[:1] == ["pdvae"] or is_python) or set("|&;<>$`*?") & set(
        command.partition("#")[0]
    ):
        return None
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[ADDRESS])
        connection.sendall(json.dumps([os.getcwd(), words]).encode() + b"\n")
        parts = iter(lambda: connection.recv(65536), b"")
        printed, _, status = b"".join(parts).rpartition(b"\0")
    return int(status), printed.decode()


def wait(listener: socket.socket) -> list[str]:
    """Make a copy of this process for each command; return only in a copy, with its arguments."""
    while True:
        if sys.stdin in select.select([listener, sys.stdin], [], [])[0]:
            sys.exit()  # the process that builds the pages has ended
        connection, _ = listener.accept()
        with connection, connection.makefile() as asked:
            folder, words = json.loads(asked.readline())
            child = os.fork()
            if child == 0:
                os.chdir(folder)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(connection.fileno(), 1)
                os.dup2(connection.fileno(), 2)
                return list(words)
            _, status = os.waitpid(child, 0)
            connection.sendall(b"\0%d" % os.waitstatus_to_exitcode(status))


def main() -> None:
    """Import the library, and run commands as if each had a process of its own."""
    del sys.path[0]  # this folder, whose names a command must not find
    import matplotlib.figure  # noqa: F401
    import pdvae_cli.main

    import pyro_dvae

    assert pyro_dvae.DiscreteVAE  # this imports all of the library
    sys.argv = wait(socket.socket(fileno=int(sys.argv[1])))
    if sys.argv[0] == "pdvae":
        pdvae_cli.main.main()
    else:
        del sys.argv[0]
        sys.path.insert(0, str(Path(sys.argv[0]).parent.resolve()))
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
