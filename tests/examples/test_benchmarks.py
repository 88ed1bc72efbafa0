"""The scripts of examples/benchmarks run, in small."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hostile import Hostile

BENCHMARKS = Path(__file__).parents[2] / "examples/benchmarks"


def run(server: Hostile, name: str, *options: str, cwd: Path) -> tuple[dict[str, Any], str]:
    """What the script wrote as JSON, and what it printed."""
    done = server.run_script(BENCHMARKS / f"{name}.py", *options, "--json=out.json", cwd=cwd)
    return json.loads((cwd / "out.json").read_text()), done.out


@pytest.mark.slow
def test_step_time(tmp_path: Path, hostile_server: Hostile) -> None:
    options = ["--rounds=2", "--steps=2", "--hidden", "8", "6", "--no-compiled"]
    report, said = run(hostile_server, "step_time", *options, cwd=tmp_path)
    assert report["setting"]["threads"] == 1
    names = {"by hand", "ours, REINFORCE", "plain SVI", "tutorial's, DataLoader"}
    names |= {f"ours, RLOO {num}" for num in (2, 4, 8)}
    names |= {"ours, RLOO 4, decoder at 1", "ours, snapshot 2"}
    assert set(report["results"]) == names
    assert report["results"]["by hand"]["to_by_hand"] == 1.0
    assert all(name in said for name in names)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["rloo", "reinmax"])
def test_code_sizes(estimator: str, tmp_path: Path, hostile_server: Hostile) -> None:
    options = ["--rounds=2", "--steps=1", "--hidden", "8", "6", "--codes=2x3,3x64"]
    options += [f"--estimator={estimator}"]
    report, said = run(hostile_server, "code_sizes", *options, cwd=tmp_path)
    assert set(report) == {"2x3", "3x64"}
    for row in report.values():
        assert row.keys() == {"ours_ms", "by_hand_ms", "ratio"}
        assert min(row.values()) > 0
    assert "| 3x64 | 192 |" in said


@pytest.mark.slow
def test_step_pieces(tmp_path: Path, hostile_server: Hostile) -> None:
    options = ["--rounds=2", "--steps=2"]
    saved, said = run(hostile_server, "step_pieces", *options, cwd=tmp_path)
    assert {"no traces", "FusedAdam.take_step"} <= saved.keys()
    assert all(row.keys() == {"REINFORCE", "RLOO 4"} for row in saved.values())
    assert all(name in said for name in saved)


@pytest.mark.slow
def test_time_to_elbo(tmp_path: Path, hostile_server: Hostile) -> None:
    targets = ["-500", "-220", "-1"]
    options = ["--epochs=2", "--hidden", "64", "32", "--estimators=reinforce,rloo", "--threads=1"]
    report, said = run(
        hostile_server, "time_to_elbo", *options, "--targets", *targets, cwd=tmp_path
    )
    assert report["setting"]["threads"] == 1
    assert report["setting"]["validation images"] == 250
    assert list(report["results"]) == ["from scratch", "reinforce 1", "rloo 4"]
    plain = report["results"]["from scratch"]
    for name, result in report["results"].items():
        seconds, elbos = zip(*result["curve"], strict=True)
        assert 0 < seconds[0] < seconds[1]
        assert result["best"] == max(elbos)
        assert list(result["targets"]) == targets
        for target, found in result["targets"].items():
            first = next((i for i, elbo in enumerate(elbos) if elbo >= float(target)), None)
            if first is None:
                assert found is None
                continue
            assert (found["epoch"], found["seconds"]) == (first + 1, seconds[first])
            theirs = plain["targets"][target]
            assert found["is_upper_bound"] == (theirs is None)
            against = plain["curve"][-1][0] if theirs is None else theirs["seconds"]
            assert found["ratio"] == pytest.approx(found["seconds"] / against)
        assert result["targets"]["-500"]["epoch"] == 1
        later = result["targets"]["-220"]  # too far for the plain recipe's learning rate
        assert later is None if result is plain else later["epoch"] == 2
        assert result["targets"]["-1"] is None
        assert f"{name:16}" in said
    assert said.count("not reached in 2 epochs") >= 3


@pytest.mark.slow
def test_time_to_elbo_stops_at_the_last_target(tmp_path: Path, hostile_server: Hostile) -> None:
    options = ["--epochs=3", "--hidden", "8", "6", "--estimators=reinforce,rloo"]
    options += ["--annealing=1", "--decoder-particles=1", "--bfloat16", "--targets", "-999"]
    report, said = run(hostile_server, "time_to_elbo", *options, cwd=tmp_path)
    assert [result["epochs"] for result in report["results"].values()] == [1, 1, 1]
    assert "not reached" not in said


@pytest.mark.slow
def test_processes(tmp_path: Path) -> None:
    options = ["--rounds=1", "--epochs=1", "--images=400", "--hidden=8", "--delay=0.001"]
    script = str(BENCHMARKS / "processes.py")  # what its processes exchange is of its `__main__`
    done = subprocess.run(
        [sys.executable, "-W", "error", script, *options, "--json=out.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "out.json").read_text())
    assert "2 processes, one of them slow" in done.stdout
    assert report["weights"] == 784 * 8 + 8 + 8 * 32 + 32 + 32 * 8 + 8 + 8 * 784 + 784
    assert all(speed > 0 for speed in report["images_per_second"].values())
    assert report["exchange_seconds"] > 0


@pytest.mark.slow
def test_compressed_sizes(tmp_path: Path, hostile_server: Hostile) -> None:
    fit = ["fit", "run", "--data=mnist-sample", "--epochs=1", "--hidden=20", "--latents=2"]
    assert hostile_server(*fit, cwd=tmp_path, memory=4000, seconds=60).status == 0
    report, said = run(hostile_server, "compressed_sizes", "run", "--num-data=300", cwd=tmp_path)
    assert list(report) == ["run"]
    assert list(report["run"]["ways"]) == ["exact", "bits-back", "code"]
    for row in report["run"]["ways"].values():  # whose header and checksums matter with few data
        assert 1 < row["bytes"] / row["promised"] < 1.03
    assert "| gzip |" in said
