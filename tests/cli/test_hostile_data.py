"""Data that a run never saw or cannot hold, through the commands, in one line."""

from __future__ import annotations

import gzip
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hostile import Hostile
from PIL import Image

Run = Callable[..., tuple[int, str, str]]

SMALL = ("--hidden=4", "--latents=2", "--categories=2", "--device=cpu", "--epochs=1")


def bits(num: int, columns: int) -> str:
    table = np.random.default_rng(0).integers(0, 2, (num, columns))
    return "".join(",".join(map(str, row)) + "\n" for row in table)


def test_names_with_commas_come_back(pdvae: Run) -> None:
    header = '"income, yearly","a ""b""",c\n'
    Path("x.csv").write_text(header + bits(60, 3))
    assert pdvae("fit", "run", "--data=x.csv", *SMALL)[0] == 0
    assert pdvae("sample", "run", "-n7", "--draws", "-os.csv")[0] == 0
    assert Path("s.csv").read_text().startswith(header)
    assert pdvae("score", "run", "--data=s.csv", "-oscores.csv")[0] == 0
    assert len(Path("scores.csv").read_text().splitlines()) == 8
    status, out, _ = pdvae("data", "x.csv", "--columns", 'c, "income, yearly"')
    assert status == 0
    assert "columns               c               bernoulli  0 to 1\n" in out
    assert out.endswith("""to train: pdvae fit --data x.csv --columns 'c,"income, yearly"'\n""")


def test_columns_that_share_a_name_are_refused_before_they_are_trained_on(pdvae: Run) -> None:
    Path("x.csv").write_text("a,a,c\n" + bits(60, 3))
    assert "note: more than one column is called a" in pdvae("data", "x.csv")[1]
    for options in ([], ["--columns=1,2"]):
        status, _, err = pdvae("fit", "run", "--data=x.csv", *options, *SMALL)
        assert (status, err.count("\n")) == (2, 1)
        assert "names of their own in x.csv; got 'a' more than once. Rename one" in err
        assert not Path("run").exists()
    assert pdvae("fit", "run", "--data=x.csv", "--columns=c", *SMALL)[0] == 0
    assert pdvae("score", "run", "--data=x.csv")[0] == 0


def test_a_header_of_numbers(pdvae: Run) -> None:
    Path("x.csv").write_text("2001,2002,2003\n" + bits(60, 3))
    Path("more.csv").write_text("2003,2002,2001\n" + bits(9, 3))
    Path("less.csv").write_text("2003,2002,x\n" + bits(9, 3))
    assert "data                  61 rows of 3" in pdvae("data", "x.csv")[1]
    status, out, err = pdvae("fit", "run", "--data=x.csv", "--header", *SMALL)
    assert (status, err) == (0, "")
    assert "data: 60 rows of 3" in out
    status, out, _ = pdvae("encode", "run", "--data=more.csv", "-oc.csv")
    assert (status, "of 9 rows" in out) == (0, True)
    status, _, err = pdvae("encode", "run", "--data=less.csv", "-od.csv")
    assert (status, err.count("\n")) == (2, 1)
    assert "a column of less.csv: 2003, 2002, x; got '2001'" in err


@pytest.fixture
def mixed(pdvae: Run) -> Run:
    """A run of a table of levels 0 to 3, counts and numbers, and how to change a cell of it."""
    source = np.random.default_rng(0)
    columns = [source.integers(0, 4, 200), source.poisson(3, 200), source.normal(size=200)]
    rows = [f"{a},{b},{c:g}" for a, b, c in zip(*columns, strict=True)]

    Path("x.csv").write_text("level,how many,real\n" + "\n".join(rows) + "\n")
    assert pdvae("fit", "run", "--data=x.csv", "--likelihood=mixed", *SMALL)[0] == 0
    return pdvae


@pytest.mark.parametrize(
    ("row", "cells", "message"),
    [
        (4, "7,3,0", "0, 1, 2, 3 in column 'level' of new.csv, as the model was trained on; "),
        (
            4,
            "-1,3,0",
            "of new.csv, as the model was trained on; got '-1' in row 4",
        ),
        (9, "1.5,3,0", "got '1.5' in row 9 (the first is row 1). Correct such rows"),
        (200, "1,-1,0", "whole numbers from 0 on in column 'how many', as the model was"),
        (200, "1,2.5,0", "got 2.5 in row 200 of new.csv"),
    ],
)
def test_a_value_that_training_never_saw(mixed: Run, row: int, cells: str, message: str) -> None:
    lines = Path("x.csv").read_text().splitlines()
    lines[row] = cells  # the header is line 0
    Path("new.csv").write_text("\n".join(lines) + "\n")
    for command in (["score"], ["score", "-oout.csv"], ["encode", "-oout.csv"]):
        status, out, err = mixed(command[0], "run", "--data=new.csv", *command[1:])
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert message in err
        assert not Path("out.csv").exists()


KINDS: list[tuple[str, np.ndarray, float, str]] = [
    ("categorical:4", np.arange(80).reshape(40, 2) % 4, 4, "whole numbers from 0 to 3"),
    ("poisson", np.arange(80).reshape(40, 2), -1, "whole numbers from 0 to 16777216"),
    ("continuous-bernoulli", np.linspace(0, 1, 80).reshape(40, 2), 1.5, "numbers from 0 to 1"),
    ("beta", np.linspace(0.1, 0.9, 80).reshape(40, 2), 1.0, "numbers from 0 to 1 (its ends"),
    ("bernoulli", np.arange(80).reshape(40, 2) % 2, 2, "whole numbers from 0 to 1"),
    ("bernoulli --range=0,79", np.arange(80.0).reshape(40, 2), 80, "numbers from 0 to 79"),
]


@pytest.mark.parametrize(("likelihood", "values", "wrong", "known"), KINDS)
def test_a_value_outside_of_a_likelihood(
    pdvae: Run, likelihood: str, values: np.ndarray, wrong: float, known: str
) -> None:
    np.save("x.npy", values)
    name = f"--likelihood={likelihood}".split()
    assert pdvae("fit", "run", "--data=x.npy", *name, *SMALL)[0] == 0
    values = values.copy()
    values[17, 1] = wrong
    np.save("new.npy", values)
    for command in (["score"], ["encode", "-oout.csv"]):
        status, out, err = pdvae(command[0], "run", "--data=new.npy", *command[1:])
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert f"Expected {known}" in err
        assert f"in column 1 (counted from 0), as the model was trained on; got {wrong:g} in" in err
        assert "in row 18 of new.npy" in err


def labelled(labels: list[str]) -> str:
    values = np.random.default_rng(0).integers(0, 2, (len(labels), 2))
    return "a,b,y\n" + "".join(f"{a},{b},{y}\n" for (a, b), y in zip(values, labels, strict=True))


@pytest.mark.parametrize("classes", [["1", "2", "3"], ["0", "7"], ["2023", "2025"]])
def test_classes_are_those_that_occur(pdvae: Run, classes: list[str]) -> None:
    """None is invented between or below them, nor is one taken for another in a further file."""
    labels = [classes[i % len(classes)] for i in range(60)]
    Path("x.csv").write_text(labelled(labels))
    options = ["--labels=y", "--prior=conditional"]
    assert pdvae("fit", "run", "--data=x.csv", *options, *SMALL)[0] == 0
    assert pdvae("sample", "run", "-n12", "-os.csv")[0] == 0
    drawn = [line.split(",")[0] for line in Path("s.csv").read_text().splitlines()[1:]]
    assert drawn == sorted(classes * (12 // len(classes)))
    status, _, err = pdvae("sample", "run", "--label=1234", "-ot.csv")
    assert (status, err.count("\n")) == (2, 1)
    assert f"a label of run: {', '.join(classes)}; got '1234'" in err
    assert pdvae("sample", "run", "-n2", f"--label={classes[1]}", "-ot.csv")[0] == 0
    assert Path("t.csv").read_text().splitlines()[1].startswith(f"{classes[1]},")
    assert pdvae("fit", "--resume=run", "--epochs=2")[0] == 0
    assert pdvae("evaluate", "run")[0] == 0
    # A file with some of the classes alone.
    Path("one.csv").write_text(labelled([classes[-1]] * 4))
    assert pdvae("score", "run", "--data=one.csv", "-oscores.csv")[0] == 0
    scored = [line.split(",")[2] for line in Path("scores.csv").read_text().splitlines()[1:]]
    assert scored == [classes[-1]] * 4
    Path("all.csv").write_text(Path("x.csv").read_text())
    assert pdvae("encode", "run", "--data=all.csv", "-ocodes.csv")[0] == 0
    assert pdvae("decode", "run", "codes.csv", "-oback.npz")[0] == 0
    assert np.load("back.npz")["labels"].tolist() == [int(label) for label in labels]
    Path("other.csv").write_text(labelled([classes[0], "4"]))
    status, _, err = pdvae("score", "run", "--data=other.csv")
    assert (status, err.count("\n")) == (2, 1)
    assert f"Expected {', '.join(classes)} as labels in other.csv" in err


def test_labels_for_some_of_the_rows(pdvae: Run) -> None:
    """The first latent is the class; the classes are those that occur, whatever they are called."""
    x = np.random.default_rng(0).integers(0, 2, (120, 1)).repeat(6, 1)
    names = [("v", "u")[row[0]] if i < 30 else "" for i, row in enumerate(x)]
    rows = [",".join(map(str, [*row, name])) for row, name in zip(x, names, strict=True)]
    Path("x.csv").write_text("\n".join(["a,b,c,d,e,f,y", *rows]) + "\n")
    options = ["--labels=y", "--alpha=0.1", *SMALL[:-1], "--epochs=30", "--lr=0.02"]
    assert pdvae("fit", "run", "--data=x.csv", *options)[0] == 0
    out = pdvae("evaluate", "run", "--split=train", "--json")[1]
    assert json.loads(out)["accuracy"] == 1.0
    assert "class accuracy 1.0000" in pdvae("evaluate", "run", "--split=train")[1]
    assert pdvae("encode", "run", "--data=x.csv", "-oc.csv")[0] == 0
    table = [line.split(",") for line in Path("c.csv").read_text().splitlines()[1:]]
    assert [row[1] for row in table] == names
    assert [row[2] for row in table] == [str(1 - row[0]) for row in x]  # u is 0, v is 1
    for more, message in {
        "--prior=conditional": "Expected no alpha with the conditional prior",
        "--alpha=-1": "Expected a finite alpha >= 0; got -1.0. Use --alpha 0.1",
    }.items():
        status, _, err = pdvae("fit", "--data=x.csv", *options, more)
        assert (status, message in err) == (2, True), err
    status, _, err = pdvae("fit", "--data=x.csv", "--columns=a,b", "--alpha=0.1", *SMALL)
    assert (status, "Expected labels for some of the rows of x.csv" in err) == (2, True)
    Path("three.csv").write_text(labelled(["a", "b", "c", ""] * 10))
    status, _, err = pdvae("fit", "--data=three.csv", "--labels=y", "--alpha=0.1", *SMALL)
    assert (status, "got 2. Use --categories 3" in err) == (2, True), err
    told = pdvae("fit-prior", "run", "--prior=conditional")[2]
    assert "which takes labels instead. Use --prior autoregressive, which gives" in told
    assert pdvae("fit", "--resume=run", "--epochs=31")[0] == 0


@pytest.mark.filterwarnings("default:The labels are left out")
def test_labels_that_are_missing(pdvae: Run) -> None:
    Path("x.csv").write_text(labelled(["a", "b", "c"] * 20))
    Path("gap.csv").write_text(labelled(["a", "", "c", ""]))
    Path("none.csv").write_text("a,b\n1,0\n")
    options = ["--labels=y", "--prior=conditional"]
    assert pdvae("fit", "run", "--data=x.csv", *options, *SMALL)[0] == 0
    for name, message in {
        "gap.csv": "a label for each row in gap.csv; got none, or a negative one, in row 1 "
        "(counted from 0), 2 in all",
        "none.csv": "Expected labels, 'y', in none.csv; got none. Add them.",
    }.items():
        status, _, err = pdvae("score", "run", f"--data={name}", "-oout.csv")
        assert (status, err.count("\n"), Path("out.csv").exists()) == (2, 1, False)
        assert message in err
    status, _, err = pdvae("encode", "run", "--data=gap.csv", "-ogap-codes.csv")
    assert (status, err) == (0, "")
    names = [line.split(",")[1] for line in Path("gap-codes.csv").read_text().splitlines()]
    assert names == ["label", "a", "", "c", ""]
    assert pdvae("encode", "run", "--data=none.csv", "-onone-codes.csv")[2] == ""


def test_a_name_that_is_a_number_is_no_place(pdvae: Run) -> None:
    """A run's column "1" is not the second column of a file that has none of this name."""
    Path("x.csv").write_text("a,1\n" + bits(40, 2))
    Path("new.csv").write_text("a,b\n" + bits(4, 2))
    assert pdvae("fit", "run", "--data=x.csv", *SMALL)[0] == 0
    status, _, err = pdvae("encode", "run", "--data=new.csv", "-oc.csv")
    assert (status, err.count("\n")) == (2, 1)
    assert "Expected the run's columns, a, 1, in new.csv; got a, b. Name the columns" in err
    assert pdvae("encode", "run", "--data=x.csv", "-oc.csv")[0] == 0


def _large(name: str) -> None:
    """A small file that holds, or states, gigabytes."""
    if name == "x.gz":  # 3 GiB of images by its header
        header = struct.pack(">BBBBIII", 0, 0, 8, 3, 3 * 2**30 // 784, 28, 28)
        Path(name).write_bytes(gzip.compress(header + bytes(784)))
    elif name == "x.parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        table = pytest.importorskip("pyarrow").table({"a": np.zeros(2**21)})
        with parquet.ParquetWriter(name, table.schema) as writer:
            for _ in range(18):
                writer.write_table(table)
    elif name == "x.csv":
        line = ",".join(["1"] * 10**6) + "\n"
        Path(name).write_text(line * 3)
    else:
        with Path(name).open("wb") as sparse:  # rows of 2 GiB, none of which is written
            shape = {"descr": "|u1", "fortran_order": False, "shape": (2, 2**31)}
            np.lib.format.write_array_header_1_0(sparse, shape)
            sparse.truncate(2**32 + sparse.tell())


@pytest.mark.parametrize("name", ["x.gz", "x.parquet", "x.csv", "x.npy"])
def test_what_is_larger_than_memory_is_one_line_at_once(hostile: Hostile, name: str) -> None:
    _large(name)
    for command in (["data", name], ["fit", "run", "--data", name]):
        outcome = hostile(*command, memory=800, seconds=6)
        assert f" {name}" in outcome.refusal()
        assert outcome.peak < 300
    assert not Path("run").exists()


def test_pipes_are_not_waited_for(hostile: Hostile) -> None:
    Path("d").mkdir()
    for i in range(20):
        Image.new("L", (4, 4), i).save(f"d/{i}.png")
    os.mkfifo("d/z.png")
    os.mkfifo("x.npy")
    outcome = hostile("data", "d", seconds=6)
    assert (outcome.status, outcome.err) == (0, "")
    assert "note: left out, 1 pipes or devices: z.png" in outcome.out
    assert "x.npy, which is neither" in hostile("data", "x.npy", seconds=6).refusal()
    for device in ("/dev/zero", "/dev/stdin"):
        assert "which is neither" in hostile("data", device, seconds=6).refusal()


@pytest.mark.slow
def test_rows_are_scored_and_encoded_in_blocks(hostile: Hostile) -> None:
    """24 MB of bytes, which in single precision are 94 MB, and were held beside both."""
    grey = np.random.default_rng(0).integers(0, 256, (30_000, 784), dtype=np.uint8)
    np.save("x.npy", grey)
    np.save("small.npy", grey[:500])
    no_pictures = "import pdvae_cli.train as t; t._draw = lambda *_, **__: None"
    command = ("fit", "run", "--data=small.npy", "--batch-size=100", *SMALL)
    assert hostile(*command, prelude=no_pictures).status == 0
    for command in (("score", "--top=1"), ("encode",)):
        outcome = hostile(
            command[0], "run", "--data=x.npy", "-oout.csv", "--force", *command[1:], memory=150
        )
        assert (outcome.status, outcome.err) == (0, ""), outcome
        assert len(Path("out.csv").read_text().splitlines()) == 30_001
