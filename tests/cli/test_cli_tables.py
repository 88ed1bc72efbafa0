"""Tables of names, bits and numbers through `pdvae fit`, and through the commands that follow."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pdvae_cli import train

from pyro_dvae import load_run
from pyro_dvae.data import load_array

Run = Callable[..., tuple[int, str, str]]

SMALL = ["--likelihood=mixed", "--hidden=4", "--latents=2", "--categories=3", "--device=cpu"]
SMALL += ["--epochs=2", "--batch-size=8"]
LOGICAL = (False, True)


@pytest.fixture(autouse=True)
def _no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "_draw", lambda *_: None)


def penguins(path: str, num: int = 40, islands: str = "Biscoe Dream Torgersen") -> None:
    """The name of each bird, its island, whether it is an adult, its mass and its sex."""
    source, known = np.random.default_rng(1), islands.split()
    lines = ["who,island,adult,mass,sex"]
    for i in range(num):
        mass = f"{source.normal(4, 1):.3f}"
        lines.append(f"bird {i},{known[i % len(known)]},{i % 2 == 0},{mass},{'mf'[i % 4 // 2]}")
    Path(path).write_text("\n".join(lines) + "\n")


def test_a_table_of_names_trains_and_other_files_are_read_alike(pdvae: Run) -> None:
    penguins("birds.csv")
    status, _, err = pdvae("fit", "--data=birds.csv", *SMALL)
    assert (status, err) == (
        2,
        "pdvae: Expected numbers, or names that recur, in birds.csv; got 40 different texts in 40 "
        "rows in column 'who'. Leave it out with --drop who.\n",
    )
    status, _, err = pdvae("fit", "--data=birds.csv", "--drop=who", SMALL[1])
    assert status == 2
    assert "got names in column 'island': Biscoe, Dream, Torgersen. Use --likelihood mixed" in err
    assert pdvae("fit", "run", "--data=birds.csv", "--ids=who", *SMALL)[0] == 0
    run = load_run("run")
    assert run.config.likelihood == "mixed:categorical:3,bernoulli,normal,bernoulli"
    assert run.data.columns == ("island", "adult", "mass", "sex")
    assert run.data.levels == {
        "island": ("Biscoe", "Dream", "Torgersen"),
        "adult": ("False", "True"),
        "sex": ("f", "m"),
    }
    assert run.data.open().train.labels is None
    assert pdvae("fit", "--resume=run", "--epochs=3")[0] == 0
    assert pdvae("evaluate", "run")[0] == 0
    # Only one island: its level is that of the training all the same.
    penguins("dream.csv", 3, "Dream")
    assert run.rows("dream.csv").x[:][:, 0].tolist() == [1, 1, 1]
    penguins("cape.csv", 3, "Dream Cape")
    status, _, err = pdvae("score", "run", "--data=cape.csv")
    assert (status, err) == (
        2,
        "pdvae: Expected Biscoe, Dream, Torgersen in column 'island' of cape.csv, as the model was "
        "trained on; got 'Cape' in row 2 (the first is row 1). Correct such rows or leave them "
        "out, or train a model with --other, which gives such names a level.\n",
    )


def test_commands_write_names_and_say_which_row_each_datum_is(pdvae: Run) -> None:
    penguins("birds.csv")
    options = ["--data=birds.csv", "--ids=who", "--labels=sex", *SMALL]
    assert pdvae("fit", "run", *options, "--prior=conditional")[0] == 0
    run = load_run("run")
    whole = pd.read_csv("birds.csv")
    assert pdvae("encode", "run", "-o", "codes.csv")[0] == 0
    codes = pd.read_csv("codes.csv")
    assert [*codes.columns] == ["index", "row", "id", "label", "z1", "z2"]
    assert codes["id"].tolist() == whole["who"][codes["row"]].tolist()
    assert codes["label"].tolist() == whole["sex"][codes["row"]].tolist()
    assert codes["row"].tolist() != codes["index"].tolist()
    assert pdvae("score", "run", "-o", "scores.csv")[0] == 0
    scores = pd.read_csv("scores.csv").sort_values("index")
    assert scores["row"].tolist() == codes["row"].tolist()
    assert scores["id"].tolist() == codes["id"].tolist()
    np.testing.assert_allclose(scores["score"], run.score("test"), rtol=1e-5)
    out = pdvae("score", "run", "--top=1")[1]
    assert out.splitlines()[1].split() == ["rank", "index", "row", "id", "label", "score"]
    assert pdvae("score", "run", "--data=birds.csv", "-o", "all.csv")[0] == 0
    assert [*pd.read_csv("all.csv").columns][:4] == ["rank", "index", "id", "label"]
    # Decoded rows have the names of levels, and so have drawn ones; they can be scored again.
    for command in (["decode", "run", "codes.csv"], ["sample", "run", "-n9"]):
        for kind in ("--means", "--draws"):
            assert pdvae(*command, kind, "-o", "rows.csv", "--force")[0] == 0
            rows = pd.read_csv("rows.csv")
            assert [*rows.columns][-4:] == ["sex", "island", "adult", "mass"]
            assert set(rows["island"]) <= {"Biscoe", "Dream", "Torgersen"}
            assert rows["adult"].dtype == bool
            assert set(rows["sex"]) <= {"f", "m"}
            assert pdvae("score", "run", "--data=rows.csv", "--top=1")[0] == 0
    status, out, _ = pdvae("reconstruct", "run", "-o", "made.csv")
    assert (status, out.split("; ")[0]) == (
        0,
        f"made.csv: {len(codes)} rows of the test part of birds.csv, means of p(x|z) at their most "
        "probable codes",
    )
    made = pd.read_csv("made.csv")
    assert made["id"].tolist() == codes["id"].tolist()
    assert made["island"].tolist() == whole["island"][codes["row"]].tolist()
    assert made["adult"].tolist() == whole["adult"][codes["row"]].tolist()
    assert pdvae("decode", "run", "codes.csv", "-o", "rows.csv", "--force")[0] == 0
    again = pd.read_csv("rows.csv")
    assert made["island_reconstructed"].tolist() == again["island"].tolist()
    assert made["mass_reconstructed"].tolist() == again["mass"].tolist()
    assert pdvae("reconstruct", "run", "--input=birds.csv", "-n2", "-o", "two.csv")[0] == 0
    assert pd.read_csv("two.csv")["id"].tolist() == ["bird 0", "bird 1"]
    assert pdvae("decode", "run", "codes.csv", "-o", "rows.npz")[0] == 0
    decoded = load_array("rows.npz").values
    assert set(decoded[:, 0].tolist()) <= {0.0, 1.0, 2.0}  # a level, and not a mean of levels
    with np.load("rows.npz", allow_pickle=False) as arrays:
        assert arrays["labels"].tolist() == [run.class_number(label) for label in codes["label"]]


def test_pdvae_data_prints_the_command_that_trains(pdvae: Run) -> None:
    penguins("birds.csv")
    status, out, _ = pdvae("data", "birds.csv", "--labels=sex", "--drop=who")
    command = "pdvae fit --data birds.csv --drop who --labels sex --likelihood mixed"
    assert (status, out.splitlines()[-1]) == (0, f"to train: {command}")
    found = json.loads(pdvae("data", "birds.csv", "--labels=sex", "--drop=who", "--json")[1])
    assert found["command"] == command
    status, _, err = pdvae(*command.split()[1:], *SMALL[1:])
    assert (status, err) == (
        0,
        "columns: island categorical (Biscoe, Dream, Torgersen), adult bernoulli (False, True), "
        "mass normal\n",
    )
    np.save("x.npy", np.zeros((3, 4, 4), bool))
    assert pdvae("data", "x.npy")[1].endswith("to train: pdvae fit --data x.npy\n")
    assert "to train" not in pdvae("data", "x.npy", "--json")[1]


def test_numbers_that_are_categories(pdvae: Run) -> None:
    years = np.arange(60) % 3 + 2007
    lengths = np.random.default_rng(0).normal(size=60)
    lines = [f"{year},{length:.3f}" for year, length in zip(years, lengths, strict=True)]
    Path("x.csv").write_text("\n".join(["year,length", *lines]) + "\n")
    assert pdvae("fit", "run", "--data=x.csv", *SMALL)[0] == 0
    run = load_run("run")
    assert run.config.likelihood == "mixed:categorical:3,normal"
    assert run.data.levels == {"year": ("2007", "2008", "2009")}
    Path("new.csv").write_text("length,year\n1.5,2009\n2.5,2007.0\n")
    assert run.rows("new.csv").x[:].tolist() == [[2, 1.5], [0, 2.5]]
    assert pdvae("evaluate", "run")[0] == 0
    Path("new.csv").write_text("length,year\n1.5,2010\n")
    assert (
        "Expected 2007, 2008, 2009 in column 'year'" in pdvae("score", "run", "--data=new.csv")[2]
    )
    options = ["--data=x.csv", *SMALL[1:]]
    assert pdvae("fit", "other", "--likelihood=mixed:year=laplace", *options)[0] == 0
    assert load_run("other").config.likelihood == "mixed:laplace,normal"


def test_a_level_for_names_that_come_later(pdvae: Run) -> None:
    penguins("birds.csv")
    assert pdvae("fit", "run", "--data=birds.csv", "--drop=who", "--other", *SMALL)[0] == 0
    penguins("cape.csv", 3, "Dream Cape")
    assert load_run("run").rows("cape.csv").x[:][:, 0].tolist() == [1, 3, 1]
    assert pdvae("score", "run", "--data=cape.csv")[0] == 0


def test_cells_that_are_missing_stay_empty(pdvae: Run) -> None:
    penguins("birds.csv")
    lines = Path("birds.csv").read_text().splitlines()
    lines[2] = "bird 1,,True,,f"
    Path("birds.csv").write_text("\n".join(lines) + "\n")
    assert pdvae("fit", "run", "--data=birds.csv", "--ids=who", *SMALL)[0] == 0
    assert pdvae("reconstruct", "run", "--input=birds.csv", "-n3", "-o", "made.csv")[0] == 0
    made = pd.read_csv("made.csv")
    assert made["island"].isna().tolist() == made["mass"].isna().tolist() == [False, True, False]
    assert set(made["island_reconstructed"]) <= {"Biscoe", "Dream", "Torgersen"}
    assert made["mass_reconstructed"].notna().all()


@pytest.fixture
def birds(pdvae: Run) -> pd.DataFrame:
    """A run of 40 birds, whose sex is the label, and their table."""
    penguins("birds.csv")
    assert pdvae("fit", "run", "--data=birds.csv", "--ids=who", "--labels=sex", *SMALL)[0] == 0
    return pd.read_csv("birds.csv")


def test_traverse_tells_what_the_categories_mean(pdvae: Run, birds: pd.DataFrame) -> None:
    run = load_run("run")
    status, out, err = pdvae("traverse", "run", "-o", "means.png")
    assert (status, err) == (0, "")
    found = run.profile()
    assert out == (
        "means.csv, means.png: what the categories mean in the train part of birds.csv by the "
        "exact q(z|x); run, "
        f"weights of epoch {run.epoch}\n{found}\n"
    )
    assert Path("means.png").stat().st_size > 10_000
    # By the probabilities that `encode` writes, and the rows of the file that it names.
    options = ["--data=train", "--probabilities", "--posterior=exact"]
    assert pdvae("encode", "run", *options, "-oq.csv")[0] == 0
    q = pd.read_csv("q.csv")
    rows = birds.iloc[q["row"]].reset_index(drop=True)
    lines = pd.read_csv("means.csv").set_index(["latent", "category", "column", "level"])
    lines = lines.sort_index()
    for d, k in ((1, 0), (2, 2)):
        weight = q[f"z{d}_{k}"]
        line = lines.loc[(f"z{d}", k, "mass")].iloc[0]
        assert line["rows"] == pytest.approx(weight.sum(), rel=1e-6)
        assert line["value"] == pytest.approx((weight * rows["mass"]).sum() / weight.sum())
        assert line["whole"] == pytest.approx(rows["mass"].mean())
        spread = rows["mass"].std(ddof=0)
        assert line["difference"] == pytest.approx((line["value"] - line["whole"]) / spread)
        for column, level in (("island", "Dream"), ("adult", "True"), ("sex", "m")):
            line = lines.loc[(f"z{d}", k, column, level)]
            has = rows[column].astype(str) == level
            assert line["count"] == pytest.approx((weight * has).sum(), rel=1e-6)
            assert line["value"] == pytest.approx((weight * has).sum() / weight.sum(), rel=1e-6)
            assert line["lift"] == pytest.approx(line["value"] / has.mean())
        typical = q.sort_values(f"z{d}_{k}", ascending=False)["id"].iloc[0]
        assert line["typical_rows"].startswith(typical)


def test_traverse_of_a_table_takes_other_data(pdvae: Run, birds: pd.DataFrame) -> None:
    birds.drop(columns=["sex", "who"]).iloc[:9].to_csv("few.csv", index=False)
    status, out, err = pdvae("traverse", "run", "--input=few.csv", "-o", "few.csv")
    assert (status, err.count("\n")) == (2, 1)
    assert "got few.csv, which exists" in err
    status, out, err = pdvae("traverse", "run", "--data=few.csv", "-o", "means.csv")
    assert (status, err) == (0, "")  # there are no labels
    assert "Profile of 9 rows." in out
    lines = pd.read_csv("means.csv")
    assert set(lines["column"].dropna()) == {"island", "adult", "mass"}
    assert Path("means.png").is_file()
    for arguments, words in (
        (["--index=0", "-o", "new.png"], "Expected no --index for a table; got 0"),
        (["-o", "means.png"], "means.png, which exists"),
        (["--data=nowhere", "-o", "new.png"], "'nowhere'"),
        (["-o", "birds.png", "--force"], "another file than that of the data; got birds.csv"),
        (["--data=few.csv", "-o", "few.png", "--force"], "than that of the data; got few.csv"),
    ):
        status, _, err = pdvae("traverse", "run", *arguments)
        assert (status, err.count("\n")) == (2, 1)
        assert words in err
    assert not Path("new.csv").exists()


@pytest.mark.parametrize("suffix", [".csv", ".npz"])
def test_decoded_rows_keep_their_identity(pdvae: Run, birds: pd.DataFrame, suffix: str) -> None:
    assert pdvae("encode", "run", "-o", f"codes{suffix}")[0] == 0
    assert pdvae("encode", "run", "-o", "test.csv")[0] == 0
    test = pd.read_csv("test.csv")
    about = ["row", "id", "sex"] if suffix == ".npz" else ["index", "row", "id", "sex"]
    options: list[list[str]] = [[], ["--draws"], ["--probabilities"]]
    for more in options:
        command = ["decode", "run", f"codes{suffix}", *more, "-o", "rows.csv", "--force"]
        assert pdvae(*command)[0] == 0
        rows = pd.read_csv("rows.csv")
        assert [*rows.columns][: len(about)] == about
        for column in ("row", "id"):
            assert rows[column].tolist() == test[column].tolist()
        assert rows["sex"].tolist() == birds["sex"][rows["row"]].tolist()
    islands = [column for column in rows.columns if column.startswith("island=")]
    assert islands == ["island=Biscoe", "island=Dream", "island=Torgersen"]
    assert rows[islands].sum(axis=1).tolist() == pytest.approx([1] * len(rows), abs=1e-6)
    assert pdvae("decode", "run", f"codes{suffix}", "-o", "rows.npz")[0] == 0
    with np.load("rows.npz", allow_pickle=False) as arrays:
        assert arrays.files == ["images", "labels", "row", "id"]
        assert arrays["row"].tolist() == test["row"].tolist()
        assert arrays["id"].tolist() == test["id"].tolist()
    assert len(load_array(Path("rows.npz")).values) == len(test)  # without --key


def test_reconstructed_rows_are_beside_the_rows_as_stored(pdvae: Run, birds: pd.DataFrame) -> None:
    command = ["reconstruct", "run", "--data=birds.csv", "--force", "-o", "made.csv"]
    assert pdvae(*command)[0] == 0
    made = pd.read_csv("made.csv", dtype=str)
    assert (
        made["mass"].tolist()
        == pd.read_csv("birds.csv", dtype=str)["mass"].str.rstrip("0").str.rstrip(".").tolist()
    )
    assert made["id"].tolist() == birds["who"].tolist()
    assert pdvae(*command, "--probabilities", "-n3")[0] == 0
    shown = pd.read_csv("made.csv")
    islands = [f"island_reconstructed={name}" for name in ("Biscoe", "Dream", "Torgersen")]
    assert [*shown.columns][-6:-1] == [*islands, *(f"adult_reconstructed={x}" for x in LOGICAL)]
    best = shown[islands].idxmax(axis=1).str.partition("=")[2]
    assert best.tolist() == made["island_reconstructed"].tolist()[:3]
    for arguments, message in (
        (
            ["decode", "run", "codes.csv", "-o", "x.npz"],
            "Expected a .csv file with --probabilities",
        ),
        (["decode", "run", "codes.csv", "-o", "x.csv", "--draws"], "got --draws. Leave one out."),
        (["reconstruct", "run", "-o", "x.png"], "Expected a .csv file with --probabilities"),
        (["sample", "run", "-o", "x.png"], "Expected a .csv file with --probabilities"),
        (["sample", "run", "-o", "x.csv", "--draws"], "got --draws. Leave one out."),
    ):
        status, _, err = pdvae(*arguments, "--probabilities")
        assert (status, err.count("\n")) == (2, 1)
        assert message in err
