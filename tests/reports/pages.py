"""What tests ask of a page: its elements, by a parser that is not a browser."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"area", "br", "col", "hr", "img", "input", "link", "meta"}
"""Elements without an end."""
_SHAPES = {"path", "rect", "use", "g", "svg", "defs", "style", "circle"}


@dataclass
class Element:
    """An element of a page."""

    name: str
    attributes: dict[str, str]
    text: str = ""
    children: list[Element] = field(default_factory=list)

    def all(self, name: str) -> list[Element]:
        """All elements of a name within this one, in the order of the page."""
        found = []
        for child in self.children:
            found += [child] if child.name == name else []
            found += child.all(name)
        return found

    @property
    def whole_text(self) -> str:
        """The text of the element and of all elements within."""
        return self.text + "".join(child.whole_text for child in self.children)


class Page(HTMLParser):
    """A page of a report, in which every element is closed in the right order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.root = Element("", {})
        self._open = [self.root]
        self.feed(text)
        self.close()
        assert self._open == [self.root], [element.name for element in self._open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self._open[-1].children.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open[-1].name == tag, f"</{tag}> within <{self._open[-1].name}>"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        self._open[-1].text += data

    def elements(self) -> list[Element]:
        """All elements of the page."""

        def within(element: Element) -> list[Element]:
            return [e for child in element.children for e in (child, *within(child))]

        return within(self.root)

    def element(self, caption: str) -> Element:
        """The table whose caption starts with a text."""
        tables = self.root.all("table")
        return next(e for e in tables if e.all("caption")[0].text.startswith(caption))

    def table(self, caption: str) -> dict[str, list[str]]:
        """The rows of this table: the text of the first cell -> those of the others."""
        rows = {}
        for line in self.element(caption).all("tr"):
            first, *others = [e.whole_text for e in line.children if e.name in ("th", "td")]
            rows[first] = others
        return rows
