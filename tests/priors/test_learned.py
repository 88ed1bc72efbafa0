from __future__ import annotations

import pytest
import torch
from code_laws import check_broadcast, check_frequencies, check_normalised, log_table

from pyro_dvae import LearnedPrior
from pyro_dvae.codes import enumerate_codes

D, K = 2, 3


def test_begins_uniform_and_stays_factorised() -> None:
    prior = LearnedPrior(D, K)
    torch.testing.assert_close(log_table(prior()).exp(), torch.full((K**D,), K**-D))
    with torch.no_grad():
        prior.logits.normal_()
    for check in (check_normalised, check_frequencies, check_broadcast):
        check(prior())


def test_its_best_is_the_marginals_of_the_codes() -> None:
    prior = LearnedPrior(D, K)
    codes = enumerate_codes(D, K)[[0, 1, 1, 4, 5, 8]]
    optimizer = torch.optim.LBFGS(prior.parameters(), max_iter=100)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = -prior().log_prob(codes).mean()
        value.backward()
        return value

    optimizer.step(loss)
    torch.testing.assert_close(prior.logits.softmax(-1), codes.mean(0), atol=1e-4, rtol=0)


def test_refuses_sizes() -> None:
    with pytest.raises(ValueError, match="Expected latents of at least 1; got 0"):
        LearnedPrior(0, K)
