"""The benchmark for a card runs, in small and without one."""

from __future__ import annotations

from pathlib import Path

import pytest
from hostile import Hostile
from test_benchmarks import run


@pytest.mark.slow
def test_gpu(tmp_path: Path, hostile_server: Hostile) -> None:
    options = ["--device=cpu", "--quick", "--rounds=2", "--epochs=1"]
    report, said = run(hostile_server, "gpu", *options, cwd=tmp_path)
    setting, steps, evaluation, elbos, captured, captured_elbos = report.values()
    assert setting["device"] == "cpu"
    assert setting["seconds"] > 0
    names = {"plain SVI", "by hand", "ours", "ours, RLOO 4", "ours, bfloat16"}
    assert set(steps) == names
    assert steps["plain SVI"]["ratio"] == evaluation["bare product"]["ratio"] == 1.0
    assert all(row["median_ms"] > 0 for row in (*steps.values(), *evaluation.values()))
    assert {name for name, row in captured.items() if "error" not in row} == {"plain SVI"}
    assert "ValueError: Expected a CUDA device" in captured["captured, RLOO 4"]["error"]
    assert len(elbos) == 4
    assert all(-600 < row["elbo"] < -200 for row in elbos.values())
    assert all("Expected a CUDA device" in row["error"] for row in captured_elbos.values())
    assert all(name in said for name in (*steps, *evaluation, *captured, *elbos))
