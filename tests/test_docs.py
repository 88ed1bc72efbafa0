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


@pytest.mark.slow
@pytest.mark.skipif(find_spec("myst_nb") is None, reason="needs pip install '.[docs]'")
def test_pages_build_without_a_warning(tmp_path: Path) -> None:
    out = tmp_path / "html"
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "docs", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    built = {path.relative_to(out).with_suffix(".md") for path in out.rglob("*.html")}
    assert built >= {page.relative_to("docs") for page in PAGES}
