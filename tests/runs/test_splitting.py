"""The split of a run: it stays the same, whatever happens to the run, and says how it was made."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from pyro_dvae import fit, load_run, save_run
from pyro_dvae.data import SubsetRows, open_source
from pyro_dvae.runs import describe_split, inspect_run, new_model, resume_run, start_run
from pyro_dvae.runs.run_trainer import RunTrainer
from pyro_dvae.runs.settings import CONFIG, read_config

Run = Callable[..., tuple[int, str, str]]
OLD = Path(__file__).parents[1] / "fixtures" / "run-one-seed"
SMALL: dict[str, Any] = {
    "likelihood": "normal",
    "hidden": (3,),
    "num_latents": 1,
    "num_categories": 2,
    "epochs": 1,
    "validation": 12,
    "test": 12,
}


def _frame() -> pd.DataFrame:
    """72 rows, 12 of which repeat others, of 24 patients, in the order of their day."""
    source = np.random.default_rng(0)
    x = source.normal(size=(60, 3)).round(3)
    frame = pd.DataFrame(np.concatenate([x, x[:12]]), columns=list("abc"))
    frame["patient"] = [f"p{i % 24}" for i in range(72)]
    return frame.assign(day=pd.date_range("2024-01-01", periods=72).astype(str))


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    _frame().to_csv("t.csv", index=False)
    return tmp_path / "t.csv"


def _parts(training: Any) -> dict[str, list[int]]:
    stored = training.splits.stored if isinstance(training, RunTrainer) else training.stored
    return {part: rows.index.tolist() for part, rows in stored.items()}


@pytest.mark.parametrize(
    ("reading", "settings"),
    [
        ({"drop": ["patient", "day"]}, {}),
        ({"drop": ["patient", "day"]}, {"group_copies": False, "split_seed": 5}),
        ({"drop": ["patient", "day"]}, {"split": "last"}),
        ({"group": "patient", "drop": ["day"]}, {}),
        ({"time": "day", "drop": ["patient"]}, {}),
    ],
)
def test_a_run_keeps_its_split(
    file: Path, reading: dict[str, Any], settings: dict[str, Any]
) -> None:
    with start_run(open_source(file, **reading), "run", **SMALL, **settings) as training:
        list(training.epochs())
        parts = _parts(training)
    assert sorted(i for part in parts.values() for i in part) == list(range(72))
    assert _parts(load_run("run").data.splits()) == parts
    with resume_run("run", epochs=2) as training:
        assert _parts(training) == parts
        list(training.epochs())
    assert _parts(load_run("run").data.splits()) == parts
    rows = load_run("run").rows("test").stored
    assert isinstance(rows, SubsetRows)
    assert rows.index.tolist() == parts["test"]  # the rows of the file
    if "group" in reading:
        groups = [{i % 24 for i in index} for index in parts.values()]
        assert sum(map(len, groups)) == 24
    if "time" in reading or "split" in settings:
        assert parts["test"] == list(range(60, 72))
        assert parts["validation"] == list(range(48, 60))


def test_seeds_of_training_have_their_rows_in_common(file: Path) -> None:
    source = open_source(file, drop=["patient", "day"])
    with (
        start_run(source, "a", **SMALL) as a,
        start_run(source, "b", **SMALL, seed=7) as b,
        start_run(source, "c", **SMALL, split_seed=1) as c,
    ):
        assert _parts(a) == _parts(b) != _parts(c)
    weights = [next(iter(run.trainer.vae.parameters())) for run in (a, b, c)]
    assert torch.equal(weights[0], weights[2])
    assert not torch.equal(weights[0], weights[1])


@pytest.mark.usefixtures("file")
def test_a_file_of_groups_may_move_together_with_the_data() -> None:
    np.save("who.npy", _frame()["patient"].to_numpy().astype(str))
    source = open_source("t.csv", group="who.npy", drop=["patient", "day"])
    with start_run(source, "run", **SMALL) as training:
        list(training.epochs())
        parts = _parts(training)
    assert (
        describe_split(training.data)[1] == "each of the 24 groups of who.npy is kept in one part"
    )
    with resume_run("run", group="who.npy", epochs=2) as training:
        assert _parts(training) == parts
    Path("other").mkdir()
    for name in ("t.csv", "who.npy"):
        Path(name).rename(Path("other") / name)
    data = load_run("run").data
    assert _parts(data.moved_to(data_dir="other").splits()) == parts
    with pytest.raises(ValueError, match=r"one group for each row; got .*who.npy \(No such file"):
        data.moved_to("other/t.csv").open()


def test_a_run_of_before_keeps_the_split_of_its_one_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(OLD)  # it was made by the version before `split_seed`
    data = read_config(OLD).data
    assert (data.config.split_seed, data.config.group_copies) == (3, False)
    expected = json.loads((OLD / "split.json").read_text())
    assert _parts(data.splits()) == expected
    assert describe_split(data) == ["at random, split_seed=3"]


def test_groups_that_changed_are_noticed(file: Path) -> None:
    with start_run(open_source(file, group="patient", drop=["day"]), "run", **SMALL) as training:
        list(training.epochs())
    frame = _frame()
    frame["patient"] = [f"p{i // 3}" for i in range(72)]
    frame.to_csv(file, index=False)
    with pytest.raises(ValueError, match="Expected the rows of each part that the run had"):
        load_run("run").data.splits()


def test_fit_in_python_has_the_rows_of_a_run(file: Path) -> None:
    torch.set_default_dtype(torch.float32)
    source = open_source(file, drop=["patient", "day"])
    with start_run(source, "run", **{**SMALL, "test": 0}) as training:
        records = list(training.epochs())
        config = training.config
    vae, elbo = new_model(config, (3,))
    x = torch.tensor(_frame()[["a", "b", "c"]].to_numpy(), dtype=torch.float32)
    options = {"epochs": 1, "patience": config.patience}
    again = list(fit(vae, elbo, x, 12, **options, **config.training))
    assert [r.validation_elbo for r in again] == [r.validation_elbo for r in records]
    saved = save_run("saved", vae, source, records=again, validation=12)
    assert _parts(saved.data.splits()) == _parts(training)


@pytest.mark.parametrize(
    ("options", "notes", "split"),
    [
        (
            ["--drop=patient,day"],
            ["12 rows repeat others; each group of copies is kept in one part"],
            ["at random, --split-seed 0"],
        ),
        (
            ["--drop=patient,day", "--no-group-copies", "--split-seed=2"],
            [],
            ["at random, --split-seed 2", "2 rows are equal to a training row"],
        ),
        (
            ["--drop=day", "--group=patient", "--no-group-copies"],
            ["each of the 24 groups of patient is kept in one part"],
            ["at random, --split-seed 0"],
        ),
        (
            ["--drop=patient", "--time=day"],
            ["12 of the 12 test rows are in the training data too: values recur in the order of"],
            ["the rows of the latest day are kept apart"],
        ),
        (
            ["--drop=patient,day", "--split=last"],
            ["12 of the 12 test rows are in the training data too: values recur in the order of"],
            ["the last rows are kept apart"],
        ),
        (
            ["--drop=patient,day", "--test=test.csv"],
            [
                "12 rows repeat others; each group of copies is kept in one part",
                "9 of the 10 test rows are in the training data too: --drop-copies leaves such",
            ],
            ["at random, --split-seed 0"],
        ),
        (
            ["--drop=patient,day", "--test=test.csv", "--drop-copies"],
            [
                "12 rows repeat others; each group of copies is kept in one part",
                "17 rows that are in other validation or test data too: left out",
            ],
            ["at random, --split-seed 0"],
        ),
    ],
)
@pytest.mark.usefixtures("file")
def test_the_command_line_says_how_rows_are_split(
    pdvae: Run, options: list[str], notes: list[str], split: list[str]
) -> None:
    _frame()[["a", "b", "c"]].iloc[5:15].to_csv("test.csv", index=False)
    small = ["--likelihood=normal", "--hidden=3", "--latents=1", "--categories=2", "--epochs=0"]
    parts = ["--val=12"] if "--test=test.csv" in options else ["--val=12", "--test=12"]
    status, _, err = pdvae("fit", "run", "--data=t.csv", *small, *parts, *options)
    assert status == 0, err
    told = err.splitlines()
    assert len(told) >= len(notes)
    for note in notes:
        assert any(line.startswith(note) for line in told), told
    status, out, _ = pdvae("info", "run")
    assert status == 0
    for line in [*split, *notes]:
        assert line in out
    config = inspect_run("run").config
    assert config.split == ("last" if {"--time=day", "--split=last"} & set(options) else "random")


@pytest.mark.usefixtures("file")
def test_rows_keep_their_numbers_in_tables(pdvae: Run) -> None:
    small = ["--likelihood=normal", "--hidden=3", "--latents=1", "--categories=2", "--epochs=0"]
    order = ["--drop=patient", "--time=day", "--val=12", "--test=12"]
    assert pdvae("fit", "run", "--data=t.csv", *small, *order)[0] == 0
    for part, first in (("test", 60), ("validation", 48)):
        assert pdvae("encode", "run", "--data", part, "-o", f"{part}.csv")[0] == 0
        assert pd.read_csv(f"{part}.csv")["row"].tolist() == list(range(first, first + 12))


def test_a_damaged_record_of_the_split_is_refused(file: Path) -> None:
    with start_run(open_source(file, drop=["patient", "day"]), "run", **SMALL) as training:
        list(training.epochs())
    path = Path("run") / CONFIG
    content = json.loads(path.read_text())
    assert content["data"]["split"]["num_copies"] == 12
    for split in ({"rows": 1}, {"rows": "x", "other": 1}, "x", {"rows": "x"}):
        path.write_text(json.dumps({**content, "data": {**content["data"], "split": split}}))
        with pytest.raises(ValueError, match="Expected a run's settings in"):
            read_config("run")


def test_a_split_by_time_has_no_groups_of_copies(file: Path) -> None:
    source = open_source(file, drop=["patient"], time="day")
    with pytest.raises(ValueError, match="Expected group_copies=None for a split by time"):
        start_run(source, "run", **SMALL, group_copies=True)
