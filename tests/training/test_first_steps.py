"""The first steps by ReinMax, and the others by the training's own ELBO."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pyro.infer import Trace_ELBO
from torch import Tensor
from zoo import tiny_data, tiny_vae

from pyro_dvae import MarginalELBO, ReinMaxELBO, RlooELBO, Trainer, VimcoELBO


def trainer(elbo: Any, **options: Any) -> Trainer:
    torch.manual_seed(0)
    settings = {"batch_size": 3, "annealing": 2, "initial_beta": 3.0, "averaging": 0.5, "seed": 1}
    return Trainer(tiny_vae(), elbo, tiny_data(8), **{**settings, **options})


def weights(of: Trainer, steps: int) -> Tensor:
    """All weights after so many steps, of three per epoch."""
    for epoch in range(-(-steps // 3)):
        at: list[Tensor] = []

        def note(step: int, _: int, at: list[Tensor] = at) -> None:
            at.append(torch.cat([weight.detach().flatten() for weight in of.vae.parameters()]))

        list(of.run(epoch + 1, on_step=note))
    return at[(steps - 1) % 3]


@pytest.mark.parametrize(
    ("elbo", "free_bits"), [(RlooELBO, 0.0), (RlooELBO, 0.2), (VimcoELBO, 0.0)]
)
def test_the_first_steps_are_those_of_reinmax(elbo: Any, free_bits: float) -> None:
    """Bit for bit, with the same draws, beta and free bits."""

    def own(steps: int) -> Trainer:
        return trainer(elbo(2, free_bits=free_bits), reinmax_steps=steps)

    reinmax = trainer(ReinMaxELBO(free_bits=free_bits))
    assert torch.equal(weights(own(4), 4), weights(reinmax, 4))
    assert not torch.equal(weights(own(3), 4), weights(trainer(ReinMaxELBO()), 4))
    assert not torch.equal(weights(own(4), 4), weights(own(0), 4))


def test_the_other_steps_are_those_of_the_elbo() -> None:
    begun, plain = trainer(RlooELBO(2), reinmax_steps=3), trainer(RlooELBO(2))
    list(begun.run(1))
    plain.load_state_dict(begun.state_dict())
    for each in (begun, plain):
        list(each.run(3))
    for own, other in zip(begun.vae.parameters(), plain.vae.parameters(), strict=True):
        assert torch.equal(own, other)


def test_a_step_of_reinmax_has_one_draw() -> None:
    begun = trainer(RlooELBO(5), reinmax_steps=2)
    seen: list[int] = []
    decode = begun.vae.decode
    begun.vae.decode = lambda z: (seen.append(z.shape[:-2].numel()), decode(z))[1]  # type: ignore
    list(begun.run(1))
    assert seen == [3, 3, 5 * 2]  # of batches of 3, 3 and 2


@pytest.mark.parametrize("elbo", [Trace_ELBO(), MarginalELBO()], ids=lambda e: type(e).__name__)
def test_an_objective_without_beta_has_no_steps_of_reinmax(elbo: Any) -> None:
    with pytest.raises(ValueError, match=rf"with beta .* got {type(elbo).__name__}\. .*steps=0"):
        trainer(elbo, annealing=0, reinmax_steps=2)
    with pytest.raises(ValueError, match="steps by ReinMax of at least 0; got -1"):
        trainer(elbo, annealing=0, reinmax_steps=-1)
