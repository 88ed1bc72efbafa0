"""A user's own data through `pdvae fit`, and through the commands that follow."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hostile import Hostile
from numpy.typing import NDArray
from pdvae_cli import train
from PIL import Image

from pyro_dvae import load_run
from pyro_dvae.data.serve import splits as splits_module
from pyro_dvae.runs import data_to_json, read_config
from pyro_dvae.runs.checkpoints import STATE, WEIGHTS
from pyro_dvae.runs.log import read_metrics
from pyro_dvae.runs.storage import read_tensors

Run = Callable[..., tuple[int, str, str]]

SMALL = ["--hidden=4", "--latents=2", "--categories=3", "--device=cpu", "--epochs=2"]
SMALL += ["--batch-size=8"]


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "_draw", lambda *_, **__: None)


def grey(*shape: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def table(path: str, num: int = 40, *, order: str = "abc", labels: bool = True) -> None:
    """Columns a, b and c from -1 to 1, and a species."""
    source = np.random.default_rng(1)
    values = {name: source.uniform(-1, 1, num) for name in "abc"}
    lines = [",".join([*order, *(["species"] if labels else [])])]
    for i in range(num):
        cells = [f"{values[name][i]:.3f}" for name in order]
        lines.append(",".join([*cells, *(["xyz"[i % 3]] if labels else [])]))
    Path(path).write_text("\n".join(lines) + "\n")


def facts(folder: str) -> dict[str, Any]:
    return data_to_json(read_config(folder).data)


EVENTS = [(27, 33), (131, 2), (5,), (3, 20, 30), (1, 6, 7), (2, 3, 4, 5), ()]


@pytest.mark.parametrize("event", EVENTS, ids=str)
@pytest.mark.parametrize(
    "num", [25, pytest.param(9, marks=pytest.mark.slow), pytest.param(6, marks=pytest.mark.slow)]
)
def test_any_shape_trains_is_evaluated_and_encoded(
    pdvae: Run, event: tuple[int, ...], num: int
) -> None:
    """25 and 9 leave a last batch of 1; 6 are less than a batch."""
    np.save("x.npy", grey(num, *event))
    status, out, err = pdvae("fit", "run", "--data=x.npy", "--val=1", "--test=0", *SMALL)
    assert (status, err) == (0, "")
    assert f"data: {num} rows of " in out
    assert f"{num - 1} training and 1 validation" in out
    assert load_run(Path("run")).event_shape == event
    assert Path("run/elbo.png").exists()
    is_picture = len(event) == 2 or (len(event) == 3 and event[0] in (1, 3))
    assert Path("run/samples.png").exists() == is_picture
    assert ("are no images: of the pictures only elbo.png was drawn" in out) != is_picture
    assert ("what the categories mean: pdvae traverse run\n" in out) == (len(event) == 1)
    status, out, err = pdvae("encode", "run", "--data=x.npy", "-ocodes.csv")
    assert (status, err) == (0, "")
    assert len(Path("codes.csv").read_text().splitlines()) == num + 1
    assert pdvae("evaluate", "run", "--split=train")[0] == 0
    for command in (["sample"], ["reconstruct", "--input=x.npy"], ["traverse", "--input=x.npy"]):
        status, _, err = pdvae(command[0], "run", *command[1:])
        is_table = command[0] == "traverse" and len(event) == 1
        assert (status, err.count("\n")) == ((0, 0) if is_picture or is_table else (2, 1))
    status, _, err = pdvae("evaluate", "run")
    assert (status, err.count("\n")) == (2, 1)
    assert "got a run that keeps no test data" in err


@pytest.mark.usefixtures("no_pictures")
def test_one_row_trains_if_nothing_is_kept_apart(pdvae: Run) -> None:
    np.save("x.npy", grey(1, 3, 4))
    status, _, err = pdvae("fit", "run", "--data=x.npy", *SMALL)
    assert (status, err.count("\n")) == (2, 1)
    assert "got 0.05 of 1 data for validation" in err
    assert "or use 0" in err
    status, out, err = pdvae("fit", "run", "--data=x.npy", "--val=0", "--test=0", *SMALL)
    assert (status, err) == (0, "")
    assert "validation none" in out
    assert read_config(Path("run")).config.patience is None
    assert pdvae("info", "run")[0] == 0
    assert pdvae("fit", "--resume", "run", "--epochs=3")[0] == 0
    assert [record.of_guide for record in load_run("run").metrics] == [False] * 3 + [True]


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("dtype", ["?", "u1", "<i8", ">f4", "f8", "f2"])
def test_zeros_and_ones_of_any_dtype_train_to_the_same(pdvae: Run, dtype: str) -> None:
    bits = (grey(30, 3, 5) > 99).astype("u1")
    np.save("u1.npy", bits)
    np.save("x.npy", np.asfortranarray(bits.astype(dtype)))
    assert pdvae("fit", "first", "--data=u1.npy", *SMALL)[0] == 0
    status, out, _ = pdvae("fit", "run", "--data=x.npy", *SMALL)
    assert status == 0
    assert "none binarisation" in out
    assert read_config(Path("run")).config.binarize == "none"
    ours, theirs = (read_tensors(Path(f) / WEIGHTS, "a run")[0] for f in ("first", "run"))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.usefixtures("no_pictures")
def test_a_table_is_read_the_same_ever_after(pdvae: Run) -> None:
    table("the table.csv")
    table("more:ä.csv", 7, order="cab", labels=False)
    status, out, err = pdvae(
        *("fit", "run", "--data=the table.csv", "--labels=species", "--range=-1,1"),
        *("--binarize=threshold", "--val=4", "--test=0.25", *SMALL),
    )
    assert (status, err) == (0, "")
    assert "data: 40 rows of 3, float64, -0." in out
    assert "3 classes" in out
    assert "26 training and 4 validation rows, threshold within -1,1 binarisation" in out
    assert "nats/row" in out
    assert (facts("run")["num_train"], facts("run")["num_test"]) == (26, 10)
    assert facts("run")["columns"] == ["a", "b", "c"]

    # Columns come in another order here, and there is no species.
    assert pdvae("encode", "run", "--data=more:ä.csv", "-omore.csv")[0] == 0
    assert pdvae("encode", "run", "--data=the table.csv", "-oall.csv")[0] == 0
    codes = [line.split(",") for line in Path("all.csv").read_text().splitlines()]
    more = [line.split(",") for line in Path("more.csv").read_text().splitlines()]
    assert [row[1] for row in codes[1:4]] == ["x", "y", "z"]
    values = np.random.default_rng(1)
    few = {name: values.uniform(-1, 1, 7) for name in "abc"}
    np.save("few.npy", np.stack([few[name] for name in "abc"], 1).round(3))
    assert pdvae("encode", "run", "--data=few.npy", "-ofew.csv")[0] == 0
    assert Path("few.csv").read_text().splitlines() == [",".join(row) for row in more]

    # Training goes on, whole and from elsewhere.
    assert pdvae("fit", "--resume", "run", "--epochs=3", "--range=-1,1", "--val=4")[0] == 0
    Path("elsewhere").mkdir()
    Path("the table.csv").rename("elsewhere/the table.csv")
    status, _, err = pdvae("evaluate", "run")
    assert (status, err.count("\n")) == (2, 1)
    assert "which is not there" in err
    assert pdvae("evaluate", "run", "--data-dir=elsewhere")[0] == 0
    assert pdvae("score", "run", "--data=train", "--data-dir=elsewhere", "--top=1")[0] == 0
    assert pdvae("fit", "--resume=run", "--epochs=4", "--data-dir=elsewhere")[0] == 0
    assert facts("run")["path"] == str(Path("elsewhere/the table.csv").resolve())
    assert pdvae("gradients", "run", "--estimators=exact", "--draws=20")[0] == 0
    for option, message in {
        "--range=0,1": "--range 0.0,1.0 (the run's: (-1.0, 1.0))",
        "--test=5": "--test 5 (the run's: 0.25)",
        "--binarize=static": "--binarize static (the run's: threshold)",
        "--labels=a": "--labels a (the run's: species)",
        "--size=3x3": "--size 3x3 (the run's: None)",
    }.items():
        status, out, err = pdvae("fit", "--resume", "run", option)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert message in err
    with Path("elsewhere/the table.csv").open("a") as file:
        file.write("0,0,0,x\n")
    status, _, err = pdvae("evaluate", "run")
    assert (status, err.count("\n")) == (2, 1)
    assert "Expected the run's data, the table.csv from" in err


@pytest.mark.usefixtures("no_pictures")
def test_files_for_validation_and_testing(pdvae: Run) -> None:
    for name, num in {"x": 20, "val": 5, "test": 6}.items():
        np.save(f"{name}.npy", grey(num, 2, 3, seed=num))
    files = ["--val=val.npy", "--test=test.npy"]
    assert pdvae("fit", "run", "--data=x.npy", *files, *SMALL)[0] == 0
    counts = [facts("run")[f"num_{part}"] for part in ("train", "validation", "test")]
    assert counts == [20, 5, 6]
    assert pdvae("encode", "run", "--data=test", "-opart.csv")[0] == 0
    assert pdvae("encode", "run", "--data=test.npy", "-ofile.csv")[0] == 0
    assert Path("part.csv").read_bytes() == Path("file.csv").read_bytes()
    np.save("test.npy", grey(6, 2, 3, seed=99))
    status, _, err = pdvae("evaluate", "run")
    assert (status, err.count("\n")) == (2, 1)
    assert "Expected the run's test data" in err


@pytest.mark.usefixtures("no_pictures")
def test_a_folder_of_images_of_two_sizes(pdvae: Run) -> None:
    for i in range(24):
        path = Path("pictures") / "ab"[i % 2] / f"picture {i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(grey(8 + i % 2, 10, 3, seed=i)).save(path)
    status, out, err = pdvae("fit", "run", "--data=pictures", *SMALL)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "--size" in err
    assert not Path("run").exists()
    options = ["--size=6x5", "--val=6", "--test=6"]
    status, out, err = pdvae("fit", "run", "--data=pictures", *options, *SMALL)
    assert (status, err) == (0, "")
    assert "24 rows of 3 x 6 x 5, uint8" in out
    assert "2 classes" in out
    assert pdvae("encode", "run", "--data=pictures/b", "-ob.csv")[0] == 0
    assert len(Path("b.csv").read_text().splitlines()) == 13
    assert pdvae("fit", "--resume", "run", "--epochs=3", "--size=6x5")[0] == 0


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("policy", ["dynamic", "static"])
def test_data_larger_than_memory_resume_bit_for_bit(
    pdvae: Run, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    monkeypatch.setattr(splits_module, "IN_MEMORY", 64)
    np.save("x.npy", grey(60, 2, 3))
    options = [f"--binarize={policy}", "--data=x.npy", "--log-every=2", *SMALL]
    assert pdvae("fit", "whole", *options, "--epochs=4")[0] == 0
    assert pdvae("fit", "parts", *options)[0] == 0
    assert pdvae("fit", "--resume", "parts", "--epochs=4", "--log-every=2")[0] == 0
    for name in (WEIGHTS, STATE):
        ours, theirs = (read_tensors(Path(f) / name, "a run")[0] for f in ("whole", "parts"))
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    lines = [[{**x, "seconds": 0} for x in read_metrics(Path(f))] for f in ("whole", "parts")]
    assert lines[0] == lines[1]
    assert pdvae("evaluate", "parts", "--split=train")[0] == 0


def test_names_of_runs_are_fit_for_folders(pdvae: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "_draw", lambda *_, **__: None)
    np.save("a b: ü.npy", grey(20, 4))
    assert pdvae("fit", "--data=a b: ü.npy", *SMALL, "--val=4")[0] == 0
    assert Path("runs/a-b-ü-d2k3-marginal-1/weights.safetensors").exists()


def _bad_data() -> None:
    np.save("x.npy", grey(20, 3, 4))
    np.save("bits.npy", grey(20, 3, 4) > 9)
    np.save("unit.npy", grey(20, 3, 4) / 255)
    np.save("whole.npy", grey(20, 3, 4).astype(float))
    np.save("signed.npy", grey(20, 3, 4).astype("i2") - 100)
    nan = grey(20, 3, 4) / 255
    nan[3, 1, 2] = np.nan
    np.save("nan.npy", nan)
    np.save("gap.npy", np.where(np.isnan(nan), nan, 3))
    np.save("inf.npy", np.where(np.isnan(nan), np.inf, nan))
    np.save("objects.npy", np.array([None, 1], object), allow_pickle=True)
    np.save("complex.npy", np.ones((3, 2), complex))
    np.save("none.npy", np.zeros((0, 4), np.uint8))
    np.save("wide.npy", grey(20, 4, 3))
    np.save("few.npy", grey(2, 3, 4))
    np.savez("two.npz", a=grey(9, 2), b=grey(9, 2))
    np.savez("labelled.npz", x=grey(9, 2), labels=np.zeros(8))
    Path("cut.npy").write_bytes(Path("x.npy").read_bytes()[:-9])
    Path("empty.npy").touch()
    Path("empty.csv").touch()
    Path("text.csv").write_text("a,b\n1,2\nx,3\n")
    Path("holes.csv").write_text("a,b\n1,\n,\n0,\n")
    Path("ragged.csv").write_text("a,b\n1,0\n1,0,1\n")
    Path("notes.txt").write_text("hello")
    Path("folder").mkdir()
    Path("cut-idx").write_bytes(b"\0\0\x08\x03" + struct.pack(">III", 9, 2, 2) + b"\0")
    Path("words").mkdir()
    Path("words/a.txt").touch()
    for i, mode in enumerate(["RGB", "RGBA", "L"]):
        Path("modes").mkdir(exist_ok=True)
        Image.new(mode, (4, 4)).save(f"modes/{i}.png")
    Path("broken").mkdir()
    Path("broken/0.png").write_bytes(Path("modes/0.png").read_bytes()[:40])
    table("table.csv")


BAD: list[tuple[list[str], str]] = [
    (["missing.npy"], "which is not there"),
    (["mnits"], "Did you mean mnist"),
    (["unit.npy"], "got torch.float64 values 0 to 1. Use --range 0,1,"),
    (["whole.npy"], "got torch.float64 values 0 to 25"),
    (["signed.npy"], "got torch.int16 values -100 to 15"),
    (["signed.npy", "--range=0,100"], "within the range 0 to 100; got torch.int16 values -100 to"),
    (["unit.npy", "--range=0,0.5"], "within the range 0 to 0.5; got torch.float64 values 0 to 1"),
    (["unit.npy", "--range=0,1", "--binarize=none"], "in a range. Use --binarize dynamic"),
    (["unit.npy", "--range=1,0"], "of finite width, the lower number first; got 1 and 0"),
    (["unit.npy", "--range=0"], "Expected --range as LOW,HIGH; got '0'"),
    (["unit.npy", "--range=0,nan"], "finite width"),
    (["unit.npy", "--binarize=threshold"], "Use --range 0,1,"),
    (["x.npy", "--binarize=none"], "all 0 or 1 where nothing is binarised; got torch.uint8"),
    (["x.npy", "--binarize=fuzzy"], "binarisation to be one of dynamic, static, threshold, none"),
    (["bits.npy", "--binarize=dynamic"], "no binarisation of zeros and ones; got torch.bool"),
    (["gap.npy", "--likelihood=multinomial"], "independent given z, for data with missing values"),
    (["nan.npy"], "0 to 1, some of them missing (NaN). Use --range 0,1,"),
    (["nan.npy", "--range=0,1", "--binarize=static"], "takes missing values; got static"),
    (["inf.npy", "--range=0,1"], "1 infinite, the first in row 3"),
    (["objects.npy"], "objects.npy"),
    (["complex.npy"], "complex128"),
    (["none.npy"], "(0, 4)"),
    (["cut.npy"], "cut.npy"),
    (["empty.npy"], "0 bytes"),
    (["two.npz"], "a, b; got no key"),
    (["two.npz", "--key=c"], "got the key 'c'"),
    (["x.npy", "--key=a"], "--key"),
    (["labelled.npz"], "labels of shape (9,)"),
    (["empty.csv"], "empty.csv"),
    (["text.csv"], "numbers in column 'a' of text.csv; got 'x' in row 1 (counted from 0)"),
    (["holes.csv"], "in each column; got none in column 'b'. Leave it out with --drop b"),
    (["ragged.csv"], "ragged.csv"),
    (["table.csv", "--labels=species"], "got torch.float64 values -0."),
    (["table.csv"], "column 'species'"),
    (["table.csv", "--labels=genus"], "got 'genus'"),
    (["table.csv", "--columns=a,z"], "got 'z'"),
    (["table.csv", "--size=3x3"], "--size"),
    (["notes.txt"], "got notes.txt"),
    (["folder"], "an empty folder"),
    (["words"], "got a.txt"),
    (["modes"], "Pass --channels 1 or --channels 3"),
    (["modes", "--channels=2"], "--channels 1 or 3; got 2"),
    (["modes", "--channels=1", "--size=4"], "--size as HEIGHTxWIDTH; got '4'"),
    (["broken"], "0.png"),
    (["cut-idx"], "it has 17 bytes, not 52 for its shape (9, 2, 2)"),
    (["x.npy", "--val=nowhere.npy"], "--val as a fraction, a number of rows, or a file"),
    (["x.npy", "--val=wide.npy"], "shape (20, 3, 4); got torch.uint8 of shape (20, 4, 3)"),
    (["x.npy", "--test=bits.npy"], "got torch.bool of shape (20, 3, 4)"),
    (["x.npy", "--test=nan.npy"], "got torch.float64"),
    (
        ["unit.npy", "--range=0,1", "--test=nan.npy"],
        "no missing values for the bernoulli likelihood",
    ),
    (["x.npy", "--val=20"], "data in both parts; got 20 of 20 data for validation"),
    (["x.npy", "--val=10", "--test=10"], "10 of 20 data for validation and 10 for testing"),
    (["x.npy", "--val=-1"], "got -1"),
    (["x.npy", "--val=1.0"], "got 1.0"),
    (["x.npy", "--test=nan"], "got nan"),
    (["few.npy"], "got 0.05 of 2 data for validation"),
    (["x.npy", "--val=0", "--patience=3"], "validation data for --patience"),
    (["x.npy", "--data-dir=."], "--data-dir"),
    (["mnist-sample", "--test=0.1"], "no --test for data with a test part of their own"),
    (["mnist-sample", "--labels=a"], "--labels"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[" ".join(row[0]) for row in BAD])
def test_bad_data_are_one_line_and_exit_2(pdvae: Run, arguments: list[str], message: str) -> None:
    _bad_data()
    before = sorted(Path.cwd().rglob("*"))
    status, out, err = pdvae("fit", *SMALL, "--data", *arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert sorted(Path.cwd().rglob("*")) == before


def test_a_file_that_breaks_while_it_is_trained_on_is_exit_1(
    pdvae: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyro_dvae.data import BlockData, DataError

    monkeypatch.setattr(splits_module, "IN_MEMORY", 64)
    np.save("x.npy", grey(60, 2, 3))

    def broken(self: Any, blocks: Any, values: Any) -> Any:
        raise DataError("Expected a whole image; got half of it. Replace the file.")

    monkeypatch.setattr(BlockData, "_load", broken)
    status, _, err = pdvae("fit", "run", "--data=x.npy", *SMALL)
    assert (status, err.count("\n")) == (1, 1)
    assert "got half of it" in err
    assert "What was saved before stays in run" in err


def test_config_of_a_run_is_plain_json(pdvae: Run, no_pictures: None) -> None:
    np.save("x.npy", grey(30, 2, 3) / 100)
    assert pdvae("fit", "run", "--data=x.npy", "--range=0,3", *SMALL)[0] == 0
    content = json.loads(Path("run/config.json").read_text())
    assert content["config"]["range"] == [0, 3]
    assert content["config"]["binarize"] == "dynamic"
    assert content["data"]["path"] == str(Path("x.npy").resolve())
    assert read_config(Path("run")).config.range == (0, 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "said", "left"),
    [
        (
            "own_table",
            ["--epochs=1", "--num-rows=200"],
            "got torch.int64 values 0",
            "own_table.png",
        ),
        ("own_images", ["--epochs=1", "--num-images=60"], "--size", "run-pictures/samples.png"),
        ("benchmarks/larger_than_memory", ["--gigabytes=0.001"], "peak resident memory", ""),
    ],
)
def test_examples_run(
    tmp_path: Path,
    hostile_server: Hostile,
    name: str,
    options: list[str],
    said: str,
    left: str,
) -> None:
    script = Path(__file__).parents[2] / "examples" / f"{name}.py"
    outcome = hostile_server.run_script(script, *options, cwd=tmp_path)
    assert said in outcome.out + outcome.err
    assert (tmp_path / left).exists()
