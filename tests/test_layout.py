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
    "convolution",
    "data.allot",
    "data.download",
    "data.errors",
    "failures",
    "likelihoods.numerics",
    "networks",
    "records",
    "storage",
    "streams",
    "_version",
}
MAY_IMPORT: dict[str, set[str]] = {
    **{leaf: set() for leaf in sorted(LEAVES)},
    "networks": {"checks"},
    "priors.annealing": {"codes"},
    "priors.boltzmann": {
        "checks",
        "codes",
        "priors.annealing",
        "priors.boltzmann_codes",
        "streams",
    },
    "priors.boltzmann_codes": {"priors.annealing", "sequences"},
    "priors.conditional": {"checks", "codes", "sequences"},
    "priors.hierarchical": {"checks", "codes", "networks", "priors.mixture"},
    "priors.learned": {"checks"},
    "priors.mixture": {"checks", "codes", "sequences"},
    "priors.uniform": {"checks"},
    "priors.vamp": {"checks", "priors.mixture"},
    "plugins": {"trial"},
    "trial": {"streams"},
    "vae": {"codes", "guides", "joint", "posteriors", "sequences"},
    "data.labels": {"data.errors"},
    "data.rows": {"data.errors", "data.labels"},
    "data.idx": {"data.errors"},
    "data.mnist": {"data.download", "data.errors", "data.idx"},
    "data.arrays": {"data.errors", "data.extent", "data.labels", "data.prepare", "data.served"},
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
    "data.extent": {"data.errors", "data.rows"},
    "data.kinds": {"checks", "data.errors", "data.extent"},
    "data.columns": {"data.errors", "data.extent", "data.rows"},
    "data.served": {"data.prepare"},
    "data.fits": {"data.errors", "data.extent", "data.kinds", "data.prepare"},
    "data.scan": {"data.extent", "data.fits", "data.images", "data.rows"},
    "data.report": {"data.errors", "data.scan"},
    "data.prepare": {"checks", "data.errors", "data.extent", "data.kinds", "data.rows"},
    "data.binary": {"data.prepare", "data.served"},
    "data.blocks": {"data.extent", "data.prepare", "data.rows"},
    "data.fingerprints": {"data.extent", "data.mnist", "data.rows"},
    "data.splits": {
        "data.allot",
        "checks",
        "data.blocks",
        "data.errors",
        "data.extent",
        "data.labels",
        "data.mnist",
        "data.prepare",
        "data.rows",
        "data.served",
    },
    "likelihoods.base": set(),
    "likelihoods.bernoulli": {"likelihoods.base"},
    "likelihoods.counts": {"likelihoods.base", "likelihoods.numerics"},
    "likelihoods.levels": {"checks", "likelihoods.base", "likelihoods.numerics"},
    "likelihoods.mixed": {"checks"},
    "likelihoods.real": {"likelihoods.base", "likelihoods.numerics"},
    "likelihoods.unit": {"likelihoods.base", "likelihoods.numerics"},
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
    "diagnostics": {"batches", "codes", "elbos.exact", "elbos.score_function", "streams"},
    "evaluation": {"joint", "scoring", "usage"},
    "sequences": {"codes"},
    "priors.autoregressive": {"checks", "sequences"},
    "posteriors": {"codes", "joint", "sequences"},
    "guides": {"checks", "sequences"},
    "estimators": {
        "elbos.control_variate",
        "elbos.coupled",
        "elbos.exact",
        "elbos.local_expectation",
        "elbos.multi_sample",
        "elbos.pathwise",
        "elbos.reinmax",
        "elbos.score_function",
        "networks",
    },
    "importance": {"posteriors"},
    "joint": {"checks", "codes"},
    "scoring": {"checks", "codes", "importance", "joint", "posteriors"},
    "usage": {"codes", "posteriors"},
    "batches": {"streams"},
    "resume": {"records"},
    "second_stage": {"batches", "elbos.score_function", "records", "training", "vae"},
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
    roots = {"config", "checkpoints", "parts", "plots", "tables", "__init__"}
    folders = ("assets", "data", "elbos", "likelihoods", "priors")
    roots |= {f"{folder}.__init__" for folder in folders}
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
