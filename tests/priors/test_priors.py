"""Every prior in a VAE, under both guides: its KL, by sites, makes the exact ELBO."""

from __future__ import annotations

import pytest
import torch
from oracle import FixedDraws, assignments, exact_elbo, gradient, log_probs
from torch import Tensor, nn
from zoo import GUIDES, PRIORS, D, K, make_vae, tiny_data

from pyro_dvae import (
    DiscreteELBO,
    EnumeratedELBO,
    RlooELBO,
    StraightThroughELBO,
    log_marginal,
)
from pyro_dvae.codes import enumerate_codes

# That of log Z by chains is an estimate, which moves: tests/test_boltzmann.py.
EXACT = [name for name in PRIORS if "by chains" not in name]


class Program(nn.Module):
    """A VAE whose data all have label 1, where its prior takes labels."""

    def __init__(self, prior: str, guide: str) -> None:
        super().__init__()
        self.vae = make_vae(prior, guide=guide)
        with torch.no_grad():
            for weight in self.parameters():
                weight.normal_(std=0.7)

    def labels(self, x: Tensor) -> Tensor | None:
        return torch.ones(len(x), dtype=torch.long) if self.vae.takes_labels else None

    def model(self, x: Tensor) -> Tensor:
        return self.vae.model(x, self.labels(x))

    def guide(self, x: Tensor) -> Tensor:
        return self.vae.guide(x, self.labels(x))


def expected(elbo: DiscreteELBO, program: Program, x: Tensor) -> tuple[Tensor, Tensor]:
    """The mean loss and gradient over all tuples of draws, each tuple a row of one batch."""
    singles = list(assignments(program, x))
    log_q = torch.stack([log_probs(program, x, values)[2].detach() for values in singles])
    tuples = torch.cartesian_prod(*[torch.arange(len(singles))] * elbo.num_particles)
    tuples = tuples.reshape(-1, elbo.num_particles)
    weight = log_q[tuples].sum(-1).exp()
    values = {}
    for name in singles[0]:
        value = torch.stack([single[name][0] for single in singles])[tuples.T]  # (S, rows, *event)
        values[name] = value if elbo.num_particles > 1 else value[0]
    rows = x.expand(len(tuples), -1)
    terms = elbo.terms(program.model, FixedDraws(values)(program.guide), (rows,), {})
    loss = -(weight * elbo.surrogate(terms)).sum()
    return -(weight * elbo.bound(terms)).sum(), gradient(loss, program)


@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize("prior", EXACT)
def test_elbo_is_exact(prior: str, guide: str) -> None:
    program, x = Program(prior, guide), tiny_data()
    elbo = exact_elbo(program, x)
    exact = gradient(-elbo, program)

    loss = EnumeratedELBO().differentiable_loss(program.model, program.guide, x)
    torch.testing.assert_close(loss, -elbo)
    torch.testing.assert_close(gradient(loss, program), exact)

    value, grad = expected(RlooELBO(2, max_plate_nesting=1), program, x)
    torch.testing.assert_close(value, -elbo)
    torch.testing.assert_close(grad, exact)

    value, _ = expected(StraightThroughELBO(max_plate_nesting=1), program, x)
    torch.testing.assert_close(value, -elbo)


@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize("prior", EXACT)
def test_elbo_is_the_sum_over_codes(prior: str, guide: str) -> None:
    """From the tables of q, p and the likelihood, without sites; and log p(x) from the same."""
    program, x = Program(prior, guide), tiny_data()
    vae, codes = program.vae, enumerate_codes(D, K).unsqueeze(1)  # (K^D, 1, D, K)
    log_q = vae.posterior(x).log_prob(codes)
    log_joint = vae.prior_codes(program.labels(x)).log_prob(codes) + vae.decode(codes).log_prob(x)
    torch.testing.assert_close(exact_elbo(program, x), (log_q.exp() * (log_joint - log_q)).sum())
    ours = log_marginal(vae, x, program.labels(x))
    torch.testing.assert_close(ours, log_joint.logsumexp(0))
