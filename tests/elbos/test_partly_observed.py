"""Codes that are observed at some rows and drawn at others, by `obs_mask`: right, or refused."""

from __future__ import annotations

import math
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from oracle import expected, gradient
from torch import Tensor, nn
from zoo import ELBOS, OTHER_BOUND, UNBIASED, K, P, cat, is_pathwise, tiny_data

from pyro_dvae import EnumeratedELBO, MarginalELBO, RlooELBO, VimcoELBO

EXACT = {"atol": 1e-10, "rtol": 0}
COPIES = 700


class PartlyObserved(nn.Module):
    """p(y) p(z|y) p(x|y, z) with q(y|x) q(z|x, y): y is given at every second row, z at none.

    Args:
        with_z: whether there is a latent z.
        indices: whether y is an index, not one-hot.
    """

    def __init__(self, with_z: bool = True, indices: bool = False) -> None:
        super().__init__()
        self.with_z, self.indices = with_z, indices
        self.prior_y, self.prior_z = nn.Parameter(torch.randn(K)), nn.Linear(K, 2)
        self.decoder = nn.Linear(K + 2 * with_z, P)
        self.guide_y, self.guide_z = nn.Linear(P, K), nn.Linear(P + K, 2)

    def family(self, logits: Tensor) -> Any:
        return dist.Categorical(logits=logits) if self.indices else one_hot(logits)

    def labels(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(B, K) or (B,) values of y, and (B,) whether they are known."""
        rows = torch.arange(len(x)) % 4
        value = rows % K if self.indices else torch.eye(K)[rows % K]
        return value, rows % 2 == 0

    def as_code(self, y: Tensor) -> Tensor:
        return torch.eye(K)[y] if self.indices else y

    def model(self, x: Tensor) -> None:
        value, known = self.labels(x)
        with pyro.plate("data", len(x)):
            prior = self.family(self.prior_y)
            y = self.as_code(pyro.sample("y", prior, obs=value, obs_mask=known))
            if self.with_z:
                z = pyro.sample("z", one_hot(self.prior_z(y)))
                y = cat(y, z)
            pyro.sample("x", dist.Bernoulli(logits=self.decoder(y)).to_event(1), obs=x)

    def guide(self, x: Tensor) -> None:
        value, known = self.labels(x)
        with pyro.plate("data", len(x)):
            with poutine.mask(mask=~known):
                drawn = pyro.sample("y_unobserved", self.family(self.guide_y(x)))
            y = torch.where(known[:, None], self.as_code(value), self.as_code(drawn))
            if self.with_z:
                pyro.sample("z", one_hot(self.guide_z(cat(x, y))))


def one_hot(logits: Tensor) -> Any:
    return dist.OneHotCategorical(logits=logits)


def tables(program: PartlyObserved, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(B, K, 2 or 1) log p(x, y, z) and log q(y, z|x), and (B, K) which y are possible."""
    values, known = program.labels(x)
    y, z = torch.eye(K), torch.eye(2)
    log_joint = program.prior_y.log_softmax(-1)[:, None]
    log_q = program.guide_y(x).log_softmax(-1)[:, :, None]
    codes = y[:, None]
    if program.with_z:
        log_joint = log_joint + program.prior_z(y).log_softmax(-1)
        log_q_z = program.guide_z(cat(x[:, None], y)).log_softmax(-1)
        log_q = torch.where(known[:, None, None], 0.0, log_q) + log_q_z
        codes = cat(y[:, None], z)
    else:
        log_q = torch.where(known[:, None, None], 0.0, log_q)
    decoded = dist.Bernoulli(logits=program.decoder(codes)).to_event(1)
    possible = torch.where(known[:, None], program.as_code(values) == 1, True)
    return log_joint + decoded.log_prob(x[:, None, None]), log_q, possible


def exact_value(program: PartlyObserved, x: Tensor) -> Tensor:
    """The ELBO of log p(x, y) where y is known, and of log p(x) elsewhere; summed over the data."""
    log_joint, log_q, possible = tables(program, x)
    q = log_q.exp() * possible[:, :, None]
    return (q * (log_joint - log_q)).sum()


PROGRAMS = {
    "y": lambda: PartlyObserved(with_z=False),
    "indices y": lambda: PartlyObserved(with_z=False, indices=True),
    "y and z": PartlyObserved,
}


# Two particles in the program with z would make more than a thousand pairs of draws.
CASES = [
    (name, program)
    for name, (_, particles) in UNBIASED.items()
    for program in PROGRAMS
    if particles == 1 or program != "y and z"
]


@pytest.mark.parametrize(("name", "program"), CASES)
def test_expected_gradient_is_exact(name: str, program: str) -> None:
    """Over all draws of a row whose y is known, and of one whose y is not."""
    make, particles = UNBIASED[name]
    built, x = PROGRAMS[program](), tiny_data(2)
    loss, grad = expected(make, built, x, particles, 1)
    exact = -exact_value(built, x)
    torch.testing.assert_close(loss, exact.detach(), **EXACT)
    torch.testing.assert_close(grad, gradient(exact, built), **EXACT)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("options", [{}, {"chunk_size": 1}, {"analytic_kl": False}])
def test_the_sum_is_exact(program: str, options: dict[str, Any]) -> None:
    built, x = PROGRAMS[program](), tiny_data(4)
    loss = EnumeratedELBO(**options).differentiable_loss(built.model, built.guide, x)
    exact = -exact_value(built, x)
    torch.testing.assert_close(loss.detach(), exact.detach(), **EXACT)
    torch.testing.assert_close(gradient(loss, built), gradient(exact, built), **EXACT)


@pytest.mark.parametrize("program", PROGRAMS)
def test_log_p_is_exact_and_known_rows_do_not_teach_the_prior_to_the_guide(program: str) -> None:
    built, x = PROGRAMS[program](), tiny_data(4)
    log_joint, log_q, possible = tables(built, x)
    log_joint = log_joint.masked_fill(~possible[:, :, None], -math.inf)
    value = log_joint.flatten(1).logsumexp(-1)
    posterior = (log_joint - value[:, None, None]).exp().detach()
    exact = value.sum() + (posterior * log_q).sum()
    loss = MarginalELBO().differentiable_loss(built.model, built.guide, x)
    torch.testing.assert_close(-loss.detach(), value.sum().detach(), **EXACT)
    torch.testing.assert_close(gradient(-loss, built), gradient(exact, built), **EXACT)


def vimco_bound(program: PartlyObserved, x: Tensor) -> Tensor:
    """sum_{c, c'} q(c) q(c') log of the mean weight of two draws, summed over the data."""
    log_joint, log_q, possible = tables(program, x)
    q = (log_q.exp() * possible[:, :, None]).flatten(1)
    log_w = (log_joint - log_q).flatten(1)
    pair = torch.stack(torch.broadcast_tensors(log_w[:, :, None], log_w[:, None])).logsumexp(0)
    return (q[:, :, None] * q[:, None] * (pair - math.log(2))).sum()


RIGHT = [name for name in ELBOS if not is_pathwise(ELBOS[name]()) and name not in ("rws", "jsa")]


@pytest.mark.parametrize("name", RIGHT)
def test_mean_gradient_is_exact(name: str) -> None:
    """z-tests of every estimator that is right in the mean, by copies of four rows."""
    program = PartlyObserved()
    four = tiny_data(4)
    bound = (vimco_bound if name in OTHER_BOUND else exact_value)(program, four)
    exact = gradient(-bound, program)
    make = (lambda: VimcoELBO(2)) if name in OTHER_BOUND else ELBOS[name]
    elbo, x = make(), four.repeat(COPIES, 1)
    grads = []
    for _ in range(20):
        loss = elbo.differentiable_loss(program.model, program.guide, x)
        grads.append(gradient(loss, program) / COPIES)
    found = torch.stack(grads)
    error = (found.mean(0) - exact).abs()
    assert (error <= 4.5 * found.std(0) / math.sqrt(len(found)) + 1e-9).all()


@pytest.mark.parametrize("name", [name for name in ELBOS if is_pathwise(ELBOS[name]())])
def test_pathwise_gradients_of_a_row(name: str) -> None:
    """Where y is known they are exact, and none reaches q(y|x); elsewhere there is one."""
    program, x = PartlyObserved(with_z=False), tiny_data(2)
    terms = ELBOS[name]().terms(program.model, program.guide, (x,), {})
    known, unknown = ELBOS[name]().surrogate(terms)
    slopes = torch.autograd.grad(known, list(program.guide_y.parameters()), retain_graph=True)
    assert all((slope == 0).all() for slope in slopes)
    own = [program.prior_y, *program.decoder.parameters()]
    found = torch.autograd.grad(known, own, retain_graph=True)
    exact = torch.autograd.grad(exact_value(program, x[:1]), own)
    torch.testing.assert_close(found, exact, **EXACT)
    (slope,) = torch.autograd.grad(unknown, program.guide_y.weight)
    assert slope.abs().max() > 0


def test_the_kl_of_a_partly_observed_code_is_in_closed_form() -> None:
    program, x = PartlyObserved(with_z=False), tiny_data(4)
    terms = RlooELBO(2).terms(program.model, program.guide, (x,), {})
    q, p = program.guide_y(x).log_softmax(-1), program.prior_y.log_softmax(-1)
    kl = (q.exp() * (q - p)).sum(-1) * torch.tensor([0.0, 1.0, 0.0, 1.0])
    torch.testing.assert_close(terms.kl.detach(), kl.expand(2, -1).detach(), **EXACT)


@pytest.mark.parametrize("name", [*ELBOS, "marginal"])
@pytest.mark.parametrize("in_guide", [True, False])
def test_a_mask_on_one_side_alone_is_refused(name: str, in_guide: bool) -> None:
    """Log q would count where y is known, so that the loss would be no bound."""
    program, x = PartlyObserved(), tiny_data(4)
    value, _ = program.labels(x)

    def one_sided(x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            pyro.sample("y_unobserved", one_hot(program.guide_y(x)))
            pyro.sample("z", one_hot(program.guide_z(cat(x, value))))

    model, guide = program.model, one_sided
    if in_guide:
        model, guide = (
            poutine.block(one_sided, hide=["z"]),
            poutine.block(program.guide, hide=["z"]),
        )
    elbo = {**ELBOS, "marginal": MarginalELBO}[name]()
    where = "guide" if in_guide else "model"
    with pytest.raises(
        ValueError, match=rf"mask of site 'y_unobserved' in both.*in the {where} alone.*poutine"
    ):
        elbo.differentiable_loss(model, guide, x)
