from __future__ import annotations

import math

import pyro.distributions as dist
import pytest
import torch

from pyro_dvae.evaluation.usage import UsageCounter, describe_collapse, describe_unused
from pyro_dvae.posteriors import FactorisedPosterior

UNIFORM = dist.OneHotCategorical(logits=torch.zeros(2, 4)).to_event(1)


def _usage(log_q: torch.Tensor, prior: object = UNIFORM, batch_size: int = 3):
    counter = UsageCounter(prior)
    for rows in log_q.log_softmax(-1).split(batch_size):
        counter.add(counter.of(FactorisedPosterior(rows)))
    return counter.usage()


@pytest.mark.parametrize("batch_size", [1, 7, 22])
def test_figures_are_those_of_the_joint_table(batch_size: int) -> None:
    log_q = (2 * torch.randn(22, 2, 4)).log_softmax(-1)
    prior_logits = torch.randn(2, 4).log_softmax(-1)
    prior = dist.OneHotCategorical(logits=prior_logits).to_event(1)
    usage = _usage(log_q, prior, batch_size)
    q = log_q.exp()
    aggregate = q.mean(0)
    for d in range(2):
        kl = sum(
            q[n, d, k] * (log_q[n, d, k] - prior_logits[d, k]) for n in range(22) for k in range(4)
        )
        assert usage.kl_per_latent[d] == pytest.approx(kl.item() / 22, abs=1e-10)
        information = sum(
            q[n, d, k] * (log_q[n, d, k] - aggregate[d, k].log())
            for n in range(22)
            for k in range(4)
        )
        assert usage.information_per_latent[d] == pytest.approx(information.item() / 22, abs=1e-10)
        entropy = -sum(p * p.log() for p in aggregate[d])
        assert usage.perplexity_per_latent[d] == pytest.approx(entropy.exp().item(), abs=1e-10)
    codes = [tuple(code) for code in log_q.argmax(-1).tolist()]
    assert usage.codes_used == len(set(codes))
    shares = [codes.count(code) / 22 for code in set(codes)]
    assert usage.code_perplexity == pytest.approx(
        math.exp(-sum(share * math.log(share) for share in shares)), abs=1e-10
    )


def test_a_latent_that_never_changes_carries_nothing_far_from_the_prior() -> None:
    log_q = torch.zeros(8, 2, 4)
    log_q[:, 0, 3] = 1e4  # always the same category
    log_q[torch.arange(8), 1, torch.arange(8) % 4] = 1e4  # two bits of x
    usage = _usage(log_q)
    assert usage.kl_per_latent == pytest.approx((math.log(4), math.log(4)), abs=1e-12)
    assert usage.information_per_latent == pytest.approx((0, math.log(4)), abs=1e-12)
    assert usage.perplexity_per_latent == pytest.approx((1, 4), abs=1e-12)
    assert usage.active_latents == 1
    assert usage.codes_used == 4
    assert usage.code_perplexity == pytest.approx(4, abs=1e-12)


def test_active_means_a_hundredth_of_a_nat() -> None:
    """Information of q = 1/2 +- e is about 2 e^2: 0.02 and 0.005 nats."""
    log_q = torch.tensor([[[0.6, 0.4], [0.55, 0.45]], [[0.4, 0.6], [0.45, 0.55]]]).log()
    usage = _usage(log_q, dist.OneHotCategorical(logits=torch.zeros(2, 2)).to_event(1))
    assert usage.information_per_latent == pytest.approx((0.02, 0.005), rel=0.02)
    assert usage.active_latents == 1


def test_usage_is_counted_over_the_whole_set() -> None:
    """Batches that each use one code add up to four."""
    log_q = torch.zeros(8, 2, 4)
    log_q[torch.arange(8), :, torch.arange(8) // 2] = 50
    assert _usage(log_q, batch_size=2).codes_used == 4
    assert _usage(log_q, batch_size=2).perplexity_per_latent == pytest.approx((4, 4))


def test_one_datum_carries_nothing() -> None:
    usage = _usage(torch.randn(1, 2, 4))
    assert usage.information_per_latent == pytest.approx((0, 0), abs=1e-12)
    assert (usage.active_latents, usage.codes_used, usage.code_perplexity) == (0, 1, 1)


def test_kl_of_latents_needs_an_independent_prior() -> None:
    assert _usage(torch.randn(3, 2, 4), prior=object()).kl_per_latent is None


def test_collapse_in_words() -> None:
    assert describe_collapse([]) is None
    assert describe_collapse([[0.5, 0.01]]) is None
    assert describe_collapse([[0.0, 0.0], [0.5, 0.01]]) is None  # it came back
    said = describe_collapse([[0.001, 1.3, 0.0, 0.2]])
    assert said is not None
    assert said.startswith(
        "Posterior collapse: 2 of 4 latents carry less than 0.01 nats about the data (z1, z3). Try"
    )
    for advice in (
        '="marginal"',
        "epochs=400",
        "patience=200",
        "free bits",
        "learning rate",
        "fewer latents",
    ):
        assert advice in said
    assert "beta" not in said
    assert "\n" not in said
    history = [[0.0, 0.3, 0.0], [0.2, 0.3, 0.0], [0.001, 0.3, 0.0], [0.0, 0.3, 0.009]]
    said = describe_collapse(history)
    assert said is not None
    assert "2 of 3 latents" in said
    assert "(z1 since epoch 3, z3 since epoch 1)" in said


def test_many_collapsed_latents_are_counted() -> None:
    said = describe_collapse([[0.0] * 64], num_codes=2**63)
    assert said is not None
    assert "64 of 64 latents carry" in said
    assert "(z1, z2, z3, z4, z5, z6, z7, z8, and 56 more)" in said
    assert "marginal" not in said  # no sum over so many codes
    assert '="reinmax"' in said
    assert "free bits" in said
    said = describe_collapse([[0.0] * 9, [0.5] * 3 + [0.0] * 6], num_codes=4**9)
    assert said is not None
    assert "(z4 since epoch 1, z5 since epoch 1" in said
    assert "marginal" not in said


def test_categories_that_no_datum_has() -> None:
    """Of 4 categories z1 uses 2 and z2 all; 40 data are needed to tell."""
    log_q = torch.zeros(80, 2, 4)
    log_q[torch.arange(80), 0, torch.arange(80) % 2] = 20
    log_q[torch.arange(80), 1, torch.arange(80) % 4] = 20
    assert _usage(log_q).unused_categories == (2, 0)
    assert _usage(log_q[:40]).unused_categories == (2, 0)
    assert _usage(log_q[:39]).unused_categories is None
    said = describe_unused((2, 0), 4)
    assert said is not None
    assert said.startswith(
        "Unused categories: 2 of 8 have less than half a datum (z1: 2; of 4 each)"
    )
    assert said.endswith('Use prior="learned".')
    said = describe_unused((3, 5), 8)
    assert said is not None
    assert "(z2: 5, z1: 3; of 8 each)" in said
    assert 'Use num_categories=5, or prior="learned".' in said
    assert describe_unused((0, 0), 4) is None
    assert describe_unused(None, 4) is None
    said = describe_unused([1] * 49, 64)
    assert said is not None
    assert "49 of 3,136 have" in said
    assert "z8: 1, and 41 more latents; of 64 each" in said
