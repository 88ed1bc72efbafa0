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
    "adam",
    "averaging",
    "checks",
    "convolution",
    "data.allot",
    "data.download",
    "failures",
    "fields",
    "graphs",
    "likelihoods.numerics",
    "memory",
    "networks",
    "originals",
    "precision",
    "process",
    "records",
    "storage",
    "tensors",
    "trust",
    "_version",
}
MAY_IMPORT: dict[str, set[str]] = {
    **{leaf: set() for leaf in sorted(LEAVES)},
    "codes": {"tensors"},
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
    "assembly": {"codes", "streams", "tensors", "trial"},
    "plugins": {"trial", "trust"},
    "trial": {"streams"},
    "vae": {"codes", "guides", "joint", "posteriors", "process", "sequences"},
    "data.errors": {"memory"},
    "data.labels": {"data.errors"},
    "data.rows": {"data.errors", "data.labels"},
    "data.idx": {"data.errors"},
    "data.mnist": {"data.download", "data.errors", "data.idx"},
    "data.npy": {"data.errors"},
    "data.arrays": {
        "data.errors",
        "data.labels",
        "data.npy",
    },
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
        "data.extent",
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
    "data.inputs": {"data.errors", "data.extent", "data.prepare", "data.rows"},
    "data.classes": {"data.rows"},
    "data.unseen": {"data.errors", "data.extent", "data.kinds", "data.prepare", "data.rows"},
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
    "elbos.noise": set(),
    "elbos.pair": {
        "codes",
        "elbos.noise",
        "elbos.plates",
        "elbos.shapes",
        "elbos.sites",
        "process",
    },
    "elbos.particles": {"elbos.pair", "elbos.plates"},
    "elbos.shapes": {"codes"},
    "elbos.sites": {"codes", "elbos.plates"},
    "elbos.direct": {
        "codes",
        "elbos.pair",
        "guides",
        "likelihoods",
        "likelihoods.base",
        "priors",
        "vae",
    },
    "elbos.audit": {"elbos.pair"},
    "elbos.base": {
        "codes",
        "elbos.audit",
        "elbos.direct",
        "elbos.layout",
        "elbos.noise",
        "elbos.pair",
        "process",
        "elbos.particles",
        "elbos.sites",
    },
    "elbos.enumeration": {"codes", "elbos.layout", "elbos.pair"},
    "elbos.exact": {
        "codes",
        "elbos.audit",
        "elbos.base",
        "elbos.enumeration",
        "elbos.layout",
        "elbos.noise",
        "elbos.pair",
        "process",
        "elbos.plates",
        "elbos.sites",
    },
    "elbos.layout": {"elbos.noise", "elbos.pair", "elbos.plates"},
    "elbos.score_function": {"elbos.base"},
    "elbos.control_variate": {"codes", "elbos.base", "elbos.pair", "elbos.score_function"},
    "elbos.coupled": {"codes", "elbos.base", "elbos.pair"},
    "elbos.local_expectation": {"codes", "elbos.base", "elbos.pair"},
    "elbos.multi_sample": {"codes", "elbos.base", "elbos.pair", "elbos.plates"},
    "elbos.pathwise": {"codes", "elbos.base", "elbos.pair"},
    "elbos.reinmax": {"elbos.pathwise"},
    "diagnostics": {"batches", "codes", "elbos.exact", "elbos.score_function", "streams"},
    "evaluation": {"joint", "scoring", "tensors", "usage"},
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
    "joint": {"assembly", "checks", "codes", "process", "tensors"},
    "scoring": {
        "assembly",
        "checks",
        "codes",
        "importance",
        "joint",
        "memory",
        "posteriors",
        "tensors",
    },
    "usage": {"codes", "posteriors"},
    "batches": {"assembly", "streams", "tensors"},
    "resume": {"records"},
    "run_log": {"fields", "records", "storage"},
    "run_settings": {"_version", "config", "fields", "parts", "storage", "trust"},
    "streams": {"process"},
    "second_stage": {"batches", "elbos.score_function", "records", "training", "vae"},
    "backward": {
        "adam",
        "codes",
        "elbos.base",
        "elbos.direct",
        "elbos.score_function",
        "guides",
        "likelihoods",
        "likelihoods.base",
        "originals",
        "priors",
        "process",
        "vae",
    },
    "training": {
        "adam",
        "averaging",
        "backward",
        "batches",
        "checks",
        "elbos.base",
        "evaluation",
        "failures",
        "graphs",
        "precision",
        "process",
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
    roots = {"config", "checkpoints", "parts", "plots", "sizes", "tables", "__init__"}
    folders = ("assets", "data", "elbos", "likelihoods", "priors")
    roots |= {f"{folder}.__init__" for folder in folders}
    modules = {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in PACKAGE.rglob("*.py")
    }
    assert modules == MAY_IMPORT.keys() | roots


def test_public_names_exist_and_are_documented() -> None:
    for name in pyro_dvae.__all__:
        assert getattr(pyro_dvae, name).__doc__, name


_LIBRARY = ("torch", "pyro")
_HEAVY = (*_LIBRARY, "torchvision", "matplotlib", "pandas", "pyarrow", "PIL", "rich")
"""Packages that a command imports where it needs them."""
_SAMPLE = ["--data=mnist-sample", "--epochs=1", "--batch-size=1000", "--hidden=8", "--latents=2"]


def _imported(folder: Path, *commands: list[str], status: int = 0) -> set[str]:
    """Which of the heavy packages are there after commands, in a process of their own."""
    code = (
        "import sys\nfrom pdvae_cli.main import main\n"
        f"for arguments in {commands}:\n"
        "    try: main(arguments)\n"
        f"    except SystemExit as e: assert (e.code or 0) == {status}, arguments\n"
        f"print('imported', *sorted(set({_HEAVY}) & sys.modules.keys()))"
    )
    command = [sys.executable, "-c", code]
    out = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout
    return set(out.splitlines()[-1].split()[1:])


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--help"], 0),
        (["--version"], 0),
        (["fit", "--help"], 0),
        (["fit", "--hidden=a,b"], 2),
        (["fit", "--range=low"], 2),
        (["fit", "--val=nothere.csv"], 2),
        (["fit", "--no-such-option"], 2),
        (["sample", "-n", "0"], 2),
    ],
)
def test_help_and_bad_options_import_nothing_heavy(
    tmp_path: Path, arguments: list[str], status: int
) -> None:
    assert _imported(tmp_path, arguments, status=status) == set()


@pytest.mark.slow
def test_commands_import_nothing_heavy_that_they_do_not_use(tmp_path: Path) -> None:
    # Matplotlib imports PIL.
    assert _imported(tmp_path, ["fit", "run", *_SAMPLE]) == {*_LIBRARY, "matplotlib", "PIL", "rich"}
    no_figure = (
        ["info", "run"],
        ["evaluate", "run", "--no-exact", "--iw-samples=0"],
        ["encode", "run", "-o", "codes.csv"],
        ["decode", "run", "codes.csv", "-o", "images.npz"],
        ["sample", "run", "-n", "2", "-o", "rows.csv"],
    )
    assert _imported(tmp_path, *no_figure) == set(_LIBRARY)
