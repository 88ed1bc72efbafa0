"""The public names of a room, from their docstrings: "```{api} elbos```" on a page."""

from __future__ import annotations

import inspect
import re
from typing import Any

BLOCK = re.compile(r"^```\{api\} (.*)\n```$", re.MULTILINE)


def names(rooms: list[str]) -> str:
    """The directives that document the public names defined in some rooms."""
    import pyro_dvae

    lines = ["```{eval-rst}"]
    for name in pyro_dvae.__all__:
        value = getattr(pyro_dvae, name)
        module = getattr(value, "__module__", "")
        if any(f"{module}.".startswith(f"pyro_dvae.{room}.") for room in rooms):
            kind = "autoclass" if inspect.isclass(value) else "autofunction"
            lines += [f".. {kind}:: {module}.{name}", ""]
    return "\n".join([*lines, "```"])


def read(app: Any, docname: str, source: list[str]) -> None:
    """Put the names into a page that is read."""
    source[0] = BLOCK.sub(lambda match: names(match[1].split()), source[0])


def plain(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Keep formulas such as |m - e|, (B, *event) and x_ from being read as markup.

    A paragraph that is indented below another one is code, as in Markdown.
    """
    if what in {"attribute", "property"} and lines:
        lines[:1] = lines[0].replace(": ", ":\n", 1).splitlines()  # or napoleon finds a type
    paragraphs = re.split(r"\n\s*\n", "\n".join(lines))
    section = False
    for i, paragraph in enumerate(paragraphs):
        section = section or re.match(r"[A-Z]\w+:\n", paragraph) is not None
        if paragraph.lstrip().startswith(">>>"):
            continue
        if paragraph.startswith("    ") and not section:
            paragraphs[i] = f"::\n\n{paragraph}"
            continue
        pieces = re.split(r"(`+[^`]*`+)", paragraph)
        for j, piece in enumerate(pieces):
            if j % 2:
                pieces[j] = f"``{' '.join(piece.strip('`').split())}``"
            else:
                pieces[j] = re.sub(r"([*|]|_(?!\w))", r"\\\1", piece)
        paragraphs[i] = "".join(pieces)
    lines[:] = "\n\n".join(paragraphs).splitlines()


def setup(app: Any) -> dict[str, bool]:
    """Read the names, and their docstrings before napoleon does."""
    app.connect("source-read", read)
    app.connect("autodoc-process-docstring", plain, priority=400)
    return {"parallel_read_safe": True}
