"""What examples/published prints is what it says it is."""

from __future__ import annotations

import math
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from hostile import Hostile
from test_examples import EXAMPLES, run
from torch import nn

from pyro_dvae import evaluate

sys.path.append(str(EXAMPLES / "published"))
reinmax_table, anchor = map(import_module, ("reinmax_table", "anchor"))
SMALL = ("--num-data", "400", "--num-test", "100", "--every", "1", "--seeds", "2")
CHANCE = 784 * math.log(2)  # nats per image, if each pixel is a fair coin


def figures(out: str) -> list[float]:
    """The test figures that the epochs print."""
    return [float(text) for text in re.findall(r"test (-\S+),", out)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "arsm_log --estimator carms --particles 4 --bfloat16",
        "reinmax_table --codes 8x4 --num-data 3000 --lr 0.003 --averaging 0.9",
        "disarm_bound --draws 5",
    ],
)
def test_figures_rise_and_the_table_has_their_means(
    command: str, tmp_path: Path, hostile_server: Hostile
) -> None:
    name, *options = command.split()
    out = run(hostile_server, f"published/{name}", *SMALL, *options, cwd=tmp_path)
    test = figures(out)
    assert len(test) == 4  # two seeds, two epochs
    assert test[1] > test[0] > -CHANCE - 10
    rows = re.findall(r"^\| \d \| \S+ ± \S+ \| (\S+) ± (\S+) \|", out, re.MULTILINE)
    for (mean, error), first, second in zip(rows, test[:2], test[2:], strict=True):
        assert float(mean) == pytest.approx((first + second) / 2, abs=0.02)
        assert float(error) == pytest.approx(abs(first - second) / 2, abs=0.02)
    bounds = re.findall(r"by 5 draws (\S+) ±", out)
    assert len(bounds) == (2 if name == "disarm_bound" else 0)
    for bound, last in zip(bounds, test[1::2], strict=False):
        assert float(bound) > last


def test_grey_targets_are_scored_by_their_cross_entropy() -> None:
    x, logits = torch.rand(3, 4), torch.randn(3, 4)
    expected = -nn.functional.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(-1)
    likelihood = reinmax_table.GreyTargets()
    torch.testing.assert_close(likelihood(logits, 1).log_prob(x), expected)


def test_each_code_of_the_table_is_written_as_categories_by_latents() -> None:
    """Its names are K x D: the exact ELBO of 8 x 4 sums over 8^4 codes."""
    vae = reinmax_table.model("8x4", torch.rand(28, 28))
    assert vae.sample_codes(2).shape == (2, 4, 8)
    evaluation = evaluate(vae, torch.rand(3, 28, 28))
    assert evaluation.log_marginal is not None
    assert evaluation.elbo < evaluation.log_marginal


def test_the_encoder_sees_images_minus_their_mean() -> None:
    mean = torch.rand(28, 28)
    centred = anchor.Centred(nn.Flatten(), mean)
    torch.testing.assert_close(centred(mean.expand(2, 28, 28)), torch.zeros(2, 784))
