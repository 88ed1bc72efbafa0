"""The model card of a run: `README.md` with the front matter that a hub reads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

from pyro_dvae.data import PARTS, Splits
from pyro_dvae.reports import Words
from pyro_dvae.reports.blocks import (
    Block,
    Cell,
    Code,
    Finding,
    Group,
    Pictures,
    Section,
    Table,
    Text,
)
from pyro_dvae.reports.drawing import page_style
from pyro_dvae.reports.opened import Reported
from pyro_dvae.reports.sections.bounds import bounds
from pyro_dvae.reports.sections.learning import parts
from pyro_dvae.reports.sections.overview import overview
from pyro_dvae.reports.sections.problems import findings
from pyro_dvae.runs import Run, own_code
from pyro_dvae.sharing.private import without_paths

LICENSE = "unknown"
"""The licence where the user has not chosen one."""
_HUB_DATA = {
    "mnist": "ylecun/mnist",
    "mnist-sample": "ylecun/mnist",
    "fashion-mnist": "zalando-datasets/fashion_mnist",
    "cifar10": "uoft-cs/cifar10",
    "cifar100": "uoft-cs/cifar100",
}
"""Name of a data set -> what it is called on the hub."""
_LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,63}")


class _Carded(Reported):
    """A run whose data are opened where they lie, and which names no path of this machine."""

    def __init__(self, run: Run, words: Words, data_dir: str | Path | None) -> None:
        super().__init__(replace(run, data=without_paths(run.data)), "card", words)
        self._record = run.data.moved_to(data_dir=data_dir)

    @cached_property
    def splits(self) -> Splits | None:
        """The data of the run; None if they are not there, or are others now."""
        try:
            return self._record.splits()
        except (ValueError, OSError):  # whose message names paths
            return None

    @property
    def part(self) -> str:
        """The part of the data that the figures are of; without data, that of the stored ones."""
        stored = self.run.evaluation if self.splits is None else {}
        return next((name for name in reversed(PARTS) if name in stored), super().part)


def model_card(
    run: Run,
    name: str,
    *,
    license: str = LICENSE,
    data_dir: str | Path | None = None,
    words: Words | None = None,
    usage: str = "",
) -> str:
    """The text of a run's model card.

    Args:
        run: the run.
        name: what the model is called.
        license: as the hub calls it.
        data_dir: the folder that the run's data lie in now, if that is another one.
        words: how settings and commands are named; None for the names of Python.
        usage: commands that use the model.

    Raises:
        ValueError: the licence is no name.
    """
    if not _LICENSE.fullmatch(license):
        raise ValueError(
            f"Expected license=... as the hub calls it, such as apache-2.0, mit or other; got "
            f"{license!r}. Choose one."
        )
    reported = _Carded(run, words or Words(), data_dir)
    lines = ["---", *_front_matter(reported, name, license), "---", f"# {_words(name)}", ""]
    lines += [_summary(reported), "", "## How to use it", ""]
    lines += [*([*_fenced(usage, "bash"), ""] if usage else []), *_fenced(_PYTHON, "python"), ""]
    with page_style():
        sections = [overview(reported), _figures(reported), _limits(reported)]
    for section in sections:
        lines += [f"## {section.title}", "", *_blocks(section.blocks)]
    return "\n".join(lines).rstrip("\n") + "\n"


_PYTHON = """from pyro_dvae.sharing import pull_run

run = pull_run("OWNER/NAME")  # or the folder of this card
run.vae.sample(8)"""


def _summary(reported: Reported) -> str:
    config = reported.config
    return (
        f"A discrete variational autoencoder of [Pyro](https://pyro.ai): a code of "
        f"{config.num_latents} categorical variables with {config.num_categories} categories each "
        f"stands for {'an' if reported.is_image else 'a'} {reported.datum} of "
        f"{_words(reported.run.data.name or 'unknown data')}. The library pyro_dvae "
        f"{reported.run.version} trained it. Loading it runs no code of this folder."
    )


def _front_matter(reported: Reported, name: str, license: str) -> Iterator[str]:
    """Lines of YAML, whose values are JSON, which YAML includes."""
    kind = "images" if reported.is_image else "tables"
    tags = ["discrete-latents", "variational-autoencoder", "pyro", "pytorch", kind]
    known = _HUB_DATA.get(reported.run.data.name or "")
    values: dict[str, Any] = {"library_name": "pyro_dvae", "license": license, "tags": tags}
    if reported.is_image:
        values["pipeline_tag"] = "unconditional-image-generation"
    if known is not None:
        values["datasets"] = [known]
    metrics = list(_metrics(reported))
    if metrics:
        values["metrics"] = [metric["type"] for metric in metrics]
        data = _plain(reported.run.data.name or "unknown data")
        result = {
            "task": {"type": values.get("pipeline_tag", "other"), "name": "density estimation"},
            "dataset": {"type": known or "other", "name": data, "split": reported.part},
            "metrics": metrics,
        }
        values["model-index"] = [{"name": _plain(name), "results": [result]}]
    for key, value in values.items():
        yield f"{key}: {json.dumps(value, ensure_ascii=False)}"


def _metrics(reported: Reported) -> Iterator[dict[str, Any]]:
    """The figures as the hub lists them: those of the whole part where the run has stored them."""
    scores = reported.scores if reported.stored is None else reported.stored.evaluation
    if scores is None:
        return
    names = {"elbo": "ELBO", "log_marginal": "log p(x)", "importance_bound": "bound"}
    for field, name in names.items():
        value = vars(scores)[field]
        if value is not None:
            label = f"{name}, nats per {reported.datum}, {scores.num_data} data"
            yield {"type": field, "value": round(value, 4), "name": label}


def _figures(reported: Reported) -> Section:
    scores = reported.scores
    title = "Figures"
    if scores is not None:
        tables = bounds(reported)
        return (
            Section("figures", title, [parts(reported, scores), *tables.blocks])
            if (tables is not None)
            else Section("figures", title, [parts(reported, scores)])
        )
    if reported.stored is None:
        text = "There are none, for the data were not at hand when this card was written."
        return Section("figures", title, [Text(text)])
    stored = reported.stored.evaluation
    rows = [
        [field, f"{vars(stored)[field]:.2f}", f"{stored.standard_errors.get(field, 0.0):.2g}"]
        for field in ("elbo", "importance_bound", "log_marginal", "kl")
        if vars(stored)[field] is not None
    ]
    head = ["figure", "mean", "standard error of the draws of codes"]
    caption = f"Means over the {stored.num_data:,} {reported.datum}s of the {reported.part} part"
    return Section("figures", title, [Table(f"{caption}, in nats", head, rows)])


def _limits(reported: Reported) -> Section:
    """What the model is not for, and what the checks of a report found."""
    name = reported.run.data.name or "the data"
    blocks: list[Block] = [
        Text(
            f"The model knows {name} alone. Its figures hold for {reported.datum}s from the same "
            "source, prepared in the same way. It may give other inputs a high density."
        ),
        Text(
            "A model can remember single training data, and a sample can resemble them. Do not "
            "share a model of data that you may not show."
        ),
    ]
    own = own_code(reported.config)
    if own:
        text = (
            f"It names code that is not in this folder: {', '.join(own)}. Loading it imports that "
            "code only if you say that you trust it."
        )
        blocks.append(Text(text))
    if reported.splits is not None:
        blocks += findings(reported).blocks
    return Section("limits", "Limits", blocks)


# --- Blocks as Markdown ---


def _blocks(blocks: Iterable[Block]) -> Iterator[str]:
    for block in blocks:
        if isinstance(block, Text):
            yield from [
                f"{f'**{_words(block.lead)}** ' * bool(block.lead)}{_words(block.text)}",
                "",
            ]
        elif isinstance(block, Code):
            yield from [*_fenced(block.text, ""), ""]
        elif isinstance(block, Finding):
            text = " ".join(_words(each) for each in (block.text, block.todo) if each)
            yield from [f"- **{_words(block.title)}** {text}", ""]
        elif isinstance(block, Table):
            yield from _table(block)
        elif isinstance(block, Group) and not block.folded:
            yield from _blocks(block.blocks)


def _table(table: Table) -> Iterator[str]:
    words = (0, *table.left)
    yield from [f"**{_words(table.caption)}**", "", _row(table.head)]
    yield _row(["---" if column in words else "--:" for column in range(len(table.head))])
    for row in table.rows:
        yield _row([_words(cell if isinstance(cell, str) else _shown(cell)) for cell in row])
    yield ""
    for note in table.notes:
        yield _words(note)
        yield ""


def _shown(cell: Cell) -> str:
    return "" if isinstance(cell, (str, Pictures)) else cell.text


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _fenced(text: str, language: str) -> list[str]:
    """A block of code, whose fence is longer than any in the text."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence + language, text, fence]


def _words(text: str) -> str:
    """A text that Markdown shows as it is, in one line."""
    return re.sub(r"([\\`*_\[\]|#])", r"\\\1", escape(_plain(text), quote=False))


def _plain(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)
