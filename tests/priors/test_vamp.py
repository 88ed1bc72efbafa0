from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from code_laws import check_codes, log_table
from torch import Tensor, nn

from pyro_dvae import AutoregressiveGuide, MeanFieldGuide, VampPrior

D, K, C, EVENT = 3, 2, 4, (2, 3)


class Posterior(nn.Module):
    """x -> q(z|x), under either guide."""

    def __init__(self, *, sequential: bool) -> None:
        super().__init__()
        features = K + 5 if sequential else K
        self.linear = nn.Linear(math.prod(EVENT), D * features)
        self.guide: Any = AutoregressiveGuide(D, K, 5) if sequential else MeanFieldGuide()

    def forward(self, x: Tensor) -> Any:
        return self.guide(3 * self.linear(x.flatten(1)).unflatten(-1, (D, -1)))


@pytest.mark.parametrize("sequential", [False, True])
def test_is_the_mean_of_the_guide_at_the_pseudo_inputs(sequential: bool) -> None:
    posterior, prior = Posterior(sequential=sequential), VampPrior(C, EVENT)
    p = prior(posterior)
    every = torch.stack([log_table(posterior(u[None]))[0].exp() for u in prior.pseudo_inputs])
    assert every.std(0).max() > 0.01
    torch.testing.assert_close(log_table(p).exp(), every.mean(0))
    check_codes(p)


@pytest.mark.parametrize("sequential", [False, True])
def test_pseudo_inputs_and_encoder_are_trained(sequential: bool) -> None:
    posterior, prior = Posterior(sequential=sequential), VampPrior(C, EVENT)
    log_table(prior(posterior))[0].backward()
    for parameter in (prior.free, posterior.linear.weight):
        assert parameter.grad is not None
        assert (parameter.grad != 0).any()


@pytest.mark.parametrize("bounded", [False, True])
def test_pseudo_inputs_lie_where_the_encoder_expects_data(bounded: bool) -> None:
    prior = VampPrior(200, EVENT, bounded=bounded)
    with torch.no_grad():
        prior.free.mul_(10)
    u = prior.pseudo_inputs
    assert u.shape == (200, *EVENT)
    assert (bool(u.min() < 0), bool(u.max() > 1)) == (not bounded, not bounded)
    (gradient,) = torch.autograd.grad(u.sum(), prior.free)
    assert (gradient != 0).all()


def test_refuses_no_components() -> None:
    with pytest.raises(ValueError, match="Expected components of at least 1; got 0"):
        VampPrior(0, EVENT)
