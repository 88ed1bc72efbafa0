"""Mixtures by EM against scikit-learn, and the closed forms against scipy and gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from sklearn.mixture import GaussianMixture
from torch import Tensor
from zoo import LIKELIHOODS, D, K, P, gappy, make_vae

from pyro_dvae import Bernoulli, Beta, Categorical, Laplace, Masked, Normal, Poisson, evaluate
from pyro_dvae.codes import enumerate_codes
from pyro_dvae.evaluation import Mixture, fit_mixture, independent_elements, simple_models
from pyro_dvae.evaluation import simple as simple_module
from pyro_dvae.evaluation.mixtures import fit_elements, k_means
from pyro_dvae.likelihoods.maximum import has_maximum, maximum, of_elements

CLOSED = [name for name, row in LIKELIHOODS.items() if has_maximum(row.build((P,)))]


def calibrated(name: str, x: Tensor) -> Any:
    likelihood = LIKELIHOODS[name].build((P,))
    likelihood.calibrate(x)
    return likelihood


def clusters(num: int = 120) -> Tensor:
    centre = torch.randn(3, 2) * 3
    return centre[torch.randint(3, (num,))] + torch.randn(num, 2) * torch.tensor([0.5, 1.5])


@pytest.mark.parametrize("steps", [1, 5, 40])
def test_em_is_that_of_scikit_learn(steps: int) -> None:
    """From the same start, the same mixture of Gaussians with diagonal covariances."""
    x = clusters()
    share = torch.rand(len(x), 3).softmax(-1)
    weights = share.mean(0)
    means = share.T @ x / share.sum(0)[:, None]
    variances = share.T @ x.square() / share.sum(0)[:, None] - means.square()
    theirs = GaussianMixture(
        3,
        covariance_type="diag",
        reg_covar=0,
        tol=0,
        max_iter=steps,
        weights_init=weights.numpy(),
        means_init=means.numpy(),
        precisions_init=(1 / variances).numpy(),
    )
    with pytest.warns(UserWarning, match="converge"):
        theirs.fit(x.numpy())
    ours = fit_mixture(
        Normal((2,)), x, 3, start=share, strength=0, max_steps=steps + 1, tolerance=-1
    )
    expected = torch.from_numpy(theirs.score_samples(x.numpy()))
    torch.testing.assert_close(ours.log_prob(x), expected, rtol=1e-7, atol=1e-7)
    assert ours.num_steps == steps + 1


@pytest.mark.parametrize("strength", [0.0, 1.0, 20.0])
def test_each_component_is_fitted_to_all_data_too(strength: float) -> None:
    """As if `strength` more data were in it: the means of one step, by hand."""
    x = clusters()
    share = torch.rand(len(x), 3).softmax(-1)
    found = fit_mixture(Normal((2,)), x, 3, start=share, strength=strength, max_steps=1)
    means = (share.T @ x + strength * x.mean(0)) / (share.sum(0)[:, None] + strength)
    torch.testing.assert_close(found.params[..., 0], means, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", CLOSED)
@pytest.mark.parametrize("strength", [0.0, 1.0])
def test_no_step_of_em_makes_the_objective_less(name: str, strength: float) -> None:
    x = LIKELIHOODS[name].data((60, P))
    likelihood = calibrated(name, x)
    start = torch.rand(60, 3).softmax(-1)
    last = -math.inf
    for steps in range(1, 8):
        found = fit_mixture(
            likelihood, x, 3, start=start, strength=strength, max_steps=steps, tolerance=-1
        )
        log_p = found.log_joint(x) - found.log_weights
        value = (found.log_prob(x).sum() + strength / 60 * log_p.sum()).item()
        # What levels count more than they have is in no term of the objective.
        assert value >= last - (0.05 * strength + 1e-6)
        last = value


@pytest.mark.parametrize("name", CLOSED)
def test_no_other_parameters_are_likelier(name: str) -> None:
    """The gradient of the weighted log p(x) vanishes at the maximum."""
    x = LIKELIHOODS[name].data((80, P))
    likelihood, weights = calibrated(name, x), torch.rand(80, 2)
    params = maximum(likelihood, x, weights).requires_grad_()
    p_x = likelihood(params[:, None], 1)
    value = (weights.T * p_x.log_prob(x)).sum()
    (gradient,) = torch.autograd.grad(value, params)
    if "laplace" in name:  # the median is a kink of the density
        shift = 0.01 * torch.randn(200, *params.shape)
        moved = likelihood((params + shift)[:, :, None], 1).log_prob(x)
        assert ((weights.T * moved).sum((1, 2)) <= value).all()
    else:
        assert gradient.abs().max() < 2e-4 * len(x)


def test_independent_columns_by_scipy() -> None:
    x = torch.cat([3 + 2 * torch.randn(50, 1), torch.poisson(torch.full((50, 1), 4.0))], 1)
    normal = fit_elements(Normal(), x[:, :1])
    expected = scipy.stats.norm(*scipy.stats.norm.fit(x[:, 0].numpy())).logpdf(x[:, 0].numpy())
    np.testing.assert_allclose(normal.log_prob(x[:, :1]), expected)
    laplace = fit_elements(Laplace(), x[:, :1])
    fitted = scipy.stats.laplace(*scipy.stats.laplace.fit(x[:, 0].numpy()))
    assert laplace.log_prob(x[:, :1]).sum() == pytest.approx(
        fitted.logpdf(x[:, 0].numpy()).sum(), abs=0.01
    )
    counts = x[:, 1:]
    rate = (counts.sum() + 0.5).item() / 50.5
    poisson = fit_elements(Poisson(), counts).log_prob(counts)
    np.testing.assert_allclose(poisson, scipy.stats.poisson(rate).logpmf(counts[:, 0].numpy()))


def test_levels_count_half_a_datum_more() -> None:
    x = torch.tensor([[0.0, 2.0], [0.0, 1.0], [0.0, 1.0]])
    found = fit_elements(Categorical(3), x)
    p = torch.tensor([[3.5, 0.5, 0.5], [0.5, 2.5, 1.5]]) / 4.5
    new = torch.tensor([[2.0, 0.0]])
    torch.testing.assert_close(found.element_log_probs(new), p[[0, 1], [2, 0]].log()[None])
    torch.testing.assert_close(found.log_prob(new), p[[0, 1], [2, 0]].log().sum()[None])


def test_many_levels_are_counted_alike() -> None:
    x = torch.randint(40, (30, 3)).double()
    few = maximum(Categorical(40), x, torch.ones(30, 1), 0.5).softmax(-1)
    expected = torch.stack([(x == level).sum(0) + 0.5 for level in range(40)], -1) / 50.0
    torch.testing.assert_close(few[0], expected.double())


def test_gaps_are_left_out() -> None:
    x = gappy(LIKELIHOODS["normal"].data((90, P)), 0.4)
    found = fit_elements(Masked(Normal((P,))), x)
    expected = torch.zeros(len(x))
    for column in range(P):
        known = ~x[:, column].isnan()
        values = x[known, column].numpy()
        log_p = scipy.stats.norm(values.mean(), values.std()).logpdf(values)
        expected[known] += torch.from_numpy(log_p)
    torch.testing.assert_close(found.log_prob(x), expected)


def test_a_mixture_is_found_where_there_is_one() -> None:
    """Two kinds of rows of bits, whose entropy is known."""
    p = torch.tensor([[0.9] * 10, [0.1] * 10])
    x, new = (torch.bernoulli(p[torch.randint(2, (num,))]) for num in (500, 2000))
    log_p = torch.stack([(new * q.log() + (1 - new) * (1 - q).log()).sum(-1) for q in p])
    truth = log_p.logsumexp(0) - math.log(2)
    gap = truth - fit_mixture(Bernoulli(), x, 2).log_prob(new)
    assert -4.5 * gap.std() / 2000**0.5 < gap.mean() < 0.1
    assert (truth - fit_elements(Bernoulli(), x).log_prob(new)).mean() > 2


def test_k_means_of_equal_rows() -> None:
    share = k_means(Bernoulli(), torch.ones(6, 3), 3, seed=0)
    assert torch.equal(share.sum(-1), torch.ones(6))
    assert fit_mixture(Bernoulli(), torch.ones(6, 3), 3).log_prob(torch.ones(2, 3)).isfinite().all()


@pytest.mark.parametrize("name", list(LIKELIHOODS))
def test_every_likelihood_has_simple_models(name: str) -> None:
    vae = make_vae(likelihood=name).eval()
    train, x = LIKELIHOODS[name].data((50, P)), LIKELIHOODS[name].data((20, P))
    vae.likelihood.calibrate(train)
    found = simple_models(vae, train, x)
    elements = independent_elements(vae, train)
    assert elements is not None
    assert found.independent == pytest.approx(elements.log_prob(x).mean().item())
    assert (found.mixture is None) == (name == "beta")
    assert found.mixture_size <= 9  # the number of codes
    from pyro_dvae.codes import enumerate_codes

    with torch.no_grad():
        p_x = vae.decode(enumerate_codes(2, 3)[:, None])
        expected = p_x.log_prob(x).mean().item()  # the prior is uniform
    assert found.prior_codes == pytest.approx(expected)
    assert found.prior_codes_error is None
    if elements.likelihood.support.is_discrete and name != "multinomial":
        total = elements.element_log_probs(x).nansum(-1)
        torch.testing.assert_close(total, elements.log_prob(x))


def test_units_of_correlated_columns_do_not_matter() -> None:
    """Its simple models have normal columns, standardised whatever the units of the data."""
    vae = make_vae(likelihood="correlated-normal").eval()
    train, x = (LIKELIHOODS["normal"].data((num, P)) for num in (60, 20))
    unit = torch.tensor([1e-5, 1.0, 1e5, 1e3])
    found, other = simple_models(vae, train, x), simple_models(vae, train * unit, x * unit)
    shift = unit.log().sum().item()
    assert found.independent is not None
    assert other.independent == pytest.approx(found.independent - shift)
    assert found.mixture is not None
    assert other.mixture == pytest.approx(found.mixture - shift)


def test_codes_that_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    vae = make_vae().eval()
    x = LIKELIHOODS["bernoulli"].data((20, P))
    exact = simple_models(vae, x, x)
    monkeypatch.setattr(simple_module, "_CODES", 8)
    drawn = simple_models(vae, x, x, known=exact)
    assert drawn.prior_codes_error is not None
    assert abs(drawn.prior_codes - exact.prior_codes) < 4.5 * drawn.prior_codes_error
    assert (drawn.mixture, drawn.independent) == (exact.mixture, exact.independent)


def test_codes_have_the_probabilities_of_the_prior() -> None:
    """sum_z p(z) mean_n log p(x_n|z), under a prior that is far from uniform."""
    vae = make_vae("learned").eval()
    x = LIKELIHOODS["bernoulli"].data((20, P))
    codes = enumerate_codes(D, K, dtype=x.dtype)
    with torch.no_grad():
        p_z = vae.prior_codes().log_prob(codes).exp()
        log_p = vae.decode(codes.unsqueeze(1)).log_prob(x).mean(-1)
    assert (p_z * len(codes) - 1).abs().max() > 0.1
    found = simple_models(vae, x, x)
    assert found.prior_codes == pytest.approx((p_z * log_p).sum().item(), rel=1e-9)
    assert found.prior_codes_error is None


def test_labels_and_few_data() -> None:
    vae = make_vae("conditional").eval()
    x = LIKELIHOODS["bernoulli"].data((2, P))
    found = simple_models(vae, x, x, torch.tensor([0, 1]))
    assert found.mixture_size == 1
    assert found.prior_codes_error is not None
    assert found.num_train == 2


def test_more_data_than_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simple_module, "MAX_TRAINING_DATA", 30)
    vae = make_vae().eval()
    x = LIKELIHOODS["bernoulli"].data((50, P))
    assert simple_models(vae, x, x).num_train == 30


def test_beside_the_figures_of_a_model() -> None:
    vae = make_vae().eval()
    x = LIKELIHOODS["bernoulli"].data((30, P))
    scores = evaluate(vae, x, train=x)
    assert scores.simple_models is not None
    assert scores.simple_models.independent is not None
    assert scores.log_marginal is not None
    saved = (scores.log_marginal - scores.simple_models.independent) / math.log(2)
    assert scores.bits_saved == pytest.approx(saved)
    assert scores.log_prob == scores.log_marginal
    assert "independent elements" in repr(scores)
    assert "bits saved" in scores._repr_html_()
    assert evaluate(vae, x).bits_saved is None
    assert "independent elements" not in repr(evaluate(vae, x))


def test_refusals() -> None:
    with pytest.raises(ValueError, match="maximum in closed form for EM; got Beta"):
        fit_mixture(Beta(), torch.rand(5, 2), 2)
    with pytest.raises(ValueError, match="components of at least 1"):
        fit_mixture(Bernoulli(), torch.ones(5, 2), 0)
    multinomial = fit_elements(LIKELIHOODS["multinomial"].build((P,)), torch.ones(3, P))
    assert isinstance(multinomial, Mixture)
    assert "Mixture of 1 x Multinomial" in repr(multinomial)
    with pytest.raises(NotImplementedError):
        multinomial.element_log_probs(torch.ones(3, P))
    assert of_elements(Beta(), (2,)) is not None
