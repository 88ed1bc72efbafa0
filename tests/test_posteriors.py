"""q(z|x) as a table and as a sequence, against its own probabilities."""

from __future__ import annotations

import math
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from zoo import D, K, make_vae, tiny_data

from pyro_dvae.codes import enumerate_codes
from pyro_dvae.posteriors import (
    FactorisedPosterior,
    Posterior,
    SequentialPosterior,
    TabulatedPosterior,
    posterior_of,
)

CODES = 20_000


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _autoregressive(num_data: int = 2) -> Any:
    vae = make_vae(guide="autoregressive")
    with torch.no_grad():
        return vae.posterior(3 * tiny_data(num_data))


@pytest.fixture(params=["mean-field", "table", "sequence"])
def both(request: pytest.FixtureRequest) -> tuple[Any, Posterior]:
    """A distribution of batch (2,) and its posterior."""
    if request.param == "mean-field":
        q: Any = dist.OneHotCategorical(logits=torch.randn(2, D, K)).to_event(1)
        return q, posterior_of(q, tabulate=False)
    q = _autoregressive()
    return q, posterior_of(q, tabulate=request.param == "table")


@torch.no_grad()
def test_draws_have_the_probabilities_they_say(both: tuple[Any, Posterior]) -> None:
    q, posterior = both
    index, log_q = posterior.draw(slice(None), CODES, _generator())
    assert index.shape == (2, CODES, D)
    z = torch.nn.functional.one_hot(index, K).double().transpose(0, 1)
    torch.testing.assert_close(log_q, q.log_prob(z).T)
    probability = q.log_prob(enumerate_codes(D, K)[:, None]).exp().T  # (2, K^D)
    number = index[..., 0] * K + index[..., 1]
    frequency = torch.nn.functional.one_hot(number, K**D).double().mean(1)
    error = (probability * (1 - probability) / CODES).sqrt()
    assert ((frequency - probability).abs() <= 4.5 * error).all()
    # One datum after the other from one stream.
    one = _generator()
    rows = [posterior.draw(slice(i, i + 1), 7, one)[0] for i in range(2)]
    assert torch.equal(torch.cat(rows), posterior.draw(slice(None), 7, _generator())[0])


@torch.no_grad()
def test_table_entropy_marginals_and_mode_are_sums(both: tuple[Any, Posterior]) -> None:
    q, posterior = both
    codes = enumerate_codes(D, K)
    log_q = q.log_prob(codes[:, None]).T  # (2, K^D)
    marginals = torch.einsum("bc,cdk->bdk", log_q.exp(), codes)
    mode = codes[log_q.argmax(-1)].argmax(-1)
    if isinstance(posterior, SequentialPosterior):
        assert posterior.entropy() is None
        # The first latent's is exact, the others' averages over draws.
        torch.testing.assert_close(posterior.marginals()[:, 0].exp(), marginals[:, 0])
        torch.testing.assert_close(posterior.marginals().exp().sum(-1), torch.ones(2, D))
        assert posterior.mode().shape == (2, D)
        return
    torch.testing.assert_close(posterior.table(), log_q)
    torch.testing.assert_close(posterior.entropy(), -(log_q.exp() * log_q).sum(-1))
    torch.testing.assert_close(posterior.marginals().exp(), marginals)
    assert torch.equal(posterior.mode(), mode)
    value = torch.randn(K**D)
    torch.testing.assert_close(posterior.expectation(value[None]), log_q.exp() @ value)


def test_kinds() -> None:
    q = _autoregressive()
    assert isinstance(posterior_of(q, tabulate=True), TabulatedPosterior)
    assert isinstance(posterior_of(q, tabulate=False), SequentialPosterior)
    factorised = dist.OneHotCategorical(logits=torch.zeros(2, D, K)).to_event(1)
    assert isinstance(posterior_of(factorised, tabulate=True), FactorisedPosterior)

    class Scored:
        event_shape = (D, K)

        def log_prob(self, z: torch.Tensor) -> torch.Tensor:
            return torch.full((len(z), 2), -D * math.log(K))

    assert posterior_of(Scored(), tabulate=True).table().shape == (2, K**D)
    with pytest.raises(TypeError, match="Expected a mean-field or sequential guide"):
        posterior_of(Scored(), tabulate=False)
