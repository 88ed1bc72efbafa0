"""The directive `{commands}`: every command of `pdvae` and its options, read from the code."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective


class Commands(SphinxDirective):
    """A section per command: what it does, how it is called, and one table of options per group."""

    def run(self) -> list[nodes.Node]:
        """Write the sections."""
        from pdvae_cli.main import app
        from typer.main import get_command

        sections: list[nodes.Node] = []
        for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
            section = nodes.section(ids=[f"pdvae-{name}"], names=[f"pdvae {name}"])
            section += nodes.title(text=f"pdvae {name}")
            self.state.document.note_explicit_target(section)
            section += _help(command.help)
            groups: dict[str, list[Any]] = {}
            for parameter in command.params:
                group = getattr(parameter, "rich_help_panel", None)
                if parameter.param_type_name == "argument":
                    group = "Arguments"
                groups.setdefault(group or "Options", []).append(parameter)
            for group, parameters in groups.items():
                section += nodes.rubric(text=group)
                section += _options(parameters)
            sections.append(section)
        return sections


def _help(text: str) -> list[nodes.Node]:
    """The paragraphs of a help text; its example is a command to paste."""
    found: list[nodes.Node] = []
    for paragraph in text.strip().split("\n\n"):
        words = " ".join(paragraph.split())
        if words.startswith("Example: "):
            example = f"$ {words.removeprefix('Example: ')}"
            found.append(nodes.literal_block(example, example, language="console"))
        else:
            found.append(nodes.paragraph(text=words))
    return found


def _options(parameters: list[Any]) -> nodes.Node:
    """A list of the options of one group, each with its default and what it does."""
    listed = nodes.definition_list(classes=["options"])
    for parameter in parameters:
        names = [*parameter.opts, *parameter.secondary_opts]
        if parameter.param_type_name == "argument":
            names = [parameter.name.upper()]
        term = nodes.term()
        for i, name in enumerate(names):
            term += [nodes.Text(", ")] * bool(i) + [nodes.literal(text=name)]
        default = getattr(parameter.default, "value", parameter.default)
        if default is not None and default is not False and parameter.show_default:
            term += nodes.inline(text=f"  {default}", classes=["default"])
        told = nodes.paragraph(text=" ".join((parameter.help or "").split()))
        listed += nodes.definition_list_item("", term, nodes.definition("", told))
    return listed


def setup(app: Any) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True}
