"""Notebooks run from top to bottom, and show tables and pictures; in git they have no outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))

# What the last output of a cell of `start.ipynb` is.
SHOWN = {
    "load": "text/html",
    "build": "text/html",
    "fit": "text/html",
    "curve": "image/png",
    "evaluate": "text/html",
    "encode": "text/html",
    "vary": "image/png",
    "save": "text/html",
    "sample": "image/png",
    "penguins": "text/html",
    "train": "text/html",
    "profile": "image/png",
}


def code_cells(notebook: Any) -> dict[str, Any]:
    return {cell["id"]: cell for cell in notebook["cells"] if cell["cell_type"] == "code"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_git_holds_no_outputs(path: Path) -> None:
    cells = code_cells(json.loads(path.read_text(encoding="utf-8")))
    assert cells
    for cell in cells.values():
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
        assert cell["metadata"].keys() <= {"mystnb"}  # the alternative text of a picture


def executed(path: Path, root: Path) -> dict[str, list[Any]]:
    """The outputs of each cell of a notebook that is run without a browser."""
    nbformat = pytest.importorskip("nbformat", reason="needs pip install '.[docs]'")
    nbclient = pytest.importorskip("nbclient", reason="needs pip install '.[docs]'")
    (root / "docs").symlink_to(ROOT / "docs")
    folder = root / path.parent.relative_to(ROOT)  # where it writes
    folder.mkdir(parents=True)
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    # A cell that fails ends the run with an error.
    resources = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(notebook, timeout=300, resources=resources).execute()
    return {name: cell["outputs"] for name, cell in code_cells(notebook).items()}


@pytest.mark.slow
def test_start_runs_and_shows_tables_and_pictures(tmp_path: Path) -> None:
    outputs = executed(ROOT / "examples/notebooks/start.ipynb", tmp_path)
    for name, cell in outputs.items():  # on stderr least of all
        assert [o["text"] for o in cell if o["output_type"] == "stream"] == [], name
    last = {name: cell[-1]["data"] for name, cell in outputs.items() if cell}
    assert last.keys() == SHOWN.keys()
    for name, kind in SHOWN.items():
        assert kind in last[name], name
        if kind == "text/html":
            assert any(tag in last[name][kind] for tag in ("<table", "<img")), name
    profile, _ = outputs["profile"]
    assert "<table" in profile["data"]["text/html"]
    bar = outputs["fit"][0]["data"]
    assert bar["text/plain"].startswith("epoch 6/6, ELBO (train estimate) -")
    assert '<progress value="6" max="6"' in bar["text/html"]
    runs = [folder.name for folder in (tmp_path / "examples/notebooks/runs").iterdir()]
    assert sorted(runs)[0] == "model-1"
    assert len(runs) == 2
