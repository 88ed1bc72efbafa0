"""The likelihood of the observed elements is the marginal over the missing ones."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn
from zoo import LIKELIHOODS, D, K, P, gappy, make_vae

from pyro_dvae import (
    Bernoulli,
    Beta,
    Categorical,
    ContinuousBernoulli,
    CorrelatedNormal,
    DiscreteVAE,
    EnumeratedELBO,
    Laplace,
    Likelihood,
    LogisticMixture,
    Masked,
    Mixed,
    MLPBaseline,
    MLPControl,
    MLPDecoder,
    MLPEncoder,
    Multinomial,
    NegativeBinomial,
    Normal,
    Ordinal,
    Poisson,
    ReinforceELBO,
    RelaxELBO,
    RlooELBO,
    UniformPrior,
    evaluate,
    fit,
    log_marginal,
)
from pyro_dvae.codes import enumerate_codes
from pyro_dvae.likelihoods.elements import element_log_probs

NAN = math.nan
DEPENDENT = ("multinomial", "correlated-normal")
ELEMENTWISE = [name for name in LIKELIHOODS if name not in (*DEPENDENT, "masked")]

# Kind of a column -> (likelihood, all of its values, the weight of each in a sum or an integral).
_UNIT = torch.linspace(0.5e-4, 1 - 0.5e-4, 10_000)
_LINE = torch.linspace(-60, 60, 120_001)
COLUMNS: dict[str, tuple[Any, Tensor, float]] = {
    "bernoulli": (Bernoulli(), torch.arange(2.0), 1),
    "categorical": (Categorical(4), torch.arange(4.0), 1),
    "ordinal": (Ordinal(4, (1,)), torch.arange(4.0), 1),
    "logistic-mixture": (LogisticMixture(5, 2), torch.arange(5.0), 1),
    "poisson": (Poisson(), torch.arange(200.0), 1),
    "negative-binomial": (NegativeBinomial(), torch.arange(3000.0), 1),
    "normal": (Normal((1,)), _LINE, 1e-3),
    "laplace": (Laplace((1,)), _LINE, 1e-3),
    "continuous-bernoulli": (ContinuousBernoulli(), _UNIT, 1e-4),
    "beta": (Beta(), _UNIT, 1e-4),
}


def make_params(likelihood: Any, *batch: int) -> Tensor:
    n = likelihood.num_params
    return torch.randn(*batch, P, *([n] if n > 1 else []))


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elements_sum_to_the_datum(name: str) -> None:
    likelihood = LIKELIHOODS[name].build((P,))
    x = LIKELIHOODS[name].data((6, P))
    p = likelihood(make_params(likelihood, 5, 1), 1)
    elements = element_log_probs(p, x)
    assert elements.shape == (5, 6, P)
    torch.testing.assert_close(elements.sum(-1), p.log_prob(x))


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_complete_data_have_the_same_probability(name: str) -> None:
    likelihood = LIKELIHOODS[name].build((P,))
    x, params = LIKELIHOODS[name].data((6, P)), make_params(likelihood, 5, 1)
    torch.testing.assert_close(
        Masked(likelihood)(params, 1).log_prob(x), likelihood(params, 1).log_prob(x)
    )


@pytest.mark.parametrize("missing", COLUMNS)
def test_a_missing_column_is_summed_or_integrated_over(missing: str) -> None:
    """Of a table with a column of every kind."""
    blocks = [(likelihood, 1) for likelihood, _, _ in COLUMNS.values()]
    mixed, place = Mixed(blocks), list(COLUMNS).index(missing)
    params = torch.randn(len(blocks), mixed.num_params)
    beta = list(COLUMNS).index("beta")  # whose density is to be finite at 0 and at 1
    params[beta] = params[beta].abs() + 1
    complete = mixed(params, 1)
    x = complete.sample()
    _, values, weight = COLUMNS[missing]
    every = x.repeat(len(values), 1)
    every[:, place] = values
    marginal = complete.log_prob(every).logsumexp(0) + math.log(weight)
    x[place] = NAN
    found = Masked(mixed)(params, 1).log_prob(x)
    torch.testing.assert_close(found, marginal, rtol=0, atol=1e-3 if weight < 1 else 1e-6)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
def test_log_p_of_a_model_is_the_sum_over_all_completions(share: float) -> None:
    vae = _small(Masked(Bernoulli()), (2 * P,))
    x = gappy(LIKELIHOODS["bernoulli"].data((12, P)), share)
    assert x.isnan().any()
    scores = evaluate(vae, x)
    bits = torch.tensor(list(itertools.product([0.0, 1.0], repeat=P)))
    p_bits = vae.decode(enumerate_codes(D, K)[:, None]).log_prob(bits)  # (K^D, 2^P)
    log_p = p_bits.logsumexp(0) - D * math.log(K)
    agrees = ((bits == x[:, None]) | x[:, None].isnan()).all(-1)  # (12, 2^P)
    by_hand = log_p.masked_fill(~agrees, -math.inf).logsumexp(-1)
    torch.testing.assert_close(log_marginal(vae, x), by_hand)
    assert scores.log_marginal == pytest.approx(by_hand.mean().item())
    assert scores.elbo <= scores.log_marginal + 1e-9
    observed = float((~x.isnan()).sum()) / 12
    assert scores.observed_elements == pytest.approx(observed)
    assert scores.elbo_per_element == pytest.approx(scores.elbo / observed)
    assert scores.bits_per_dimension == pytest.approx(-scores.elbo / observed / math.log(2))
    assert "ELBO per observed element" in repr(scores)


@pytest.mark.parametrize("name", ELEMENTWISE)
@pytest.mark.parametrize("size", [1.0, 1e3])
def test_a_missing_element_has_no_gradient(name: str, size: float) -> None:
    likelihood = Masked(LIKELIHOODS[name].build((P,)))
    x = LIKELIHOODS[name].data((1, P))
    x[0, 1] = NAN
    params = (size * make_params(likelihood, 1)).requires_grad_()
    likelihood(params, 1).log_prob(x).sum().backward()
    assert params.grad is not None
    assert params.grad.isfinite().all()
    assert (params.grad[:, 1] == 0).all()
    if size == 1:
        assert (params.grad[:, 0] != 0).any()


def test_the_encoder_sees_which_elements_are_missing() -> None:
    likelihood = Masked(Normal((2,)))
    likelihood.calibrate(torch.tensor([[1.0, 5], [3, NAN], [NAN, 9], [NAN, NAN]]))
    features = likelihood.features(torch.tensor([[2.0, NAN], [1.0, 9.0]]))
    torch.testing.assert_close(features, torch.tensor([[0.0, 0, 0, 1], [-1, 1, 0, 0]]))
    for event in ((), (3,), (3, 2), (3, 2, 4)):
        x = gappy(torch.randn(5, *event))
        for masked in (Masked(Normal()), Masked(Beta())):
            shape = masked.feature_shape(event)
            assert masked.features(x.sigmoid()).shape == (5, *shape)
            assert masked.features(x.sigmoid()).isfinite().all()


def test_units_are_those_of_the_observed_values() -> None:
    """Up to the values that are borrowed once more than others: a tenth of a spread at most."""
    x = gappy(torch.randn(1000, 2) * torch.tensor([1.0, 30.0]) + 7, 0.4)
    likelihood = Masked(Mixed([(Normal((1,)), 1), (Laplace((1,)), 1)]))
    assert not likelihood.is_calibrated()
    likelihood.calibrate(x)
    assert likelihood.is_calibrated()
    normal, laplace = likelihood.likelihood.blocks  # type: ignore[attr-defined]
    assert normal.location.item() == pytest.approx(x[:, 0].nanmean().item(), abs=0.1)
    assert laplace.location.item() == pytest.approx(x[:, 1].nanmedian().item(), abs=3)


def test_borrowed_values_are_taken_as_often_as_each_other() -> None:
    x = torch.tensor([[1.0], [NAN], [2], [NAN], [3], [NAN], [NAN], [NAN], [NAN]])
    values, counts = Masked(Poisson()).borrowed(x).unique(return_counts=True)
    assert values.tolist() == [1, 2, 3]
    assert counts.tolist() == [3, 3, 3]
    nothing = Masked(Beta()).borrowed(torch.full((3, 1), NAN))
    assert (nothing == 0.5).all()


class TestRefusals:
    @pytest.mark.parametrize("likelihood", [Multinomial(), Mixed([(Multinomial(), 3)])])
    def test_dependent_elements(self, likelihood: Any) -> None:
        with pytest.raises(ValueError, match=r"elements are independent.*got Multinomial\. Use P"):
            Masked(likelihood)
        with pytest.raises(ValueError, match=r"got CorrelatedNormal\. .* Normal for real numbers"):
            Masked(CorrelatedNormal((P,)))

    def test_twice(self) -> None:
        with pytest.raises(ValueError, match="got Masked"):
            Masked(Masked(Normal()))

    def test_observed_values_outside_the_support(self) -> None:
        likelihood = Masked(LIKELIHOODS["mixed"].build((P,)))
        x = torch.tensor([[NAN, 1, 0.5, 2], [0, 3, 0.5, NAN]])
        with pytest.raises(ValueError, match=r"Column 1: .*first is in row 1"):
            likelihood.check(x)
        with pytest.raises(ValueError, match="rows of 4 columns"):
            likelihood.check(x[:, :3])
        with pytest.raises(ValueError, match="to inf"):
            likelihood.check(x.masked_fill(x == 3, 0).masked_fill(x == 0.5, math.inf))
        assert likelihood.support.check(x).tolist() == [[True] * 4, [True, False, True, True]]

    @pytest.mark.parametrize("name", ELEMENTWISE)
    def test_other_likelihoods_name_it(self, name: str) -> None:
        x = LIKELIHOODS[name].data((3, P))
        x[1, 1] = NAN
        with pytest.raises(ValueError, match=r"wrap the likelihood in Masked\(\.\.\.\)"):
            LIKELIHOODS[name].build((P,)).check(x)

    def test_a_distribution_that_does_not_score_elements(self) -> None:
        class Together(Likelihood):
            def forward(self, params: Tensor, event_dim: int) -> Any:
                return dist.MultivariateNormal(params, torch.eye(P))

        p = Masked(Together())(torch.zeros(P), 1)
        with pytest.raises(ValueError, match=r"independent.*got MultivariateNormal"):
            p.log_prob(torch.tensor([1.0, NAN, 2, 3]))


class Shifted(nn.Module):
    """A likelihood of a user's own, which is no `Likelihood`."""

    num_params = 1

    def forward(self, params: Tensor, event_dim: int) -> Any:
        return dist.Normal(params + 1, 2.0).to_event(event_dim)


def test_a_likelihood_of_ones_own() -> None:
    x, params = torch.tensor([[1.0, NAN, 0.5]]), torch.randn(4, 1, 3)
    found = Masked(Shifted())(params, 1).log_prob(x)
    seen = dist.Normal(params[..., [0, 2]] + 1, 2.0).log_prob(x[:, [0, 2]]).sum(-1)
    torch.testing.assert_close(found, seen)


def _small(likelihood: Any, seen: tuple[int, ...]) -> Any:
    vae = DiscreteVAE(
        MLPEncoder(seen, D, K, hidden=(5,)),
        MLPDecoder((P,), D, K, (5,), likelihood.num_params),
        UniformPrior(D, K),
        likelihood,
    )
    return vae.eval()


@pytest.mark.parametrize(
    "elbo",
    [
        lambda: RlooELBO(2),
        lambda: ReinforceELBO(baseline=MLPBaseline((P,), (3,))),
        lambda: RelaxELBO(network=MLPControl((P,), D, K, 3)),
    ],
)
def test_training_takes_gaps(elbo: Any) -> None:
    vae, x = make_vae(likelihood="masked"), LIKELIHOODS["masked"].data((60, P))
    records = list(fit(vae, elbo(), x, validation=10, epochs=2, batch_size=20))
    assert all(math.isfinite(record.validation_elbo or NAN) for record in records)
    assert all(weight.isfinite().all() for weight in vae.parameters())


@pytest.mark.slow
@pytest.mark.parametrize(
    "share",
    [pytest.param(0.1, marks=pytest.mark.slow), 0.3, pytest.param(0.5, marks=pytest.mark.slow)],
)
def test_training_finds_what_columns_have_in_common(share: float) -> None:
    """Two clusters: the exact log p of the truth is known, and independent columns lose by far."""
    torch.manual_seed(1)
    cluster = torch.randint(2, (3000, 1)).double()
    truth = torch.tensor([[0.1, 0.9, 0.1, 0.9], [0.9, 0.1, 0.9, 0.1]]).double()
    x = gappy(torch.bernoulli(truth[cluster.long()[:, 0]]), share)
    train, test = x[:2000], x[2000:]
    scores = Bernoulli().element_log_probs(truth.logit()[:, None], test.nan_to_num(0))
    best = scores.masked_fill(test.isnan(), 0).sum(-1).logsumexp(0).mean() - math.log(2)
    alone = Bernoulli().element_log_probs(train.nanmean(0).logit(), test.nan_to_num(0))
    columns = alone.masked_fill(test.isnan(), 0).sum(-1).mean()
    vae = _small(Masked(Bernoulli()), (2 * P,)).train()
    options = {"annealing": 0, "averaging": 0.9, "learning_rate": 1e-2}
    for _ in fit(vae, EnumeratedELBO(), train, epochs=20, batch_size=50, **options):  # type: ignore[arg-type]
        pass
    found = evaluate(vae, test)
    assert found.log_marginal is not None
    assert found.log_marginal > columns + 0.8 * (best - columns)
    assert found.elbo > columns
