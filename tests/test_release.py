"""What a release needs: versions that agree, and a wheel that works without extras."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pyro_dvae

ROOT = Path(__file__).parents[1]
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
EXTRAS: dict[str, str] = dict(re.findall(r"^(\w+) = \[(.*)\]$", PYPROJECT, re.MULTILINE))


def pins(text: str) -> set[tuple[str, str]]:
    return set(re.findall(r'"([\w-]+)>=([\w.]+)"', text))


def needed() -> str:
    """What pyproject.toml says of the packages that are needed without extras."""
    base = re.search(r"^dependencies = \[(.*?)^\]", PYPROJECT, re.MULTILINE | re.DOTALL)
    assert base is not None
    return base[1]


def test_the_oldest_versions_are_those_that_pyproject_names() -> None:
    (named,) = re.findall(r"pyro-dvae\[([\w,]+)\]", EXTRAS["test"])
    extras = "".join(EXTRAS[name] for name in ["test", *named.split(",")])
    lines = (ROOT / ".github/oldest.txt").read_text(encoding="utf-8").splitlines()
    found = {tuple(line.split("==")) for line in lines if not line.startswith("#")}
    assert found == pins(needed() + extras)
    assert len(found) >= 15


def test_the_workflows_run_the_oldest_and_the_newest_python() -> None:
    (oldest,) = re.findall(r'requires-python = ">=([\d.]+)"', PYPROJECT)
    text = (ROOT / ".github/workflows/test.yml").read_text(encoding="utf-8")
    pythons = re.findall(r'"(3\.\d+)"', text)
    assert oldest in pythons
    assert "-c .github/oldest.txt" in text
    newest = max(pythons, key=lambda version: int(version.partition(".")[2]))
    assert f"Programming Language :: Python :: {newest}" in PYPROJECT
    assert f"Programming Language :: Python :: {oldest}" in PYPROJECT


def test_actions_are_pinned_by_a_major_version() -> None:
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        uses = re.findall(r"uses: (\S+)", path.read_text(encoding="utf-8"))
        assert uses
        for action in uses:
            assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v\d+)", action), action


def test_a_version_has_one_name() -> None:
    version = pyro_dvae.__version__
    cff = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {version}\n" in cff
    log = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", log, re.MULTILINE)[0] == "Unreleased"
    (released,) = re.findall(rf"^## {re.escape(version)}(?: — (\S+))?$", log, re.MULTILINE)
    if released:
        assert f"\ndate-released: {released}\n" in cff


def test_what_a_wheel_needs_without_extras_is_all_that_is_imported() -> None:
    """Every other package is imported inside of a function, or in a file that is imported so."""
    names = {"pyro-ppl": "pyro", "pillow": "PIL"}
    packages = {names.get(name, name) for name, _ in pins(needed())}
    packages |= {
        "pyro_dvae",
        "pdvae_cli",
        "cycler",
        "markupsafe",
        *sys.stdlib_module_names,
    }  # of jinja2 and matplotlib
    lazy = {"explorer", "search.py", "sklearn.py", "sklearn_methods.py", "sklearn_tables.py"}
    for folder in ("pyro_dvae", "cli"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.Import):
                    imported = {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    imported = {str(node.module).partition(".")[0]}
                else:
                    continue
                assert imported <= packages or {path.name, path.parent.name} & lazy, path
