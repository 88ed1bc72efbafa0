from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from zoo import D, K, P, make_batch, make_vae, tiny_data, tiny_vae

from pyro_dvae import evaluate, log_marginal
from pyro_dvae.data import Preparation, ServedRows, TensorRows, extent
from pyro_dvae.evaluation.inference import Inference
from pyro_dvae.evaluation.scoring import datum_scores, datum_terms, exact_terms
from pyro_dvae.evaluation.terms import tensors_of

OPTIONS: dict[str, Any] = {
    "exact": None,
    "importance_samples": None,
    "num_samples": 16,
    "batch_size": 9,
    "seed": 0,
}

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


@pytest.mark.parametrize("options", [{}, {"exact": False, "importance_samples": 5}])
def test_rows_served_by_slices_are_scored_like_a_tensor(options: dict[str, Any]) -> None:
    vae, x = tiny_vae(), tiny_data(9)
    rows, options = TensorRows(x), {**OPTIONS, "batch_size": 4, **options}
    served = ServedRows(rows, Preparation("none"), 0, extent(rows), x)
    ours, right = datum_terms(vae, served, **options), datum_terms(vae, x, **options)
    assert ours.variances.keys() == right.variances.keys()
    for one, other in ((ours._asdict(), right._asdict()), (ours.variances, right.variances)):
        for name, value in other.items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(one[name], value)


def test_unknown_bound() -> None:
    with pytest.raises(ValueError, match="Expected bound to be one of elbo, importance, exact"):
        datum_scores(tiny_vae(), tiny_data(1), bound="iwae")  # type: ignore[arg-type]


def test_terms_add_up() -> None:
    vae, x = tiny_vae(), tiny_data(5)
    terms = exact_terms(vae, x)
    scores = dataclasses.asdict(evaluate(vae, x))
    for name in ("log_likelihood", "log_prior", "entropy", "log_marginal", "elbo"):
        assert getattr(terms, name).mean().item() == pytest.approx(scores[name], rel=1e-12)


def test_what_costs_too_much_is_drawn_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    vae, linear = make_vae(likelihood="laplace"), make_vae()
    x, bits = make_batch(vae, "laplace")[0], make_batch(linear)[0]
    assert datum_terms(vae, x, **OPTIONS).log_marginal is not None
    # K^D codes times P elements, one number each; a matrix product costs nothing.
    monkeypatch.setattr("pyro_dvae.evaluation.plan._MOST_NUMBERS", K**D * P - 1)
    assert datum_terms(linear, bits, **OPTIONS).log_marginal is not None
    drawn = datum_terms(vae, x, **{**OPTIONS, "num_samples": 1000, "importance_samples": 1000})
    assert drawn.log_marginal is None
    summed = datum_terms(vae, x, **{**OPTIONS, "exact": True})
    assert summed.log_marginal is not None
    error = 4.5 * drawn.variances["elbo"].sqrt()
    assert ((drawn.elbo - summed.elbo).abs() <= error + 1e-9).all()


def test_drawn_codes_are_scored_under_their_own_label() -> None:
    vae = make_vae("conditional")
    x, labels = make_batch(vae, num_data=2)  # one datum of each label
    summed = datum_terms(vae, x, labels, **{**OPTIONS, "exact": True})
    drawn = datum_terms(vae, x, labels, **{**OPTIONS, "exact": False, "num_samples": 4000})
    error = 4.5 * drawn.variances["log_prior"].sqrt()
    assert ((drawn.log_prior - summed.log_prior).abs() <= error).all()
    # The other label's figures are further away than chance explains.
    other = datum_terms(vae, x, labels.flip(0), **{**OPTIONS, "exact": True})
    assert ((other.log_prior - summed.log_prior).abs() > 2 * error).all()


@pytest.mark.parametrize("refined", [False, True])
def test_draws_of_a_section_do_not_depend_on_other_data(refined: bool) -> None:
    """600 data are sections of 256, 256 and 88."""
    vae = tiny_vae()
    x = tiny_data(6).repeat(100, 1)
    options: dict[str, Any] = {**OPTIONS, "exact": False, "num_samples": 2, "importance_samples": 2}
    if refined:
        options["inference"] = Inference("refined", 1)
    whole = datum_terms(vae, x, **{**options, "batch_size": 600})
    parts = datum_terms(vae, x, **{**options, "batch_size": 100})
    first = datum_terms(vae, x[:256], **options)
    for ours, other, right in zip(*map(tensors_of, (whole, parts, first)), strict=True):
        torch.testing.assert_close(ours, other)
        torch.testing.assert_close(ours[:256], right)
    # The sections have streams of their own: equal data have other draws there.
    bound = whole.importance_bound
    assert bound is not None
    assert not torch.isclose(bound[:240], bound[258:498]).all()
