from __future__ import annotations

import math

import pyro.distributions as dist
import pytest
import torch

from pyro_dvae.codes import (
    code_logits,
    code_value,
    describe_codes,
    draw_codes,
    entropy,
    enumerate_codes,
    kl_divergence,
    log_exponentials,
    num_codes,
    one_hot,
)

SHAPES = [(1, 2), (1, 5), (2, 3), (4, 8), (30, 4)]


@pytest.mark.parametrize(("num_latents", "num_categories"), [(1, 2), (2, 3), (3, 4)])
def test_codes_are_all_codes_once(num_latents: int, num_categories: int) -> None:
    codes = enumerate_codes(num_latents, num_categories)
    assert codes.shape == (num_categories**num_latents, num_latents, num_categories)
    assert codes.unique(dim=0).shape == codes.shape
    assert torch.equal(codes.sum(-1), torch.ones(codes.shape[:2]))
    assert num_codes(num_latents, num_categories) == len(codes)


def test_chunks_of_codes_are_the_codes() -> None:
    whole = enumerate_codes(3, 3)
    parts = [enumerate_codes(3, 3, start=i, stop=min(i + 10, 27)) for i in range(0, 27, 10)]
    assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize(("num_latents", "num_categories"), SHAPES)
def test_kl_to_uniform(num_latents: int, num_categories: int) -> None:
    """KL of uniform q is 0, of one-hot q D log K, else D log K - entropy (Eq. 68)."""
    uniform = torch.zeros(num_latents, num_categories)
    corner = 1e4 * one_hot(torch.randint(num_categories, (num_latents,)), num_categories)
    full = num_latents * math.log(num_categories)
    logits = torch.randn(7, num_latents, num_categories)
    assert kl_divergence(uniform, uniform).item() == pytest.approx(0, abs=1e-12)
    assert kl_divergence(corner, uniform).item() == pytest.approx(full, rel=1e-12)
    torch.testing.assert_close(kl_divergence(logits, uniform), full - entropy(logits))
    assert kl_divergence(logits, uniform).shape == (7,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_probabilities_are_refused_and_their_logs_are_right(dtype: torch.dtype) -> None:
    p = torch.tensor([[[0.5, 0.25, 0.25], [1, 0, 0]], [[0.1, 0.2, 0.7], [0, 0.5, 0.5]]]).to(dtype)
    right = torch.tensor([1.5 * math.log(2), 0.8018185525433373 + math.log(2)]).to(dtype)
    torch.testing.assert_close(entropy(p.log()), right)
    logits = p.log()
    uses = [
        lambda: entropy(p),
        lambda: entropy(p[0, 0]),
        lambda: kl_divergence(p, logits),
        lambda: kl_divergence(logits, p),
        lambda: kl_divergence(logits, torch.full((3,), 1 / 3, dtype=dtype)),
    ]
    for use in uses:
        with pytest.raises(ValueError, match=r"^Expected logits; got probabilities.*p\.log\(\)"):
            use()
    few = torch.tensor([[0.5, 0.5], [2.0, 1.0]])  # logits, of which one row looks like them
    torch.testing.assert_close(torch.func.vmap(entropy)(few[:, None]).sum(), entropy(few))
    assert entropy(torch.zeros(0, 2, 3)).shape == (0,)


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4, math.inf])
def test_kl_is_never_negative_and_its_gradient_finite(scale: float) -> None:
    q = torch.randn(50, 3, 4)
    q = torch.where(q > 1, -math.inf, q) if scale == math.inf else scale * q
    q = q.to(torch.float32).requires_grad_()
    kl = kl_divergence(q, torch.randn(3, 4, dtype=torch.float32))
    kl.sum().backward()
    assert q.grad is not None
    assert q.grad.isfinite().all()
    assert (kl > -1e-6).all()


def test_kl_is_torchs_and_its_gradient_that_of_differences() -> None:
    q, p = torch.randn(5, 2, 3, requires_grad=True), torch.randn(2, 3, requires_grad=True)
    theirs = torch.distributions.kl_divergence(
        dist.OneHotCategorical(logits=q).to_event(1),
        dist.OneHotCategorical(logits=p.expand(5, 2, 3)).to_event(1),
    )
    torch.testing.assert_close(kl_divergence(q, p), theirs)
    assert torch.autograd.gradcheck(kl_divergence, (q, p))
    assert torch.autograd.gradcheck(entropy, (q,))


def test_entropy_lies_between_its_bounds() -> None:
    logits = 10 * torch.randn(100, 3, 5)
    assert (entropy(logits) >= -1e-12).all()
    assert (entropy(logits) <= 3 * math.log(5) + 1e-12).all()
    assert entropy(torch.zeros(3, 5)).item() == pytest.approx(3 * math.log(5))


def test_logits_of_a_site() -> None:
    logits = torch.randn(6, 2, 3)
    one_hot_site = dist.OneHotCategorical(logits=logits)
    normal = logits.log_softmax(-1)
    for fn, view in [
        (one_hot_site.to_event(1), normal),
        (one_hot_site, normal.unsqueeze(-2)),
        (one_hot_site.to_event(2), normal.reshape(12, 3)),
        (dist.Categorical(logits=logits), normal.unsqueeze(-2)),
        (dist.Categorical(logits=logits).to_event(1).expand([5, 6]), normal.expand(5, 6, 2, 3)),
    ]:
        found = code_logits(fn)
        assert found is not None
        torch.testing.assert_close(found, view)
    assert code_logits(dist.Normal(0.0, 1.0)) is None


def test_values_of_a_site() -> None:
    codes = enumerate_codes(2, 3)
    index_site = dist.Categorical(logits=torch.zeros(2, 3)).to_event(1)
    assert torch.equal(one_hot(code_value(index_site, codes), 3), codes)
    assert code_value(dist.OneHotCategorical(logits=torch.zeros(2, 3)), codes) is codes


def test_description_leaves_out_endless_digits() -> None:
    assert describe_codes(4, 8) == "8^4 = 4096"
    assert describe_codes(1000, 8) == "8^1000"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_categories", [63, 64, 300])
def test_draws_have_their_probabilities(num_categories: int, dtype: torch.dtype) -> None:
    """Below 64 categories, and from 64 on, the noise is made in different ways."""
    torch.manual_seed(0)
    num_draws = 20_000
    logits = 2 * torch.randn(1, num_categories, dtype=dtype)
    logits[0, 5] = -torch.inf
    index = draw_codes(logits.expand(num_draws, 1, num_categories)).argmax(-1)[:, 0]
    counts = index.bincount(minlength=num_categories).double()
    expected = num_draws * logits[0].double().softmax(-1)
    assert counts[5] == 0
    is_common = expected >= 5  # where the count is nearly normal
    error = (expected * (1 - expected / num_draws)).sqrt()
    assert ((counts - expected).abs() <= 5 * error)[is_common].all()
    rare = expected[~is_common].sum().item()
    assert abs(counts[~is_common].sum().item() - rare) <= 5 * rare**0.5
    noise = log_exponentials(logits, 100).exp()
    assert noise.dtype == dtype
    assert noise.isfinite().all()
    assert noise.mean().item() == pytest.approx(1, abs=5 / (100 * num_categories) ** 0.5)
