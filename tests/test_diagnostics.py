from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from oracle import exact_elbo, gradient
from pyro.infer import TraceGraph_ELBO
from zoo import ELBOS, OTHER_BOUND, make_batch, make_vae, tiny_data, tiny_vae

from pyro_dvae import DiscreteELBO, EnumeratedELBO, ReinforceELBO, RlooELBO, diagnostics
from pyro_dvae.diagnostics import gradient_statistics, reference_gradient


class _Noisy(DiscreteELBO):
    """The exact gradient times 1 + shift + sigma N(0, 1): every statistic known."""

    is_unbiased = False

    def __init__(self, shift: float, sigma: float) -> None:
        super().__init__()
        self.shift, self.sigma = shift, sigma
        self.exact = EnumeratedELBO(max_plate_nesting=1)
        vae, x = tiny_vae(), tiny_data(4)
        self.exact.loss(vae.model, vae.guide, x)  # its trial run decodes a code

    def surrogate(self, terms: Any) -> torch.Tensor:
        raise AssertionError

    def differentiable_loss(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        exact = self.exact.differentiable_loss(*args, **kwargs)
        return exact * (1 + self.shift + self.sigma * torch.randn(()))


@pytest.fixture
def setting() -> Iterator[tuple[Any, torch.Tensor, torch.Tensor]]:
    vae, x = tiny_vae(), tiny_data(4)
    reference, method = reference_gradient(vae, x)
    assert method == "enumeration"
    return vae, x, reference


def test_reference_is_the_mean_gradient_per_datum(setting: Any) -> None:
    vae, x, reference = setting
    exact = sum(exact_elbo(vae, row[None]) for row in x) / 4
    torch.testing.assert_close(reference, gradient(exact, vae))


@pytest.mark.slow
def test_reference_beyond_enumeration(setting: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    vae, x, exact = setting
    monkeypatch.setattr(diagnostics, "MAX_CODES", 1)
    drawn, method = reference_gradient(vae, x, num_draws=300)
    assert method == "mean of 300 RLOO steps of 8 particles"
    assert (drawn - exact).norm() < 0.1 * exact.norm()


@pytest.mark.slow
def test_statistics_of_a_known_estimator(setting: Any) -> None:
    vae, x, exact = setting
    elbos = {"noisy": _Noisy(0.5, 0.2)}
    rows = list(gradient_statistics(vae, x, elbos, exact, num_draws=400))
    assert [row.part for row in rows] == ["encoder", "decoder"]
    sizes = [sum(p.numel() for p in part.parameters()) for part in (vae.encoder, vae.decoder)]
    for row, part in zip(rows, exact.split(sizes), strict=True):
        norm = part.norm().item()
        assert abs(row.bias.value - 0.5 * norm) <= 4.5 * row.bias.error
        assert row.relative_bias == pytest.approx(row.bias.value / norm)
        assert row.relative_bias_error == pytest.approx(row.bias.error / norm)
        assert abs(row.variance.value - (0.2 * norm) ** 2) <= 4.5 * row.variance.error
        assert abs(row.signal_to_noise.value - 7.5) <= 4.5 * row.signal_to_noise.error
        assert row.cosine.value == pytest.approx(1)
        assert row.decoder_evaluations == pytest.approx(9 / 4)  # 3^2 codes for 4 data
        assert row.milliseconds > 0


@pytest.mark.slow
def test_noise_is_taken_out_of_the_bias(setting: Any) -> None:
    """The noise lies along one vector, so the square of the mean is a chi-square of one degree.

    Less its own mean it is negative, and its root floored at 0, with probability 0.68: in 30
    repetitions fewer than 8 zeros happen once in a million.
    """
    vae, x, exact = setting
    elbos = {str(i): _Noisy(0.0, 1.0) for i in range(30)}
    rows = [
        row
        for seed, (name, elbo) in enumerate(elbos.items())
        for row in gradient_statistics(vae, x, {name: elbo}, exact, num_draws=20, seed=seed)
    ]
    assert sum(row.bias.value == 0 for row in rows if row.part == "encoder") >= 8


UNBIASED = [name for name in ELBOS if ELBOS[name]().is_unbiased and name not in OTHER_BOUND]
QUICK = {"rloo", "disarm"}
"""A row of each of the others takes one or two seconds."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in UNBIASED],
)
def test_unbiased_estimators_show_no_bias(setting: Any, name: str) -> None:
    vae, x, exact = setting
    elbo = ELBOS[name]()
    for row in gradient_statistics(vae, x, {name: elbo}, exact, num_draws=200):
        # Of the squared bias, whose error the root's is derived from; Gaussian only in the many.
        assert (
            row.bias.value**2
            <= 4.5 * (row.bias.error * max(row.bias.error, 2 * row.bias.value)) + 1e-18
        )


@pytest.mark.slow
def test_pyros_own_that_compute_loss_and_gradient_together(setting: Any) -> None:
    """TraceGraph_ELBO is unbiased, and weights keep the gradients that they had."""
    vae, x, exact = setting
    vae.decoder.zero_grad(set_to_none=False)
    own = TraceGraph_ELBO(num_particles=2, vectorize_particles=True, max_plate_nesting=1)
    before = [weight.grad for weight in vae.parameters()]
    for row in gradient_statistics(vae, x, {"own": own}, exact, num_draws=100):
        assert row.variance.value > 0
        assert row.decoder_evaluations == 2
        assert row.bias.value <= 5 * row.bias.error
        assert 0 < row.cosine.value <= 1
    after = [weight.grad for weight in vae.parameters()]
    assert all(a is b for a, b in zip(after, before, strict=True))


def test_exact_gradient_has_no_noise(setting: Any) -> None:
    vae, x, exact = setting
    for row in gradient_statistics(vae, x, {"exact": EnumeratedELBO()}, exact, num_draws=20):
        assert row.variance.value == pytest.approx(0, abs=1e-20)
        assert row.signal_to_noise.value == math.inf
        assert row.cosine.value == pytest.approx(1)


def test_counts_and_order(setting: Any) -> None:
    vae, x, exact = setting
    elbos = {"reinforce": ReinforceELBO(), "rloo": RlooELBO(5)}
    state = torch.get_rng_state()
    rows = list(gradient_statistics(vae, x, elbos, exact, num_draws=60))
    assert torch.equal(state, torch.get_rng_state())
    reinforce, rloo = rows[0], rows[2]
    assert (reinforce.decoder_evaluations, rloo.decoder_evaluations) == (1, 5)
    assert rloo.variance.value < reinforce.variance.value
    assert rloo.cosine.value > reinforce.cosine.value
    assert all(weight.grad is None for weight in vae.parameters())


def test_too_few_draws(setting: Any) -> None:
    vae, x, exact = setting
    with pytest.raises(ValueError, match="at least 20 draws; got 5"):
        next(gradient_statistics(vae, x, {}, exact, num_draws=5))


def test_labels_and_a_guides_own_weights() -> None:
    vae = make_vae("conditional", guide="autoregressive")
    batch = make_batch(vae)
    reference, method = reference_gradient(vae, batch)
    assert method == "enumeration"
    assert len(reference) == sum(weight.numel() for weight in vae.parameters())
    rows = gradient_statistics(vae, batch, {"exact": EnumeratedELBO()}, reference, num_draws=20)
    assert all(row.bias.value < 1e-8 for row in rows)
    guide = [*vae.encoder.parameters(), *vae.posterior_family.parameters()]
    assert [id(w) for w in diagnostics._guide_weights(vae)] == [id(w) for w in guide]


def test_an_estimator_without_noise_is_computed_once() -> None:
    vae, x = tiny_vae(), tiny_data(3)
    calls: dict[str, int] = {}

    def counted(name: str, elbo: Any) -> Any:
        loss = elbo.differentiable_loss

        def count(*arguments: Any) -> Any:
            calls[name] = calls.get(name, 0) + 1
            return loss(*arguments)

        elbo.differentiable_loss = count
        return elbo

    elbos = {
        "exact": counted("exact", EnumeratedELBO(max_plate_nesting=1)),
        "rloo": counted("rloo", RlooELBO(2, max_plate_nesting=1)),
    }
    reference, _ = reference_gradient(vae, x)
    rows = list(gradient_statistics(vae, x, elbos, reference, num_draws=20))
    assert calls == {"exact": 2, "rloo": 21}  # one to warm up
    assert rows[0].variance.value == pytest.approx(0, abs=1e-20)
