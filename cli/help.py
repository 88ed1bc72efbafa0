"""How the help of a command looks."""

from __future__ import annotations

import textwrap
from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperOption

_WIDEST = 30
"""The widest name of an option, with its type, that has its help beside it and not below it."""


class Command(TyperCommand):
    """A command whose help lists the options in groups, by their `rich_help_panel`.

    Typer itself shows these groups only if it prints with rich, which takes long to import.
    """

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each group, in the order of the options, with --help at the end."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                heading = list(sections)[-1] if parameter.name == "help" else _heading(parameter)
                sections.setdefault(heading, []).append(record)
        names = [name for rows in sections.values() for name, _ in rows]
        width = min(max(map(len, names)), _WIDEST)
        for heading, rows in sections.items():
            lines = [
                (f"{name:{width}}", _wrapped(text, formatter.width - width)) for name, text in rows
            ]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(lines, _WIDEST)


def _heading(parameter: Any) -> str:
    if isinstance(parameter, TyperArgument):
        return "Arguments"
    panel = parameter.rich_help_panel if isinstance(parameter, TyperOption) else None
    return panel or "Options"


def _wrapped(text: str, width: int) -> str:
    """Lines of a text that keep names such as st-gumbel, and "default: 1.0", in one piece."""
    joined = text.replace("default: ", "default:\xa0")
    lines = textwrap.wrap(joined, width - 4, break_on_hyphens=False, break_long_words=False)
    # The formatter leaves lines after a "\b" as they are.
    return "\n".join(["\b", *lines]).replace("\xa0", " ")
