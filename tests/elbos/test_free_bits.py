"""Free bits: one objective for every estimator, or a refusal that names the site."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from oracle import exact_elbo, expected, gradient
from pyro.nn import PyroModule, pyro_method
from torch import Tensor, nn
from zoo import (
    ELBOS,
    OTHER_BOUND,
    PROGRAMS,
    IndependentSites,
    K,
    P,
    make_batch,
    make_vae,
    tiny_data,
)

from pyro_dvae import EnumeratedELBO, LocalExpectationELBO, ReinforceELBO, RlooELBO
from pyro_dvae.codes import latent_kl_divergence
from pyro_dvae.elbos.pair import Pair

EXACT: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-10}
BITS = sorted(ELBOS.keys() - OTHER_BOUND)


class PriorAlone(PyroModule):
    """p(w) p(z|w), guided by q(w) q(z|x): the KL of z depends on w by its prior."""

    def __init__(self) -> None:
        super().__init__()
        self.prior, self.encoder = nn.Linear(K, K), nn.Linear(P, K)
        self.decoder = nn.Linear(K, P)

    @pyro_method
    def model(self, x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            w = pyro.sample("w", dist.OneHotCategorical(torch.ones(K)))
            z = pyro.sample("z", dist.OneHotCategorical(logits=self.prior(w)))
            pyro.sample("x", dist.Bernoulli(logits=self.decoder(z)).to_event(1), obs=x)

    @pyro_method
    def guide(self, x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            pyro.sample("w", dist.OneHotCategorical(torch.ones(K)))
            pyro.sample("z", dist.OneHotCategorical(logits=self.encoder(x)))


# Program -> the first site whose KL depends on draws.
SEQUENTIAL: dict[str, tuple[Callable[[], Any], str]] = {
    "guide": (lambda: make_vae(guide="autoregressive"), "z_2"),
    "prior": (lambda: make_vae("autoregressive"), "z_2"),
    "mixture": (lambda: make_vae("mixture"), "z_2"),
    "hierarchy": (PROGRAMS["hierarchy"][0], "z2"),
    "prior alone": (PriorAlone, "z"),
}


@pytest.mark.parametrize("program", SEQUENTIAL)
@pytest.mark.parametrize("name", BITS)
def test_a_kl_that_depends_on_draws_is_refused(name: str, program: str) -> None:
    build, site = SEQUENTIAL[program]
    pair, x = build(), tiny_data(3)
    elbo = ELBOS[name](free_bits=0.5)
    for run in (elbo.loss, elbo.differentiable_loss):
        with pytest.raises(
            ValueError, match=rf"^Expected a KL at site '{site}' that depends on no"
        ):
            run(pair.model, pair.guide, x)
    ELBOS[name]().loss(pair.model, pair.guide, x)


@pytest.mark.parametrize("free_bits", [0.3, 0.7])
def test_independent_sites_have_one_objective(free_bits: float) -> None:
    """The ELBO without the KL of the sites below, for the sum and the sampled estimators."""
    program, x = IndependentSites(), tiny_data()
    logits = program.encoder(x).unflatten(-1, (2, K))
    kl = latent_kl_divergence(logits, program.prior)[0]
    assert 0.3 < kl.min() < 0.7 < kl.max()
    exact = gradient(-(exact_elbo(program, x) + kl[kl < free_bits].sum()), program)
    for chunk in (8192, 4):
        elbo = EnumeratedELBO(free_bits=free_bits, chunk_size=chunk)
        found = gradient(elbo.differentiable_loss(program.model, program.guide, x), program)
        torch.testing.assert_close(found, exact, **EXACT)
    options: dict[str, Any] = {"free_bits": free_bits, "max_plate_nesting": 1}
    for make, particles in (
        (lambda: ReinforceELBO(**options), 1),
        (lambda: RlooELBO(2, **options), 2),
        (lambda: LocalExpectationELBO(**options), 1),
    ):
        _, found = expected(make, program, x, particles, 1)
        torch.testing.assert_close(found, exact, **EXACT)


@pytest.mark.parametrize("name", BITS)
def test_the_check_moves_no_random_stream(name: str) -> None:
    """With free bits below every KL the gradient is that without, at the same draws."""
    program, x = IndependentSites(), tiny_data(3)
    found = []
    for free_bits in (0.0, 1e-9):
        pyro.set_rng_seed(5)
        elbo = ELBOS[name](free_bits=free_bits)
        found.append(gradient(elbo.differentiable_loss(program.model, program.guide, x), program))
    assert torch.equal(*found)


def test_mean_field_pays_for_no_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Pair, "dependent_sites")
    vae = make_vae("learned")
    ELBOS["rloo"](free_bits=0.1).loss(vae.model, vae.guide, *make_batch(vae))
