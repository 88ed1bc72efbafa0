from __future__ import annotations

import json
import os
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyro
import pytest
import torch
from safetensors.torch import save_file
from zoo import tiny_data, tiny_vae

from pyro_dvae import (
    BinaryImages,
    Config,
    RlooELBO,
    Trainer,
    __version__,
    build_vae,
    evaluate,
    load_run,
)
from pyro_dvae.runs import (
    DataRecord,
    RunInfo,
    inspect_run,
    newest_run,
    read_config,
    read_evaluation,
)
from pyro_dvae.runs.checkpoints import (
    STATE,
    WEIGHTS,
    create_run,
    read_state,
    write_state,
    write_weights,
)
from pyro_dvae.runs.log import (
    EVALUATION,
    METRICS,
    append_metrics,
    read_metrics,
    rewind_metrics,
    write_figures,
)
from pyro_dvae.runs.settings import CONFIG, FORMAT, write_config
from pyro_dvae.runs.storage import write_tensors

CONFIG_OF_RUN = Config(num_latents=2, num_categories=3, hidden=(5,))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = create_run(tmp_path / "run", "")
    write_config(folder, DataRecord(CONFIG_OF_RUN, "test"), (4,))
    write_weights(folder, build_vae(CONFIG_OF_RUN, (4,)).float().state_dict(), 7)
    return folder


def test_loaded_numbers_are_the_saved_ones(folder: Path) -> None:
    torch.set_default_dtype(torch.float32)
    vae, x = build_vae(CONFIG_OF_RUN, (4,)), tiny_data(5)
    write_weights(folder, vae.state_dict(), 8)
    run = load_run(folder)
    assert run.config == CONFIG_OF_RUN
    assert run.event_shape == (4,)
    assert run.data == DataRecord(CONFIG_OF_RUN, "test")
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


def set_at(path: str, value: Any) -> Any:
    """Change one value of config.json, at "a.b" say."""

    def change(content: Any) -> None:
        *outer, last = path.split(".")
        for name in outer:
            content = content[name]
        content[last] = value

    return change


WRONG = [
    *((f"config.{name}", 5) for name in ("prior", "guide", "likelihood", "network", "estimator")),
    *((f"config.{name}", 5) for name in ("binarize", "baseline", "encoder", "decoder", "hidden")),
    *((f"config.{name}", None) for name in ("prior", "guide", "hidden", "seed", "epochs")),
    *((f"config.{name}", 2.0) for name in ("num_latents", "num_particles", "batch_size", "seed")),
    *((f"config.{name}", "1") for name in ("beta", "learning_rate", "temperature", "averaging")),
    *((f"config.{name}", True) for name in ("num_latents", "beta", "epochs", "patience")),
    *((f"config.{name}", 10**400) for name in ("beta", "initial_beta", "num_latents", "seed")),
    *((f"config.{name}", 1) for name in ("compile", "bfloat16")),
    ("config.num_latents", float("inf")),
    ("config.hidden", [1.5]),
    ("config.hidden", [1] * 1_001),
    ("config.range", [0, 1, 2]),
    ("config.range", ["a", 1]),
    ("config.validation", []),
    ("config.num_classes", 5),  # of a prior that knows none
    ("config.prior", "x" * 2**21),
    ("config", []),
    ("event_shape", [float("inf"), 8]),
    ("event_shape", [0, 8]),
    ("event_shape", [1] * 65),
    ("event_shape", "88"),
    ("data", []),
    *((f"data.{name}", 5) for name in ("name", "source", "path", "data_dir", "fingerprint")),
    *((f"data.{name}", 5) for name in ("options", "held_out", "columns", "label_names", "span")),
    ("data.columns", ["a", 5]),
    ("data.num_train", "5"),
    ("data.data_per_label", "2"),
    ("data.data_per_label", -1.0),
    ("data.options", {"size": 5}),
    ("data.options", {"size": [5]}),
    ("data.options", {"columns": "a"}),
    ("data.held_out", {"test": 5}),
    ("mark", 5),
    ("format", "3"),
    ("pyro_dvae", 5),
]


@pytest.mark.parametrize(("path", "value"), WRONG, ids=lambda value: str(value)[:30])
def test_wrong_types_in_the_settings_are_one_line(folder: Path, path: str, value: Any) -> None:
    _edit(folder, set_at(path, value))
    with pytest.raises(
        ValueError, match=r"^Expected a run's settings in .*config\.json; got: .*Rest"
    ) as error:
        read_config(folder)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 1_000


@pytest.mark.parametrize("text", ["1" * 5_000, '{"a":' + "9" * 5_000 + "}", "[" * 2**24 + " "])
def test_settings_that_python_cannot_read_are_one_line(folder: Path, text: str) -> None:
    (folder / CONFIG).write_text(text)
    with pytest.raises(ValueError, match="Expected a run's settings in") as error:
        read_config(folder)
    assert len(str(error.value)) < 1_000


@pytest.mark.parametrize(
    ("progress", "what"),
    [
        (5, "progress"),
        ({"epoch": None}, "epoch"),
        ({"epoch": 1.5}, "epoch"),
        ({"step": float("inf")}, "step"),
        ({"num_seen": 10**400}, "num_seen"),
        ({"seconds": "1"}, "seconds"),
        ({"device": 5}, "device"),
        ({"best": []}, "best"),
        ({"best": {"epoch": None}}, "epoch"),
        ({"best": {"validation_information": 5}}, "validation_information"),
    ],
)
def test_wrong_types_in_the_state_are_one_line(folder: Path, progress: Any, what: str) -> None:
    write_tensors(folder / STATE, {"a": torch.ones(1)}, {"progress": progress})
    with pytest.raises(ValueError, match=f"the state of a training in .*Expected {what} ") as error:
        read_state(folder)
    assert len(str(error.value)) < 1_000


@pytest.mark.parametrize("epoch", [None, "7", 7.5, float("inf"), 10**400, []])
def test_wrong_types_beside_the_weights_are_one_line(folder: Path, epoch: Any) -> None:
    weights = build_vae(CONFIG_OF_RUN, (4,)).float().state_dict()
    write_tensors(folder / WEIGHTS, weights, {"epoch": epoch})
    for read in (load_run, inspect_run):
        with pytest.raises(ValueError, match=r"the run's weights in .*Expected epoch ") as error:
            read(folder)
        assert len(str(error.value)) < 1_000


def test_names_of_folders_may_be_text(folder: Path) -> None:
    name = str(folder)
    assert load_run(name).folder == folder
    assert inspect_run(name).data == read_config(name).data
    append_metrics(name, {"epoch": 1})
    assert rewind_metrics(name, 1, 0) == read_metrics(name) == [{"epoch": 1}]
    write_figures(name, "test", {"elbo": -1.0})
    assert read_evaluation(name) == {"test": {"elbo": -1.0}}
    assert newest_run(str(folder.parent)) == folder
    assert create_run(f"{name}-2", "") == folder.with_name("run-2")
    assert create_run(None, "run", f"{name}s") == folder.with_name("runs") / "run-1"


def test_what_looking_finds_is_what_is_loaded(folder: Path) -> None:
    run = load_run(folder)
    number = sum(weight.numel() for weight in run.vae.parameters())
    assert run.num_parameters == number
    names = [field.name for field in fields(RunInfo)]
    info = inspect_run(folder)
    assert [getattr(info, name) for name in names] == [getattr(run, name) for name in names]
    assert info.config == run.config


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
        write_config(folder, DataRecord(CONFIG_OF_RUN), (4,))
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


LINES = [b"\xff", b"[1]", b"1", b"{", b"[" * 100_000, b"{}", b'{"epoch": null}']
LINES += [b'{"epoch": Infinity}', b'{"epoch": true}', b'{"epoch": 1.5}', b'{"epoch": "1"}']
LINES += [b'{"epoch": 1, "' + name + b'": []}' for name in (b"is_best", b"seconds", b"step")]
LINES += [b'{"epoch": ' + b"9" * 400 + b"}", b'{"epoch": 1, "validation_information": [null]}']


@pytest.mark.parametrize("line", LINES, ids=lambda line: str(line[:40]))
def test_damaged_metrics_are_one_line(folder: Path, line: bytes) -> None:
    (folder / METRICS).write_bytes(b'{"epoch": 1}\n' + line + b"\n")
    with pytest.raises(ValueError, match=r"Expected a JSON object a line in .*Remove") as error:
        read_metrics(folder)
    assert "\n" not in str(error.value)


def test_evaluations_by_part(folder: Path) -> None:
    assert read_evaluation(folder) == {}
    write_figures(folder, "test", {"elbo": -1.5})
    write_figures(folder, "train", {"elbo": -1.0})
    assert read_evaluation(folder) == {"test": {"elbo": -1.5}, "train": {"elbo": -1.0}}
    (folder / EVALUATION).write_text("{")
    with pytest.raises(ValueError, match="Expected a run's evaluation"):
        read_evaluation(folder)


FIXTURES = Path(__file__).parents[1] / "fixtures"


def test_a_run_of_format_1_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made by tests/fixtures/make_run_1.py with the last version that wrote format 1.

    It knew neither hidden sizes, nor beta, nor the epoch of its weights, nor a state.
    """
    torch.set_default_dtype(torch.float32)
    shutil.copytree(FIXTURES / "run-format-1", tmp_path / "run")
    expected = json.loads((tmp_path / "run" / "expected.json").read_text())
    monkeypatch.syspath_prepend(str(FIXTURES))
    from make_run_1 import wave

    save_file(wave(expected["shapes"]), tmp_path / "run" / WEIGHTS)
    run = load_run(tmp_path / "run")
    logits = run.vae.encode(torch.eye(4).unflatten(-1, (2, 2)))
    torch.testing.assert_close(logits, torch.tensor(expected["logits"]))
    assert (run.config.hidden, run.config.annealing, run.epoch) == ((512, 256), 0, 0)
    assert run.status == "complete"
    assert [record.epoch for record in run.metrics] == [1, 2]
    torch.manual_seed(0)
    images = BinaryImages(torch.randint(256, (20, 2, 2), dtype=torch.uint8))
    elbo = evaluate(run.vae, images.fixed(0)[:5]).elbo
    assert elbo == pytest.approx(expected["elbo"], rel=1e-5)


def test_every_format_has_a_run() -> None:
    formats = {f"run-format-{number}" for number in range(1, FORMAT + 1)}
    assert formats == {path.name for path in FIXTURES.glob("run-format-*")}


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
