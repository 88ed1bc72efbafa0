"""How commands draw, so that a user's own settings of matplotlib can do no harm."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from .console import complain
from .errors import is_out_of_memory

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@contextmanager
def own_settings() -> Iterator[None]:
    """Draw with matplotlib's defaults, whatever the user's settings say.

    `text.usetex` needs LaTeX, and `MPLBACKEND` a package of the notebook's; nothing is shown here.
    """
    os.environ.pop("MPLBACKEND", None)  # matplotlib reads it on import, and raises
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        yield


def draw(path: Path, figure: Callable[[], Figure], *, quiet: bool = False) -> bool:
    """Write the picture of a run, or say in one line why it could not be drawn.

    Args:
        path: the PNG.
        figure: makes it.
        quiet: whether to say nothing if it could not be drawn.

    Returns:
        Whether the picture was drawn.
    """
    try:
        with own_settings():
            from pyro_dvae.runs.plots import save_figure

            save_figure(figure(), path)
    except Exception as error:  # what is trained and saved is worth more than a picture
        if quiet:
            return False
        reason = "there is too little memory" if is_out_of_memory(error) else str(error)
        complain(f"{path} was not drawn: {reason or type(error).__name__}")
        return False
    return True
