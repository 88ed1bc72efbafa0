"""A start from a mixture that EM fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from zoo import LIKELIHOODS, P

from pyro_dvae import (
    Config,
    DiscreteVAE,
    EnumeratedELBO,
    LearnedPrior,
    MarginalELBO,
    MLPDecoder,
    MLPEncoder,
    build_vae,
    fit,
    log_marginal,
)
from pyro_dvae.data import open_source
from pyro_dvae.evaluation import fit_mixture
from pyro_dvae.likelihoods.maximum import has_maximum
from pyro_dvae.recipe import FEW_PER_CATEGORY
from pyro_dvae.runs import resume_run, start, start_run
from pyro_dvae.training import start_from_mixture
from pyro_dvae.training.batches import TensorData
from pyro_dvae.training.mixture_start import resolve_start

SIZE = (40, P)


def _model(likelihood: str = "bernoulli", num_categories: int = 5, width: int = 12) -> DiscreteVAE:
    its = LIKELIHOODS[likelihood].build((P,))
    return DiscreteVAE(
        MLPEncoder(its.feature_shape((P,)), 1, num_categories, (5,)),
        MLPDecoder((P,), 1, num_categories, (width,), its.num_params, dropout=0.5),
        LearnedPrior(1, num_categories),
        its,
    )


CLOSED = [name for name, row in LIKELIHOODS.items() if has_maximum(row.build((P,)))]


@pytest.mark.parametrize("name", CLOSED)
def test_the_model_is_the_mixture(name: str) -> None:
    """p(x) = sum_k w_k p(x; params_k), with the same number for each datum."""
    x = LIKELIHOODS[name].data(SIZE)
    vae = _model(name)
    vae.likelihood.calibrate(x)
    mixture = start_from_mixture(vae, TensorData(x))
    assert len(mixture.log_weights) == 5
    new = LIKELIHOODS[name].data((30, P))
    expected = mixture.log_prob(new.double())
    torch.testing.assert_close(
        log_marginal(vae.eval(), new).double(), expected, rtol=2e-3, atol=5e-3
    )


def test_the_encoder_stays_as_it_is() -> None:
    vae, x = _model(), LIKELIHOODS["bernoulli"].data(SIZE)
    before = {name: w.clone() for name, w in vae.state_dict().items()}
    start_from_mixture(vae, TensorData(x))
    changed = {n for n, w in vae.state_dict().items() if not torch.equal(w, before[n])}
    assert changed == {"prior.logits", "decoder.layers.3.weight", "decoder.layers.3.bias"}


def test_a_component_without_data_takes_a_share_of_the_largest() -> None:
    """Four components of data of one kind: a weight of 0 would have no gradient.

    A code p(z=j) g(x; j) that is divided into p(z=j) / n times the same g leaves p(x) as it is.
    """
    vae, x = _model(num_categories=4), torch.ones(20, P)
    mixture = start_from_mixture(vae, TensorData(x))
    assert mixture.log_weights.exp().min() < 1e-3
    shares = vae.prior().base_dist.probs[0]
    torch.testing.assert_close(shares, torch.full((4,), 0.25))
    p_x = mixture.log_prob(x.double())
    torch.testing.assert_close(log_marginal(vae.eval(), x).double(), p_x, rtol=0, atol=1e-3)


def test_a_share_is_that_of_the_components_that_divide_it() -> None:
    """Of four components, one has the 6 rows of zeros, and the others divide the 24 of ones."""
    vae, x = _model(num_categories=4), torch.cat([torch.ones(24, P), torch.zeros(6, P)])
    mixture = start_from_mixture(vae, TensorData(x))
    assert (mixture.log_weights.exp() < 1e-3).sum() == 2
    shares = vae.prior().base_dist.probs[0].sort().values
    torch.testing.assert_close(shares, torch.tensor([0.2, *[0.8 / 3] * 3]), rtol=0, atol=1e-3)
    p_x = mixture.log_prob(x.double())
    torch.testing.assert_close(log_marginal(vae.eval(), x).double(), p_x, rtol=0, atol=1e-3)


def test_the_rule() -> None:
    vae, elbo = _model(), MarginalELBO(noisy=True)
    few = FEW_PER_CATEGORY * 5
    assert resolve_start(vae, elbo, (few - 1, P), None) == "mixture"
    assert resolve_start(vae, elbo, (few, P), None) == "random"
    assert resolve_start(vae, elbo, (few, P), "mixture") == "mixture"
    assert resolve_start(vae, elbo, (few - 1, P), "random") == "random"
    assert resolve_start(vae, EnumeratedELBO(), (few - 1, P), None) == "random"
    assert resolve_start(_model("beta"), elbo, (few - 1, P), None) == "random"


def _with(**parts: nn.Module) -> DiscreteVAE:
    vae = _model()
    for name, part in parts.items():
        setattr(vae, name, part)
    return vae


@pytest.mark.parametrize(
    ("vae", "elbo", "words"),
    [
        (_model, EnumeratedELBO(), "the estimator"),
        (lambda: _with(prior=LearnedPrior(2, 5)), MarginalELBO(), "one latent with a learned"),
        (lambda: _with(decoder=nn.Sequential()), MarginalELBO(), "an MLPDecoder"),
        (lambda: _model(width=9), MarginalELBO(), "at most 4 categories"),
        (lambda: _model("beta"), MarginalELBO(), "a likelihood with a maximum"),
    ],
)
def test_what_a_mixture_needs(vae: Any, elbo: Any, words: str) -> None:
    with pytest.raises(ValueError, match=rf'Expected {words}.*for start="mixture"; got '):
        resolve_start(vae(), elbo, SIZE, "mixture")


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="Expected start to be one of random, mixture; got 'em'"):
        Config(start="em")
    with pytest.raises(ValueError, match="Expected start to be one of random, mixture; got 'em'"):
        next(fit(_model(), MarginalELBO(noisy=True), torch.ones(9, P), start="em"))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "t.csv"
    rows = np.random.default_rng(0).normal(size=(60, 3))
    np.savetxt(path, rows, delimiter=",", header="a,b,c", comments="")
    return path


OPTIONS: dict[str, Any] = {
    "likelihood": "normal",
    "test": 0,
    "num_latents": 1,
    "num_categories": 12,
    "seed": 1,
}


def test_fit_starts_as_a_run_does_which_resumes_without_em(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """48 rows for training, 4 per category: the same weights, bit for bit, in all three ways."""
    with start_run(open_source(table), tmp_path / "run", epochs=3, **OPTIONS) as training:
        assert training.config.start == "mixture"
        records = list(training.epochs())
        training.trainer.keep_best()
    weights = training.trainer.vae.state_dict()
    torch.manual_seed(1)
    vae = build_vae(training.config, (3,))
    x = torch.tensor(np.loadtxt(table, delimiter=",", skiprows=1), dtype=torch.float32)
    again = list(fit(vae, MarginalELBO(noisy=True), x, epochs=3, seed=1))
    assert [r.validation_elbo for r in again] == [r.validation_elbo for r in records]
    for name, weight in weights.items():
        assert torch.equal(weight, vae.state_dict()[name]), name

    with start_run(open_source(table), tmp_path / "part", epochs=2, **OPTIONS) as training:
        list(training.epochs())
    monkeypatch.setattr(start, "start_from_mixture", None)
    with resume_run(tmp_path / "part", epochs=3) as training:
        list(training.epochs())
        training.trainer.keep_best()
    for name, weight in weights.items():
        assert torch.equal(weight, training.trainer.vae.state_dict()[name]), name


def test_a_run_of_more_rows_starts_at_random(table: Path, tmp_path: Path) -> None:
    given = {**OPTIONS, "num_categories": 4}
    with start_run(open_source(table), tmp_path / "run", epochs=0, **given) as training:
        assert training.config.start == "random"


@pytest.mark.slow
def test_one_latent_does_not_lose_to_em() -> None:
    """Few rows, of three kinds, and many categories: the case where a random start does lose."""
    generator = torch.Generator().manual_seed(0)
    middle = 2 * torch.randn(3, 8, generator=generator)
    kind = torch.randint(3, (620,), generator=generator)
    x = middle[kind] + torch.randn(620, 8, generator=generator)
    train, validation, test = x[:90], x[90:120], x[120:]
    gains = {}
    for its in ("random", None):
        torch.manual_seed(0)
        options: Any = {"prior": "learned", "estimator": "marginal", "likelihood": "normal"}
        config = Config(num_latents=1, num_categories=24, hidden=(128,), dropout=0.3, **options)
        vae = build_vae(config, (8,))
        elbo = MarginalELBO(noisy=True)
        for _ in fit(vae, elbo, train, validation, patience=100, start=its):
            pass
        mixture = fit_mixture(vae.likelihood, train.double(), 24)
        gains[its] = log_marginal(vae.eval(), test) - mixture.log_prob(test.double())
    gain = gains[None]
    assert gain.mean() > -2 * gain.std() / len(test) ** 0.5
    assert gain.mean() > gains["random"].mean()
