"""The scripts of examples/benchmarks run, in small."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def test_step_time(tmp_path: Path) -> None:
    script = Path(__file__).parents[1] / "examples/benchmarks/step_time.py"
    options = ["--rounds=2", "--steps=2", "--hidden", "8", "6", "--no-compiled", "--json=out.json"]
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script), *options],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["setting"]["threads"] == 1
    names = {"by hand", "ours, REINFORCE", "plain SVI", *(f"ours, RLOO {s}" for s in (2, 4, 8))}
    assert set(report["results"]) == names
    assert report["results"]["by hand"]["to_by_hand"] == 1.0
    assert all(name in done.stdout for name in names)
