"""Whose code a run names: whether this user made the run, on this machine, with code that ran here.

A run's settings may name a network as `module:factory`, and importing a module runs it. Whoever
gives you a run folder must not choose what your Python runs. So `write_config` leaves a mark beside
such names: HMAC-SHA256, under a random secret in the user's own folder, of the names and of the
files that they stand for. A stranger does not know the secret. He may copy a mark that you
published, but not put his module where yours lies.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib
import importlib.util
import json
import os
import secrets
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_BYTES = 32


def secret_file() -> Path:
    """Where the secret lies: `pyro_dvae/secret` in `$XDG_STATE_HOME`, or in ~/.local/state.

    Raises:
        RuntimeError: there is no home.
    """
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "pyro_dvae" / "secret"


def make_mark(names: Iterable[str]) -> str | None:
    """The mark of a run that names this code; None where the secret cannot be kept.

    Args:
        names: as "module:factory"; code that this process has not imported gets no mark.
    """
    names = list(names)
    if any(module_of(name) not in sys.modules for name in names):
        return None
    with suppress(OSError, RuntimeError):
        path = secret_file()
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(_BYTES))
    return _mark(names)


def is_mark(mark: object, names: Iterable[str]) -> bool:
    """Whether this user's processes made the mark for this code, at the place where it now lies."""
    expected = _mark(names)
    return isinstance(mark, str) and expected is not None and _same(mark, expected)


def is_there(name: str) -> bool:
    """Whether there is a module that the import of "module:factory" would run."""
    return bool(_places(module_of(name)))


def module_of(name: str) -> str:
    """The module of "module:factory"."""
    return name.partition(":")[0]


def _mark(names: Iterable[str]) -> str | None:
    secret = _secret()
    if secret is None:
        return None
    places = {name: _places(module_of(name)) for name in names}
    return hmac.new(secret, json.dumps(places, sort_keys=True).encode(), hashlib.sha256).hexdigest()


def _same(mark: str, expected: str) -> bool:
    return hmac.compare_digest(mark.encode(errors="replace"), expected.encode())


def _secret() -> bytes | None:
    """None where there is none, or where others may know it."""
    try:
        path = secret_file()
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            return None
        if os.name == "posix" and (about.st_uid != os.getuid() or about.st_mode & 0o077):
            return None
        content = path.read_bytes()
    except (OSError, RuntimeError):
        return None
    return content if len(content) == _BYTES else None


def _places(module: str) -> list[str]:
    """Where the import would find the module's top package; nothing is imported to find out."""
    with current_folder_first():
        try:
            spec = importlib.util.find_spec(module.partition(".")[0])
        except (ValueError, ImportError):  # of __main__, say, or of no name
            return []
    if spec is None:
        return []
    found = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
    return [os.path.realpath(place) for place in found]


@contextmanager
def current_folder_first() -> Iterator[None]:
    """Look for modules in the current folder first, as Python does for a script there."""
    before = list(sys.path)
    sys.path.insert(0, str(Path.cwd()))
    importlib.invalidate_caches()  # a file may be younger than the last look
    try:
        yield
    finally:
        sys.path[:] = before
