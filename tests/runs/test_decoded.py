"""Decoded rows: names, and the probabilities of levels, against p(x|z) of each block by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from pyro_dvae import (
    Bernoulli,
    Categorical,
    Config,
    DiscreteVAE,
    Masked,
    Mixed,
    MLPDecoder,
    MLPEncoder,
    Normal,
    Ordinal,
    Run,
    UniformPrior,
)
from pyro_dvae.codes import one_hot
from pyro_dvae.runs import DataRecord, decoded_rows, sampled_rows
from pyro_dvae.runs.blocks import sample_labels
from pyro_dvae.streams import RandomStream

COLUMNS = ("island", "mass", "length", "adult", "rating", "grey")
LEVELS = {"island": ("Biscoe", "Dream, south"), "adult": ("False", "True")}
BLOCKS: list[tuple[nn.Module, int]] = [
    *((Categorical(2), 1), (Normal((2,)), 2), (Bernoulli(), 1), (Ordinal(3), 1)),
    (Categorical(65), 1),
]
HEADER = ["island=Biscoe", "island=Dream, south", "mass", "length", "adult=False", "adult=True"]
HEADER += ["rating=0", "rating=1", "rating=2", "grey"]
CODES = torch.tensor([[0, 2], [1, 0], [2, 2]])


def made(likelihood: nn.Module, num_columns: int, columns: tuple[str, ...] | None = None) -> Run:
    features = likelihood.feature_shape((num_columns,)) if isinstance(likelihood, Masked) else None
    params = int(getattr(likelihood, "num_params", 1))
    vae = DiscreteVAE(
        MLPEncoder(features or (num_columns,), 2, 3),
        MLPDecoder((num_columns,), 2, 3, num_params=params),
        UniformPrior(2, 3),
        likelihood,
    ).eval()
    config = Config(num_latents=2, num_categories=3)
    levels = LEVELS if columns else {}
    data = DataRecord(config, "birds", columns=columns, levels=levels)
    return Run(Path("run"), (num_columns,), data, "0", 1, 1, vae)


@pytest.mark.parametrize("masked", [False, True])
def test_probabilities_are_those_of_each_column(masked: bool) -> None:
    mixed = Mixed(BLOCKS)
    run = made(Masked(mixed) if masked else mixed, 6, COLUMNS)
    header, cells = decoded_rows(run, CODES, probabilities=True)
    found = torch.tensor(list(cells), dtype=torch.float64)
    assert header == HEADER
    with torch.no_grad():
        params = run.vae.decoder(one_hot(CODES, 3, dtype=torch.float64))
    island = params[:, 0, :2].softmax(-1)
    adult = params[:, 3, 0].sigmoid()
    cumulative = torch.zeros(3, 4).double()
    for i, block in enumerate(BLOCKS):
        if i == 3:
            for level in range(3):
                x = torch.full((3, 1), float(level))
                cumulative[:, level] = block[0](params[:, 4:5, :2], 1).log_prob(x).exp()
    expected = torch.cat(
        [
            island,
            run.vae.decode(one_hot(CODES, 3, dtype=torch.float64)).mean[:, 1:3].detach(),
            torch.stack([1 - adult, adult], -1),
            cumulative[:, :3],
            run.vae.decode(one_hot(CODES, 3, dtype=torch.float64)).mean[:, 5:].detach(),
        ],
        -1,
    )
    torch.testing.assert_close(found, expected)
    for columns in ((0, 1), (4, 5), (6, 7, 8)):
        torch.testing.assert_close(found[:, columns].sum(-1), torch.ones(3).double())
    # The most probable level is what is written without probabilities.
    names, plain = decoded_rows(run, CODES, suffix="_made")
    assert names == [f"{name}_made" for name in COLUMNS]
    best = [LEVELS["island"][i] for i in island.argmax(-1).tolist()]
    assert [row[0] for row in plain] == best


def test_sampled_rows_are_those_of_the_codes_that_are_drawn() -> None:
    run = made(Mixed(BLOCKS), 6, COLUMNS)
    header, cells = sampled_rows(run, 50, seed=3, probabilities=True)
    assert header == HEADER
    rows = list(cells)
    with RandomStream(3), torch.no_grad():
        codes = run.vae.sample_codes(50).argmax(-1)
    assert rows == list(decoded_rows(run, codes, probabilities=True).cells)
    names, plain = sampled_rows(run, 50, seed=3)
    assert names == list(COLUMNS)
    assert list(plain) == list(decoded_rows(run, codes).cells)


def test_columns_without_names_have_numbers() -> None:
    run = made(Bernoulli(), 2)
    header, cells = decoded_rows(run, CODES, probabilities=True)
    assert header == ["x0=0", "x0=1", "x1=0", "x1=1"]
    for row in cells:
        assert float(row[0]) + float(row[1]) == pytest.approx(1)


@pytest.mark.parametrize("likelihood", [Normal((2,)), Categorical(65)])
def test_numbers_have_no_probabilities(likelihood: nn.Module) -> None:
    with pytest.raises(ValueError, match=r"columns of categories or bits, .* run with none"):
        decoded_rows(made(likelihood, 2), CODES, probabilities=True)


@pytest.mark.parametrize(
    ("num", "counts"), [(16, {1, 2}), (10, {1}), (40, {4}), (7, {0, 1}), (1, {0, 1})]
)
def test_labels_of_samples_are_of_all_classes_alike(num: int, counts: set[int]) -> None:
    labels = sample_labels(Config(prior="conditional", num_classes=10), num)
    assert labels is not None
    assert len(labels) == num
    assert labels.tolist() == sorted(labels.tolist())
    assert set(labels.bincount(minlength=10).tolist()) == counts


def test_few_samples_are_of_the_first_classes() -> None:
    labels = sample_labels(Config(prior="conditional", num_classes=10), 3)
    assert labels is not None
    assert labels.tolist() == [0, 1, 2]
