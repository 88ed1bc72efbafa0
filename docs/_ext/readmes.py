"""Pages that show a README of the repository, so that nothing has to be said twice.

A page names what it shows in a block:

    ```{readme} pyro_dvae/elbos/README.md
    from: ## The tutorial's equations
    until: ## Another heading
    ```

Without `from` and `until` it is the whole README; `title: none` leaves its title out. Its
examples become cells, which are run, and its links lead to the pages that show the READMEs. What is
named may also be a notebook, whose cells are run in a folder like its own.
"""

from __future__ import annotations

import doctest
import json
import os
import re
from functools import cache
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
BLOCK = re.compile(r"^```\{readme\} (\S+)\n((?:\w+: .*\n)*)```$", re.MULTILINE)
EXAMPLES = re.compile(r"^```python\n(>>> .*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def part(readme: str, options: str) -> str:
    """The part of a README that a block names."""
    text = (ROOT / readme).read_text(encoding="utf-8")
    if readme.endswith(".ipynb"):
        return of_notebook(text, Path(readme).parent)
    bounds = dict(line.split(": ", 1) for line in options.splitlines())
    if "from" in bounds:
        text = text[text.index(f"\n{bounds['from']}\n") + 1 :]
    if "until" in bounds:
        text = text[: text.index(f"\n{bounds['until']}\n") + 1]
    if bounds.get("title") == "none":
        text = text.partition("\n")[2]
    return text


def _metadata(cell: dict[str, Any]) -> str:
    """What a cell says of its output, such as the alternative text of its picture."""
    return f"---\n{json.dumps(cell['metadata'])}\n---\n" if cell["metadata"] else ""


def of_notebook(text: str, folder: Path) -> str:
    """The cells of a notebook as those of a page; a hidden one goes to a folder as deep as its."""
    title, *cells = [
        "".join(cell["source"])
        if cell["cell_type"] == "markdown"
        else f"```{{code-cell}}\n{_metadata(cell)}{''.join(cell['source'])}\n```"
        for cell in json.loads(text)["cells"]
    ]
    deep = str(Path("page", *folder.parts[1:]))
    hidden = f"import os\n\nos.makedirs({deep!r})\nos.chdir({deep!r})"
    hidden = f"```{{code-cell}}\n:tags: [remove-cell]\n{hidden}\n```"
    return "\n\n".join([title, hidden, *cells])


def anchors(text: str) -> list[str]:
    """The anchors of the headings, as GitHub and MyST make them."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


@cache
def pages() -> dict[tuple[str, str], Path]:
    """Which page shows a README, by its path and an anchor; the anchor of its beginning is ""."""
    found: dict[tuple[str, str], Path] = {}
    for page in sorted(DOCS.rglob("*.md")):
        if "_build" in page.parts:
            continue
        for readme, options in BLOCK.findall(page.read_text(encoding="utf-8")):
            found.setdefault((readme, ""), page)
            for anchor in anchors(part(readme, options)):
                found.setdefault((readme, anchor), page)
    return found


def shown(readme: str, options: str, page: Path) -> str:
    """The text of a block on a page."""

    def link(match: re.Match[str]) -> str:
        picture, words, target = match.groups()
        if "://" in target:
            return match[0]
        path, _, anchor = target.partition("#")
        file = os.path.relpath((ROOT / readme).parent / path, ROOT) if path else readme
        if picture:
            return f"![{words}]({os.path.relpath(ROOT / file, page.parent)})"
        other = pages().get((file, anchor))
        if other is None and file.startswith("docs/"):
            other = ROOT / file
        if other is None:
            return words
        place = os.path.relpath(other, page.parent) if other != page else ""
        return f"[{words}]({place}{'#' + anchor if anchor else ''})"

    def cell(match: re.Match[str]) -> str:
        sources = [example.source for example in doctest.DocTestParser().get_examples(match[1])]
        return "```{code-cell}\n" + "".join(sources) + "```"

    return EXAMPLES.sub(cell, LINK.sub(link, part(readme, options)))


def read(app: Any, docname: str, source: list[str]) -> None:
    """Put the READMEs into a page that is read."""
    page = DOCS / f"{docname}.md"
    for readme, _ in BLOCK.findall(source[0]):
        app.env.note_dependency(str(ROOT / readme))
    source[0] = BLOCK.sub(lambda match: shown(match[1], match[2], page), source[0])


def setup(app: Any) -> dict[str, bool]:
    """Read the READMEs whenever a page that shows one is read."""
    app.connect("source-read", read)
    return {"parallel_read_safe": True}
