"""What is free, of the machine, of a container and of the process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pyro_dvae import memory
from pyro_dvae.memory import available_memory


def test_memory_that_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 2**20 < available_memory() < 2**60
    files = {"memory.max": "1000", "memory.current": "900", "memory.stat": "inactive_file 50\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert memory._container(tmp_path) == 150
    (tmp_path / "memory").mkdir()
    first = {"limit_in_bytes": "100", "usage_in_bytes": "30"}
    for name, text in first.items():
        (tmp_path / "memory" / f"memory.{name}").write_text(text)
    (tmp_path / "memory" / "memory.stat").write_text("inactive_file 20\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert memory._container(tmp_path) == 90
    (tmp_path / "memory" / "memory.stat").unlink()
    assert memory._container(tmp_path) == sys.maxsize
    monkeypatch.setattr(memory, "_container", lambda: -5)
    assert available_memory() == 0


def test_limits_of_the_process_count() -> None:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = available_memory()
    assert 0 < before < 2**60
    try:
        resource.setrlimit(resource.RLIMIT_AS, (before // 2, hard))
        assert available_memory() <= before // 2
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
