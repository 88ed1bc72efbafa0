"""`pdvae evaluate --data`: other data than the run's own, with and without labels."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pdvae_cli import train
from PIL import Image

from pyro_dvae import evaluate, load_run

Run = Callable[..., tuple[int, str, str]]

SMALL = ["--hidden=4", "--latents=2", "--categories=3", "--device=cpu", "--epochs=1"]
SMALL += ["--batch-size=20", "--val=5", "--test=5"]
X = np.random.default_rng(0).integers(0, 256, (30, 3, 4), np.uint8)
Y = np.arange(30) % 3
ROWS = np.random.default_rng(1).normal(size=(30, 2))


@pytest.fixture(autouse=True)
def _no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "_draw", lambda *_, **__: None)


def images(folder: str, names: str, num: int = 9) -> None:
    """A folder with a folder per class; without names, one of images alone."""
    for i, image in enumerate(X[:num]):
        path = Path(folder, names[i % 3] if names else "")
        path.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path / f"{i:02}.png")


def table(path: str, names: str, num: int = 30) -> None:
    """Columns a and b, and a class; without names, no class."""
    frame = pd.DataFrame(ROWS[:num], columns=["a", "b"])
    if names:
        frame["kind"] = [names[i] for i in Y[:num]]
    frame.to_csv(path, index=False)


MAKE: dict[str, Callable[[], Any]] = {
    "labels.npz": lambda: np.savez("labels.npz", x=X, labels=Y),
    "more.npz": lambda: np.savez("more.npz", x=X, labels=Y + 1),
    "alone.npz": lambda: np.savez("alone.npz", x=X),
    "several.npz": lambda: np.savez("several.npz", other=X, x=X, labels=Y),
    "alone.npy": lambda: np.save("alone.npy", X),
    "numbered": lambda: images("numbered", "012"),
    "named": lambda: images("named", "abc"),
    "flat": lambda: images("flat", ""),
    "known.csv": lambda: table("known.csv", "xyz"),
    "few.csv": lambda: table("few.csv", "zyz", 2),
    "new.csv": lambda: table("new.csv", "xyw"),
    "alone.csv": lambda: table("alone.csv", ""),
}
NEEDED = "Expected labels for {}, which the model is conditional on; got none"
CASES = [
    # the run's data, the file -> its labels for a model that is conditional on them, or why not
    ("labels.npz", "labels.npz", Y),
    ("labels.npz", "numbered", [0, 0, 0, 1, 1, 1, 2, 2, 2]),
    ("labels.npz", "named", "Expected whole numbers as labels in named, as in the run's data; got"),
    ("labels.npz", "more.npz", "Expected labels 0 to 2 for more.npz; got 1 to 3"),
    ("labels.npz", "alone.npz", NEEDED.format("alone.npz")),
    ("labels.npz", "alone.npy", NEEDED.format("alone.npy")),
    ("labels.npz", "flat", NEEDED.format("flat")),
    ("numbered", "labels.npz", Y),
    ("named", "named", [0, 0, 0, 1, 1, 1, 2, 2, 2]),
    ("named", "numbered", "Expected a, b, c as labels in numbered, as in the run's data; got 0, 1"),
    ("known.csv", "known.csv", Y),
    ("known.csv", "few.csv", [2, 1]),
    ("known.csv", "new.csv", "Expected x, y, z as labels in new.csv, as in the run's data; got w."),
    ("known.csv", "alone.csv", "Expected labels, 'kind', in alone.csv; got none"),
]


@pytest.mark.parametrize(
    ("prior", "data", "file", "expected"),
    # What a model that is conditional on labels refuses, another one takes without them.
    [("conditional", *case) for case in CASES]
    + [("learned", *case) for case in CASES if isinstance(case[2], str)],
)
def test_figures_of_a_file(pdvae: Run, prior: str, data: str, file: str, expected: Any) -> None:
    MAKE[data]()
    if file != data:
        MAKE[file]()
    sizes = ["--val=2", "--test=2"] if Path(data).is_dir() else []
    table = ["--likelihood=normal", "--labels=kind"] if data.endswith(".csv") else []
    fitted = pdvae("fit", "run", f"--data={data}", f"--prior={prior}", *SMALL, *sizes, *table)
    assert fitted[0] == 0
    stored = Path("run/evaluation.json").read_text()
    command = ["evaluate", "run", "--data", file, "--iw-samples=0", "--json"]
    status, out, err = pdvae(*command)
    if prior == "conditional" and isinstance(expected, str):
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"pdvae: {expected}")
        return
    assert status == 0
    run, found = load_run("run"), json.loads(out)
    rows = run.rows(file)
    labels = torch.as_tensor(expected) if prior == "conditional" else None
    scores = evaluate(run.vae, rows.x[:], labels, seed=run.config.seed)
    assert (found["part"], found["num_data"]) == (file, len(rows.x))
    assert found["elbo"] == pytest.approx(scores.elbo, abs=1e-5)
    assert found["log_marginal"] == pytest.approx(scores.log_marginal, abs=1e-5)
    assert found["simple_models"]["num_train"] > 0
    assert Path("run/evaluation.json").read_text() == stored


def test_parts_files_and_keys(pdvae: Run) -> None:
    MAKE["alone.npz"]()
    MAKE["several.npz"]()
    assert pdvae("fit", "run", "--data=alone.npz", *SMALL)[0] == 0
    out = pdvae("evaluate", "run", "--split=validation")[1]
    for option in ("--data=validation", "--input=validation"):
        assert pdvae("evaluate", "run", option) == (0, out, "")
    for arguments, message in (
        (
            ["--data=train", "--split=validation"],
            "--data or --split; got both train and validation",
        ),
        (["--data=several.npz"], "other, x, labels; got no key. Name one with --key"),
        (["--data=test", "--key=x"], "Expected --key with a .npz file; got it with test"),
        (["--data=tests"], "Expected train, validation, test, or a file; got 'tests'"),
    ):
        status, out, err = pdvae("evaluate", "run", *arguments)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert message in err
    status, out, err = pdvae("evaluate", "run", "--data=several.npz", "--key=x")
    assert (status, err) == (0, "")
    assert "\nseveral.npz ELBO -" in out
    # The run's own data are not needed, but for the simple models beside.
    Path("alone.npz").unlink()
    status, without, err = pdvae("evaluate", "run", "--data=several.npz", "--key=x")
    assert (status, err.count("\n")) == (0, 1)
    assert err.startswith("The simple models are left out: ")
    assert without.splitlines()[:3] == out.splitlines()[:3]
    assert pdvae("evaluate", "run")[0] == 2


def test_images_are_named_by_their_files_and_classes(pdvae: Run) -> None:
    MAKE["named"]()
    MAKE["alone.npz"]()
    assert pdvae("fit", "run", "--data=alone.npz", *SMALL)[0] == 0
    assert pdvae("encode", "run", "--data=named", "-o", "codes.csv")[0] == 0
    codes = pd.read_csv("codes.csv")
    assert [*codes.columns] == ["index", "id", "label", "z1", "z2"]
    assert codes["id"].tolist()[:4] == ["a/00.png", "a/03.png", "a/06.png", "b/01.png"]
    assert codes["label"].tolist() == [*"aaabbbccc"]
    assert pdvae("fit", "named-run", "--data=named", *SMALL, "--val=2", "--test=4")[0] == 0
    assert pdvae("encode", "named-run", "-o", "test.csv")[0] == 0
    codes = pd.read_csv("test.csv")
    assert [*codes.columns][:4] == ["index", "row", "id", "label"]
    files = sorted(path.relative_to("named").as_posix() for path in Path("named").rglob("*.png"))
    assert codes["id"].tolist() == [files[row] for row in codes["row"]]
