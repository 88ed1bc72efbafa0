"""Runs from Python alone: started, continued, loaded, and their data found again."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch

from pyro_dvae import Config, Evaluation, datum_scores, evaluate, load_run, refine
from pyro_dvae.data import open_source
from pyro_dvae.recipe import model_recipe, training_recipe
from pyro_dvae.runs import (
    DataRecord,
    data_to_json,
    encode_blocks,
    inspect_run,
    model_batch,
    read_epochs,
    resolve_settings,
    resume_run,
    sample_blocks,
    start_prior,
    start_run,
    stored_evaluation,
    with_simple_models,
)
from pyro_dvae.runs.checkpoints import STATE, WEIGHTS
from pyro_dvae.runs.record import Reading, SecondStage
from pyro_dvae.runs.run_trainer import RunTrainer
from pyro_dvae.runs.settings import data_from_json
from pyro_dvae.runs.storage import read_tensors, write_tensors

SMALL: dict[str, Any] = {"num_latents": 2, "num_categories": 3, "hidden": (4,), "batch_size": 16}


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_default_dtype(torch.float32)
    monkeypatch.chdir(tmp_path)


def table(path: str, num: int = 40, *, order: str = "abc", labels: bool = True) -> None:
    """Bits of three columns, and the species that every row is of."""
    values = np.random.default_rng(0).integers(0, 2, (num, 3))
    rows = [",".join([*order, *["species"] * labels])]
    for i, row in enumerate(values):
        cells = [str(row["abc".index(name)]) for name in order]
        rows.append(",".join([*cells, *["uvw"[i % 3]] * labels]))
    Path(path).write_text("\n".join(rows) + "\n")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table and a run of two epochs on it, which tests must leave as it is."""
    torch.set_default_dtype(torch.float32)
    folder = tmp_path_factory.mktemp("trained")
    table(str(folder / "t.csv"))
    source = open_source(folder / "t.csv", labels="species")
    train_to_the_end(start_run(source, folder / "run", epochs=2, validation=4, **SMALL))
    return folder


@pytest.fixture
def run(trained: Path) -> Path:
    """A copy of the run, whose data lie where they were."""
    shutil.copytree(trained / "run", "run")
    return Path("run")


def train_to_the_end(training: RunTrainer) -> Evaluation | None:
    with training:
        for record in training.epochs():
            assert record == training.records[-1]
        return training.finish()


def test_a_run_tells_what_it_did(run: Path) -> None:
    loaded = load_run(run)
    epochs = [(record.epoch, record.of_guide) for record in loaded.metrics]
    assert epochs == [(1, False), (2, False), (3, True)]
    assert loaded.metrics == read_epochs(run)
    assert loaded.status == "complete"
    x, labels = model_batch(loaded.config, loaded.data.splits(), "test", torch.device("cpu"))
    assert labels is None
    splits = loaded.data.splits()
    scores = evaluate(loaded.vae, x, seed=loaded.config.seed)
    scores = with_simple_models(scores, loaded.vae, loaded.config, splits, (x, None))
    assert scores.simple_models is not None
    assert loaded.evaluation == {"test": scores}
    # Figures of other weights do not count.
    content = json.loads((run / "evaluation.json").read_text())
    content["test"]["epoch"] = 77
    (run / "evaluation.json").write_text(json.dumps(content))
    assert loaded.evaluation == {}
    stored = stored_evaluation(run, "test")
    assert stored is not None
    assert stored.epoch == 77


def test_the_data_of_a_run_are_found_and_split_again(run: Path, trained: Path) -> None:
    data = load_run(run).data
    assert (data.name, data.path) == ("t.csv", str(trained / "t.csv"))
    assert (data.columns, data.label_names) == (("a", "b", "c"), ("u", "v", "w"))
    assert (data.num_train, data.num_validation, data.num_test) == (32, 4, 4)
    assert (data.span, data.reading) == ((0.0, 1.0), Reading(labels="species"))
    source = data.open()
    splits = data.splits(source)
    assert len(splits.train) == 32
    assert data.counting(source, splits) == data
    shutil.copy(trained / "t.csv", "elsewhere.csv")
    assert torch.equal(source.train.labels, data.moved_to("elsewhere.csv").open().train.labels)
    with pytest.raises(ValueError, match="is not there"):
        data.moved_to(data_dir="nowhere").open()
    table("other.csv", 41)
    with pytest.raises(ValueError, match=r"Expected the run's data, t\.csv from .*data=\.\.\."):
        data.moved_to("other.csv").open()


def test_another_file_is_read_as_the_data_were(run: Path) -> None:
    loaded = load_run(run)
    table("more.csv", 7, order="cab", labels=False)
    more = loaded.rows("more.csv")
    table("same.csv", 7)
    same = loaded.rows("same.csv")
    assert torch.equal(more.x[:], same.x[:])
    assert (more.labels, same.name) == (None, "same.csv")
    assert same.labels is not None
    assert same.labels.tolist() == [0, 1, 2, 0, 1, 2, 0]
    codes = torch.cat(list(encode_blocks(loaded.vae, more.x)))
    assert torch.equal(codes, loaded.vae.mode(more.x[:]).argmax(-1))
    part = loaded.rows("test")
    assert torch.equal(part.x[:], loaded.data.splits().part("test").x)
    with pytest.raises(ValueError, match="Expected train, validation, test, or a file"):
        loaded.rows("nonsense")


def test_posteriors_of_a_run(run: Path) -> None:
    loaded = load_run(run)
    x = loaded.rows("train").x[:]
    exact = loaded.encode("train", posterior="exact", probabilities=True)
    for sweeps in (1, 5):
        refined = refine(loaded.vae, x, sweeps)
        assert torch.equal(loaded.encode("train", refine=sweeps), refined.mode)
        elbo = loaded.score("train", refine=sweeps)
        torch.testing.assert_close(elbo, refined.elbo)
    log_p = loaded.score("train", posterior="exact")
    torch.testing.assert_close(log_p, loaded.score("train", "exact"))
    assert (elbo <= log_p + 1e-9).all()
    profiles = {name: loaded.profile(posterior=name) for name in ("encoder", "exact")}
    torch.testing.assert_close(profiles["exact"].sizes, exact.double().sum(0))
    assert torch.equal(profiles["exact"].sizes, loaded.profile().sizes)
    assert not torch.equal(profiles["encoder"].sizes, loaded.profile().sizes)
    with pytest.raises(ValueError, match="Expected refine=2 with posterior='refined'"):
        loaded.encode("train", refine=2, posterior="exact")
    for options in ({"by": "ratio"}, {"bound": "exact"}):
        with pytest.raises(ValueError, match="Expected bound='elbo' or bound='importance'"):
            loaded.score("train", **options, posterior="exact")


def test_values_are_prepared_as_a_file_is(run: Path) -> None:
    loaded = load_run(run)
    table("same.csv", 7)
    frame = pandas.read_csv("same.csv")
    values = frame[["a", "b", "c"]].to_numpy()
    shuffled = frame[["c", "species", "a", "b"]]
    codes = loaded.encode("same.csv")
    assert (codes.shape, codes.dtype) == ((7, 2), torch.int64)
    probabilities = loaded.encode(values, probabilities=True)
    assert torch.equal(probabilities.argmax(-1), codes)
    for what in (values, values.astype(float), torch.tensor(values), shuffled):
        assert torch.equal(loaded.encode(what), codes)
        assert torch.equal(loaded.score(what), loaded.score("same.csv"))
    exact = datum_scores(loaded.vae, values.astype(np.float32), bound="exact")
    assert torch.equal(loaded.score(values, "exact"), exact)
    bound = loaded.score(values, "importance", importance_samples=7, seed=3)
    assert torch.equal(bound, loaded.score("same.csv", "importance", importance_samples=7, seed=3))
    assert (bound <= exact + 1).all()
    assert torch.equal(loaded.score("test"), loaded.score(loaded.rows("test").stored))
    labelled = loaded.rows(values[:3], labels=["w", "u", "w"])
    assert labelled.labels is not None
    assert labelled.labels.tolist() == [2, 0, 2]


@pytest.mark.parametrize(
    ("what", "options", "message"),
    [
        (np.zeros((3, 4)), {}, r"data of shape \(N, 3\) with N > 0; got \(3, 4\)"),
        (np.full((3, 3), 2), {}, "the values"),
        (np.full((3, 3), np.nan), {}, "the values: Expected"),
        (np.zeros((3, 3)), {"key": "x"}, "Expected key=... with a file"),
        ("test", {"labels": [1]}, "Expected labels=... with values; got them with test"),
        (pandas.DataFrame({"a": [0], "b": [1]}), {}, "run's columns, a, b, c, .*none named 'c'"),
    ],
)
def test_values_that_the_model_does_not_take(
    run: Path, what: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        load_run(run).rows(what, **options)


def test_labels_that_cannot_be_read_are_left_out_with_a_warning(run: Path) -> None:
    Path("gap.csv").write_text("a,b,c,species\n0,1,0,u\n1,1,0,\n")
    Path("empty.csv").write_text("a,b,c,species\n0,1,0,\n1,1,0,\n")
    loaded = load_run(run)
    labels = loaded.rows("gap.csv").labels
    assert labels is not None
    assert (labels >= 0).tolist() == [True, False]
    with pytest.warns(UserWarning, match="The labels are left out: Expected a label for some"):
        assert loaded.rows("empty.csv").labels is None
    with pytest.raises(ValueError, match="a label for each row"):
        loaded.data.open_file("gap.csv", labelled=True)


def test_two_epochs_and_two_more_are_four(run: Path, trained: Path) -> None:
    source = open_source(trained / "t.csv", labels="species")
    train_to_the_end(start_run(source, "whole", epochs=4, validation=4, **SMALL))
    train_to_the_end(resume_run("run", epochs=4, labels="species", batch_size=16))
    for name in (WEIGHTS, STATE):
        ours, theirs = (read_tensors(Path(f) / name, "a run")[0] for f in ("run", "whole"))
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert inspect_run("run").data == inspect_run("whole").data


def test_a_step_that_an_exception_ends_is_kept(trained: Path) -> None:
    def stop(step: int, steps: int) -> None:
        if training.trainer.epoch == 1 and step == 2:
            raise RuntimeError("enough")

    source = open_source(trained / "t.csv", labels="species")
    options = {**SMALL, "epochs": 2, "validation": 4, "batch_size": 8}
    with start_run(source, "run", **options) as training:
        with pytest.raises(RuntimeError, match="enough"):
            list(training.epochs(log_every=1, on_step=stop))
        training.save()
    whole = start_run(source, "whole", **options)
    train_to_the_end(whole)
    resumed = resume_run("run")
    with resumed:
        assert (resumed.trainer.epoch, resumed.trainer.step) == (1, 2)
        list(resumed.epochs())
    weights = whole.trainer.best_weights
    assert all(torch.equal(weights[name], resumed.trainer.best_weights[name]) for name in weights)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rate": 0.1}, r"learning_rate=0\.1 \(the run's: 0\.003\)\. Leave"),
        ({"labels": "a", "seed": 1}, r"labels='a' \(the run's: species\), seed=1 \(the run's: 0\)"),
        ({"epochs": 1}, r"at least the 2 epochs that run has; got 1\. Raise it to epochs=2"),
        ({"data_dir": "nowhere"}, "which is not there"),
    ],
)
def test_what_does_not_go_on(run: Path, settings: dict[str, Any], message: str) -> None:
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    with pytest.raises(ValueError, match=message), resume_run("run", **settings):
        pass
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"estimator": "sgd"}, "Expected estimator to be one of"),
        ({"validation": 0, "patience": 3}, "validation data for patience=3; got validation=0"),
        ({"binarize": "static"}, "no binarisation of zeros and ones"),
        ({"prior": "rbm", "num_latents": 12, "estimator": "reinmax"}, "closed-form KL"),
        ({"compile": True, "estimator": "exact"}, "whose step compiles"),
    ],
)
def test_no_folder_is_made_for_what_cannot_be_trained(
    trained: Path, settings: dict[str, Any], message: str
) -> None:
    source = open_source(trained / "t.csv", labels="species")
    with pytest.raises(ValueError, match=message):
        start_run(source, "run", **{**SMALL, **settings})
    assert not Path("run").exists()


def test_the_data_decide_what_is_left_out(trained: Path) -> None:
    source = open_source(trained / "t.csv", labels="species")
    config = resolve_settings(source, prior="conditional", likelihood="mixed", estimator="vimco")
    assert config == Config(
        binarize="none",
        prior="conditional",
        likelihood="mixed:bernoulli*3",
        estimator="vimco",
        num_particles=4,
        num_classes=3,
        test=0.1,
        validation=config.validation,
        group_copies=False,  # rows of three bits are equal by chance
        **model_recipe(len(source.train), 3, ()),
        **training_recipe(len(source.train) - 14, 3, 100, anneals=True),
    )
    assert resolve_settings(source, test=5, validation=0, patience=None).test == 5


def test_a_prior_for_the_codes_of_a_run(run: Path) -> None:
    first = load_run(run)
    scores = train_to_the_end(start_prior(first, "conditional:4", epochs=1, seed=3))
    new = load_run("run-conditional-4-1")
    assert new.data.second_stage == SecondStage(str(run.resolve()), first.epoch, 3)
    assert (new.config.prior, new.config.num_classes) == ("conditional:4", 3)
    assert scores == new.evaluation["test"]
    assert not (new.folder / STATE).exists()
    weights = first.vae.state_dict()
    fixed = {name: value for name, value in new.vae.state_dict().items() if name in weights}
    assert fixed
    assert all(torch.equal(value, weights[name]) for name, value in fixed.items())
    # All classes come in turn, or the one that is named.
    blocks = list(sample_blocks(new, 6))
    assert [block.labels.tolist() for block in blocks if block.labels is not None] == [
        [0, 0, 1, 1, 2, 2]
    ]
    assert new.class_number("v") == 1
    with pytest.raises(ValueError, match="Expected a label of run-conditional-4-1: u, v, w; got"):
        new.class_number("x")
    with pytest.raises(ValueError, match="Expected label=None for run, whose prior knows none"):
        first.class_number("v")


def test_a_run_whose_counts_have_no_units_is_loaded_and_goes_on() -> None:
    np.save("x.npy", np.random.default_rng(0).poisson(5, (40, 3)))
    source = open_source("x.npy")
    spec = "mixed:poisson,negative-binomial*2"
    train_to_the_end(start_run(source, "run", likelihood=spec, epochs=1, **SMALL))
    units = load_run("run").vae.likelihood.state_dict()
    assert all((value != 1).all() for value in units.values())
    assert len(units) == 3
    for name in (WEIGHTS, STATE):  # as an older version wrote them
        tensors, metadata = read_tensors(Path("run", name), "")
        kept = {key: value for key, value in tensors.items() if not key.endswith("unit")}
        assert len(kept) < len(tensors)
        write_tensors(Path("run", name), kept, metadata)
    assert not load_run("run").vae.likelihood.is_calibrated()
    assert inspect_run("run").num_parameters is not None
    train_to_the_end(resume_run("run", epochs=2))
    assert not load_run("run").vae.likelihood.is_calibrated()


def test_a_run_is_locked_while_it_trains(run: Path) -> None:
    with (
        resume_run("run"),
        pytest.raises(ValueError, match="nobody else trains in"),
        resume_run("run"),
    ):
        pass


RECORDS = [
    DataRecord(Config()),
    DataRecord(Config(), "mnist", "/data", data_dir="/data", fingerprint="0123"),
    DataRecord(
        Config(),
        "t.csv",
        "/t.csv",
        "/t.csv",
        reading=Reading("x", ("a", 3), "y", False, (28, 30), 1, ("c",), "i", ("b", 2), True, True),
        columns=("a", "b"),
        levels={"b": ("no", "yes")},
        label_names=("u", "v"),
        span=(0.0, 2.5),
        num_train=5,
        num_validation=0,
        num_test=2,
        held_out={"test": "4567"},
        second_stage=SecondStage("/run", 3, 1),
    ),
]


@pytest.mark.parametrize("record", RECORDS, ids=["empty", "named", "full"])
def test_a_record_survives_json(record: DataRecord) -> None:
    content = json.loads(json.dumps(data_to_json(record)))
    assert data_from_json(content, record.config) == record
    # An older version, which did not know the last field, and a newer one, which knows more.
    content.pop("second_stage", None)
    content["new"] = {"a": 1}
    assert data_from_json(content, record.config) == replace(record, second_stage=None)


def test_values_of_a_program_must_be_passed_again() -> None:
    values = np.random.default_rng(0).integers(0, 2, (40, 3)).astype(np.uint8)
    settings = {**SMALL, "epochs": 1, "estimator": "rloo"}
    with start_run(open_source(values), "run", **settings) as training:
        list(training.epochs())
    np.save("values.npy", values)
    with pytest.raises(ValueError, match=r"got values of a program.* or save them and name"):
        load_run("run").rows("train")
    assert torch.equal(load_run("run").rows(values).x[:], torch.from_numpy(values).float())
    with resume_run("run", data="values.npy", epochs=2) as training:
        assert [record.epoch for record in training.epochs()] == [2]
