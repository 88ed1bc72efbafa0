"""The structure that the design promises."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pyro_dvae

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pyro_dvae"

ROOMS: dict[str, set[str]] = {
    "_version": set(),
    "checks": set(),
    "contracts": set(),
    "defaults": set(),
    "displays": set(),
    "memory": set(),
    "process": set(),
    "processes": set(),
    "tensors": set(),
    "streams": {"process"},
    "codes": {"tensors"},
    "recipe": {"codes", "defaults"},
    "elbos": {"codes", "process", "processes"},
    "sequences": {"codes", "displays"},
    "posteriors": {"codes", "sequences"},
    "specs": {"checks"},
    "guides": {"checks", "contracts", "sequences", "specs"},
    "likelihoods": {"checks", "contracts", "displays", "specs"},
    "networks": {
        "checks",
        "codes",
        "contracts",
        "displays",
        "likelihoods",
        "specs",
        "streams",
        "tensors",
    },
    "priors": {
        "checks",
        "codes",
        "contracts",
        "displays",
        "networks",
        "sequences",
        "specs",
        "streams",
    },
    "vae": {
        "codes",
        "contracts",
        "displays",
        "guides",
        "likelihoods",
        "posteriors",
        "priors",
        "process",
        "sequences",
    },
    "semi_supervised": {"codes", "networks", "sequences", "tensors", "vae"},
    "data.read": {"displays", "memory", "tensors"},
    "data.serve": {
        "checks",
        "contracts",
        "defaults",
        "data.read",
        "displays",
        "likelihoods",
        "specs",
    },
    "data.look": {"checks", "data.read", "data.serve", "displays", "likelihoods", "specs"},
    "data": {"data.look", "data.read", "data.serve"},
    "evaluation": {
        "checks",
        "codes",
        "defaults",
        "displays",
        "likelihoods",
        "memory",
        "networks",
        "posteriors",
        "process",
        "processes",
        "streams",
        "tensors",
    },
    "training": {
        "checks",
        "codes",
        "data.serve",
        "defaults",
        "displays",
        "elbos",
        "evaluation",
        "guides",
        "likelihoods",
        "networks",
        "posteriors",
        "priors",
        "process",
        "processes",
        "recipe",
        "semi_supervised",
        "streams",
        "tensors",
        "vae",
    },
    "diagnostics": {"codes", "displays", "elbos", "streams", "training", "vae"},
    "runs": {
        "_version",
        "checks",
        "codes",
        "contracts",
        "data",
        "data.read",
        "data.serve",
        "defaults",
        "diagnostics",
        "displays",
        "elbos",
        "evaluation",
        "guides",
        "likelihoods",
        "memory",
        "networks",
        "posteriors",
        "priors",
        "processes",
        "recipe",
        "semi_supervised",
        "specs",
        "streams",
        "training",
        "vae",
    },
    "coding": {
        "checks",
        "codes",
        "data.read",
        "evaluation",
        "likelihoods",
        "posteriors",
        "process",
        "runs",
        "sequences",
        "vae",
    },
    "exporting": {
        "_version",
        "checks",
        "codes",
        "data",
        "likelihoods",
        "runs",
        "sequences",
        "streams",
        "vae",
    },
    "sweeps": {"data", "defaults", "runs", "training"},
    "reports": {
        "_version",
        "codes",
        "data",
        "defaults",
        "evaluation",
        "recipe",
        "runs",
        "streams",
        "training",
    },
    "explorer": {"data", "evaluation", "reports", "runs"},
    "sharing": {"_version", "data", "reports", "runs", "vae"},
    "sklearn_tables": {"data", "runs"},
    "sklearn_methods": {
        "_version",
        "checks",
        "codes",
        "data",
        "defaults",
        "evaluation",
        "runs",
        "sklearn_tables",
        "training",
    },
    "sklearn": {"defaults", "sklearn_methods"},
}
"""Room -> the rooms that its files may import. A room is a folder of the package, or a file of its
root; it stands below all rooms that name it, so that nothing imports what stands above."""


def _module(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def _room(module: str) -> str:
    """The innermost room that a module is in."""
    while module not in ROOMS and "." in module:
        module = module.rpartition(".")[0]
    return module


def _imports(path: Path) -> set[str]:
    """The modules of the package that a file imports when it runs."""
    found = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for block in ast.walk(tree):  # what only annotations need is not imported when it runs
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            block.body = [ast.Pass()]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "pyro_dvae":
            base = str(node.module).removeprefix("pyro_dvae").removeprefix(".")
            for alias in node.names:  # each may be a module, or a name in one
                within = f"{base}.{alias.name}".removeprefix(".")
                found.add(
                    within
                    if (PACKAGE / within.replace(".", "/")).exists()
                    or (PACKAGE / f"{within.replace('.', '/')}.py").exists()
                    else base
                )
    return found


_API = (PACKAGE / "__init__.py", PACKAGE / "_api.py")
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path not in _API)


@pytest.mark.parametrize("path", FILES, ids=_module)
def test_a_file_imports_only_what_its_room_may(path: Path) -> None:
    room = _room(_module(path))
    if room == "assets":
        assert not _imports(path)
        return
    assert room in ROOMS, "a new room: say in ROOMS what it may import"
    assert {_room(module) for module in _imports(path)} <= ROOMS[room] | {room}


def test_rooms_stand_above_one_another() -> None:
    below: set[str] = set()
    for room, imports in ROOMS.items():  # listed from the ground up
        assert imports <= below, room
        below.add(room)


def test_modules_of_a_room_form_no_circle() -> None:
    imports = {_module(path): _imports(path) for path in FILES}
    done: set[str] = set()
    while left := imports.keys() - done:
        free = {module for module in left if imports[module] & left <= {module}}
        assert free, f"a circle among {sorted(left)}"
        done |= free


def test_tests_mirror_the_rooms() -> None:
    folders = {
        str(path.parent.relative_to(ROOT / "tests")) for path in (ROOT / "tests").rglob("test_*.py")
    }
    rooms = {
        room.replace(".", "/") for room in ROOMS if (PACKAGE / room.replace(".", "/")).is_dir()
    }
    assert folders - {".", "browser", "cli", "examples"} <= rooms
    assert rooms - folders == set()


_PUBLIC = [
    "coding",
    "data",
    "elbos",
    "evaluation",
    "explorer",
    "exporting",
    "likelihoods",
    "networks",
    "priors",
    "reports",
    "runs",
    "sharing",
    "sweeps",
    "training",
]
"""Packages of the library whose `__all__` is public."""
_PUBLIC_MODULES = ("pyro_dvae.defaults", "pyro_dvae.runs.plots", "pyro_dvae.runs.tables")
"""Public modules: one that imports nothing, and two that import much."""


@pytest.mark.parametrize("path", sorted((ROOT / "cli").glob("*.py")), ids=lambda path: path.stem)
def test_the_command_line_imports_public_names_only(path: Path) -> None:
    packages = {"pyro_dvae", *(f"pyro_dvae.{name}" for name in _PUBLIC)}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported = {alias.name for alias in node.names if alias.name.startswith("pyro_dvae")}
            assert imported <= packages
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pyro_dvae"):
            module = str(node.module)
            if module not in _PUBLIC_MODULES:
                assert module in packages
                public = importlib.import_module(module).__all__
                assert {alias.name for alias in node.names} <= set(public)


@pytest.mark.parametrize("path", sorted((ROOT / "cli").glob("*.py")), ids=lambda path: path.stem)
def test_functions_of_the_command_line_are_short(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno is not None
            # One line per option is a list of them: the body is what must be short.
            start = node.body[0].lineno
            assert node.end_lineno - start < 60, node.name


def test_files_are_short() -> None:
    files = [path for folder in (PACKAGE, ROOT / "cli") for path in folder.rglob("*.py")]
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert [path.name for path, number in lines.items() if number > 300] == []


def test_what_an_object_has_is_rarely_guessed() -> None:
    # A contract names every optional member and its default (`contracts.py`).
    calls = [
        (path.stem, node.lineno)
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr"
    ]
    assert len(calls) <= 6, calls


def test_public_names_exist_and_are_documented() -> None:
    for name in pyro_dvae.__all__:
        assert getattr(pyro_dvae, name).__doc__, name


@pytest.mark.parametrize("path", [PACKAGE / "__init__.py", *FILES], ids=_module)
def test_the_library_names_no_option_of_the_command_line(path: Path) -> None:
    # It names settings, `range=(0, 255)`; the command line turns them into its options.
    texts = [
        node.value
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    named = [text for text in texts if re.search(r"(?<![\w-])--[a-z]|\bpdvae [a-z]", text)]
    assert not named


_LIBRARY = ("torch", "pyro")
_HEAVY = (*_LIBRARY, "torchvision", "matplotlib", "pandas", "pyarrow", "PIL", "rich", "sklearn")
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
