"""The pages of `docs/`: what they show has been run, and what they only name exists."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.main import get_command

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts
)


def blocks(page: Path) -> list[tuple[str, str]]:
    """The language and the text of every fenced block of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^ *```(\S*)[^\n]*\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_code_is_run(page: Path) -> None:
    """Python and commands stand in cells, which the build runs; only pip and Sphinx do not."""
    for language, text in blocks(page):
        assert language not in {"python", "py", "pycon", "bash", "sh", "shell", ""}, text
        if language == "console":
            for line in text.splitlines():
                assert re.match(r" *\$ (pip|git|sphinx-build|bash \.ci/run|pytest) ?", line), line


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_options_exist(page: Path) -> None:
    from pdvae_cli.main import app

    known = {"--help", "--keep-going"}
    for command in get_command(app).commands.values():  # type: ignore[attr-defined]
        known.update(*([*p.opts, *p.secondary_opts] for p in command.params))
    for script in (ROOT / "examples").rglob("*.py"):
        known |= set(re.findall(r"--[a-z][\w-]+", script.read_text(encoding="utf-8")))
    known |= {"--no-deps", "--no-index", "--only-binary", "--target"}  # pip's
    known |= {"--standalone", "--nnodes", "--nproc-per-node", "--max-restarts"}  # torchrun's
    known |= {"--rdzv-id", "--rdzv-backend", "--rdzv-endpoint"}
    known |= {"--nodes", "--ntasks-per-node", "--gpus-per-node", "--requeue"}  # SLURM's
    known |= {"--array", "--signal", "--time"}
    text = (ROOT / page).read_text(encoding="utf-8")
    assert set(re.findall(r"(?<![\w-])--[a-z][\w-]+", text)) <= known


def test_the_tutorial_has_every_equation() -> None:
    pages = {
        path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "docs/tutorial").iterdir()
    }
    found: set[int] = set()
    for tag in re.findall(r"\\tag\{([\d, –]+)\}", "".join(pages.values())):
        for part in tag.split(", "):
            first, _, last = part.partition("–")
            found.update(range(int(first), int(last or first) + 1))
    assert found == set(range(3, 87)) - {4, 5, 7, 11, 13, 30}  # these are notation, or steps
    assert "**Algorithm 1.**" in pages["6-algorithm"]


def test_the_gallery_has_every_example() -> None:
    gallery = (ROOT / "docs/gallery.md").read_text(encoding="utf-8")
    table = (ROOT / "examples/README.md").read_text(encoding="utf-8").partition("\n## ")[0]
    rows = re.findall(r"^\| \[?`([\w./]+)`", table, re.MULTILINE)
    listed = {re.sub("/.*", "/", name) for name in rows}
    files = (ROOT / "examples").iterdir()
    found = {f"{path.name}/" if path.is_dir() else path.name for path in files}
    assert listed == {name for name in found if name.endswith((".py", "/")) and name[0] != "_"}
    assert {name for name in listed if name not in gallery} == set()
    cards = re.findall(r"^:::\{grid-item-card\}.*?^:::$", gallery, re.MULTILINE | re.DOTALL)
    for card in cards:  # a picture with an alternative text, a sentence, and a command
        assert re.search(r"!\[[^\]]{20,}\]\(\S+\)|^:alt: .{20,}$", card, re.MULTILINE), card
        command = re.search(
            r"^`(?:OMP_NUM_THREADS=1 )?(?:python examples/(\w+\.py)|pdvae)\b(.*)`$",
            card,
            re.MULTILINE,
        )
        assert command is not None, card
        if command[1] is not None:
            script = (ROOT / "examples" / command[1]).read_text(encoding="utf-8")
            assert all(f'"{option}"' in script for option in re.findall(r"--[a-z-]+", command[2]))
    built = [
        command for _, text in blocks(Path("docs/gallery.md")) for command in text.splitlines()
    ]
    made = re.findall(r"●\n.*?^`([^`]+)`$", gallery, re.MULTILINE | re.DOTALL)
    assert len(made) >= 3
    assert all(f"!{command}" in built for command in made)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("myst_nb") is None, reason="needs pip install '.[docs]'")
def test_pages_build_without_a_warning(tmp_path: Path) -> None:
    out = tmp_path / "html"
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "docs", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    built = {path.relative_to(out).with_suffix(".md") for path in out.rglob("*.html")}
    assert built >= {page.relative_to("docs") for page in PAGES}
    for path in out.rglob("*.html"):  # a picture without a text has its file name there
        assert not re.search(r'alt="(_images/[^"]*)?"', path.read_text(encoding="utf-8")), path
