"""A process that has imported the library, and runs the commands and the kernels of the pages.

Each runs in a copy of the process. To import PyTorch, what its optimisers need, and Pyro takes five
seconds of processor time. The pages have sixty commands and twenty-five kernels.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
import threading
import traceback
from glob import glob
from pathlib import Path

ADDRESS = "PDVAE_DOCS_COMMANDS"
"""The environment variable that holds the address of the process."""

KERNEL = "kernel"
"""The first word of those who ask for a kernel; its connection file is the second."""


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
    is_known = words[:1] == ["pdvae"] or is_python
    if not is_known or set("|&;<>$`?") & set(command.partition("#")[0]):
        return None
    words = [name for word in words for name in sorted(glob(word)) or [word]]
    printed, _, status = ask(words).rpartition(b"\0")
    return int(status), printed.decode()


def ask(words: list[str]) -> bytes:
    """What the process sends until the copy of it that ran these words has ended."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[ADDRESS])
        connection.sendall(json.dumps([os.getcwd(), words]).encode() + b"\n")
        return b"".join(iter(lambda: connection.recv(65536), b""))


def specify_kernel(folder: Path) -> None:
    """Let the kernel "python3" be a copy of the process.

    Args:
        folder: an empty folder, for the specification.
    """
    place = folder / "kernels" / "python3"
    place.mkdir(parents=True)
    argv = [sys.executable, "-S", __file__, KERNEL, "{connection_file}"]
    spec = {"argv": argv, "display_name": "Python", "language": "python"}
    (place / "kernel.json").write_text(json.dumps(spec))
    os.environ["JUPYTER_PATH"] = str(folder)


def wait(listener: socket.socket) -> list[str]:
    """Make a copy of this process for each command; return only in a copy, with its arguments.

    A kernel asks for commands itself, so that it is not waited for. It ends with the one who asked.
    """
    while True:
        if sys.stdin in select.select([listener, sys.stdin], [], [])[0]:
            sys.exit()  # the process that builds the pages has ended
        connection, _ = listener.accept()
        with connection, connection.makefile() as asked:
            folder, words = json.loads(asked.readline())
            child = os.fork()
            if child == 0 and words[0] == KERNEL:
                os.chdir(folder)
                threading.Thread(target=end_with, args=[connection.dup()], daemon=True).start()
                return list(words)
            if child == 0:
                os.chdir(folder)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(connection.fileno(), 1)
                os.dup2(connection.fileno(), 2)
                return list(words)
            if words[0] != KERNEL:
                _, status = os.waitpid(child, 0)
                connection.sendall(b"\0%d" % os.waitstatus_to_exitcode(status))


def end_with(connection: socket.socket) -> None:
    """End this process when the other end of a connection is closed, which sends nothing."""
    connection.recv(1)
    os._exit(1)


def main() -> None:
    """Import the library, and run commands as if each had a process of its own."""
    del sys.path[0]  # this folder, whose names a command must not find
    import ipykernel.kernelapp  # noqa: F401
    import matplotlib.figure  # noqa: F401
    import pdvae_cli.main  # noqa: F401
    import torch._dynamo  # which an optimiser imports  # noqa: F401

    import pyro_dvae

    assert pyro_dvae.DiscreteVAE  # this imports all of the library
    gc.freeze()  # or each copy writes to, and so copies, all of its memory when it collects garbage
    sys.argv = wait(socket.socket(fileno=int(sys.argv[1])))
    status: object = 1
    try:
        be_asked_for()
        status = 0
    except SystemExit as stop:
        status = 0 if stop.code is None else stop.code
    except BaseException:
        traceback.print_exc()
    if not isinstance(status, int):
        print(status, file=sys.stderr)
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # to take a library apart, object by object, takes a second


def be_asked_for() -> None:
    """Run what the arguments of this process say."""
    if sys.argv[0] == KERNEL:
        import ipykernel.kernelapp
        import matplotlib

        sys.path.insert(0, "")  # as in a fresh kernel, a page finds what is in its folder
        matplotlib.use("module://matplotlib_inline.backend_inline")
        # Without a parent it tells a person at a terminal how to leave it.
        options = [f"--IPKernelApp.parent_handle={os.getppid()}", "-f", sys.argv[1]]
        ipykernel.kernelapp.launch_new_instance(options)
    elif sys.argv[0] == "pdvae":
        import pdvae_cli.main

        pdvae_cli.main.main()
    else:
        del sys.argv[0]
        sys.path.insert(0, str(Path(sys.argv[0]).parent.resolve()))
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    if sys.argv[1] == KERNEL:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # which a kernel gets before it is stopped
        ask(sys.argv[1:])
    else:
        main()
