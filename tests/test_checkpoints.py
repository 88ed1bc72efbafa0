from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyro
import pytest
import torch
from safetensors.torch import save_file
from zoo import tiny_data, tiny_vae

from pyro_dvae import Config, RlooELBO, Trainer, __version__, build_vae, load_run
from pyro_dvae.checkpoints import (
    CONFIG,
    EVALUATION,
    METRICS,
    STATE,
    WEIGHTS,
    append_metrics,
    create_run,
    newest_run,
    read_evaluation,
    read_metrics,
    read_state,
    rewind_metrics,
    write_config,
    write_evaluation,
    write_state,
    write_weights,
)

CONFIG_OF_RUN = Config(num_latents=2, num_categories=3, hidden=(5,))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = create_run(tmp_path / "run", "")
    write_config(folder, CONFIG_OF_RUN, (4,), {"name": "test"})
    write_weights(folder, build_vae(CONFIG_OF_RUN, (4,)).float().state_dict(), 7)
    return folder


def test_loaded_numbers_are_the_saved_ones(folder: Path) -> None:
    torch.set_default_dtype(torch.float32)
    vae, x = build_vae(CONFIG_OF_RUN, (4,)), tiny_data(5)
    write_weights(folder, vae.state_dict(), 8)
    run = load_run(folder)
    assert run.config == CONFIG_OF_RUN
    assert run.event_shape == (4,)
    assert run.data == {"name": "test"}
    assert (run.epoch, run.version) == (8, __version__)
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
        (lambda f: _edit(f, lambda c: c.update(format=99)), "format 3 or older; got format 99"),
        (lambda f: _edit(f, lambda c: c.pop("config")), "run's settings in"),
        (lambda f: _edit(f, lambda c: c["config"].update(new=1)), "run's settings in"),
        (lambda f: _edit(f, lambda c: c["config"].update(num_latents=3)), "run's weights in"),
        (lambda f: _edit(f, lambda c: c["config"].update(hidden=[10**12])), "run's weights in"),
        (lambda f: _edit(f, lambda c: c["config"].update(hidden=[2**62])), "can be built in"),
        (lambda f: _edit(f, lambda c: c["config"].update(hidden=[2**80])), "can be built in"),
        (lambda f: _edit(f, lambda c: c["config"].update(num_latents="2")), "run's settings in"),
        (lambda f: _edit(f, lambda c: c.update(event_shape=[10**9])), "run's weights in"),
        (lambda f: (f / CONFIG).write_text("[" * 100_000), "run's settings in"),
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


def _trainer() -> Trainer:
    pyro.set_rng_seed(0)
    data, held_out = tiny_data(23), tiny_data(5)
    options = {"batch_size": 5, "learning_rate": 0.01, "averaging": 0.9}
    return Trainer(tiny_vae(), RlooELBO(2), data, held_out, **options)


def test_training_continues_from_the_file_bit_for_bit(folder: Path) -> None:
    whole, first, second = _trainer(), _trainer(), _trainer()
    list(whole.run(4))
    list(first.run(2))
    write_state(folder, first.state_dict())
    second.load_state_dict(read_state(folder))
    list(second.run(4))
    theirs = second.state_dict().tensors
    for name, value in whole.state_dict().tensors.items():
        assert torch.equal(value, theirs[name]), name


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: os.truncate(path, 1000),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(b"\xff" * 8 + path.read_bytes()[8:]),
    ],
)
def test_a_damaged_state_is_one_line(folder: Path, damage: Any) -> None:
    write_state(folder, _trainer().state_dict())
    damage(folder / STATE)
    with pytest.raises(ValueError, match=r"Expected the state of a training in .*Restore") as error:
        read_state(folder)
    assert "\n" not in str(error.value)


def test_weights_in_the_place_of_a_state(folder: Path) -> None:
    (folder / STATE).write_bytes((folder / WEIGHTS).read_bytes())
    with pytest.raises(ValueError, match="Expected the state of this training"):
        _trainer().load_state_dict(read_state(folder))


def test_two_loaded_models_used_alternately(tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float32)
    x, models, runs = tiny_data(5), [], []
    for seed in range(2):
        torch.manual_seed(seed)
        models.append(build_vae(CONFIG_OF_RUN, (4,)))
        folder = create_run(tmp_path / str(seed), "")
        write_config(folder, CONFIG_OF_RUN, (4,), {})
        write_weights(folder, models[-1].state_dict(), 1)
        runs.append(load_run(folder))
    for _ in range(2):
        for model, run in zip(models, runs, strict=True):
            assert torch.equal(run.vae.encode(x), model.encode(x))
    assert not torch.equal(runs[0].vae.encode(x), runs[1].vae.encode(x))


def test_metrics_rewind_to_a_step(folder: Path) -> None:
    lines = [
        {"epoch": 1, "step": 100},
        {"epoch": 1, "train_elbo": -3.0},
        {"epoch": 2, "step": 100},
        {"epoch": 2, "step": 200},
        {"epoch": 2, "train_elbo": -2.0},
        {"epoch": 3, "step": 100},
    ]
    for line in lines:
        append_metrics(folder, line)
    with (folder / METRICS).open("a") as file:
        file.write('{"epoch": 3, "st')  # what a killed writer leaves
    assert read_metrics(folder) == lines
    assert rewind_metrics(folder, 2, 0) == lines[:5]
    assert rewind_metrics(folder, 1, 100) == lines[:3]
    assert read_metrics(folder) == lines[:3]
    assert rewind_metrics(folder, 0, 0) == []


@pytest.mark.parametrize("line", [b"\xff", b"[1]", b"1", b"{", b"[" * 100_000])
def test_damaged_metrics_are_one_line(folder: Path, line: bytes) -> None:
    (folder / METRICS).write_bytes(b'{"epoch": 1}\n' + line + b"\n")
    with pytest.raises(ValueError, match=r"Expected a JSON object a line in .*Remove") as error:
        read_metrics(folder)
    assert "\n" not in str(error.value)


def test_evaluations_by_part(folder: Path) -> None:
    assert read_evaluation(folder) == {}
    write_evaluation(folder, "test", {"elbo": -1.5})
    write_evaluation(folder, "train", {"elbo": -1.0})
    assert read_evaluation(folder) == {"test": {"elbo": -1.5}, "train": {"elbo": -1.0}}
    (folder / EVALUATION).write_text("{")
    with pytest.raises(ValueError, match="Expected a run's evaluation"):
        read_evaluation(folder)


def test_a_run_of_format_1_loads(folder: Path) -> None:
    """It knew neither hidden sizes, nor beta, nor the epoch of its weights."""
    vae = build_vae(Config(num_latents=2, num_categories=3), (4,)).float()
    save_file(vae.state_dict(), folder / WEIGHTS)

    def old(content: Any) -> None:
        content["format"] = 1
        for name in ("hidden", "beta", "free_bits"):
            del content["config"][name]

    _edit(folder, old)
    run = load_run(folder)
    assert run.config.hidden == (512, 256)
    assert run.epoch == 0


FIXTURES = Path(__file__).parent / "fixtures"


@pytest.mark.parametrize("name", ["run-format-2", "run-format-3"])
def test_a_run_of_today_loads_tomorrow(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made by tests/fixtures/make_run.py; its numbers must never change."""
    torch.set_default_dtype(torch.float32)
    folder = FIXTURES / name
    run = load_run(folder)
    expected = json.loads((folder / "expected.json").read_text())
    x = torch.eye(4).unflatten(-1, (2, 2))
    torch.testing.assert_close(run.vae.encode(x), torch.tensor(expected["logits"]))
    assert run.epoch == expected["epoch"]
    state = read_state(folder)
    assert state.progress["epoch"] == expected["epochs"]
    monkeypatch.syspath_prepend(str(FIXTURES))
    from make_run import make_trainer

    trainer = make_trainer(run.config)
    trainer.load_state_dict(state)
    records = list(trainer.run(expected["epochs"] + 1))
    assert records[0].epoch == expected["epochs"] + 1
    # Another torch draws other numbers from the same stream.
    assert records[0].train_elbo == pytest.approx(expected["next_train_elbo"], rel=0.1)
    assert len(read_metrics(folder)) == expected["epochs"]
