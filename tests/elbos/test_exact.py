from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from oracle import assignments, exact_elbo, expected, gradient, log_probs
from zoo import ELBOS, OTHER_BOUND, PROGRAMS, tiny_data, tiny_vae

import pyro_dvae.elbos.summed
from pyro_dvae import EnumeratedELBO, MarginalELBO, ReinforceELBO, RlooELBO

EXACT = {"atol": 1e-10, "rtol": 0}


@pytest.mark.parametrize("chunk_size", [1, 2, 4, 10_000])
@pytest.mark.parametrize("name", PROGRAMS)
def test_chunks_do_not_matter(name: str, chunk_size: int) -> None:
    program, x = PROGRAMS[name][0](), tiny_data(2)
    for make in (EnumeratedELBO, MarginalELBO):
        losses = [
            elbo.differentiable_loss(program.model, program.guide, x)
            for elbo in (make(), make(chunk_size=chunk_size))
        ]
        torch.testing.assert_close(losses[0], losses[1], **EXACT)
        torch.testing.assert_close(*(gradient(loss, program) for loss in losses), **EXACT)
        assert make(chunk_size=chunk_size).loss(program.model, program.guide, x) == pytest.approx(
            losses[0].item(), abs=1e-10
        )


@pytest.mark.parametrize("make", [EnumeratedELBO, MarginalELBO])
def test_one_latent_of_many_categories_is_summed_in_bounded_memory(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyro_dvae.elbos.summed, "_NUMBERS", 2**8)
    vae, x, sizes = tiny_vae(1, 64), tiny_data(2), []
    vae.decoder.register_forward_pre_hook(lambda _, codes: sizes.append(codes[0].numel()))
    loss = make().loss(vae.model, vae.guide, x)
    assert max(sizes[1:]) <= 2**8 < 64 * 64  # the first is the trial's, of the drawn codes
    monkeypatch.undo()
    assert loss == pytest.approx(make().loss(vae.model, vae.guide, x), abs=1e-10)


@pytest.mark.parametrize("name", PROGRAMS)
def test_marginal_is_maximum_likelihood_and_the_guide_follows_the_posterior(name: str) -> None:
    program, x = PROGRAMS[name][0](), tiny_data(1)
    rows = [log_probs(program, x, values) for values in assignments(program, x)]
    log_lik, log_p, log_q = (torch.stack(part) for part in zip(*rows, strict=True))
    marginal = (log_lik + log_p).logsumexp(0)
    posterior = (log_lik + log_p - marginal).exp().detach()
    by_hand = gradient(-marginal, program) + gradient(-(posterior * log_q).sum(), program)

    loss = MarginalELBO().differentiable_loss(program.model, program.guide, x)
    torch.testing.assert_close(loss.detach(), -marginal.detach(), **EXACT)
    torch.testing.assert_close(gradient(loss, program), by_hand, **EXACT)


def test_marginal_refuses_what_it_cannot_do() -> None:
    with pytest.raises(ValueError, match=r"beta = 1 and no free bits.*got beta = 0.5"):
        MarginalELBO(beta=0.5)
    with pytest.raises(ValueError, match=r"chunk of at least 1 code; got 0"):
        MarginalELBO(chunk_size=0)

    def program() -> None:
        pyro.sample("z", dist.OneHotCategorical(logits=torch.zeros(3)))
        pyro.sample("w", dist.Normal(0.0, 1.0))

    with pytest.raises(ValueError, match=r"finitely many values.*for log p.*got w"):
        MarginalELBO().loss(program, program)


@pytest.mark.parametrize("free_bits", [0.0, 0.05, 0.3, 100.0])
def test_free_bits_leave_out_the_latents_below(free_bits: float) -> None:
    """The gradient of E_q[log p(x|z)] - sum of the KLs of latents above, value untouched."""
    vae, x = tiny_vae(), tiny_data(1)
    exact = EnumeratedELBO(free_bits=free_bits).differentiable_loss(vae.model, vae.guide, x)
    log_q = vae.encode(x).log_softmax(-1)
    kl = (log_q.exp() * (log_q + torch.tensor(3.0).log())).sum(-1)[0]  # (D,)
    counted = exact_elbo(vae, x) + kl[kl <= free_bits].sum()
    exact_gradient = gradient(exact, vae)
    torch.testing.assert_close(exact_gradient, gradient(-counted, vae), **EXACT)
    torch.testing.assert_close(exact.detach(), -exact_elbo(vae, x).detach(), **EXACT)
    for make, particles in (
        (lambda: ReinforceELBO(free_bits=free_bits, max_plate_nesting=1), 1),
        (lambda: RlooELBO(2, free_bits=free_bits, max_plate_nesting=1), 2),
    ):
        _, grad = expected(make, vae, x, particles, 1)
        torch.testing.assert_close(grad, exact_gradient, **EXACT)


def test_free_bits_are_of_the_mean_over_the_batch() -> None:
    """Two data of which one alone has the KL: counted as long as the mean is above."""
    vae, x = tiny_vae(1, 3), tiny_data(2)
    logits = torch.nn.Parameter(torch.tensor([[[0.0, 0.0, 0.0]], [[5.0, 0.0, 0.0]]]))
    vae.encoder = torch.nn.Module()
    vae.encoder.forward = lambda x: logits
    plain, kept, dropped = (
        torch.autograd.grad(
            EnumeratedELBO(free_bits=bits).differentiable_loss(vae.model, vae.guide, x), logits
        )[0]
        for bits in (0.0, 0.4, 0.6)
    )
    assert torch.equal(plain, kept)
    assert not torch.equal(plain, dropped)


@pytest.mark.parametrize("name", sorted(ELBOS.keys() - OTHER_BOUND))
def test_free_bits_need_a_closed_form(name: str) -> None:
    program, x = PROGRAMS["inverse hierarchy"][0](), tiny_data(1)
    with pytest.raises(ValueError, match="closed"):
        ELBOS[name](free_bits=0.1).loss(program.model, program.guide, x)


MEMORY = """
import resource, torch, pyro
from pyro_dvae import *
torch.manual_seed(0)
vae = DiscreteVAE(
    MLPEncoder((784,), 4, 16), MLPDecoder((784,), 4, 16), UniformPrior(4, 16), Bernoulli()
)
x = torch.bernoulli(torch.full((100, 784), 0.2))
elbo = {name}()
loss = elbo.differentiable_loss(vae.model, vae.guide, x)
loss.backward()
assert all(weight.grad.isfinite().all() for weight in vae.parameters())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux alone")
@pytest.mark.parametrize("name", ["EnumeratedELBO", "MarginalELBO"])
def test_65536_codes_in_two_gigabytes(name: str) -> None:
    code = MEMORY.format(name=name)
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert float(run.stdout) < 2, f"{run.stdout} GiB"


def test_marginal_trains_the_guide_towards_the_posterior() -> None:
    torch.manual_seed(1)
    vae, x = tiny_vae(1, 3), tiny_data(8)
    elbo: Any = MarginalELBO()
    optimizer = torch.optim.Adam(vae.parameters(), lr=0.02)
    gaps = []
    for _ in range(150):
        optimizer.zero_grad()
        loss = elbo.differentiable_loss(vae.model, vae.guide, x)
        loss.backward()
        optimizer.step()
        bound, marginal = (
            -objective.loss(vae.model, vae.guide, x) for objective in (EnumeratedELBO(), elbo)
        )
        gaps.append(marginal - bound)
    assert min(gaps) > -1e-9  # no ELBO exceeds log p(x)
    assert gaps[-1] < 0.5 * max(gaps)


@pytest.mark.parametrize("chunk_size", [2, 100])
def test_what_all_codes_have_in_common_is_not_rounded_into_the_guide(chunk_size: int) -> None:
    """Values of a million nats that differ by a few: whole numbers, which floats hold exactly."""
    logits = torch.tensor([0.5, -1.0, 0.25, 2.0, 0.0], requires_grad=True)
    gains = torch.tensor([3.0, -1.0, 0.0, 2.0, 7.0])

    def model() -> None:
        z = pyro.sample("z", dist.OneHotCategorical(logits=torch.zeros(5)))
        pyro.factor("gain", 2.0**20 + z @ gains)

    def guide() -> None:
        pyro.sample("z", dist.OneHotCategorical(logits=logits))

    elbo = EnumeratedELBO(chunk_size=chunk_size, analytic_kl=True)
    (found,) = torch.autograd.grad(-elbo.differentiable_loss(model, guide), logits)
    q = logits.detach().softmax(0)
    values = gains - q.log()
    wanted = q * (values - (q * values).sum())
    # The rounding of 7 nats, where that of a million would be 1e-10.
    torch.testing.assert_close(found, wanted, atol=1e-14, rtol=0)
