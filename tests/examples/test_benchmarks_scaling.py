"""The benchmark of scaling runs, and says what it measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hostile import Hostile

SCRIPT = Path(__file__).parents[2] / "examples" / "benchmarks" / "scaling.py"


@pytest.mark.slow
def test_scaling_runs(tmp_path: Path, hostile_server: Hostile) -> None:
    options = ["--quick", "--json", "scaling.json", "--plot", "scaling.png"]
    output = hostile_server.run_script(SCRIPT, *options, cwd=tmp_path).out
    report = json.loads((tmp_path / "scaling.json").read_text())
    assert {row["axis"] for row in report["rows"]} == {"N", "K^D", "batch", "DK", "N small"}
    assert all(row["seconds"] > 0 and row["growth"] > 0 for row in report["rows"])
    smallest = {(row["axis"], row["what"]): row["growth"] for row in reversed(report["rows"])}
    assert set(smallest.values()) == {1.0}
    assert list(report["resident_megabytes"]) == ["after 20 steps", "after 40 steps"]
    assert report["machine"] in output
    assert (tmp_path / "scaling.png").stat().st_size > 0
