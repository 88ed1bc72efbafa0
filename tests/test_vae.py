from __future__ import annotations

import math

import pyro
import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import SVI, Predictive, Trace_ELBO, TraceGraph_ELBO
from zoo import D, K, P, tiny_data, tiny_vae

from pyro_dvae import UniformPrior


@pytest.mark.parametrize("loss", [Trace_ELBO, TraceGraph_ELBO])
def test_runs_unchanged_under_pyros_svi(loss: type, device: torch.device) -> None:
    vae, x = tiny_vae().to(device), tiny_data(4).to(device)
    before = {name: p.detach().clone() for name, p in vae.named_parameters()}
    svi = SVI(vae.model, vae.guide, pyro.optim.Adam({"lr": 0.01}), loss=loss())
    assert all(math.isfinite(svi.step(x)) for _ in range(3))
    assert all((before[name] != p).any() for name, p in vae.named_parameters())


def test_runs_under_predictive(device: torch.device) -> None:
    vae, x = tiny_vae().to(device), tiny_data(4).to(device)
    prior = Predictive(vae.model, num_samples=3)(num_data=5)
    assert prior["z"].shape == (3, 5, D, K)
    assert prior["x"].shape == (3, 5, P)
    posterior = Predictive(vae.model, guide=vae.guide, num_samples=3, return_sites=("z", "x"))(x)
    assert posterior["z"].shape == (3, 4, D, K)
    assert torch.equal(posterior["x"][0], x)
    parallel = Predictive(vae.model, num_samples=3, parallel=True)(num_data=5)
    assert parallel["x"].shape == (3, 5, P)


def test_sites_and_plate() -> None:
    vae, x = tiny_vae(), tiny_data(4)
    guide = poutine.trace(vae.guide).get_trace(x)
    model = poutine.trace(poutine.replay(vae.model, guide)).get_trace(x)
    for trace in (guide, model):
        site = trace.nodes["z"]
        assert [frame.name for frame in site["cond_indep_stack"]] == ["data"]
        assert site["fn"].event_shape == (D, K)
        assert not site["fn"].has_rsample
    assert model.nodes["x"]["is_observed"]


def test_guide_is_the_encoder_and_model_the_decoder() -> None:
    """Eqs. 14, 15 and 80: log q(z|x) = sum z log f(x); Eq. 12 for x."""
    vae, x = tiny_vae(), tiny_data(4)
    guide = poutine.trace(vae.guide).get_trace(x)
    model = poutine.trace(poutine.replay(vae.model, guide)).get_trace(x)
    z = guide.nodes["z"]["value"]
    guide.compute_log_prob()
    model.compute_log_prob()
    log_q = (z * vae.encoder(x).log_softmax(-1)).sum((-2, -1))
    torch.testing.assert_close(guide.nodes["z"]["log_prob"], log_q)
    torch.testing.assert_close(model.nodes["z"]["log_prob"], torch.full((4,), -D * math.log(K)))
    g = vae.decoder(z).sigmoid()
    by_hand = (x * g.log() + (1 - x) * (1 - g).log()).sum(-1)
    torch.testing.assert_close(model.nodes["x"]["log_prob"], by_hand)


def test_reconstruct_and_sample(device: torch.device) -> None:
    vae, x = tiny_vae(event=(2, 3)).to(device), tiny_data(4, (2, 3)).to(device)
    means = vae.reconstruct(x)
    assert means.shape == (4, 2, 3)
    assert not means.requires_grad
    best = torch.eye(K, device=device)[vae.encode(x).argmax(-1)]
    torch.testing.assert_close(means, vae.decoder(best).sigmoid())
    assert vae.sample(7, means=True).shape == (7, 2, 3)
    assert set(vae.sample(50).unique().tolist()) <= {0.0, 1.0}


def test_samples_follow_the_marginal() -> None:
    """E[x] over draws against the mean over all codes, in standard errors."""
    from pyro_dvae.codes import enumerate_codes

    vae = tiny_vae()
    mean = vae.decode(enumerate_codes(D, K)).mean.mean(0)
    draws = vae.sample(20_000)
    assert ((draws.mean(0) - mean).abs() <= 4.5 * draws.std(0) / 20_000**0.5).all()


def test_float32_stays_float32() -> None:
    vae, x = tiny_vae().float(), tiny_data(4).float()
    assert vae.encode(x).dtype == vae.sample(2).dtype == torch.float32


def test_guide_needs_data() -> None:
    with pytest.raises(ValueError, match="Expected data x"):
        tiny_vae().guide()


@pytest.mark.parametrize("shape", [(0, 3), (2, 1), (-1, 2)])
def test_prior_refuses_codes_that_are_none(shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"Expected (latents|categories) of at least"):
        UniformPrior(*shape)


def test_prior_is_uniform() -> None:
    prior = UniformPrior(2, 3)
    assert "logits" not in prior.state_dict()
    draws = prior().sample((9_000,)).mean(0)
    assert ((draws - 1 / 3).abs() <= 4.5 * (2 / 9 / 9_000) ** 0.5).all()
