from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from pyro.infer import Trace_ELBO
from torch import Tensor, nn
from zoo import (
    LIKELIHOODS,
    PRIORS,
    D,
    Hierarchy,
    K,
    P,
    make_batch,
    make_vae,
    tiny_data,
    tiny_vae,
)

from pyro_dvae import EnumeratedELBO, RefinedGuide, SemiSupervisedVAE, log_marginal, refine
from pyro_dvae.codes import enumerate_codes, enumerate_digits
from pyro_dvae.evaluation.coordinate_ascent import DrawnAscent, table_ascent, table_sweep
from pyro_dvae.evaluation.joint import DecodedBlock, Joint, evaluating

MODELS = {
    **{f"{prior} prior": {"prior": prior} for prior in PRIORS},
    **{name: {"likelihood": name} for name in LIKELIHOODS if name != "bernoulli"},
    "autoregressive guide": {"guide": "autoregressive"},
    "autoregressive guide and prior": {"guide": "autoregressive", "prior": "autoregressive"},
}


def oracle(vae: Any, x: Tensor, labels: Tensor | None = None) -> Tensor:
    """log p(x, z), (N, K^D), one code after the other."""
    vae.prior.refresh()
    columns = []
    with torch.no_grad():
        for z in enumerate_codes(D, K):
            log_p = vae.prior_codes(labels).log_prob(z.expand(len(x), D, K))
            columns.append(log_p + vae.decode(z.expand(len(x), D, K)).log_prob(x))
    return torch.stack(columns, 1)


def oracle_elbo(log_joint: Tensor, log_q: Tensor) -> Tensor:
    """sum_z q(z) (log p(x, z) - log q(z)), one code after the other."""
    total = torch.zeros(len(log_joint))
    for number, digits in enumerate(enumerate_digits(D, K).tolist()):
        log_q_z = sum(log_q[:, latent, digit] for latent, digit in enumerate(digits))
        term = log_q_z.exp() * (log_joint[:, number] - log_q_z)
        total = total + torch.where(log_q_z > -torch.inf, term, 0)
    return total


def a_model(parts: dict[str, str]) -> tuple[Any, Tensor, Any]:
    vae = make_vae(**parts).eval()
    x, *labels = make_batch(vae, parts.get("likelihood", "bernoulli"))
    return vae, x, labels[0] if labels else None


@pytest.mark.parametrize("name", MODELS)
def test_no_update_lowers_the_elbo_nor_lifts_it_above_log_p(name: str) -> None:
    vae, x, labels = a_model(MODELS[name])
    log_joint = oracle(vae, x, labels)
    log_p = log_joint.logsumexp(1)
    log_q = torch.randn(len(x), D, K).mul(3).log_softmax(-1)
    previous = oracle_elbo(log_joint, log_q)
    for _ in range(3):
        swept = table_sweep(log_joint, log_q)
        for latent in range(1, D + 1):
            state = torch.cat([swept[:, :latent], log_q[:, latent:]], 1)
            elbo = oracle_elbo(log_joint, state)
            assert (elbo >= previous - 1e-10).all()
            assert (elbo <= log_p + 1e-10).all()
            previous = elbo
        log_q = swept
    refined = refine(vae, x, 3, labels)
    torch.testing.assert_close(refined.log_marginal, log_p)
    torch.testing.assert_close(refined.elbo, oracle_elbo(log_joint, refined.log_q))
    assert (refined.elbo <= log_p + 1e-10).all()
    if "guide" not in MODELS[name]:
        assert (refined.elbo >= refined.encoder_elbo - 1e-10).all()
        assert (refined.elbo > refined.encoder_elbo + 1e-4).any()


@pytest.mark.parametrize("latents", [1, 2, 3])
def test_a_sweep_is_the_formula(latents: int) -> None:
    log_joint = torch.randn(4, K**latents)
    log_q = torch.randn(4, latents, K).log_softmax(-1)
    q, table = list(log_q.exp().unbind(1)), log_joint.unflatten(-1, (K,) * latents)
    letters = "abc"[:latents]
    for latent in range(latents):
        others = [q[other] for other in range(latents) if other != latent]
        names = ",".join(f"n{a}" for i, a in enumerate(letters) if i != latent)
        equation = f"n{letters}{',' if names else ''}{names}->n{letters[latent]}"
        q[latent] = torch.einsum(equation, table, *others).softmax(-1)
    torch.testing.assert_close(table_sweep(log_joint, log_q).exp(), torch.stack(q, 1))


@pytest.mark.parametrize("exact", [True, False])
def test_one_latent_has_the_posterior_after_one_sweep(exact: bool) -> None:
    vae, x = tiny_vae(1, 5), tiny_data(4)
    refined = refine(vae, x, 1, exact=exact)
    codes = enumerate_codes(1, 5)[:, None]
    with torch.no_grad():
        log_p = vae.decode(codes).log_prob(x).T.log_softmax(-1)
        log_p_x = log_marginal(vae, x)
    torch.testing.assert_close(refined.log_q[:, 0], log_p)
    if exact:
        torch.testing.assert_close(refined.elbo, log_p_x, rtol=0, atol=1e-10)


class _OwnPixels(nn.Module):
    """Two pixels of each latent alone, so that p(z|x) factorises."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(2 * torch.randn(D, K, P // D))

    def forward(self, z: Tensor) -> Tensor:
        return torch.einsum("...dk,dkp->...dp", z, self.weight).flatten(-2)


@pytest.mark.parametrize("prior", ["uniform", "learned"])
def test_a_posterior_that_factorises_is_found(prior: str) -> None:
    vae = make_vae(prior)
    vae.decoder = _OwnPixels()
    x = tiny_data(5)
    refined = refine(vae, x, 1)
    log_p = oracle(vae, x).log_softmax(1).unflatten(1, (K, K))
    marginals = torch.stack([log_p.logsumexp(2), log_p.logsumexp(1)], 1)
    torch.testing.assert_close(refined.log_q, marginals)
    torch.testing.assert_close(refined.elbo, log_marginal(vae, x).detach(), rtol=0, atol=1e-10)
    drawn = refine(vae, x, 1, exact=False)  # z_-d does not matter to z_d
    torch.testing.assert_close(drawn.log_q, marginals)


def test_the_best_start_is_kept() -> None:
    # Two codes have the mass, one more than the other; the ascent stays with the code it starts at.
    log_joint = torch.full((2, 9), -30.0)
    log_joint[:, 0], log_joint[:, 8] = torch.tensor([-2.0, -4.0]), torch.tensor([-4.0, -2.0])
    start = torch.tensor([0.98, 0.01, 0.01]).log().expand(2, 2, 3)
    alone = table_ascent(log_joint, start, 50)
    assert alone[0].argmax(-1).tolist() == [[0, 0], [0, 0]]
    best = table_ascent(log_joint, start, 50, starts=3)
    assert best[0].argmax(-1).tolist() == [[0, 0], [2, 2]]
    torch.testing.assert_close(best[1], torch.tensor([-2.0, -2.0]), atol=1e-6, rtol=0)
    assert (best[1] >= alone[1] - 1e-12).all()


def test_the_best_of_several_starts_is_the_best_of_a_grid() -> None:
    table = 3 * torch.randn(4, 2, 2)
    start = torch.full((4, 2, 2), 0.5).log()
    reached = table_ascent(table.flatten(1), start, 200, starts=6)[1]
    one, two = torch.meshgrid(torch.linspace(0, 1, 101), torch.linspace(0, 1, 101), indexing="ij")
    q = [torch.stack([part, 1 - part], -1) for part in (one, two)]  # (101, 101, 2)
    joint = q[0].unsqueeze(-1) * q[1].unsqueeze(-2)
    elbo = (joint * table[:, None, None] - torch.special.xlogy(joint, joint)).sum((-1, -2))
    assert (reached >= elbo.flatten(1).amax(1) - 1e-9).all()
    assert (reached <= table.flatten(1).logsumexp(1)).all()


def test_more_starts_never_lower_the_elbo() -> None:
    vae, x = make_vae("mixture"), tiny_data(6)
    by_number = [refine(vae, x, 2, starts=number).elbo for number in (1, 2, 3, 20)]
    for fewer, more in pairwise(by_number):
        assert (more >= fewer - 1e-10).all()


def test_codes_that_the_prior_excludes() -> None:
    vae, x = make_vae("learned"), tiny_data(4)
    with torch.no_grad():
        vae.prior.logits[0, 1:] = -torch.inf
    for exact in (True, False):
        refined = refine(vae, x, 2, exact=exact, starts=2)
        assert (refined.log_q[:, 0].exp() == torch.tensor([1.0, 0, 0])).all()
        assert refined.log_q[:, 1].isfinite().all()
    torch.testing.assert_close(refine(vae, x, 1).elbo, log_marginal(vae, x).detach())


@pytest.mark.parametrize("name", ["conditional prior", "boltzmann prior", "masked"])
def test_drawn_updates_have_the_mean_of_the_formula(name: str) -> None:
    vae, x, labels = a_model(MODELS[name])
    log_joint = oracle(vae, x, labels).unflatten(1, (K, K))
    log_q = torch.randn(len(x), D, K).log_softmax(-1)
    with evaluating(vae):
        block = DecodedBlock(Joint(vae, x, labels), x, labels)
        ascent, number = DrawnAscent(20, 3), 30
        for latent in range(D):
            keys = [(0, number, latent) for number in range(number)]
            draws = torch.stack([ascent.mean_log_joint(block, log_q, latent, k) for k in keys])
            table = log_joint if latent == 0 else log_joint.transpose(1, 2)
            mean = (table * log_q[:, 1 - latent, None].exp()).sum(-1)
            error = draws.std(0) / number**0.5
            assert ((draws.mean(0) - mean).abs() <= 5 * error + 1e-9).all()


def test_drawn_sweeps_come_near_the_table() -> None:
    vae, x = make_vae("learned"), tiny_data(8)
    table = refine(vae, x, 30)
    drawn = refine(vae, x, 30, exact=False, particles=30)
    log_joint = oracle(vae, x)
    reached = oracle_elbo(log_joint, drawn.log_q)
    gain = table.elbo - table.encoder_elbo
    assert gain.mean() > 0.1
    # The loss is of second order in the error of the natural parameters.
    assert (table.elbo - reached).mean() < 0.02 * gain.mean()


@pytest.mark.parametrize("exact", [True, False])
def test_blocks_do_not_change_the_result(exact: bool) -> None:
    vae, x = tiny_vae(), tiny_data(7)
    options: dict[str, Any] = {"exact": exact, "starts": 3, "particles": 2, "seed": 4}
    whole = refine(vae, x, 2, **options)
    for size in (1, 3):
        parts = refine(vae, x, 2, batch_size=size, **options)
        for one, other in zip(parts, whole, strict=True):
            if other is not None:
                torch.testing.assert_close(one, other)
    if not exact:
        assert not torch.equal(refine(vae, x, 2, **{**options, "seed": 5}).log_q, whole.log_q)


@pytest.mark.parametrize("prior", ["uniform", "autoregressive", "mixture", "conditional"])
def test_as_a_guide_its_loss_is_minus_the_elbo(prior: str) -> None:
    vae = make_vae(prior)
    batch = make_batch(vae)
    guide = RefinedGuide(vae, 2)
    loss = EnumeratedELBO().loss(vae.model, guide, *batch)
    labels = batch[1] if vae.takes_labels else None
    assert loss == pytest.approx(-refine(vae, batch[0], 2, labels).elbo.sum().item(), abs=1e-10)
    assert guide(*batch).shape == (len(batch[0]), D, K)
    with pytest.raises(ValueError, match="Expected data x"):
        guide()


def test_a_known_class_stays_in_a_refined_guide() -> None:
    vae, x = tiny_vae(), tiny_data(5)
    vae = SemiSupervisedVAE(vae.encoder, vae.decoder, vae.prior, vae.likelihood)
    labels = torch.tensor([0, 1, 2, -1, -1])
    codes = RefinedGuide(vae, 1)(x, labels)
    assert codes[:3, 0].argmax(-1).tolist() == [0, 1, 2]
    assert torch.equal(refine(vae, x, 2, labels).elbo, refine(vae, x, 2).elbo)


def test_pyro_trains_the_decoder_under_a_refined_guide() -> None:
    vae, x = tiny_vae().train(), tiny_data(20)
    Trace_ELBO().differentiable_loss(vae.model, RefinedGuide(vae, 1), x).backward()
    moved = {name.split(".")[0] for name, w in vae.named_parameters() if w.grad is not None}
    assert moved == {"decoder"}
    assert vae.training


def test_what_has_no_joint_probability_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Expected a DiscreteVAE.*got Hierarchy"):
        refine(Hierarchy(), tiny_data(2))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sweeps of at least 1"):
        refine(tiny_vae(), tiny_data(2), 0)
    with pytest.raises(ValueError, match="Expected labels"):
        refine(make_vae("conditional"), tiny_data(2))
    with pytest.raises(ValueError, match=r"got K\^D = 8\^6"):
        refine(tiny_vae(6, 8), tiny_data(2), exact=True)
