"""Where `pdvae` starts: Ctrl-C ends it without a traceback while its modules are imported too."""

from __future__ import annotations

import signal


def main() -> None:
    """Import the command line, and run it."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .main import main as command

    signal.signal(signal.SIGINT, handler)
    command()
