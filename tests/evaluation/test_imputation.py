"""`impute` and `predict` against the joint probabilities of complete data."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from zoo import LIKELIHOODS, P, gappy, make_batch, make_vae

from pyro_dvae import (
    DiscreteVAE,
    Masked,
    MLPDecoder,
    MLPEncoder,
    UniformPrior,
    impute,
    log_marginal,
    predict,
)
from pyro_dvae.evaluation import imputation, incomplete, observed
from pyro_dvae.evaluation.observed import ObservedPosterior
from pyro_dvae.streams import RandomStream

NAN = math.nan
BITS = torch.tensor(list(itertools.product([0.0, 1.0], repeat=P)), dtype=torch.float64)


def conditional_bits(vae: Any, x: Tensor) -> Tensor:
    """P(x_p = 1|x_o), (N, P), from p(x) of all x."""
    p = log_marginal(vae, BITS).exp()
    agrees = ((x[:, None] == BITS) | x[:, None].isnan()).all(-1).double()
    return (agrees * p) @ BITS / (agrees * p).sum(-1, keepdim=True)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
def test_bits_by_the_sum_over_all_completions(share: float) -> None:
    vae = make_vae().eval()
    x = gappy(LIKELIHOODS["bernoulli"].data((40, P)), share)
    expected = conditional_bits(vae, x)
    missing = x.isnan()
    whole = impute(vae, x)
    assert torch.equal(whole[~missing], x[~missing])
    assert torch.equal(whole[missing], (expected > 0.5)[missing].double())
    for column in range(P):
        found = predict(vae, x, column)
        given = x.clone()
        given[:, column] = NAN
        p = conditional_bits(vae, given)[:, column]
        assert found.probabilities is not None
        torch.testing.assert_close(found.probabilities[:, 1], p)
        torch.testing.assert_close(found.mean, p)
        torch.testing.assert_close(found.probabilities.sum(-1), torch.ones(40))
        known = ~missing[:, column]
        log_p = torch.where(x[:, column] == 1, p, 1 - p).log()
        torch.testing.assert_close(found.log_prob[known], log_p[known])
        assert found.log_prob[~known].isnan().all()
        assert found.log_score == pytest.approx(log_p[known].mean().item())
        right = ((p > 0.5) == (x[:, column] == 1))[known]
        assert found.accuracy == pytest.approx(right.double().mean().item())
        assert f"{int(known.sum())} with a value: accuracy" in repr(found)


@pytest.mark.parametrize("name", ["mixed", "masked"])
def test_columns_of_a_table_by_the_joint_density(name: str) -> None:
    """Of a bit, three levels and two real numbers."""
    vae = make_vae(likelihood=name).eval()
    x = gappy(LIKELIHOODS["mixed"].data((30, P)))
    marginal = _masked(vae)
    for column, values, weight in (
        (0, torch.arange(2.0), 1.0),
        (1, torch.arange(3.0), 1.0),
        (3, torch.linspace(-30, 30, 6001), 0.01),
    ):
        every = x.unsqueeze(1).repeat(1, len(values), 1)
        every[..., column] = values
        log_joint = log_marginal(marginal, every.flatten(0, 1)).reshape(30, -1)
        log_p = log_joint - log_joint.logsumexp(-1, keepdim=True)
        found = predict(vae, x, column)
        torch.testing.assert_close(found.mean, log_p.exp() @ values, rtol=1e-6, atol=1e-6)
        if weight == 1:
            assert found.probabilities is not None
            torch.testing.assert_close(found.probabilities, log_p.exp())
        else:
            assert found.probabilities is found.accuracy is None
            assert found.best is found.mean
            both = log_marginal(marginal, x)
            given = x.clone()
            given[:, column] = NAN
            known = ~x[:, column].isnan()
            torch.testing.assert_close(
                found.log_prob[known], (both - log_marginal(marginal, given))[known]
            )
            error = (x[:, column] - found.mean).square().nanmean().sqrt().item()
            assert found.error == pytest.approx(error)
        hidden = torch.zeros(30, P, dtype=torch.bool)
        hidden[:, column] = True
        torch.testing.assert_close(impute(vae, x, hidden)[:, column], found.best.to(x))


def _masked(vae: Any) -> Any:
    """A model with the same p(x), of which `log_marginal` takes gaps."""
    if vae.likelihood.takes_missing:
        return vae
    other = make_vae(likelihood="masked").eval()
    other.decoder, other.prior = vae.decoder, vae.prior
    other.likelihood.load_state_dict(
        {f"likelihood.{name}": value for name, value in vae.likelihood.state_dict().items()}
    )
    return other


def test_levels_and_counts() -> None:
    for name, values in (("ordinal", 5), ("logistic-mixture", 5), ("poisson", 60)):
        vae = make_vae(likelihood=name).eval()
        x = LIKELIHOODS[name].data((20, P))
        every = x.unsqueeze(1).repeat(1, values, 1)
        every[..., 2] = torch.arange(values).double()
        p = log_marginal(vae, every.flatten(0, 1)).reshape(20, -1).softmax(-1)
        found = predict(vae, x, 2)
        torch.testing.assert_close(found.mean, p @ torch.arange(values).double())
        if name != "poisson":
            assert found.probabilities is not None
            torch.testing.assert_close(found.probabilities, p)
        log_p = p.gather(1, x[:, 2:3].long())[:, 0].log()
        torch.testing.assert_close(found.log_prob, log_p)


def test_many_levels_get_their_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    vae = make_vae(likelihood="categorical").eval()
    x = gappy(LIKELIHOODS["categorical"].data((20, P)))
    monkeypatch.setattr(imputation, "MOST_LEVELS", 4)
    means = torch.stack([predict(vae, x, column).mean for column in range(P)], 1)
    hidden = torch.zeros(20, P, dtype=torch.bool)
    hidden[:, 1] = True
    torch.testing.assert_close(impute(vae, x, hidden)[:, 1], means[:, 1].round())


@pytest.mark.parametrize("sharp", [False, True])
@pytest.mark.parametrize("likelihood", ["mixed", "masked"])
@pytest.mark.parametrize("prior", ["mixture", "conditional", "vamp"])
def test_drawn_codes_tend_to_all_codes(prior: str, likelihood: str, sharp: bool) -> None:
    """The errors follow from how many draws share the weight; also for a guide far from p(z|x)."""
    vae = make_vae(prior, likelihood).eval()
    if sharp:
        with torch.no_grad():
            vae.encoder.layers[-1].weight.mul_(20)
    x, *labels = make_batch(vae, "masked", 12)
    given = {"labels": labels[0]} if labels else {}
    for column in range(P):
        exact = predict(vae, x, column, **given)
        drawn = predict(vae, x, column, **given, exact=False, importance_samples=4000, seed=1)
        hidden = x.clone()
        hidden[:, column] = NAN
        with torch.no_grad():
            posterior = ObservedPosterior(
                vae, hidden, labels[0] if labels else None, 4000, RandomStream(1)
            )
        assert (posterior.effective_draws > 20).all()
        error = 4.5 * posterior.effective_draws.rsqrt()
        if exact.probabilities is not None:
            assert drawn.probabilities is not None
            off = (drawn.probabilities - exact.probabilities).abs().amax(-1)
            assert (off <= error).all()
        else:
            assert ((drawn.mean - exact.mean).abs() <= 10 * error).all()
    assert impute(vae, x, **given, exact=False, importance_samples=50).isfinite().all()
    assert impute(vae, x, **given, exact=False, draws=True).isfinite().all()


@pytest.mark.parametrize("exact", [True, False])
def test_draws_are_of_the_conditional(exact: bool) -> None:
    """Jointly, of two missing bits: their four values have the probabilities of the model."""
    vae = make_vae().eval()
    num = 4000
    x = torch.tensor([[NAN, 1.0, 0.0, NAN]]).repeat(num, 1)
    whole = impute(vae, x, draws=True, exact=exact, importance_samples=200, seed=3)
    assert (whole[:, 1] == 1).all()
    assert (whole[:, 2] == 0).all()
    agrees = ((x[:1] == BITS) | x[:1].isnan()).all(-1)
    p = log_marginal(vae, BITS[agrees]).softmax(0)
    found = torch.stack([(whole == bits).all(-1).double().mean() for bits in BITS[agrees]])
    error = (p * (1 - p) / num).sqrt()
    # With drawn codes the weights have a bias of about one in the number of draws.
    assert ((found - p).abs() <= 4.5 * error + (0 if exact else 1 / 200)).all()
    again = impute(vae, x, draws=True, exact=exact, importance_samples=200, seed=3)
    assert torch.equal(again, whole)


def test_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    vae = make_vae(likelihood="masked").eval()
    x = LIKELIHOODS["masked"].data((23, P))
    whole, log_prob = impute(vae, x), predict(vae, x, 2).log_prob
    torch.testing.assert_close(impute(vae, x, batch_size=4), whole)
    blocks = list(imputation.impute_blocks(vae, x, batch_size=4))
    assert [len(block) for block in blocks] == [4, 4, 4, 4, 4, 3]
    torch.testing.assert_close(torch.cat(blocks), whole)
    monkeypatch.setattr(observed, "_CHUNK_NUMBERS", 100)
    monkeypatch.setattr(incomplete, "_TABLE_ELEMENTS", 50)
    torch.testing.assert_close(impute(vae, x), whole)
    torch.testing.assert_close(predict(vae, x, 2).log_prob, log_prob, equal_nan=True)


def test_images_are_filled_in() -> None:
    vae = DiscreteVAE(
        MLPEncoder((2, 3, 2), 2, 3, (5,)),
        MLPDecoder((3, 2), 2, 3, (5,)),
        UniformPrior(2, 3),
        Masked(LIKELIHOODS["bernoulli"].build((3, 2))),
    )
    x = gappy(LIKELIHOODS["bernoulli"].data((5, 3, 2)))
    whole = impute(vae, x)
    assert whole.shape == x.shape
    assert not whole.isnan().any()
    with pytest.raises(ValueError, match=r"Expected rows \(N, P\)"):
        predict(vae, x, 0)


class TestRefusals:
    def test_dependent_elements(self) -> None:
        vae = make_vae(likelihood="multinomial")
        with pytest.raises(ValueError, match=r"independent given z.*got Multinomial"):
            impute(vae, LIKELIHOODS["multinomial"].data((3, P)))

    def test_columns_and_masks(self) -> None:
        vae, x = make_vae(likelihood="mixed"), LIKELIHOODS["mixed"].data((3, P))
        for column in (-1, 4):
            with pytest.raises(ValueError, match=r"Expected .*column"):
                predict(vae, x, column)
        with pytest.raises(ValueError, match=r"bools of shape \(3, 4\)"):
            impute(vae, x, x)
        with pytest.raises(ValueError, match="rows of 4 columns"):
            impute(vae, x[:, :3])
        with pytest.raises(ValueError, match=r"Column 0.*data in \{0, 1\}"):
            impute(vae, x + 0.5)
        with pytest.raises(ValueError, match="importance samples of at least 2"):
            impute(vae, x, importance_samples=1)

    def test_too_many_codes(self) -> None:
        vae = DiscreteVAE(
            MLPEncoder((2 * P,), 20, 3, (5,)),
            MLPDecoder((P,), 20, 3, (5,)),
            UniformPrior(20, 3),
            Masked(LIKELIHOODS["bernoulli"].build((P,))),
        )
        x = gappy(LIKELIHOODS["bernoulli"].data((5, P)))
        with pytest.raises(ValueError, match=r"at most 65536 codes.*3\^20"):
            impute(vae, x, exact=True)
        assert not impute(vae, x, importance_samples=20).isnan().any()
