"""Marks by which a run's own code is trusted: this user made the run, on this machine.

The settings of a run may name a network as `module:factory`, and importing a module runs it. If
somebody gives you a run folder, that person must not choose what your Python runs. So
`write_config` writes a mark beside such names: the HMAC-SHA256, with a random secret that lies in
the user's own folder, of the names and of the paths of their modules. A stranger does not know the
secret and so cannot make a mark. A stranger can copy a mark that you published, but cannot put
another module at the path of yours.
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
    """The file of the secret: `pyro_dvae/secret` in `$XDG_STATE_HOME`, or in ~/.local/state.

    Raises:
        RuntimeError: there is no home folder.
    """
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "pyro_dvae" / "secret"


def make_mark(names: Iterable[str]) -> str | None:
    """Make the mark of a run that names code.

    Args:
        names: the code, as "module:factory" each.

    Returns:
        The mark; None if this process has not imported all of the code, or if the secret cannot be
        kept.
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
    """Whether this user made the mark, for this code at the paths where it lies now.

    Args:
        mark: what stands in the run's settings.
        names: the code, as "module:factory" each.
    """
    expected = _mark(names)
    return isinstance(mark, str) and expected is not None and _same(mark, expected)


def is_there(name: str) -> bool:
    """Whether importing "module:factory" would find a module."""
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
    """The secret; None if there is none, or if other users can read its file."""
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
    """The paths at which an import would find the module's top package; nothing is imported."""
    with current_folder_first():
        try:
            spec = importlib.util.find_spec(module.partition(".")[0])
        except (ValueError, ImportError):  # raised for __main__, say, or an empty name
            return []
    if spec is None:
        return []
    found = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
    return [os.path.realpath(place) for place in found]


@contextmanager
def current_folder_first() -> Iterator[None]:
    """Look for modules in the current folder first, as Python does when it runs a script there."""
    before = list(sys.path)
    sys.path.insert(0, str(Path.cwd()))
    importlib.invalidate_caches()  # a file may have been written since the last import
    try:
        yield
    finally:
        sys.path[:] = before
