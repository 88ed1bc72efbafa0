"""The structure that the design promises."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import pyro_dvae

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pyro_dvae"

LEAVES = {
    "averaging",
    "checks",
    "codes",
    "data.allot",
    "data.download",
    "data.errors",
    "failures",
    "likelihoods",
    "networks",
    "records",
    "storage",
    "streams",
    "_version",
}
MAY_IMPORT: dict[str, set[str]] = {
    **{leaf: set() for leaf in LEAVES},
    "networks": {"checks"},
    "priors": {"checks", "codes"},
    "vae": {"codes"},
    "data.labels": {"data.errors"},
    "data.rows": {"data.errors", "data.labels"},
    "data.idx": {"data.errors"},
    "data.mnist": {"data.download", "data.errors", "data.idx"},
    "data.arrays": {"data.binary", "data.errors", "data.labels", "data.prepare"},
    "data.array_rows": {"data.arrays", "data.errors", "data.labels"},
    "data.images": {"data.errors", "data.labels"},
    "data.folders": {"data.errors", "data.images", "data.labels"},
    "data.datasets": {
        "data.array_rows",
        "data.errors",
        "data.images",
        "data.labels",
        "data.rows",
    },
    "data.table_files": {"data.arrays", "data.errors", "data.labels", "data.rows"},
    "data.torchvision_sets": {
        "data.datasets",
        "data.download",
        "data.errors",
        "data.idx",
        "data.rows",
    },
    "data.sources": {
        "data.array_rows",
        "data.arrays",
        "data.errors",
        "data.folders",
        "data.idx",
        "data.labels",
        "data.mnist",
        "data.rows",
        "data.table_files",
        "data.torchvision_sets",
    },
    "data.fits": {"data.errors", "data.prepare"},
    "data.scan": {"data.fits", "data.images", "data.prepare", "data.rows"},
    "data.report": {"data.errors", "data.scan"},
    "data.prepare": {"checks", "data.errors", "data.rows"},
    "data.binary": {"data.prepare"},
    "data.blocks": {"data.prepare", "data.rows"},
    "data.fingerprints": {"data.mnist", "data.prepare", "data.rows"},
    "data.splits": {
        "data.allot",
        "checks",
        "data.binary",
        "data.blocks",
        "data.errors",
        "data.mnist",
        "data.prepare",
        "data.rows",
    },
    "elbos.plates": set(),
    "elbos.pair": {"codes", "elbos.plates"},
    "elbos.base": {"codes", "elbos.pair"},
    "elbos.exact": {"codes", "elbos.base", "elbos.pair"},
    "elbos.score_function": {"elbos.base"},
    "elbos.control_variate": {"codes", "elbos.base", "elbos.pair", "elbos.score_function"},
    "elbos.coupled": {"codes", "elbos.base", "elbos.pair"},
    "elbos.local_expectation": {"elbos.base", "elbos.pair"},
    "elbos.multi_sample": {"elbos.base"},
    "elbos.pathwise": {"codes", "elbos.base", "elbos.pair"},
    "elbos.reinmax": {"elbos.pathwise"},
    "diagnostics": {"codes", "elbos.exact", "elbos.score_function", "streams"},
    "evaluation": {"joint", "scoring", "usage"},
    "importance": {"joint"},
    "joint": {"checks", "codes"},
    "scoring": {"checks", "codes", "importance", "joint"},
    "usage": {"codes"},
    "batches": {"streams"},
    "resume": {"records"},
    "training": {
        "averaging",
        "batches",
        "checks",
        "elbos.base",
        "evaluation",
        "failures",
        "records",
        "resume",
        "streams",
    },
}


def _internal_imports(path: Path) -> set[str]:
    found = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for block in ast.walk(tree):  # what only annotations need is not imported when it runs
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            block.body = [ast.Pass()]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pyro_dvae."):
            found.add(str(node.module).removeprefix("pyro_dvae."))
        elif isinstance(node, ast.ImportFrom) and node.module == "pyro_dvae":
            found |= {alias.name for alias in node.names}
    return found


@pytest.mark.parametrize("module", MAY_IMPORT)
def test_imports_flow_one_way(module: str) -> None:
    path = PACKAGE / (module.replace(".", "/") + ".py")
    assert _internal_imports(path) <= MAY_IMPORT[module]


def test_every_module_is_accounted_for() -> None:
    roots = {"config", "checkpoints", "plots", "tables", "__init__"}
    roots |= {f"{folder}.__init__" for folder in ("assets", "data", "elbos")}
    modules = {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in PACKAGE.rglob("*.py")
    }
    assert modules == MAY_IMPORT.keys() | roots


def test_public_names_exist_and_are_documented() -> None:
    for name in pyro_dvae.__all__:
        assert getattr(pyro_dvae, name).__doc__, name


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["fit", "--help"]])
def test_help_does_not_import_torch(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom pdvae_cli.main import main\n"
        f"try: main({arguments})\nexcept SystemExit as e: assert not e.code\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
