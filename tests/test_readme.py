"""What the READMEs say of the code is so."""

from __future__ import annotations

import doctest
import importlib
import re
import sys
from collections.abc import Callable
from functools import cache, reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pyro_dvae
import pyro_dvae.codes
import pyro_dvae.elbos.base
import pyro_dvae.likelihoods
from pyro_dvae.guides import GUIDES
from pyro_dvae.likelihoods import LIKELIHOODS
from pyro_dvae.networks import ENCODERS
from pyro_dvae.priors import PRIORS
from pyro_dvae.runs.estimators import ESTIMATORS

ROOT = Path(__file__).parents[1]
READMES = sorted(
    path.relative_to(ROOT)
    for folder in (".", "cli", "pyro_dvae", "examples")
    for path in (ROOT / folder).glob("README.md" if folder == "." else "**/README.md")
)
PAGES = [*READMES, Path(".github/CONTRIBUTING.md"), Path("CHANGELOG.md")]


@cache
def text(path: Path | str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


README, COMMANDS = text("README.md"), text("cli/README.md")
ROW = re.compile(r"^\| ([\d, –]+|Alg\. 1) \| .* \| `([\w.]+)` \| `(test_\w+)` \|$", re.MULTILINE)
ROWS = ROW.findall(text("pyro_dvae/elbos/README.md"))

# Equations that define notation or are steps of a derivation shown as a whole elsewhere.
UNMAPPED = {1, 2, 4, 5, 7, 11, 13, 30}


# --- The pages ---


def test_the_first_page_is_short() -> None:
    assert len(README.encode()) <= 8_000


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_relative_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", text(page)):
        if link.startswith("https://"):
            continue
        place, _, anchor = link.partition("#")
        path = (ROOT / page.parent / place).resolve() if place else ROOT / page
        assert path.is_file(), link
        assert not anchor or anchor in anchors(path), link


def test_examples_in_readmes_are_run(pytestconfig: pytest.Config) -> None:
    tested = {path for part in pytestconfig.getini("testpaths") for path in ROOT.glob(part)}
    assert {ROOT / page for page in READMES if ">>>" in text(page)} <= tested


@pytest.mark.parametrize("page", ["likelihoods", "networks"])
def test_own_parts_of_the_readmes_train_on_the_command_line(
    page: str, pdvae: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the page says to write to `mine.py`, and the command that it gives."""
    before, command, _ = re.split(
        r"```\n(pdvae fit .* mine:.*)\n```", text(f"pyro_dvae/{page}/README.md")
    )
    sources = [example.source for example in doctest.DocTestParser().get_examples(before)]
    kept = [source for source in sources if source.startswith(("import", "from", "class", "def"))]
    Path("mine.py").write_text("".join(kept), encoding="utf-8")
    rows = np.random.default_rng(0).normal(size=(60, 3))
    np.savetxt("table.csv", rows, delimiter=",", header="a,b,c", comments="")
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    data = [] if "--data" in command else ["--data=mnist-sample"]
    status, out, err = pdvae(*command.split()[1:], *data, "--epochs=1", "--latents=2", "--hidden=4")
    assert (status, err) == (0, "")
    assert "epoch 1/1" in out
    sys.modules.pop("mine")


def modules_with_examples() -> list[str]:
    paths = (path.relative_to(ROOT) for path in (ROOT / "pyro_dvae").rglob("*.py"))
    return sorted(".".join(path.with_suffix("").parts) for path in paths if ">>> " in text(path))


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_in_docstrings_are_right(name: str) -> None:
    """Each example may use `torch`, a small model `vae`, and its data `x`."""
    vae = pyro_dvae.DiscreteVAE(
        pyro_dvae.MLPEncoder((6,), 2, 3),
        pyro_dvae.MLPDecoder((6,), 2, 3),
        pyro_dvae.UniformPrior(2, 3),
        pyro_dvae.Bernoulli(),
    )
    names = {"torch": torch, "vae": vae, "x": torch.bernoulli(torch.full((10, 6), 0.5))}
    module = importlib.import_module(name.removesuffix(".__init__"))
    result = doctest.testmod(module, extraglobs=names)
    assert result.attempted
    assert not result.failed


def test_every_example_is_listed() -> None:
    for folder in ("examples", "examples/neighbours", "examples/benchmarks", "examples/published"):
        for script in (ROOT / folder).glob("*.py"):
            if script.name not in ("setting.py", "anchor.py"):  # what the scripts of a folder share
                assert f"`{script.name}" in text(f"{folder}/README.md"), script


def test_every_room_is_explained() -> None:
    contributing = text(".github/CONTRIBUTING.md")
    for folder in (ROOT / "pyro_dvae").iterdir():
        if (folder / "__init__.py").is_file():
            room = f"pyro_dvae/{folder.name}/" if folder.name != "assets" else "assets/"
            assert f"`{room}`" in contributing, room


# --- The tutorial's equations ---


def numbers(text: str) -> set[int]:
    """The equation numbers in "31–38", "Eqs. 6 and 9" or "Eqs. 40 to 45"."""
    found = {int(number) for number in re.findall(r"\d+", text)}
    for low, high in re.findall(r"(\d+)(?:–| to )(\d+)", text):
        found |= set(range(int(low), int(high) + 1))
    return found


def cited(docstring: str) -> set[int]:
    text = " ".join(docstring.split())
    return set().union(*map(numbers, re.findall(r"Eqs?\. ((?:\d+|, | and | to )+)", text)))


@pytest.mark.parametrize(("equations", "symbol", "test"), ROWS)
def test_equation_map(equations: str, symbol: str, test: str) -> None:
    found = reduce(getattr, symbol.split("."), pyro_dvae)
    if equations == "Alg. 1":
        assert "Algorithm 1" in (found.__doc__ or "") + (pyro_dvae.training.trainer.__doc__ or "")
    else:
        assert numbers(equations) <= cited(found.__doc__ or "")
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    assert any(f"def {test}(" in source for source in sources)


def test_equation_map_is_complete() -> None:
    mapped = set().union(*(numbers(row[0]) for row in ROWS if row[0] != "Alg. 1"))
    assert mapped == set(range(1, 87)) - UNMAPPED
    assert "Alg. 1" in [row[0] for row in ROWS]


# --- Names ---


def test_every_public_name_is_in_a_readme() -> None:
    everything = "".join(map(text, READMES))
    for name in pyro_dvae.__all__:
        assert name == "__version__" or re.search(rf"`{name}\b", everything), name


@pytest.mark.parametrize(
    ("names", "page"),
    [
        (ESTIMATORS, "elbos"),
        (PRIORS, "priors"),
        (GUIDES, "priors"),
        (LIKELIHOODS, "likelihoods"),
        (ENCODERS, "networks"),
    ],
)
def test_every_name_of_a_part_is_in_its_readme(names: dict[str, object], page: str) -> None:
    for name in names:
        assert re.search(rf"`{name}[`:[]", text(f"pyro_dvae/{page}/README.md")), name


def test_the_number_of_estimators() -> None:
    rows = re.findall(r"^\| `(\w+ELBO)` \|", text("pyro_dvae/elbos/README.md"), re.MULTILINE)
    abstract = {"DiscreteELBO", "ScoreFunctionELBO"}
    assert set(rows) == {name for name in pyro_dvae.__all__ if name.endswith("ELBO")} - abstract
    assert f"{len(rows)} gradient estimators" in README


# --- Commands and options ---


def commands() -> dict[str, Any]:
    from pdvae_cli.main import app
    from typer.main import get_command

    return get_command(app).commands  # type: ignore[attr-defined]


def options(command: Any) -> set[str]:
    found = {option for p in command.params for option in [*p.opts, *p.secondary_opts]}
    return {option for option in found if option.startswith("--")} - {"--help"}


def test_every_command_is_listed() -> None:
    assert set(re.findall(r"^\| `pdvae ([\w-]+)", COMMANDS, re.MULTILINE)) == set(commands())


@pytest.mark.parametrize("page", READMES, ids=str)
def test_every_option_of_a_readme_exists(page: Path) -> None:
    known = {"--help"}.union(*map(options, commands().values()))
    known |= {"--no-deps", "--no-index", "--only-binary", "--target"}  # pip's
    known |= {"--bind"}  # http.server's
    for script in (ROOT / "examples").rglob("*.py"):
        known |= set(re.findall(r"--[a-z][\w-]+", script.read_text(encoding="utf-8")))
    assert set(re.findall(r"(?<![\w-])--[a-z][\w-]+", text(page))) <= known
