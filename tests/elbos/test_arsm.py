"""ARSM: every swap by hand, the law of its noise, and the mean of its gradient."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from oracle import FixedDraws, exact_elbo, gradient
from torch import Tensor, nn
from zoo import PROGRAMS, tiny_data, tiny_vae

from pyro_dvae.codes import draw_codes, kl_divergence, one_hot
from pyro_dvae.elbos import arsm
from pyro_dvae.elbos.arsm import ArsmELBO, distinct_rows, noise_given, swapped_categories

EXACT = {"atol": 1e-10, "rtol": 0}


class FixedNoise(ArsmELBO):
    """The noise of the only site is given."""

    def __init__(self, noise: Tensor, **options: Any) -> None:
        super().__init__(**options)
        self.noise = noise

    def _noise(self, logits: Tensor, code: Tensor) -> Tensor:
        return self.noise.expand_as(logits)


def with_logits(vae: Any, logits: Tensor) -> Any:
    vae.encoder = nn.Module()
    vae.encoder.forward = lambda x: logits.expand(len(x), *logits.shape[-2:])
    return vae


@pytest.mark.parametrize("options", [{}, {"beta": 0.3}, {"chunk_size": 2}])
@pytest.mark.parametrize("code", [(2, 3), (3, 2), (1, 5)])
def test_estimate_by_hand(code: tuple[int, int], options: dict[str, Any]) -> None:
    """sum_cj (f(z^cj) - mean_m f(z^mj)) (1/K - pi_dj), with noise that is swapped in place."""
    logits = torch.randn(1, *code).requires_grad_()
    vae, x = with_logits(tiny_vae(*code), logits), tiny_data()
    pi = torch.distributions.Dirichlet(torch.ones(code[1])).sample((code[0],))
    q = logits[0].softmax(-1).detach()
    f = torch.empty(code[1], code[1])
    for c, j in itertools.product(range(code[1]), repeat=2):
        moved = pi.clone()
        moved[:, [c, j]] = moved[:, [j, c]]
        z = one_hot((moved / q).argmin(-1), code[1])
        f[c, j] = vae.decode(z[None]).log_prob(x).detach()
    by_hand = torch.zeros_like(q)
    for d, c, j in itertools.product(range(code[0]), range(code[1]), range(code[1])):
        by_hand[d, c] += (f[c, j] - f[:, j].mean()) * (1 / code[1] - pi[d, j])
    kl = kl_divergence(logits, torch.zeros_like(logits)).sum() * options.get("beta", 1.0)
    guide = FixedDraws({"z": one_hot((pi / q).argmin(-1), code[1])[None]})(vae.guide)
    loss = FixedNoise(7 * pi, **options).differentiable_loss(vae.model, guide, x)
    found = -torch.autograd.grad(loss, logits, retain_graph=True)[0]
    torch.testing.assert_close(found, by_hand - torch.autograd.grad(kl, logits)[0], **EXACT)


def test_two_categories_are_arm() -> None:
    """(f(z) - f(z')) (1/2 - pi_1) in the first logit; z' is the draw of the swapped noise."""
    logits = torch.randn(1, 2, 2).requires_grad_()
    vae, x = with_logits(tiny_vae(2, 2), logits), tiny_data()
    theta = (logits[0, :, 0] - logits[0, :, 1]).detach()
    u = torch.rand(2)  # the noise of the first category
    z, swapped = (u > theta.sigmoid()).long(), (1 - u > theta.sigmoid()).long()
    f = vae.decode(one_hot(torch.stack([z, swapped]), 2)[:, None]).log_prob(x)[:, 0].detach()
    kl = torch.autograd.grad(kl_divergence(logits, torch.zeros(2, 2)).sum(), logits)[0]
    by_hand = (f[0] - f[1]) * (0.5 - u) - kl[0, :, 0]
    guide = FixedDraws({"z": one_hot(z, 2)[None]})(vae.guide)
    elbo = FixedNoise(torch.stack([u, 1 - u], -1))
    loss = elbo.differentiable_loss(vae.model, guide, x)
    torch.testing.assert_close(-torch.autograd.grad(loss, logits)[0][0, :, 0], by_hand, **EXACT)


@pytest.mark.parametrize("num_categories", [2, 4])
def test_noise_given_the_draw(num_categories: int, device: torch.device) -> None:
    """Together with the draw it is standard exponential, and it gives the draw."""
    n = 100_000
    logits = (2 * torch.randn(num_categories, device=device)).log_softmax(-1).expand(n, -1)
    code = draw_codes(logits.unsqueeze(-2)).squeeze(-2)
    noise = noise_given(logits, code)
    assert torch.equal((noise / logits.exp()).argmin(-1), code.argmax(-1))
    moments = torch.cat([noise, (noise.unsqueeze(-1) * noise.unsqueeze(-2)).flatten(-2)], -1)
    ones = torch.ones(num_categories, device=device)
    exact = torch.cat([ones, (ones + ones.diag()).flatten()])
    error = moments.std(0) / n**0.5
    assert ((moments.mean(0) - exact).abs() <= 4.5 * error).all()


def test_swaps_of_every_pair() -> None:
    logits = torch.randn(50, 6).log_softmax(-1)
    logits[:20, :2] = -torch.inf
    noise = torch.rand(50, 6)
    pairs = torch.combinations(torch.arange(6))
    found = swapped_categories(noise, logits, pairs)
    for (i, j), categories in zip(pairs.tolist(), found, strict=True):
        moved = noise.clone()
        moved[:, [i, j]] = moved[:, [j, i]]
        assert torch.equal(categories, (moved.log() - logits).argmin(-1))


@pytest.mark.parametrize("size", [(3, 4, 2), (40, 5, 100)])
def test_distinct_codes(size: tuple[int, ...]) -> None:
    """Also where K^D is more than an integer holds."""
    index = torch.randint(3, size)
    index[size[0] // 2 :] = index[: size[0] - size[0] // 2].clone()
    number, distinct = distinct_rows(index, 3)
    where = number.unsqueeze(-1).expand_as(index)
    assert torch.equal(distinct.gather(0, where), index)
    assert (number[0] == 0).all()
    counts = [len(index[:, n].unique(dim=0)) for n in range(size[1])]
    assert (number.max(0).values + 1).tolist() == counts
    assert len(distinct) == max(counts)


def test_all_codes_give_the_same_as_distinct_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU all are decoded."""
    vae, x = tiny_vae(3, 4), tiny_data(5)
    grads, runs = [], []
    vae.decoder.register_forward_pre_hook(lambda _, inputs: runs.append(len(inputs[0])))
    for distinct in (True, False):
        torch.manual_seed(1)
        if not distinct:
            monkeypatch.setattr(arsm, "distinct_rows", lambda index, _: arsm._all_rows(index))
        grads.append(gradient(ArsmELBO().differentiable_loss(vae.model, vae.guide, x), vae))
    torch.testing.assert_close(*grads, **EXACT)
    assert runs[1] <= runs[3] == 6


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("vae", {"num_particles": 2}),
        pytest.param("vae", {"analytic_kl": False, "beta": 0.5}, marks=pytest.mark.slow),
        *(pytest.param(name, {}, marks=pytest.mark.slow) for name in list(PROGRAMS)[1:]),
        pytest.param("inverse hierarchy", {"analytic_kl": False}, marks=pytest.mark.slow),
    ],
)
def test_mean_gradient_is_exact(name: str, options: dict[str, Any]) -> None:
    """z-test at 4.5 standard errors; each of 300 copies of a datum draws its own codes."""
    program, x = PROGRAMS[name][0](), tiny_data()
    exact = gradient(-exact_elbo(program, x, options.get("beta", 1.0)), program)
    copies, elbo = x.expand(300, -1), ArsmELBO(**options)
    losses = [elbo.differentiable_loss(program.model, program.guide, copies) for _ in range(20)]
    grads = torch.stack([gradient(loss, program) for loss in losses]) / 300
    error = grads.std(0) / len(grads) ** 0.5
    assert ((grads.mean(0) - exact).abs() <= 4.5 * error + 1e-12).all()
    assert error.norm() < 0.2 * exact.norm()


@pytest.mark.parametrize(
    "rows",
    [
        [0.0, 0.0],
        [-300.0, -200.0, 0.0, 0.0],
        [-torch.inf, 1.0, -torch.inf, 1.0],
        [-torch.inf, -torch.inf, 3.0],
        [1e4, -1e4, 0.0, 1e4],
    ],
)
def test_extreme_logits_in_float32(rows: list[float]) -> None:
    torch.set_default_dtype(torch.float32)
    logits = torch.tensor(rows).expand(1, 2, -1).clone().requires_grad_()
    vae, x = with_logits(tiny_vae(2, len(rows)), logits), tiny_data(200)
    for analytic_kl in (True, False):
        loss = ArsmELBO(analytic_kl=analytic_kl).differentiable_loss(vae.model, vae.guide, x)
        assert loss.isfinite()
        slope = torch.autograd.grad(loss, logits)[0]
        assert slope.isfinite().all()
        assert (slope[logits == -torch.inf] == 0).all()


def test_a_chunk_has_a_code() -> None:
    with pytest.raises(ValueError, match="at least 1 code; got 0"):
        ArsmELBO(chunk_size=0)
    assert "chunk_size=3" in repr(ArsmELBO(chunk_size=3))
