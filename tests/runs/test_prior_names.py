"""The priors by their names on the command line."""

from __future__ import annotations

from typing import Any

import pytest

from pyro_dvae import (
    ConditionalPrior,
    Config,
    HierarchicalPrior,
    LearnedPrior,
    MixturePrior,
    VampPrior,
)
from pyro_dvae.runs.config import build_prior

EVENT = (2, 3)


def build(spec: str, **options: Any) -> Any:
    return build_prior(Config(num_latents=2, num_categories=3, prior=spec, **options), EVENT)


def test_names_and_arguments() -> None:
    assert isinstance(build("learned"), LearnedPrior)
    assert isinstance(build("mixture"), MixturePrior)
    assert build("mixture:7").logits.shape == (7, 2, 3)
    assert isinstance(build("vamp"), VampPrior)
    assert build("vamp:5").pseudo_inputs.shape == (5, *EVENT)
    assert isinstance(build("hierarchical"), HierarchicalPrior)
    assert build("hierarchical:3x4").codes.shape == (64, 12)
    assert isinstance(build("conditional", num_classes=10), ConditionalPrior)
    assert build("conditional:9", num_classes=10).network.bias.shape == (2, 9)


@pytest.mark.parametrize(
    ("likelihood", "bounded"),
    [("bernoulli", True), ("categorical:16", True), ("normal", False), ("poisson", False)],
)
def test_pseudo_inputs_are_bounded_where_features_are(likelihood: str, bounded: bool) -> None:
    assert build("vamp", likelihood=likelihood).bounded is bounded


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("learned:3", "Expected learned alone; got learned:3. Leave"),
        ("mixture:0", "Expected number after mixture: of at least 1; got 0. Raise"),
        ("vamp:many", "Expected a whole number after vamp:; got 'many'. Use vamp:50"),
        ("hierarchical:4", "Expected DxK of the upper layer after hierarchical:; got '4'. Use"),
        ("hierarchical:", "Expected DxK of the upper layer after hierarchical:; got ''. Use"),
        ("hierarchical:9x9", r"Expected at most 4096 codes in the upper layer; .* Choose fewer"),
        ("hierarchical:9999x9999", r"Expected at most 4096 codes .* K\^D = 9999\^9999\. Choose"),
        ("conditional", "Expected labels of at least 2 classes .*; got 0. Use data with labels"),
    ],
)
def test_refuses(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        build(spec)
    assert "\n" not in str(error.value)
