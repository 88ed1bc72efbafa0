from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from zoo import tiny_data

from pyro_dvae import Config, build_vae, load_run
from pyro_dvae.checkpoints import (
    CONFIG,
    WEIGHTS,
    append_metrics,
    create_run,
    newest_run,
    write_atomically,
    write_config,
    write_weights,
)

CONFIG_OF_RUN = Config(num_latents=2, num_categories=3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = create_run(tmp_path / "run", "")
    write_config(folder, CONFIG_OF_RUN, (4,), {"name": "test"}, "0")
    write_weights(folder, build_vae(CONFIG_OF_RUN, (4,)).float())
    return folder


def test_loaded_numbers_are_the_saved_ones(folder: Path) -> None:
    torch.set_default_dtype(torch.float32)
    vae, x = build_vae(CONFIG_OF_RUN, (4,)), tiny_data(5)
    write_weights(folder, vae)
    run = load_run(folder)
    assert run.config == CONFIG_OF_RUN
    assert run.event_shape == (4,)
    assert run.data == {"name": "test"}
    assert torch.equal(run.vae.encode(x), vae.encode(x))
    samples = []
    for model in (vae, run.vae):
        torch.manual_seed(0)
        samples.append(model.sample(20))
    assert torch.equal(*samples)


def test_runs_are_numbered_and_never_overwritten(tmp_path: Path) -> None:
    folders = [create_run(None, "mnist", tmp_path / "runs") for _ in range(3)]
    assert [folder.name for folder in folders] == ["mnist-1", "mnist-2", "mnist-3"]
    (folders[0] / "file").touch()
    with pytest.raises(ValueError, match="new or empty run folder"):
        create_run(folders[0], "")
    assert create_run(folders[1], "") == folders[1]
    (tmp_path / "file").touch()
    for bad in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ValueError, match="run folder that can be written"):
            create_run(bad, "")


def test_newest_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Expected a run below"):
        newest_run(tmp_path)
    for age, name in enumerate(["b", "c", "a"]):
        (tmp_path / name).mkdir()
        (tmp_path / name / CONFIG).touch()
        os.utime(tmp_path / name / CONFIG, (100 - age, 100 - age))
    assert newest_run(tmp_path).name == "b"


def test_metrics_are_lines(folder: Path) -> None:
    append_metrics(folder, {"epoch": 1})
    append_metrics(folder, {"epoch": 2, "elbo": None})
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"epoch": 1}, {"epoch": 2, "elbo": None}]


def test_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")

    def write(path: Path) -> None:
        path.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match=r"Cannot write .*file \(\d+ MiB free\): disk full"):
        write_atomically(target, write)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def _edit(folder: Path, change: Any) -> None:
    content = json.loads((folder / CONFIG).read_text())
    change(content)
    (folder / CONFIG).write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / CONFIG).unlink(), "run folder with a config.json"),
        (lambda f: (f / CONFIG).write_text("{"), "run's settings in"),
        (lambda f: (f / CONFIG).write_bytes(b"\xff\xfe"), "run's settings in"),
        (lambda f: (f / CONFIG).write_text("[]"), "run's settings in"),
        (lambda f: _edit(f, lambda c: c.update(format=99)), "format 1 or older; got format 99"),
        (lambda f: _edit(f, lambda c: c.pop("config")), "run's settings in"),
        (lambda f: _edit(f, lambda c: c["config"].update(new=1)), "run's settings in"),
        (lambda f: _edit(f, lambda c: c["config"].update(num_latents=3)), "run's weights in"),
        (lambda f: (f / WEIGHTS).unlink(), "run's weights in"),
        (lambda f: (f / WEIGHTS).write_bytes(b""), "run's weights in"),
        (lambda f: os.truncate(f / WEIGHTS, 100), "run's weights in"),
    ],
)
def test_damage_is_one_line(folder: Path, damage: Any, message: str) -> None:
    damage(folder)
    with pytest.raises(ValueError, match=message) as error:
        load_run(folder)
    assert "\n" not in str(error.value)
