"""Log-likelihoods of bits under all codes by narrow matrices: right up to a shared term."""

from __future__ import annotations

import copy
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from oracle import exact_elbo, expected, gradient
from torch import Tensor, nn
from zoo import PLAIN, tiny_data, tiny_vae

from pyro_dvae import (
    Bernoulli,
    DiscreteVAE,
    EnumeratedELBO,
    MLPDecoder,
    MLPEncoder,
    SnapshotELBO,
    Trainer,
    UniformPrior,
)
from pyro_dvae.elbos import sketch
from pyro_dvae.elbos.sketch import Sketch, sketched

EXACT = {"atol": 1e-10, "rtol": 0}


def logits_of_codes(rank: int, num_codes: int = 600, num_bits: int = 600) -> Tensor:
    """(C, 1, P) logits that differ in `rank` directions from a mean that is not zero."""
    own = torch.randn(num_codes, rank) @ torch.randn(rank, num_bits)
    return (own + 3 * torch.randn(num_bits)).unsqueeze(1)


def centred(log_probs: Tensor) -> Tensor:
    return log_probs - log_probs.mean(0)


KINDS: dict[str, Any] = {
    "the library's": lambda logits: Bernoulli()(logits, 1),
    "the library's, in a plate": lambda logits: Bernoulli()(logits, 1).expand((len(logits), 5)),
    "Pyro's": lambda logits: dist.Bernoulli(logits=logits).to_event(1),
    "Pyro's, of probabilities": lambda logits: dist.Bernoulli(logits.sigmoid()).to_event(1),
    "Pyro's, in a plate": lambda logits: dist.Bernoulli(logits=logits.expand(-1, 5, -1)).to_event(
        1
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_sketch_of_few_directions_is_exact_up_to_a_term_of_all_codes(kind: str) -> None:
    fn, x = KINDS[kind](logits_of_codes(20) / 5), (torch.rand(5, 600) < 0.3).double()
    found = sketched(fn)
    assert isinstance(found, Sketch)
    assert found.features.shape == (600, 1, sketch.RANK)
    torch.testing.assert_close(
        centred(found.log_prob(x)), centred(fn.log_prob(x)), atol=1e-8, rtol=0
    )


def test_images_and_several_plates() -> None:
    logits = logits_of_codes(20).reshape(600, 1, 1, 20, 30)
    fn, x = Bernoulli()(logits, 2), (torch.rand(3, 4, 20, 30) < 0.3).float()
    found = sketched(fn)
    assert found.log_prob(x).shape == (600, 3, 4)
    torch.testing.assert_close(
        centred(found.log_prob(x)), centred(fn.log_prob(x.double())), atol=1e-8, rtol=0
    )


def test_the_error_is_that_of_the_directions_that_are_lost() -> None:
    """Of 300 directions with falling sizes; the codes differ by far more than the error."""
    sizes = 0.97 ** torch.arange(300)
    own = torch.randn(600, 300) * sizes @ torch.randn(300, 600) / 10
    fn, x = Bernoulli()(own.unsqueeze(1), 1), (torch.rand(50, 600) < 0.3).double()
    found = sketched(fn)
    assert isinstance(found, Sketch)
    error = centred(found.log_prob(x)) - centred(fn.log_prob(x))
    assert 0 < error.var() < 0.01 * fn.log_prob(x).var()


class Own(dist.TorchDistribution):
    """A distribution that does not say where its values lie."""

    def __init__(self) -> None:
        super().__init__(event_shape=torch.Size([4]), validate_args=False)


UNFIT: dict[str, Any] = {
    "a distribution of the user's own": Own,
    "few codes": lambda: Bernoulli()(logits_of_codes(3, num_codes=200), 1),
    "few bits": lambda: Bernoulli()(logits_of_codes(3, num_bits=200), 1),
    "too many directions": lambda: Bernoulli()(logits_of_codes(600), 1),
    "too many directions, beside a large mean": lambda: Bernoulli()(
        logits_of_codes(600) + 1_000 * torch.randn(600), 1
    ),
    "another device": lambda: dist.Bernoulli(
        logits=torch.zeros(600, 1, 600, device="meta"), validate_args=False
    ).to_event(1),
    "other numbers": lambda: dist.Normal(logits_of_codes(3), 1.0).to_event(1),
    "categories": lambda: dist.OneHotCategorical(logits=logits_of_codes(3)),
    "counts": lambda: dist.Geometric(logits=logits_of_codes(3)).to_event(1),
    "one bit per datum": lambda: dist.Bernoulli(logits=logits_of_codes(3)),
    "a mask of its own": lambda: dist.Bernoulli(logits=logits_of_codes(3)).to_event(1).mask(False),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_is_not_sketched(name: str) -> None:
    fn = UNFIT[name]()
    assert sketched(fn) is fn


def test_logits_that_are_alike_or_not_finite() -> None:
    fn, x = Bernoulli()(torch.ones(600, 1, 600), 1), torch.zeros(2, 600)
    torch.testing.assert_close(sketched(fn).log_prob(x), fn.log_prob(x))
    nan = torch.full((600, 1, 600), torch.nan)
    fn = dist.Bernoulli(logits=nan, validate_args=False).to_event(1)
    assert sketched(fn).log_prob(x).isnan().all()  # which a snapshot turns to 0


# --- In SnapshotELBO ---


@pytest.fixture
def of_one_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sketches of tiny models, which lose much."""
    monkeypatch.setattr(sketch, "RANK", 1)
    monkeypatch.setattr(sketch, "MOST_LOST", 1.0)


@pytest.mark.usefixtures("of_one_direction")
def test_the_gradient_is_unbiased_however_much_is_lost() -> None:
    program, x = tiny_vae(), tiny_data()
    elbo = SnapshotELBO(2, max_plate_nesting=1)
    gradient(elbo.differentiable_loss(program.model, program.guide, x), program)
    assert elbo.snapshot._table is not None
    assert isinstance(elbo.snapshot._table.fns["x"], Sketch)
    with torch.no_grad():
        for weight in program.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    _, grad = expected(lambda: copy.deepcopy(elbo), program, x, 2, 1)
    torch.testing.assert_close(grad, -gradient(exact_elbo(program, x, 1.0), program), **EXACT)


@pytest.mark.usefixtures("of_one_direction")
def test_a_saved_training_goes_on_alike() -> None:
    x = tiny_data(7)

    def new() -> Trainer:
        torch.manual_seed(1)
        elbo = SnapshotELBO(every=4, max_plate_nesting=1)
        return Trainer(tiny_vae(), elbo, x, batch_size=3, **PLAIN)

    whole, cut, other = new(), new(), new()
    list(whole.run(4))
    list(cut.run(2))
    other.load_state_dict(cut.state_dict())
    list(other.run(4))
    for one, two in zip(whole.vae.parameters(), other.vae.parameters(), strict=True):
        assert torch.equal(one, two)


def test_the_guide_has_the_exact_gradient_where_nothing_is_lost() -> None:
    """A decoder of one layer, whose logits lie in as many directions as its codes have digits."""
    vae = DiscreteVAE(
        MLPEncoder((600,), 3, 8, (5,)),
        MLPDecoder((600,), 3, 8, ()),
        UniformPrior(3, 8),
        Bernoulli(),
    ).double()
    x = (torch.rand(4, 600) < 0.3).double()
    elbo = SnapshotELBO()
    found, exact = (
        nn.utils.parameters_to_vector(
            torch.autograd.grad(
                each.differentiable_loss(vae.model, vae.guide, x), [*vae.encoder.parameters()]
            )
        )
        for each in (elbo, EnumeratedELBO())
    )
    assert elbo.snapshot._table is not None
    assert isinstance(elbo.snapshot._table.fns["x"], Sketch)
    torch.testing.assert_close(found, exact, atol=1e-8, rtol=0)
