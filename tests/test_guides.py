"""Guides."""

from __future__ import annotations

import math

import pytest
import torch
from zoo import D, K, P, make_vae, tiny_data

from pyro_dvae import (
    AutoregressiveGuide,
    Bernoulli,
    DiscreteVAE,
    EnumeratedELBO,
    MeanFieldGuide,
    MLPEncoder,
    UniformPrior,
    evaluate,
)
from pyro_dvae.codes import code_logits


def test_mean_field_is_the_encoders_categoricals() -> None:
    context = torch.randn(5, D, K)
    q = MeanFieldGuide()(context)
    logits = code_logits(q)
    assert logits is not None
    torch.testing.assert_close(logits, context.log_softmax(-1))
    assert isinstance(make_vae().posterior_family, MeanFieldGuide)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 3), "Expected latents of at least 1"),
        ((2, 1), "Expected categories of at least 2"),
        ((2, 3, 0), "Expected width of the guide of at least 1"),
    ],
)
def test_sizes_are_checked(sizes: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AutoregressiveGuide(*sizes)


@pytest.mark.slow
def test_autoregressive_closes_the_gap_that_mean_field_leaves() -> None:
    """x is the exclusive or of two bits: given x, each bit tells the other."""

    class Xor(torch.nn.Module):
        def forward(self, z: torch.Tensor) -> torch.Tensor:
            same = (z[..., 0, :] * z[..., 1, :]).sum(-1)
            return 6 * (1 - 2 * same).unsqueeze(-1)

    x = torch.tensor([[0.0], [1.0]])
    gaps = {}
    for name, guide, num_outputs in (
        ("mean-field", None, 2),
        ("autoregressive", AutoregressiveGuide(2, 2, 8), 10),
    ):
        vae = DiscreteVAE(
            MLPEncoder((1,), 2, num_outputs, (8,)), Xor(), UniformPrior(2, 2), Bernoulli(), guide
        )
        optimizer = torch.optim.Adam(vae.parameters(), 0.03)
        elbo = EnumeratedELBO(max_plate_nesting=1)
        for step in range(600):
            elbo.beta = max(1, 4 - step / 100)  # or z_1 commits before z_2 has learnt to follow
            optimizer.zero_grad()
            elbo.differentiable_loss(vae.model, vae.guide, x).backward()
            optimizer.step()
        gaps[name] = evaluate(vae, x).posterior_gap
    # Mean-field must choose one of the two codes: it loses log 2, less where the other is unlikely.
    assert gaps["mean-field"] == pytest.approx(math.log(2), abs=0.05)
    assert abs(gaps["autoregressive"]) < 1e-3


def test_begins_as_the_mean_field_guide() -> None:
    guide = AutoregressiveGuide(D, K, 5)
    context = torch.randn(4, D, guide.num_outputs)
    z = guide(context).sample((3,))
    mean_field = MeanFieldGuide()(context[..., :K])
    torch.testing.assert_close(guide(context).log_prob(z), mean_field.log_prob(z))


def test_sites_follow_one_another() -> None:
    import pyro.poutine as poutine

    vae = make_vae(guide="autoregressive")
    x = tiny_data(3, (P,))
    trace = poutine.trace(vae.guide).get_trace(x)
    sites = [name for name, node in trace.nodes.items() if node["type"] == "sample"]
    assert sites == ["data", "z_1", "z_2"]
    assert trace.nodes["z_2"]["fn"].event_shape == (K,)
    code = torch.stack([trace.nodes[name]["value"] for name in sites[1:]], -2)
    torch.testing.assert_close(trace.log_prob_sum(), vae.posterior(x).log_prob(code).sum())
