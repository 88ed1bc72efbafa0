"""Joint stochastic approximation: its chain by enumeration, and the codes that it keeps."""

from __future__ import annotations

import itertools
import math
from contextlib import nullcontext
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from oracle import (
    FixedDraws,
    assignments,
    expected,
    gradient,
    latent_sites,
    log_probs,
    stack_particles,
)
from pyro.infer import SVI
from test_multi_sample import exact_bound
from torch import Tensor, nn
from zoo import PLAIN, PROGRAMS, Hierarchy, IndependentSites, make_vae, tiny_data, tiny_vae

from pyro_dvae import JsaELBO, MarginalELBO, Trainer, VimcoELBO, log_marginal
from pyro_dvae.codes import enumerate_codes
from pyro_dvae.elbos.jsa import chain

EXACT = {"atol": 1e-10, "rtol": 0}


def every_tuple(program: Any, x: Tensor, nesting: int, size: int) -> tuple[Tensor, dict[str, Any]]:
    """All tuples of codes of one datum: their numbers (T, S), and values (S, T copies, ...)."""
    event_dims = {name: site["fn"].event_dim for name, site in latent_sites(program, x).items()}
    singles = list(assignments(program, x))
    tuples = torch.tensor(list(itertools.product(range(len(singles)), repeat=size)))
    draws = []
    for numbers in tuples.T:
        dims = {name: -1 - event_dim for name, event_dim in event_dims.items()}
        values = {
            name: torch.cat([singles[int(i)][name] for i in numbers], dim)
            for name, dim in dims.items()
        }
        draws.append(values)
    return tuples, stack_particles(tuple(draws), nesting, event_dims)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("beta", [1.0, 0.4])
def test_a_chain_from_the_posterior_has_the_exact_gradient_and_stays_there(
    name: str, beta: float
) -> None:
    """Over all starts, drawn from p(z|x), and all pairs of proposals, drawn from q(z|x)."""
    (build, nesting), x = PROGRAMS[name], tiny_data()
    program = build()
    rows = [log_probs(program, x, values) for values in assignments(program, x)]
    log_lik, log_p, log_q = (torch.stack(part) for part in zip(*rows, strict=True))
    posterior = (log_lik / beta + log_p).softmax(0).detach()
    exact = gradient((posterior * (log_lik + beta * log_p + log_q)).sum(), program)
    if beta == 1:
        loss = MarginalELBO().differentiable_loss(program.model, program.guide, x)
        torch.testing.assert_close(exact, gradient(-loss, program), **EXACT)

    tuples, values = every_tuple(program, x, nesting, 3)
    weight = posterior[tuples[:, 0]] * log_q.detach()[tuples[:, 1:]].sum(1).exp()
    elbo = JsaELBO(3, beta=beta, max_plate_nesting=nesting)
    guide = FixedDraws(values)(program.guide)
    terms = elbo.terms(program.model, guide, (x.expand(len(tuples), -1),), {})
    found = gradient((weight * elbo.surrogate(terms)).sum(), program)
    torch.testing.assert_close(found, exact, **EXACT)

    _, last = chain((log_lik / beta + log_p - log_q).detach()[tuples].T)
    left = torch.zeros_like(posterior)
    left.index_add_(0, tuples.T.flatten(), (weight * last).flatten())
    torch.testing.assert_close(left, posterior, **EXACT)


def test_acceptances_by_hand() -> None:
    """w = 4, 1, 2: from 4 to 1 with probability 1/4, then from 4 to 2 with 1/2, from 1 with 1."""
    visits, last = chain(torch.tensor([4.0, 1.0, 2.0]).log())
    torch.testing.assert_close(last, torch.tensor([0.375, 0.0, 0.625]))
    torch.testing.assert_close(visits, torch.tensor([[0.75, 0.25, 0.0], last.tolist()]).mean(0))
    two = torch.tensor([[math.log(0.2 / 0.5), math.log(0.8 / 0.5)]]).T  # p = 0.2, 0.8, q = 1/2
    torch.testing.assert_close(chain(two)[1], torch.tensor([[0.0], [1.0]]))
    torch.testing.assert_close(chain(two.flip(0))[1], torch.tensor([[0.75], [0.25]]))
    _, last = chain(torch.tensor([0.0, 0.0, 3.0, 0.0]).log())
    torch.testing.assert_close(last, torch.tensor([0.0, 0.0, 1.0, 0.0]))


def test_a_proposal_that_the_model_excludes() -> None:
    """It is no state, and adds nothing."""
    logits = nn.Parameter(torch.tensor([0.3, -0.2, 0.1]))
    prior = torch.tensor([0.5, -math.inf, 0.2])

    def program(prior: Tensor) -> Any:
        return lambda: pyro.sample("z", dist.Categorical(logits=prior))

    guide = FixedDraws({"z": torch.tensor([0, 1, 2, 1])})(program(logits))
    loss = JsaELBO(4, max_plate_nesting=0).differentiable_loss(program(prior), guide)
    assert loss.isfinite()
    (slope,) = torch.autograd.grad(loss, logits)
    assert slope.isfinite().all()


def test_value_is_the_bound_of_the_proposals() -> None:
    """Its mean is that of two draws, and the start has no part in it."""
    vae, x = tiny_vae(1, 3), tiny_data()
    loss, _ = expected(lambda: JsaELBO(3, max_plate_nesting=1), vae, x, 3, 1)
    torch.testing.assert_close(loss, -exact_bound(vae, x, 2).detach(), **EXACT)
    assert -loss < log_marginal(vae, x).sum()
    z = enumerate_codes(1, 3)[torch.randint(3, (3, 1))]
    ours, vimcos = (
        make(len(codes), max_plate_nesting=1).loss(
            vae.model, FixedDraws({"z": codes})(vae.guide), x
        )
        for make, codes in ((JsaELBO, z), (VimcoELBO, z[1:]))
    )
    assert ours == pytest.approx(vimcos, abs=1e-12)


class Four(nn.Module):
    """N data x = 1 with p(z|x) = 0.05, 0.25, 0.3, 0.4, and a guide far from it."""

    posterior = torch.tensor([0.05, 0.25, 0.3, 0.4], dtype=torch.float64)

    def __init__(self) -> None:
        super().__init__()
        self.bits = nn.Parameter(torch.logit(self.posterior))
        self.guide_logits = nn.Parameter(torch.tensor([0.7, 0.2, 0.05, 0.05]).log())

    def model(self, num: int) -> None:
        with pyro.plate("data", num):
            z = pyro.sample("z", dist.Categorical(torch.ones(4)))
            pyro.sample("x", dist.Bernoulli(logits=self.bits[z]), obs=torch.ones(num))

    def guide(self, num: int) -> None:
        with pyro.plate("data", num):
            pyro.sample("z", dist.Categorical(logits=self.guide_logits))


@torch.no_grad()
def test_kept_codes_become_draws_from_the_posterior() -> None:
    """3,000 chains, by the chi-square statistic with 3 degrees of freedom."""
    program, elbo, num = Four(), JsaELBO(4), 3000
    expected_counts, found = num * program.posterior, []
    with elbo.at_rows(torch.arange(num), num):
        # A step keeps at most 7/8 of the distance, as the largest p(z|x) / q(z|x) is 8.
        for _ in range(25):
            elbo.differentiable_loss(program.model, program.guide, num)
            counts = torch.bincount(elbo.kept.codes[:, 0], minlength=4)
            found.append(((counts - expected_counts).square() / expected_counts).sum().item())
    assert found[0] > 1000
    assert found[-1] < 25.9  # one in 100,000 is above


def test_the_last_state_is_kept() -> None:
    """Each proposal has a larger p(z|x) / q(z|x) than the state, so that it is accepted."""
    program, elbo = Four(), JsaELBO(3, max_plate_nesting=1)
    values = {"z": torch.tensor([1, 2, 3])[:, None].expand(3, 50)}
    with elbo.at_rows(torch.arange(50), 50):
        elbo.differentiable_loss(program.model, FixedDraws(values)(program.guide), 50)
    assert (elbo.kept.codes == 3).all()


def test_steps_from_kept_draws_of_the_posterior_are_unbiased() -> None:
    """A z-test of 40 steps of 300 data; from draws of the guide, it would fail."""
    program, num, errors = Four(), 300, []
    exact = gradient(MarginalELBO().differentiable_loss(program.model, program.guide, 1), program)
    for is_kept in (True, False):
        elbo, grads = JsaELBO(2), []
        for _ in range(40):
            index = torch.multinomial(program.posterior, num, replacement=True)
            with elbo.at_rows(torch.arange(num), num) if is_kept else nullcontext():
                elbo.loss(program.model, program.guide, num)  # makes room
                if is_kept:
                    elbo.kept.codes = index.int()[:, None]
                loss = elbo.differentiable_loss(program.model, program.guide, num)
            grads.append(gradient(loss, program) / num)
        found = torch.stack(grads)
        errors.append((found.mean(0) - exact).abs() / (found.std(0) / math.sqrt(len(found))))
    kept, drawn = errors
    assert kept.max() < 4.5
    assert drawn.max() > 20


def starts(elbo: JsaELBO, program: Any, x: Tensor) -> dict[str, Tensor]:
    """The values of the first particle at the sites of the guide, in a run of its own."""
    pair = elbo.terms(program.model, program.guide, (x,), {}).pair
    return {name: site["value"][0] for name, site in pair.guide_sites.items()}


STARTS: dict[str, Any] = {
    **{name: build for name, (build, _) in PROGRAMS.items()},
    "independent sites": IndependentSites,
    "autoregressive": lambda: make_vae("autoregressive", guide="autoregressive"),
}


@pytest.mark.parametrize("name", STARTS)
def test_the_start_is_the_kept_code(name: str) -> None:
    """At each site, and the sites after it are scored given it."""
    program = STARTS[name]()
    x, elbo, rows = tiny_data(20), JsaELBO(3), torch.randperm(50)[:20]
    with elbo.at_rows(rows, 50):
        elbo.differentiable_loss(program.model, program.guide, x)
        before = elbo.kept.codes.clone()
        first, second = (starts(elbo, program, x) for _ in range(2))
        elbo.loss(program.model, program.guide, x)
        terms = elbo.terms(program.model, program.guide, (x,), {})
    assert torch.equal(before, elbo.kept.codes), "a run without gradient has kept codes"
    for site, value in first.items():
        assert torch.equal(value, second[site])
        index = value if value.dtype == torch.int64 else value.argmax(-1)
        columns = elbo.kept.codes[rows][:, elbo.kept.columns.slices[site]]
        if name == "plated latents":
            index = index.T  # (D, B)
        assert torch.equal(index.reshape(20, -1).int(), columns)
    datum = {
        site: value[:, 3:4] if name == "plated latents" else value[3:4]
        for site, value in first.items()
    }
    log_lik, log_p, log_q = log_probs(program, x[3:4], datum)
    torch.testing.assert_close(elbo.log_weights(terms)[0, 3], log_lik + log_p - log_q, **EXACT)
    assert any(not torch.equal(v, starts(elbo, program, x)[n]) for n, v in first.items())


class Subsampled(nn.Module):
    """A VAE whose programs take rows of all data in a plate of theirs."""

    def __init__(self, data: Tensor) -> None:
        super().__init__()
        self.vae, self.data = tiny_vae(), data

    def model(self, index: Tensor | None = None) -> None:
        size = None if index is not None else 3
        with pyro.plate("data", len(self.data), subsample_size=size, subsample=index) as rows:
            z = pyro.sample("z", self.vae.prior())
            pyro.sample("x", self.vae.decode(z), obs=self.data[rows])

    def guide(self, index: Tensor | None = None) -> None:
        size = None if index is not None else 3
        with pyro.plate("data", len(self.data), subsample_size=size, subsample=index) as rows:
            pyro.sample("z", self.vae.posterior(self.data[rows]))


def test_rows_of_a_plate_are_rows_that_are_told() -> None:
    """The same codes are kept, and the rows that are in no batch keep theirs."""
    x = tiny_data(8)
    program, plated, told = Subsampled(x), JsaELBO(3), JsaELBO(3)
    for step, index in enumerate([[1, 4, 6], [4, 0, 7], [6, 2, 1], [4, 6, 0]]):
        rows, before = torch.tensor(index), plated.kept.codes.clone()
        pyro.set_rng_seed(step)
        of_plate = plated.differentiable_loss(program.model, program.guide, rows)
        pyro.set_rng_seed(step)
        with told.at_rows(rows, 8):
            vae = program.vae
            of_rows = told.differentiable_loss(vae.model, vae.guide, x[rows])
        torch.testing.assert_close(of_plate, of_rows * 8 / 3, **EXACT)
        torch.testing.assert_close(
            gradient(of_plate, program), gradient(of_rows, program) * 8 / 3, **EXACT
        )
        assert torch.equal(plated.kept.codes, told.kept.codes)
        others = [row for row in range(8) if row not in index]
        assert (plated.kept.codes[rows] >= 0).all()
        if step:
            assert torch.equal(plated.kept.codes[others], before[others])
    assert (plated.kept.codes[[3, 5]] == -1).all()


def test_svi_keeps_codes_and_a_loaded_state_goes_on_alike() -> None:
    x = tiny_data(8)
    program, other = Subsampled(x), JsaELBO(3)
    elbo = JsaELBO(3)
    svi = SVI(program.model, program.guide, pyro.optim.Adam({"lr": 0.0}), elbo)
    for _ in range(40):
        svi.step()
    assert (elbo.kept.codes >= 0).all()
    other.load_state_dict(elbo.state_dict())
    results = []
    for each in (elbo, other):
        pyro.set_rng_seed(2)
        loss = each.differentiable_loss(program.model, program.guide)
        results.append((loss.detach(), gradient(loss, program), each.kept.codes))
    torch.testing.assert_close(results[0], results[1], atol=0, rtol=0)


def test_data_in_two_plates() -> None:
    """Codes are kept for each datum of a table, of which the plates hold some rows or columns."""
    x, rows = torch.randn(4, 3), torch.tensor([2, 0])
    logits = nn.Parameter(torch.randn(4, 3, 2))

    def program(observe: bool, subsample: Any) -> Any:
        def run() -> None:
            a = pyro.plate("a", 4, subsample=subsample, dim=-2)
            with a as index, pyro.plate("b", 3, dim=-1):
                q = torch.zeros(2) if observe else logits[index]
                z = pyro.sample("z", dist.Categorical(logits=q))
                if observe:
                    pyro.sample("x", dist.Normal(z.double(), 1.0), obs=x[index])

        return run

    elbo = JsaELBO(2)
    elbo.differentiable_loss(program(True, rows), program(False, rows))
    kept = elbo.kept.codes.reshape(4, 3)
    assert (kept[rows] >= 0).all()
    assert (kept[[1, 3]] == -1).all()
    pair = elbo.terms(program(True, rows), program(False, rows), (), {}).pair
    assert torch.equal(pair.guide_sites["z"]["value"][0].int(), kept[rows])


def test_without_rows_nothing_is_kept() -> None:
    vae, x, elbo = tiny_vae(), tiny_data(3), JsaELBO(3)
    for _ in range(2):
        elbo.differentiable_loss(vae.model, vae.guide, x)
    assert not len(elbo.kept.codes)


def test_trainer_tells_the_rows_of_each_batch() -> None:
    served = []

    class Data:
        def __len__(self) -> int:
            return 7

        def batch(self, index: Tensor, generator: torch.Generator) -> Tensor:
            served.append(index.tolist())
            return tiny_data(7)[index]

    elbo = JsaELBO(3)
    trainer = Trainer(tiny_vae(), elbo, Data(), batch_size=3, **PLAIN)
    assert (elbo.kept.codes == -1).all(), "the trial has kept a code"
    served.clear()
    seen: list[int] = []

    def on_step(*_: int) -> None:
        seen.extend(served.pop())
        kept = (elbo.kept.codes >= 0).all(1)
        assert kept.nonzero().flatten().tolist() == sorted(seen)

    list(trainer.run(1, on_step=on_step))
    assert len(seen) == 7
    before = elbo.kept.codes.clone()
    elbo.differentiable_loss(trainer.vae.model, trainer.vae.guide, tiny_data(3))
    assert torch.equal(elbo.kept.codes, before), "the rows of the last batch are still told"


def test_what_is_refused() -> None:
    vae, x, elbo = tiny_vae(), tiny_data(5), JsaELBO(2)
    Trainer(vae, elbo, x)
    with pytest.raises(
        ValueError, match=r"data whose codes are kept, 5 rows of site 'z'.*; got 6 rows"
    ):
        Trainer(vae, elbo, tiny_data(6))
    with pytest.raises(ValueError, match=r"'z' \(D = 2\) in plate 'data'; got 5 .*'z' \(D = 3\)"):
        Trainer(tiny_vae(3), elbo, x)
    other = Hierarchy()
    with elbo.at_rows(torch.arange(5), 5):
        with pytest.raises(
            ValueError, match=r"site 'z' \(D = 2\).*; got 5 .*'z1' \(D = 1\), site 'z2'"
        ):
            elbo.loss(other.model, other.guide, x)
        with pytest.raises(ValueError, match=r"one plate around all.*of the 5.*got 'data' of 4"):
            elbo.loss(vae.model, vae.guide, x[:4])
        with pytest.raises(ValueError, match=r"one plate around all sites, of the 5 .*got none"):
            elbo.loss(lambda: pyro.sample("y", dist.Bernoulli(0.5), obs=torch.ones(())), lambda: 0)

    for row in (-1, 5):
        with pytest.raises(ValueError, match=rf"row numbers from 0 to 4; got {min(row, 0)} to"):
            elbo.at_rows(torch.tensor([0, row]), 5).__enter__()

    def bits() -> None:
        pyro.sample("b", dist.Bernoulli(torch.tensor(0.5)))

    def normal() -> None:
        pyro.sample("w", dist.Normal(0.0, 1.0))

    with pytest.raises(TypeError, match=r"categorical.*got Bernoulli at site 'b'"):
        JsaELBO().loss(bits, bits)
    with pytest.raises(ValueError, match=r"not reparametrised.*got Normal at site 'w'"):
        JsaELBO().loss(normal, normal)
    for options, error, message in [
        ({"num_particles": 1}, ValueError, "2 particles for JsaELBO; got 1"),
        ({"beta": 0.0}, ValueError, "beta > 0"),
        ({"free_bits": 0.1}, ValueError, "no free bits"),
        ({"analytic_kl": False}, TypeError, "analytic_kl"),
    ]:
        with pytest.raises(error, match=message):
            JsaELBO(**options)
    with pytest.raises(ValueError, match="whose step compiles; got JsaELBO"):
        Trainer(vae, JsaELBO(), x, compiled=True)


def test_codes_of_a_model_with_more_categories_are_no_start() -> None:
    x, elbo = tiny_data(40), JsaELBO(2)
    for num_categories in (6, 2):
        vae = tiny_vae(2, num_categories)
        with elbo.at_rows(torch.arange(40), 40):
            assert elbo.differentiable_loss(vae.model, vae.guide, x).isfinite()
    assert elbo.kept.codes.max() == 1
