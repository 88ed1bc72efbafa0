"""What examples/neighbours and the mixture of experts print is what they say it is."""

from __future__ import annotations

import itertools
import math
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from hostile import Hostile
from pyro.infer import TraceMeanField_ELBO
from test_examples import EXAMPLES, load, run
from torch import Tensor
from torch.nn.functional import cross_entropy

from pyro_dvae import EnumeratedELBO, evaluate

sys.path.append(str(EXAMPLES / "neighbours"))
gaussian_vae, sparse, vq_vae, setting = map(
    import_module, ("gaussian_vae", "sparse_autoencoder", "vq_vae", "setting")
)
moe = load("mixture_of_experts")
CHANCE = 4.5  # standard errors


def images(num: int) -> Tensor:
    return torch.bernoulli(torch.full((num, 28, 28), 0.3))


def small_setting() -> Any:
    options = ["--epochs", "2", "--num-data", "200", "--num-test", "20"]
    return setting.load(setting.arguments("A neighbour.").parse_args(options))


def figure(text: str) -> tuple[float, float] | None:
    if text == "-":
        return None
    value, _, error = text.partition(" +- ")
    return float(value), float(error or 0)


@pytest.mark.slow
def test_compare_prints_every_model_and_its_bounds_in_order(
    tmp_path: Path, hostile_server: Hostile
) -> None:
    options = ["--epochs", "1", "--num-data", "200", "--num-test", "50", "--num-latents", "3"]
    out = run(hostile_server, "neighbours/compare", *options, cwd=tmp_path)
    rows = [re.split(r" \| ", line.strip("| ")) for line in out.splitlines() if line[:2] == "| "]
    assert len(rows) == 8  # with the header
    for name, _, bce, bits, *bounds in rows[1:]:
        assert 0 < float(bce) < 784 * math.log(2)
        assert float(bits) >= 0
        elbo, bound, log_p = map(figure, bounds)
        if "autoencoder" in name:
            assert elbo is bound is log_p is None
            continue
        assert elbo is not None
        assert bound is not None
        assert elbo[0] == pytest.approx(-float(bce) - float(bits) * math.log(2), abs=0.06)
        assert elbo[0] <= bound[0] + CHANCE * math.hypot(elbo[1], bound[1]) + 0.01
        assert (log_p is None) == ("Gaussian" in name)
        if log_p is not None:
            assert bound[0] <= log_p[0] + CHANCE * bound[1] + 0.01
            assert elbo[0] <= log_p[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "rows"),
    [
        ("discrete_vae", ["--num-latents", "2", "--num-categories", "3"], 4),
        ("vq_vae", ["--num-latents", "2", "--num-categories", "3", "--size", "5"], 1),
        ("gaussian_vae", ["--num-dims", "3"], 1),
        ("sparse_autoencoder", ["--num-units", "9", "--num-active", "2"], 1),
    ],
)
def test_each_runs_alone(
    name: str,
    options: list[str],
    rows: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    torch.set_default_dtype(torch.float32)
    sizes = ["--epochs", "1", "--num-data", "100", "--num-test", "10", "--num-samples", "10"]
    monkeypatch.setattr(sys, "argv", [name, *sizes, *options])
    import_module(name).main()
    out = capsys.readouterr().out
    assert out.count("\n| ") == rows
    assert "bound(10)" in out
    assert "nan" not in out


class TestVQVAE:
    def test_evaluate_gives_the_elbo_of_a_point_mass_and_the_sum_over_codes(self) -> None:
        vq = vq_vae.VQVAE(2, 3, 4)
        vae = vq.as_discrete_vae()
        with torch.no_grad():
            for weight in vae.prior.parameters():
                weight.normal_(0, 0.5)
            x = images(4)
            log_p_z, log_p_x = {}, {}
            for code in itertools.product(range(3), repeat=2):
                z = torch.eye(3)[list(code)]
                log_p_z[code] = vae.prior().log_prob(z)
                params = vq.decoder(vq.codebook[list(code)])
                log_p_x[code] = dist.Bernoulli(logits=params).to_event(2).log_prob(x)  # (B,)
            distances = (vq.encoder(x).unsqueeze(-2) - vq.codebook).square().sum(-1)  # (B, D, K)
            codes = [tuple(row) for row in distances.argmin(-1).tolist()]
            elbo = torch.stack([log_p_x[c][i] + log_p_z[c] for i, c in enumerate(codes)]).mean()
            total = torch.stack([log_p_x[c] + log_p_z[c] for c in log_p_z]).logsumexp(0).mean()
        scores = evaluate(vae, x, importance_samples=5)
        assert scores.entropy == 0
        assert scores.elbo == pytest.approx(elbo.item(), abs=1e-9)
        assert scores.importance_bound == pytest.approx(elbo.item(), abs=1e-9)
        assert scores.log_marginal == pytest.approx(total.item(), abs=1e-9)
        assert scores.elbo <= total.item()

    def test_the_encoder_gets_the_decoders_gradient_and_the_commitment(self) -> None:
        vq = vq_vae.VQVAE(2, 3, 4)
        x = images(1)
        e = vq.encoder(x).detach().requires_grad_()
        vq.encoder = torch.nn.Identity()
        vq.encoder.forward = lambda _: e
        vq.loss(x).backward()
        c = vq.codebook.detach()[vq.nearest(e)].requires_grad_()
        bce = -vq.likelihood(vq.decoder(c), 2).log_prob(x).sum()
        (at_c,) = torch.autograd.grad(bce, c)
        torch.testing.assert_close(e.grad, at_c + 2 * vq_vae.COMMITMENT * (e - c).detach())
        pull = torch.zeros_like(vq.codebook).index_add(
            0, vq.nearest(e).flatten(), 2 * (c - e).detach().flatten(0, 1)
        )
        torch.testing.assert_close(vq.codebook.grad, pull)

    def test_the_second_stage_fits_the_prior_alone(self) -> None:
        vae = vq_vae.VQVAE(2, 3, 4).as_discrete_vae().float()
        small = small_setting()
        before = {name: value.clone() for name, value in vae.state_dict().items()}
        setting.train_prior(vae, small)
        changed = {n for n, value in vae.state_dict().items() if (value != before[n]).any()}
        assert changed
        assert all(name.startswith("prior.") for name in changed)
        scores = evaluate(vae, small.train.fixed(seed=0))
        assert scores.log_prior > -2 * math.log(3)  # better than the uniform it began with


def test_gaussian_bounds_against_quadrature() -> None:
    vae = gaussian_vae.GaussianVAE(1).double()
    x = images(3)
    grid = torch.linspace(-8, 8, 2001)
    with torch.no_grad():
        log_joint = torch.cat([vae.decode(z[:, None, None]).log_prob(x) for z in grid.split(50)])
        log_joint = log_joint + dist.Normal(0, 1).log_prob(grid)[:, None]
        exact = (log_joint.logsumexp(0) + math.log(16 / 2000)).mean().item()
    few, many = (gaussian_vae.score(vae, x, k, seed=0) for k in (50, 2000))
    for scores in (few, many):
        assert scores.elbo < exact
        assert scores.elbo <= scores.bound + CHANCE * scores.elbo_error
        assert scores.bound <= exact + CHANCE * scores.bound_error
    assert many.bound == pytest.approx(exact, abs=CHANCE * many.bound_error + 1e-3)
    program = TraceMeanField_ELBO(2000, max_plate_nesting=1, vectorize_particles=True)
    loss = program.loss(vae.model, vae.guide, x) / len(x)
    assert many.elbo == pytest.approx(-loss, abs=CHANCE * math.sqrt(2) * many.elbo_error)


def test_sparse_codes_are_the_largest_units_exactly() -> None:
    sae = sparse.SparseAutoencoder(12, 3)
    x = images(7)
    z, units = sae.encode(x), sae.encoder(x).squeeze(-1)
    active = z != 0
    assert (active.sum(-1) == 3).all()
    assert (z[active] == units[active]).all()
    smallest_kept = z.masked_fill(~active, math.inf).amin(-1)
    assert (smallest_kept >= units.masked_fill(active, -math.inf).amax(-1)).all()


class TestMixtureOfExperts:
    def test_the_exact_loss_is_the_mean_over_experts_as_programs_say(self) -> None:
        layer = moe.MixtureOfExperts()
        x, y, _ = moe.task(6, torch.Generator().manual_seed(0))
        losses = torch.stack(
            [cross_entropy(layer(x, e.expand(6, -1)), y, reduction="none") for e in torch.eye(4)], 1
        )
        torch.testing.assert_close(losses, layer.expert_losses(x, y))

        def model() -> None:
            with pyro.plate("rows", 6):
                expert = pyro.sample("expert", dist.OneHotCategorical(logits=torch.zeros(6, 4)))
                pyro.factor("loss", -(expert * layer.expert_losses(x, y)).sum(-1))

        def guide() -> None:
            with pyro.plate("rows", 6):
                pyro.sample("expert", dist.OneHotCategorical(logits=layer.route(x)))

        exact = moe.exact(layer, x, y)
        program = EnumeratedELBO(beta=0).differentiable_loss(model, guide) / 6
        weights = list(layer.parameters())
        for ours, expected in zip(
            torch.autograd.grad(exact, weights), torch.autograd.grad(program, weights), strict=True
        ):
            torch.testing.assert_close(ours, expected)

    def test_unbiased_gradients_are_and_reinmax_is_less_biased(self) -> None:
        layer = moe.MixtureOfExperts()
        x, y, _ = moe.task(50, torch.Generator().manual_seed(0))
        with torch.no_grad():
            layer.experts.weight *= 5  # a loss that is not linear in the draw
        reports = {n: moe.report(layer, f, x, y, 400) for n, f in moe.ESTIMATORS.items()}
        assert reports["exact"].cosine[0] == pytest.approx(1)
        assert reports["exact"].noise < 1e-6
        for name in ("reinforce", "rloo, 2 draws"):
            for (value, error), expected in zip(
                (reports[name].slope, reports[name].squared_bias), (1, 0), strict=True
            ):
                assert abs(value - expected) < CHANCE * error, name
        straight, reinmax = (reports[n].squared_bias for n in ("straight-through", "reinmax"))
        assert straight[0] > CHANCE * straight[1]
        assert straight[0] - reinmax[0] > CHANCE * math.hypot(straight[1], reinmax[1])

    def test_the_router_is_needed_and_learns(self) -> None:
        x, y, entropy = moe.task(1000, torch.Generator().manual_seed(0))
        losses = []
        for num_experts in (1, 4):
            layer = moe.MixtureOfExperts(num_experts)
            moe.train(layer, moe.exact, x, y, epochs=30)
            losses.append(moe.exact(layer, x, y).item())
        assert entropy.mean() < losses[1] < losses[0] - 0.2

    def test_it_runs(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        options = ["--epochs", "1", "--num-data", "200", "--num-draws", "5"]
        monkeypatch.setattr(sys, "argv", ["mixture_of_experts", *options])
        moe.main()
        out = capsys.readouterr().out
        assert out.count("reinmax") == 2
        assert "nan" not in out
