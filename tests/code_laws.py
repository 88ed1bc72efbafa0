"""Laws of any distribution over codes, each against its own table of all K^D probabilities."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_dvae.codes import enumerate_codes


def log_table(p: Any) -> Tensor:
    """Log p of every code, (*batch, K^D)."""
    num_latents, num_categories = p.event_shape
    codes = enumerate_codes(num_latents, num_categories)
    codes = codes.reshape(-1, *[1] * len(p.batch_shape), num_latents, num_categories)
    return p.log_prob(codes).movedim(0, -1)


def check_normalised(p: Any) -> None:
    table = log_table(p)
    assert table.shape[:-1] == p.batch_shape
    torch.testing.assert_close(table.logsumexp(-1), torch.zeros(p.batch_shape))


def check_conditionals(p: Any) -> None:
    """p(z_{d+1} | z_1 ... z_d) of every prefix, from the table's sums."""
    num_latents, num_categories = p.event_shape
    table = log_table(p).exp()
    for known in range(num_latents):
        shape = (num_categories**known, num_categories, -1)
        marginal = table.unflatten(-1, shape).sum(-1).movedim(-2, 0)  # (K^d, *batch, K)
        prefixes = torch.empty(1, 0, num_categories)
        if known:
            prefixes = enumerate_codes(known, num_categories)
        ours = p.conditional(prefixes[(slice(None), *[None] * len(p.batch_shape))]).exp()
        expected = marginal / marginal.sum(-1, keepdim=True)
        torch.testing.assert_close(ours.expand(expected.shape), expected)


def check_frequencies(p: Any, num_draws: int = 5000) -> None:
    """Draws are one-hot, and each code is as frequent as its probability says."""
    num_latents, num_categories = p.event_shape
    z = p.sample((num_draws,))
    assert z.shape == (num_draws, *p.batch_shape, num_latents, num_categories)
    assert not z.requires_grad
    assert torch.equal(z.sum(-1), torch.ones(z.shape[:-1]))
    assert torch.equal(z, z**2)
    place = num_categories ** torch.arange(num_latents - 1, -1, -1)
    number = (z.argmax(-1) * place).sum(-1)
    frequency = torch.nn.functional.one_hot(number, num_categories**num_latents).double().mean(0)
    probability = log_table(p).exp()
    error = (probability * (1 - probability) / num_draws).sqrt()
    assert ((frequency - probability).abs() <= 4.5 * error + 1e-12).all()


def check_broadcast(p: Any) -> None:
    """Leading dimensions of codes, and `expand`, change no number."""
    num_latents, num_categories = p.event_shape
    z = p.sample((5, 1))
    log_p = p.log_prob(z)
    assert log_p.shape == (5, 1, *p.batch_shape)
    wider = p.expand((2, *p.batch_shape))
    assert wider.batch_shape == (2, *p.batch_shape)
    assert wider.sample((3,)).shape == (3, 2, *p.batch_shape, num_latents, num_categories)
    torch.testing.assert_close(wider.log_prob(z), log_p.expand(5, 2, *p.batch_shape))
    assert wider.log_prob(z[0, 0]).shape == (2, *p.batch_shape)
    torch.testing.assert_close(log_table(wider)[1], log_table(p))


def check_codes(p: Any) -> None:
    """All of them."""
    check_normalised(p)
    check_conditionals(p)
    check_frequencies(p)
    check_broadcast(p)
