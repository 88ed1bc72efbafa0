"""Distributions whose draws have a biased gradient: drawn honestly, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from oracle import exact_elbo, gradient
from pyro.nn import PyroModule, pyro_method
from torch import Tensor, nn
from zoo import ELBOS, D, K, P, tiny_data

from pyro_dvae import EnumeratedELBO, MarginalELBO

ALL: dict[str, Callable[..., Any]] = {**ELBOS, "marginal": MarginalELBO}


class OwnStraightThrough(dist.OneHotCategorical):
    """Written by a user, as a subclass that says it can reparametrise."""

    has_rsample = True

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        soft: Tensor = self.probs
        return self.sample(torch.Size(sample_shape)) + soft - soft.detach()


class OwnBit(dist.Bernoulli):
    """Likewise, not of codes."""

    has_rsample = True

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        soft: Tensor = self.probs
        return self.sample(torch.Size(sample_shape)) + soft - soft.detach()


def plain(logits: Tensor) -> Any:
    return dist.OneHotCategorical(logits=logits).to_event(1)


# All of them are the same distribution.
CODES: dict[str, Callable[[Tensor], Any]] = {
    "Pyro's": lambda logits: dist.OneHotCategoricalStraightThrough(logits=logits).to_event(1),
    "own": lambda logits: OwnStraightThrough(logits=logits).to_event(1),
}
OTHERS: dict[str, Callable[[Tensor], Any]] = {
    "RelaxedOneHotCategoricalStraightThrough": lambda logits: (
        dist.RelaxedOneHotCategoricalStraightThrough(torch.tensor(0.5), logits=logits).to_event(1)
    ),
    "RelaxedBernoulliStraightThrough": lambda logits: dist.RelaxedBernoulliStraightThrough(
        torch.tensor(0.5), logits=logits
    ).to_event(2),
    "OwnBit": lambda logits: OwnBit(logits=logits).to_event(2),
}


class Program(PyroModule):
    """One site of codes, by any distributions in guide and model."""

    def __init__(self, q: Callable[[Tensor], Any], p: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.q, self.p = q, p
        self.encoder, self.decoder = nn.Linear(P, D * K), nn.Linear(D * K, P)
        self.prior = nn.Parameter(torch.randn(D, K))

    @pyro_method
    def model(self, x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", self.p(self.prior))
            logits = self.decoder(z.flatten(-2))
            pyro.sample("x", dist.Bernoulli(logits=logits).to_event(1), obs=x)

    @pyro_method
    def guide(self, x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            pyro.sample("z", self.q(self.encoder(x).unflatten(-1, (D, K))))


def loss_and_gradient(elbo: Any, q: Callable[..., Any], p: Callable[..., Any]) -> Tensor:
    pyro.set_rng_seed(4)
    program, x = Program(q, p), tiny_data(3)
    loss = elbo.differentiable_loss(program.model, program.guide, x)
    return torch.cat([loss.detach().reshape(1), gradient(loss, program)])


@pytest.mark.parametrize("name", ALL)
def test_codes_are_drawn_and_differentiated_as_plain_ones(name: str) -> None:
    """What the same programs give with OneHotCategorical, at the same draws."""
    expected = loss_and_gradient(ALL[name](), plain, plain)
    for codes in CODES.values():
        for q, p in ((codes, plain), (plain, codes), (codes, codes)):
            found = loss_and_gradient(ALL[name](), q, p)
            torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("codes", CODES)
def test_the_exact_gradient(codes: str) -> None:
    program, x = Program(CODES[codes], plain), tiny_data()
    exact = EnumeratedELBO().differentiable_loss(program.model, program.guide, x)
    by_hand = Program(plain, plain)
    by_hand.load_state_dict(program.state_dict())
    torch.testing.assert_close(
        gradient(exact, program), gradient(-exact_elbo(by_hand, x), by_hand), rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("name", ALL)
def test_others_are_refused_by_name(name: str, other: str) -> None:
    for q, p in ((OTHERS[other], plain), (plain, OTHERS[other])):
        with pytest.raises(TypeError, match=rf"^Site 'z': Expected .*straight-through {other}"):
            loss_and_gradient(ALL[name](), q, p)


def test_those_of_torch_are_refused_by_name() -> None:
    def own(logits: Tensor) -> Any:
        codes = torch.distributions.OneHotCategoricalStraightThrough(logits=logits)
        return torch.distributions.Independent(codes, 1)

    with pytest.raises(TypeError, match=r"^Site 'z': Expected a distribution of Pyro; got torch's"):
        loss_and_gradient(ELBOS["rloo"](), own, plain)


def test_masked_ones_are_refused() -> None:
    masked = lambda logits: OTHERS["OwnBit"](logits).mask(torch.tensor(True))  # noqa: E731
    with pytest.raises(TypeError, match="straight-through"):
        loss_and_gradient(ELBOS["rloo"](), masked, plain)
