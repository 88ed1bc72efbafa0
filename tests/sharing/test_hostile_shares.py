"""Shared folders that want to do harm: nothing of them runs, and nothing is left behind."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hostile import Hostile
from safetensors.torch import load_file, save_file

from pyro_dvae import load_run
from pyro_dvae.sharing import pull_run, share_run

OLD = Path(__file__).parents[1] / "fixtures" / "run-format-3"
EVIL = "evil_of_a_shared_run"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_default_dtype(torch.float32)
    folder = tmp_path_factory.mktemp("made") / "shared"
    share_run(OLD, folder)
    return folder


@pytest.fixture
def shared(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A shared folder beside a module that leaves a trace if it runs."""
    torch.set_default_dtype(torch.float32)
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{EVIL}.py").write_text(f"open('{tmp_path}/harm', 'w')\ndef make(**_): ...\n")
    shutil.copytree(made, tmp_path / "shared")
    return tmp_path / "shared"


def edit(shared: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads((shared / "config.json").read_text())
    change(content)
    (shared / "config.json").write_text(json.dumps(content))


class Harm:
    """A pickle of it runs a command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.folder}/harm",)


def refused(shared: Path, match: str) -> None:
    """The folder is refused in one line; nothing has run, and no run is there."""
    with pytest.raises(ValueError, match=match) as found:
        pull_run(shared, "run")
    assert "\n" not in str(found.value)
    assert not Path("run").exists()
    assert not Path("harm").exists()
    assert EVIL not in sys.modules


@pytest.mark.parametrize("name", ["encoder", "decoder", "prior", "likelihood", "guide"])
@pytest.mark.parametrize("code", ["os:system", f"{EVIL}:make"])
def test_code_that_the_settings_name_is_not_imported(shared: Path, name: str, code: str) -> None:
    edit(shared, lambda content: content["config"].update({name: code}))
    refused(shared, r"Expected a run that you made here .*trust_code=True")


def test_a_mark_of_somebody_makes_no_difference(shared: Path) -> None:
    edit(shared, lambda content: content["config"].update(encoder=f"{EVIL}:make"))
    edit(shared, lambda content: content.update(mark="0" * 64))
    refused(shared, "trust_code=True")


def test_an_estimator_that_is_never_built_is_not_imported(shared: Path) -> None:
    edit(shared, lambda content: content["config"].update(estimator=f"{EVIL}:make"))
    assert pull_run(shared, "run").config.estimator == f"{EVIL}:make"
    assert not Path("harm").exists()
    assert "mark" not in json.loads(Path("run/config.json").read_text())


def test_trusted_code_has_to_be_trusted_again(shared: Path) -> None:
    module = f"{EVIL}_trusted"
    Path(f"{module}.py").write_text(
        "from pyro_dvae import AutoregressivePrior\n"
        "def make(num_latents, num_categories):\n"
        "    return AutoregressivePrior(num_latents, num_categories, width=3)\n"
    )
    edit(shared, lambda content: content["config"].update(prior=f"{module}:make"))
    with pytest.raises(ValueError, match="trust_code=True"):
        pull_run(shared, "run")
    try:
        run = pull_run(shared, "run", trust_code=True)
        assert run.config.prior == f"{module}:make"
        assert module in sys.modules
        with pytest.raises(ValueError, match="trust_code=True"):
            load_run("run")
    finally:
        sys.modules.pop(module, None)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_pickle_in_the_place_of_a_file(shared: Path, name: str) -> None:
    (shared / name).write_bytes(pickle.dumps(Harm(Path.cwd())))
    refused(shared, "Expected a run's (settings|weights)|Expected the run's weights")


def test_a_pickle_alone_is_named(shared: Path) -> None:
    (shared / "model.safetensors").unlink()
    torch.save(Harm(Path.cwd()), shared / "pytorch_model.bin")
    refused(shared, r"only pytorch_model\.bin, a pickle, which could run code")


def test_other_files_are_left_alone(shared: Path) -> None:
    torch.save(Harm(Path.cwd()), shared / "last.safetensors")
    (shared / "conftest.py").write_text("import nothing")
    (shared / ".lock").mkdir()
    assert pull_run(shared, "run").epoch == load_run(OLD).epoch
    names = {path.name for path in Path("run").iterdir() if path.name != ".lock"}
    assert names == {"README.md", "config.json", "metrics.jsonl", "weights.safetensors"}


@pytest.mark.parametrize("name", ["README.md", "config.json", "model.safetensors", "metrics.jsonl"])
def test_links_are_refused(shared: Path, name: str) -> None:
    shutil.move(shared / name, "secret")
    (shared / name).symlink_to(Path("secret").resolve())
    refused(shared, f"got {name}, which is a link")


@pytest.mark.parametrize("name", ["README.md", "config.json", "model.safetensors", "metrics.jsonl"])
def test_pipes_and_folders_are_refused(shared: Path, name: str) -> None:
    for make in (os.mkfifo, os.mkdir):
        (shared / name).unlink() if (shared / name).is_file() else None
        if (shared / name).exists():
            (shared / name).unlink()
        make(shared / name)
        with pytest.raises((ValueError, OSError)):
            pull_run(shared, "run")
        assert not Path("run").exists()
    (shared / name).rmdir()


@pytest.mark.parametrize(
    "path", ["../../etc/passwd", "/etc/passwd", "~/x.npy", "C:\\x\\y.npy", ".."]
)
def test_paths_lose_their_folders(shared: Path, path: str) -> None:
    def change(content: dict[str, Any]) -> None:
        beside = {"labels": path, "group": path, "time": f"{path}:when"}
        content["data"] |= {"path": path, "data_dir": path, "source": path, "options": beside}
        content["config"] |= {"test": path, "validation": path}

    edit(shared, change)
    data = pull_run(shared, "run").data
    assert data.data_dir is None
    names = [data.path, data.config.test, data.config.validation, data.source]
    names += [data.reading.labels, data.reading.group, data.reading.time]
    for name in names:
        assert name is not None
        assert not set("/\\~") & set(str(name))
        assert ".." not in str(name)


CLAIMS: dict[str, Callable[[dict[str, Any]], object]] = {
    "latents": lambda content: content["config"].update(num_latents=10**9),
    "hidden": lambda content: content["config"].update(hidden=[10**9, 10**9]),
    "datum": lambda content: content.update(event_shape=[2**31, 2**31]),
    "prior": lambda content: content["config"].update(prior=f"mixture:{10**9}"),
    "columns": lambda content: content["data"].update(columns=["x" * 1000] * 20_000),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CLAIMS)
def test_sizes_that_are_claimed_cost_nothing(shared: Path, hostile: Hostile, name: str) -> None:
    edit(shared, CLAIMS[name])
    line = hostile("pull", shared, "-o", "run", memory=500).refusal()
    assert "Expected" in line
    assert not Path("run").exists()


@pytest.mark.slow
def test_weights_that_claim_more_than_they_are(shared: Path, hostile: Hostile) -> None:
    header = json.dumps({"x": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}})
    for content in (
        struct.pack("<Q", 2**40) + b"{}",
        struct.pack("<Q", len(header)) + header.encode(),
    ):
        (shared / "model.safetensors").write_bytes(content)
        assert "weights" in hostile("pull", shared, "-o", "run", memory=500).refusal()
    with (shared / "model.safetensors").open("wb") as file:  # of no blocks on the disk
        file.truncate(2**40)
    assert "Expected at most" in hostile("pull", shared, "-o", "run", memory=500).refusal()
    assert not Path("run").exists()


def test_other_weights_are_refused(shared: Path) -> None:
    mapped = load_file(shared / "model.safetensors")
    weights = {name: value.clone() for name, value in mapped.items()}
    name = next(iter(weights))
    for changed in (
        {**weights, name: weights[name] * torch.nan},
        {**weights, "another": torch.zeros(1)},
        {its: value for its, value in weights.items() if its != name},
    ):
        save_file(changed, shared / "model.safetensors")
        refused(shared, "Expected the run's weights")


def test_text_that_is_too_long_is_refused(shared: Path) -> None:
    for name in ("README.md", "metrics.jsonl", "evaluation.json"):
        with (shared / name).open("ab") as file:
            file.truncate(2**30)
        refused(shared, f"Expected at most .* bytes in {name}")
        (shared / name).unlink()
