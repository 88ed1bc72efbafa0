"""`write_report`: one HTML file that tells of runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pyro_dvae._version import __version__
from pyro_dvae.reports.blocks import Block, Section, Text
from pyro_dvae.reports.comparison import comparison
from pyro_dvae.reports.drawing import PLACE, page_style
from pyro_dvae.reports.opened import Reported, Words
from pyro_dvae.reports.sections import SECTIONS
from pyro_dvae.runs import Run, load_run
from pyro_dvae.runs.storage import write_atomically


class _Part(NamedTuple):
    """The sections of one run, or the comparison of all."""

    key: str
    title: str
    sections: Sequence[Section]
    blocks: Sequence[Block] = ()


def write_report(
    runs: Run | str | Path | Sequence[Run | str | Path],
    path: str | Path,
    *,
    data_dir: str | Path | None = None,
    words: Words | None = None,
) -> None:
    """Write one HTML file that tells what runs are: it opens offline, in every browser.

    The page has the curve of the ELBO, the gaps to log p(x), what each latent and each category
    tells, reconstructions, samples, codes to click through, the most surprising data, and warnings
    in words. Several runs stand below one another, with a table that compares them first.

    The figures are of at most 1,000 data of the test part. The page says how many, and each mean
    has its standard error. Where the data of a run are not found, the page says so, and shows what
    the run folder alone tells.

    Args:
        runs: a run, the folder of one, or several of them.
        path: the file to write. It is written whole or not at all, and replaces one that is there.
        data_dir: the folder that the data of all runs lie in now, if that is another one.
        words: how settings and commands are named; None for the names of Python.

    Raises:
        ValueError: there is no run, or no folder of a run.
        OSError: the file cannot be written.

    Example:
        >>> from pyro_dvae.reports import write_report
        >>> write_report("runs/mnist-d4k8-snapshot-1", "report.html")  # doctest: +SKIP
    """
    write_page(html_report(runs, data_dir=data_dir, words=words), path)


def write_page(text: str, path: str | Path) -> None:
    """Write the text of a page to a file, whole or not at all.

    Raises:
        OSError: the file cannot be written.
    """
    write_atomically(path, lambda beside: beside.write_text(text, encoding="utf-8"))


def html_report(
    runs: Run | str | Path | Sequence[Run | str | Path],
    *,
    data_dir: str | Path | None = None,
    words: Words | None = None,
) -> str:
    """The text of the file that `write_report` writes. The arguments are explained there."""
    several = [runs] if isinstance(runs, (Run, str, Path)) else list(runs)
    if not several:
        raise ValueError("Expected at least one run to report; got none. Name a run folder.")
    loaded = [run if isinstance(run, Run) else load_run(run) for run in several]
    wording = Words() if words is None else words
    reported = [Reported(run, f"run{i}", wording, data_dir) for i, run in enumerate(loaded, 1)]
    with page_style():
        parts = list(_parts(reported))
    names = ", ".join(run.folder.name for run in loaded)
    title = f"Report of {'the runs ' if len(loaded) > 1 else ''}{names}"
    return _render(title, _summary(reported), parts)


def _parts(reported: Sequence[Reported]) -> Iterator[_Part]:
    if len(reported) > 1:
        yield _Part("comparison", "The runs side by side", [], comparison(reported))
    for each in reported:
        made = [_made(make, each) for make in SECTIONS]
        sections = [section for section in made if section is not None]
        yield _Part(each.key, f"Run {each.name}", sections)


def _made(make: Callable[[Reported], Section | None], reported: Reported) -> Section | None:
    """A section; or a line that says why there is none, for the others are worth having."""
    try:
        return make(reported)
    except (ValueError, NotImplementedError) as error:
        text = f"This section was left out: {reported.words.text(str(error))}"
        return Section(make.__name__, make.__name__.capitalize(), [Text(text)])


def _summary(reported: Sequence[Reported]) -> str:
    first = reported[0]
    if len(reported) > 1:
        return (
            f"{len(reported)} discrete variational autoencoders: what they learned, side by side."
        )
    config = first.config
    return (
        "A discrete variational autoencoder: a code of "
        f"{config.num_latents} categorical variables with {config.num_categories} categories each "
        f"stands for {'an' if first.is_image else 'a'} {first.datum} of {first.run.data.name}."
    )


def _render(title: str, summary: str, parts: Sequence[_Part]) -> str:
    templates = files("pyro_dvae.reports") / "templates"
    style, script = (
        Markup((templates / name).read_text(encoding="utf-8")) for name in ("style.css", "codes.js")
    )
    environment = _environment().overlay()
    environment.filters["placed"] = partial(_placed, count(1))
    return environment.get_template("page.html").render(
        title=title, summary=summary, parts=parts, style=style, script=script, version=__version__
    )


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("pyro_dvae.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )


def _placed(numbers: Iterator[int], svg: Markup) -> Markup:
    """An SVG whose names occur nowhere else in the page."""
    return Markup(str(svg).replace(PLACE, f"svg{next(numbers)}-"))
