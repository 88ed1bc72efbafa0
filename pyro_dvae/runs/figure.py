"""A figure of matplotlib that shows itself in a notebook."""

from __future__ import annotations

import io
from typing import Any

from matplotlib.figure import Figure


class ShownFigure(Figure):
    """A figure of matplotlib that a notebook shows, also where nobody has imported pyplot.

    Without pyplot, which the library does not import, a notebook only names the class of a figure.
    """

    def _repr_png_(self) -> bytes:
        # Images keep their shape, so that they leave blank some of the room that they are given.
        options: dict[str, Any] = {"bbox_inches": "tight", "pad_inches": 0.05, "dpi": 100}
        picture = io.BytesIO()
        self.savefig(picture, format="png", **options)
        return picture.getvalue()
