"""Folders in which named data sets are looked for, and their download by torchvision."""

import io
import os
import socket
import textwrap
from contextlib import redirect_stderr, redirect_stdout
from http.client import HTTPException
from pathlib import Path
from typing import Any


def data_folders() -> list[Path]:
    """The folder that ``PDVAE_DATA_DIR`` names, if it is set, and then the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "pyro_dvae"
    named = os.environ.get("PDVAE_DATA_DIR")
    return [Path(named).expanduser(), cache] if named else [cache]


def fetch(name: str, folder: Path, **options: Any) -> str | None:
    """Let torchvision download a data set.

    Args:
        name: The name of a class of ``torchvision.datasets``.
        folder: The folder to download into.
        options: Further arguments of the class.

    Returns:
        None, or the reason if the download failed.
    """
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(10.0)
    try:
        from torchvision import datasets  # type: ignore[import-untyped, unused-ignore]

        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            vars(datasets)[name](str(folder), download=True, **options)
    except (ImportError, OSError, RuntimeError, HTTPException) as error:
        return f"the download failed ({textwrap.shorten(str(error), 100, placeholder=' ...')})"
    finally:
        socket.setdefaulttimeout(timeout)
    return None
