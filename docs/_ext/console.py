"""Cells of shell commands look as in a terminal: `!pdvae fit` is shown as `$ pdvae fit`."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.transforms import SphinxTransform


class Console(SphinxTransform):
    """Show a cell whose lines all begin with "!" as a console."""

    default_priority = 400

    def apply(self, **_: Any) -> None:
        """Rewrite these cells of one page."""
        for block in self.document.findall(nodes.literal_block):
            lines = block.astext().splitlines()
            if not lines or not lines[0].startswith("!"):
                continue
            shown = [f"$ {line[1:]}" if line.startswith("!") else line for line in lines]
            block["language"] = "console"
            block.children = [nodes.Text("\n".join(shown))]
            block.rawsource = block.astext()


def setup(app: Any) -> dict[str, bool]:
    """Register the transform."""
    app.add_transform(Console)
    return {"parallel_read_safe": True}
