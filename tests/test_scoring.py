from __future__ import annotations

import dataclasses

import pytest
import torch
from zoo import tiny_data, tiny_vae

from pyro_dvae import evaluate, log_marginal
from pyro_dvae.scoring import datum_scores, exact_terms

FIGURES = {"elbo": "elbo", "importance": "importance_bound", "exact": "log_marginal"}


@pytest.mark.parametrize("bound", FIGURES)
@pytest.mark.parametrize("code", [(2, 3), (6, 8)])
def test_scores_average_to_the_evaluation(bound: str, code: tuple[int, int]) -> None:
    vae, x = tiny_vae(*code), tiny_data(9)
    if bound == "exact" and code == (6, 8):
        with pytest.raises(ValueError, match=r"got K\^D = 8\^6"):
            datum_scores(vae, x, bound="exact")
        return
    whole = evaluate(vae, x, importance_samples=20, seed=2)
    for batch_size in (1, 7, 9):
        scores = datum_scores(
            vae, x, bound=bound, importance_samples=20, batch_size=batch_size, seed=2
        )
        assert scores.shape == (9,)
        assert scores.mean().item() == pytest.approx(getattr(whole, FIGURES[bound]), rel=1e-12)


def test_scores_are_in_the_order_of_the_data() -> None:
    vae, x = tiny_vae(), tiny_data(9)
    torch.testing.assert_close(datum_scores(vae, x, bound="exact"), log_marginal(vae, x))
    alone = torch.cat([datum_scores(vae, row[None]) for row in x])
    torch.testing.assert_close(datum_scores(vae, x), alone)
    torch.testing.assert_close(datum_scores(vae, x), exact_terms(vae, x, batch_size=2).elbo)


def test_unknown_bound() -> None:
    with pytest.raises(ValueError, match="Expected bound to be one of elbo, importance, exact"):
        datum_scores(tiny_vae(), tiny_data(1), bound="iwae")  # type: ignore[arg-type]


def test_terms_add_up() -> None:
    vae, x = tiny_vae(), tiny_data(5)
    terms = exact_terms(vae, x)
    scores = dataclasses.asdict(evaluate(vae, x))
    for name in ("log_likelihood", "log_prior", "entropy", "log_marginal", "elbo"):
        assert getattr(terms, name).mean().item() == pytest.approx(scores[name], rel=1e-12)
