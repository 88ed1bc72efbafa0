"""Warnings of a report: each is there where it should be, and says what to do."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pyro_dvae import Config, EpochRecord
from pyro_dvae.evaluation import DatumTerms, SimpleModels
from pyro_dvae.reports import Words
from pyro_dvae.reports.sections import problems


def epochs(curve: Sequence[float], information: Sequence[float] = (1.0, 1.0)) -> list[EpochRecord]:
    """The records of a training with this validation ELBO."""
    best = max(range(len(curve)), key=lambda i: curve[i], default=0)
    return [
        EpochRecord(i + 1, elbo, elbo, None, tuple(information), i <= best, float(i))
        for i, elbo in enumerate(curve)
    ]


def terms(elbo: torch.Tensor, log_p: torch.Tensor | None = None) -> DatumTerms:
    zero = torch.zeros_like(elbo)
    return DatumTerms(elbo, zero, zero, log_p, None, {})


def made(
    curve: Sequence[float] = (), epoch: int = 0, status: str = "complete", **fields: Any
) -> Any:
    """A run of a report, with what a check looks at."""
    config = Config(num_latents=2, num_categories=4, epochs=max(1, len(curve)))
    run = SimpleNamespace(metrics=epochs(curve), status=status, epoch=epoch or len(curve))
    options = {"scores": None, "terms": None, "train_terms": None, "stored": None, "part": "test"}
    options |= {"config": config, "run": run, "words": Words(), "datum": "row", "missing": ""}
    return SimpleNamespace(**{**options, **fields})


def titles(check: Any, reported: Any) -> list[str]:
    return [f"{found.level}: {found.title}" for found in check(reported)]


def test_data_that_are_not_there() -> None:
    (found,) = problems.no_data(made(splits=None, missing="Expected x; got none."))
    assert found.level == "warning"
    assert found.text.endswith("Expected x; got none.")
    assert titles(problems.no_data, made(splits=object())) == []


@pytest.mark.parametrize(
    ("curve", "status", "expected"),
    [
        ([-9, -8, -7], "unfinished", ["note: The training is not finished."]),
        ([-9, -8, -7, -6, -5], "complete", ["note: The ELBO was still rising."]),
        ([-9, -5.01, -5.005, -5.002, -5], "complete", []),
        ([-9, -8, -7, -6, -5], "stopped early", []),
    ],
)
def test_a_training_that_could_go_on(curve: list[float], status: str, expected: list[str]) -> None:
    assert titles(problems.unfinished, made(curve, status=status)) == expected


def test_collapse() -> None:
    scores = SimpleNamespace(information_per_latent=(0.5, 0.001))
    (found,) = problems.collapse(made([-9, -8], scores=scores))
    assert (found.level, found.title) == ("warning", "Posterior collapse.")
    assert found.text.startswith("1 of 2 latents carry less than 0.01 nats about the data (z2)")
    assert found.todo.startswith("Try more epochs")
    scores.information_per_latent = (0.5, 0.5)
    assert titles(problems.collapse, made([-9, -8], scores=scores)) == []


def test_categories_that_are_unused() -> None:
    scores = SimpleNamespace(perplexity_per_latent=(3.9, 1.5), information_per_latent=(1.0, 0.3))
    scores.unused_categories = (0, 2)
    (found,) = problems.unused(made(scores=scores))
    assert found.text.startswith("2 of 8 have less than half a datum (z2: 2; of 4 each).")
    assert found.todo == 'Use prior="learned".'
    scores.unused_categories = None  # of too few data
    (found,) = problems.unused(made(scores=scores))
    assert found.text.endswith("their 4 categories: z2 (1.5).")
    scores.information_per_latent = (1.0, 0.001)  # which is a collapse, and told there
    assert titles(problems.unused, made(scores=scores)) == []


@pytest.mark.parametrize(("gap", "warned"), [(0.0, False), (0.3, False), (3.0, True)])
def test_overfitting(gap: float, warned: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    own, train = (torch.randn(400, generator=generator) - 20 for _ in range(2))
    found = list(problems.overfitting(made(terms=terms(own), train_terms=terms(train + gap))))
    assert [each.title for each in found] == ["The model overfits."] * warned
    # Where log p(x) is known, a bad encoder is not taken for overfitting.
    both = made(terms=terms(own, own), train_terms=terms(train + gap, train))
    assert titles(problems.overfitting, both) == []


def test_a_curve_that_falls_in_the_end() -> None:
    (found,) = problems.overfitting(made([-9, -5, -6, -7, -8, -9], epoch=2))
    assert found.text == (
        "It was best in epoch 2, and 4.00 nats lower in the last. The weights of epoch 2 were "
        "kept, so that no harm was done."
    )
    assert found.todo == "A shorter training would do, of epochs=4."


def test_noise() -> None:
    jumps = [-9.0 if i % 2 else -10.0 for i in range(16)]
    (found,) = problems.noise(made(jumps))
    assert found.title == "The training is noisy."
    assert (
        "fell in 3 of 7 epochs, typically by 1.00 nats, and rose by 1.00 nats in all" in found.text
    )
    assert titles(problems.noise, made([-10 + 0.5 * i for i in range(16)])) == []


def test_an_elbo_that_is_far() -> None:
    figures = {"posterior_gap": 5.0, "log_prob": -20.0, "family_gap": 1.0, "encoder_gap": 4.0}
    (found,) = problems.far(made(scores=SimpleNamespace(**figures)))
    assert "4.00 of them are the encoder's, 1.00 the family's." in found.text
    assert "fit_guide" in found.todo
    figures |= {"family_gap": 4.0, "encoder_gap": 1.0}
    (found,) = problems.far(made(scores=SimpleNamespace(**figures)))
    assert 'guide="autoregressive"' in found.todo
    near = SimpleNamespace(**{**figures, "posterior_gap": 1.9})
    assert titles(problems.far, made(scores=near)) == []


@pytest.mark.parametrize(
    ("mixture", "expected"),
    [
        (-25.0, "good: The model is better than simple models."),
        (-19.99, "note: A simple model is as good."),
        (-19.0, "warning: A simple model is better."),
    ],
)
def test_simple_models(mixture: float, expected: str) -> None:
    each = torch.randn(400, generator=torch.Generator().manual_seed(0)) - 20
    simple = SimpleModels(-30.0, mixture, 4, None, None, 100)
    evaluation = SimpleNamespace(simple_models=simple, log_prob=-20.0, num_data=400)
    reported = made(terms=terms(each, each), stored=SimpleNamespace(evaluation=evaluation))
    assert titles(problems.simple, reported) == [expected]


def test_warnings_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(level: str) -> Any:
        return lambda _: iter([problems.Finding(level, level, "")])

    monkeypatch.setattr(problems, "CHECKS", tuple(map(check, ("good", "note", "warning"))))
    blocks = problems.findings(made()).blocks
    assert [each.level for each in blocks] == ["warning", "note", "good"]  # type: ignore[union-attr]
    monkeypatch.setattr(problems, "CHECKS", ())
    assert problems.findings(made()).blocks[0].title == "No warnings."  # type: ignore[union-attr]
