"""What a page of a report is made of: headings, texts, tables and pictures, without any HTML.

Each class has a `kind`; `templates/blocks.html` has one macro per kind, which escapes all texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeAlias, Union

from markupsafe import Markup


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    kind: ClassVar[str] = "text"
    text: str
    lead: str = ""
    """Words in bold type before the text."""


@dataclass(frozen=True)
class Code:
    """Text that a reader copies, such as a command."""

    kind: ClassVar[str] = "code"
    text: str
    label: str
    """What it is, for readers who do not see the page."""


class Picture(NamedTuple):
    """A picture as a data URI, or an SVG that is a part of the page."""

    source: str | Markup
    alt: str
    """What the picture shows, for readers who do not see it."""
    width: int
    """Width in CSS pixels; a narrow screen shrinks the picture."""
    height: int
    caption: str = ""

    @property
    def kind(self) -> str:
        """The name of the macro: "drawing" for an SVG, else "picture"."""
        return "drawing" if isinstance(self.source, Markup) else "picture"


class Shaded(NamedTuple):
    """A cell with a background colour that repeats what its number says."""

    text: str
    shade: int
    """From -3, far below, over 0, about equal, to 3, far above."""


class Bar(NamedTuple):
    """A cell with a bar below its number."""

    text: str
    share: float
    """Length of the bar, from 0 to 1."""


class Pictures(NamedTuple):
    """A cell with small pictures."""

    pictures: Sequence[Picture]


Cell: TypeAlias = str | Shaded | Bar | Pictures


@dataclass(frozen=True)
class Table:
    """A table whose first column names the rows."""

    kind: ClassVar[str] = "table"
    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    left: Sequence[int] = ()
    """The numbers of the columns that hold words, beside the first; the others hold numbers."""
    notes: Sequence[str] = ()
    """Lines below the table."""


@dataclass(frozen=True)
class Strip:
    """Pictures in rows of equal columns, each row with a name."""

    kind: ClassVar[str] = "strip"
    rows: Sequence[tuple[str, Picture]]
    caption: str


@dataclass(frozen=True)
class Finding:
    """Something that a reader should know of a run."""

    kind: ClassVar[str] = "finding"
    level: str
    """"warning", "note" or "good"."""
    title: str
    text: str
    todo: str = ""
    """What to do."""


@dataclass(frozen=True)
class CodeExplorer:
    """Controls that choose a code, and what the decoder makes of it."""

    kind: ClassVar[str] = "explorer"
    key: str
    """A name that no other explorer of the page has."""
    data: Mapping[str, Any]
    """What the script reads: the numbers of latents and categories, and what it shows."""
    latents: int
    categories: int
    start: Sequence[int]
    """The code that is shown first."""
    caption: str
    sprite: Picture | None = None
    """All decoded images in one picture, in the order of the codes; None for a table."""
    columns: Sequence[str] = ()
    """The names of the columns of a table."""
    examples: Sequence[tuple[str, Sequence[int]]] = ()
    """Name of a datum, and its code."""


Block: TypeAlias = Union[Text, Code, Picture, Table, Strip, Finding, CodeExplorer, "Group"]


@dataclass(frozen=True)
class Group:
    """Blocks below a heading of their own; or blocks that a reader opens."""

    kind: ClassVar[str] = "group"
    title: str
    blocks: Sequence[Block]
    folded: bool = False
    """Whether the blocks are shown only after a click on the title."""


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading, which the contents of the page link to."""

    key: str
    """A word for the link, which no other section of the same run has."""
    title: str
    blocks: Sequence[Block] = field(default_factory=list)
