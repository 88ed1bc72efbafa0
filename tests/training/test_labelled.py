"""Copies of the data that have a label."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pyro_dvae import (
    BinaryImages,
    RepeatedLabels,
    SemiSupervisedVAE,
    fit,
    load_run,
    save_run,
)
from pyro_dvae.data import open_source
from pyro_dvae.data.serve import splits
from pyro_dvae.data.serve.blocks import BlockData
from pyro_dvae.data.serve.prepare import Preparation
from pyro_dvae.runs import resume_run, start_prior, start_run

X = torch.arange(50, dtype=torch.uint8).reshape(50, 1)
LABELS = torch.full((50,), -1).index_fill(0, torch.tensor([3, 7]), 1)


@pytest.mark.parametrize("share", [0.0, 0.04, 0.05, 0.1, 0.5, 0.9])
def test_the_share_is_reached_with_the_fewest_copies(share: float) -> None:
    data = RepeatedLabels((X.float(), LABELS), share)
    without, known = 48, 2

    def share_of(copies: int) -> float:
        return copies * known / (without + copies * known)

    assert share_of(data.copies) >= share - 1e-12
    assert data.copies == 1 or share_of(data.copies - 1) < share
    assert (len(data), data.num_labelled) == (without + data.copies * known, data.copies * known)
    x, labels = data.batch(torch.arange(len(data)), torch.Generator())
    counts = torch.bincount(x.flatten().long(), minlength=50)
    assert counts.tolist() == [data.copies if row in (3, 7) else 1 for row in range(50)]
    assert torch.equal(labels >= 0, (x.flatten() == 3) | (x.flatten() == 7))


def test_each_copy_of_grey_pixels_has_its_own_bits() -> None:
    grey = torch.full((4, 64), 128, dtype=torch.uint8)
    data = RepeatedLabels(BinaryImages(grey, labels=torch.tensor([-1, -1, -1, 0])), 0.4)
    assert data.copies == 2
    x, _ = data.batch(torch.tensor([3, 4]), torch.Generator().manual_seed(0))
    assert not torch.equal(x[0], x[1])


def test_what_cannot_be_repeated_is_refused() -> None:
    for share in (-0.1, 1.0, math.nan):
        with pytest.raises(ValueError, match=r"labelled share in \[0, 1\)"):
            RepeatedLabels((X.float(), LABELS), share)
    with pytest.raises(ValueError, match="labels for some of the data"):
        RepeatedLabels((X.float(), torch.full((50,), -1)))
    source = open_source("mnist-sample")
    blocks = BlockData(source.train, Preparation("dynamic"), labels=source.train.labels)
    with pytest.raises(ValueError, match=r"in memory.*got BlockData"):
        RepeatedLabels(blocks)


def write_table(path: Path) -> None:
    draws = torch.Generator().manual_seed(0)
    bits = torch.rand(200, 4, generator=draws).round().long()
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["a", "b", "c", "d", "y"])
        for row, each in enumerate(bits.tolist()):
            writer.writerow([*each, ["p", "q"][each[0]] if row % 40 == 0 else ""])


SMALL = {"num_latents": 2, "num_categories": 2, "hidden": (4,), "estimator": "rloo"}


def test_a_run_with_few_labels_repeats_them(tmp_path: Path) -> None:
    write_table(tmp_path / "x.csv")
    source = open_source(tmp_path / "x.csv", labels="y")
    options = {**SMALL, "epochs": 2, "alpha": 0.5, "validation": 0, "test": 0}
    with start_run(source, tmp_path / "a", **options) as training:
        data, vae = training.trainer.data, training.trainer.vae
        assert training.config.labelled_share == 0.1
        assert isinstance(data, RepeatedLabels)
        assert (len(data), data.num_labelled) == (195 + 25, 25)  # 5 rows, 5 times each
        assert vae.alpha == 0.5 * 220 / 25
        list(training.epochs())
    with start_run(source, tmp_path / "b", **{**options, "epochs": 1}) as training:
        list(training.epochs())
    with resume_run(tmp_path / "b", epochs=2) as training:
        list(training.epochs())
        resumed = training.trainer.vae.state_dict()
    assert all(torch.equal(resumed[name], value) for name, value in vae.state_dict().items())
    with start_run(source, tmp_path / "c", **options, labelled_share=0.0) as training:
        assert not isinstance(training.trainer.data, RepeatedLabels)
        assert len(training.trainer.data) == 200
        assert training.trainer.vae.alpha == 0.5 * 200 / 5
    with start_run(source, tmp_path / "d", **{**options, "alpha": None}) as training:
        assert training.config.labelled_share is None


def test_the_unit_of_alpha_is_one_and_the_same(tmp_path: Path) -> None:
    write_table(tmp_path / "x.csv")
    source = open_source(tmp_path / "x.csv", labels="y")
    options = {**SMALL, "epochs": 1, "alpha": 0.5, "validation": 0, "test": 0}
    with start_run(source, tmp_path / "a", **options) as training:
        list(training.epochs())
    run = load_run(tmp_path / "a")
    assert isinstance(run.vae, SemiSupervisedVAE)
    assert (run.vae.alpha, run.config.alpha) == (0.5 * 220 / 25, 0.5)
    kept = {"validation": 0, "labelled_share": 0.0}
    saved = save_run(tmp_path / "b", run.vae, source, **kept)
    assert isinstance(saved.vae, SemiSupervisedVAE)
    assert saved.config.alpha == pytest.approx(0.5 * 220 / 25 * 5 / 200)
    assert saved.vae.alpha == pytest.approx(run.vae.alpha)
    with start_prior(run, "autoregressive", tmp_path / "c", epochs=1) as training:
        list(training.epochs())
        assert training.trainer.vae.alpha == run.vae.alpha
    fitted = load_run(tmp_path / "c").vae
    assert isinstance(fitted, SemiSupervisedVAE)
    assert fitted.alpha == run.vae.alpha
    with pytest.raises(ValueError, match=r'got conditional, which takes labels .* prior="autoreg'):
        start_prior(run, "conditional")


def test_a_run_of_before_keeps_its_alpha(tmp_path: Path) -> None:
    write_table(tmp_path / "x.csv")
    source = open_source(tmp_path / "x.csv", labels="y")
    with start_run(source, tmp_path / "a", **SMALL, epochs=0, alpha=0.5) as training:
        list(training.epochs())
    path = tmp_path / "a" / "config.json"
    content = json.loads(path.read_text())
    del content["data"]["data_per_label"]
    path.write_text(json.dumps(content))
    vae = load_run(tmp_path / "a").vae
    assert isinstance(vae, SemiSupervisedVAE)
    assert vae.alpha == 0.5


def test_data_that_are_read_in_blocks_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An epoch in any other order would read a block for each datum."""
    monkeypatch.setattr(splits, "IN_MEMORY", 0)
    for name in ("a", "b"):
        (tmp_path / "x" / name).mkdir(parents=True)
        for number in range(10):
            grey = np.full((2, 2), 12 * number + 100, np.uint8)
            Image.fromarray(grey).save(tmp_path / "x" / name / f"{number}.png")
    source = open_source(tmp_path / "x")
    options = {**SMALL, "epochs": 1, "alpha": 0.5, "validation": 0, "test": 0}
    with start_run(source, tmp_path / "run", **options) as training:
        assert isinstance(training.trainer.data, BlockData)
        assert training.trainer.vae.alpha == 0.5  # all have a label
        assert len(list(training.epochs())) == 1


def test_validation_data_are_kept_apart_before(tmp_path: Path) -> None:
    write_table(tmp_path / "x.csv")
    source = open_source(tmp_path / "x.csv", labels="y")
    with start_run(source, tmp_path / "a", **SMALL, epochs=0, alpha=0.5) as training:
        data, vae = training.trainer.data, training.trainer.vae
    with pytest.raises(ValueError, match="validation data of their own"):
        next(fit(vae, training.trainer.elbo, data, 0.1, epochs=1))
