from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from zoo import GUIDES, PRIORS, D, K, P, make_batch, make_vae, tiny_data, tiny_vae

from pyro_dvae import (
    AutoregressivePrior,
    BoltzmannPrior,
    EnumeratedELBO,
    GuideTrainer,
    LearnedPrior,
    PriorTrainer,
    RlooELBO,
    SemiSupervisedVAE,
    evaluate,
    fit_guide,
    fit_prior,
    with_prior,
)
from pyro_dvae.codes import enumerate_codes, one_hot
from pyro_dvae.training import fixed_model
from pyro_dvae.training.fixed_model import FixedModelELBO, guide_objective

FITTED = {
    name: make for name, make in PRIORS.items() if name != "uniform" and make().takes != "labels"
}
FITTED["boltzmann, log Z by chains"] = lambda: BoltzmannPrior(D, K, max_codes=1)
OPTIONS = {"epochs": 5, "batch_size": 20, "learning_rate": 0.05}


def clustered_data(num_data: int) -> Tensor:
    """All zeros or all ones, with a few flips: latents that see them depend on each other."""
    cluster = (torch.arange(num_data) % 2).unsqueeze(-1).expand(num_data, P)
    return (cluster + torch.bernoulli(torch.full((num_data, P), 0.1))) % 2


def certain_vae() -> Any:
    """A model whose codes tell something of the data."""
    vae = tiny_vae()
    with torch.no_grad():
        for weight in vae.encoder.parameters():
            weight.mul_(6)
    return vae


def mean_log_prior(vae: Any, x: Tensor) -> float:
    return evaluate(vae, x).log_prior


@pytest.mark.parametrize("name", FITTED)
def test_the_prior_comes_nearer_and_nothing_else_moves(name: str) -> None:
    trained, x = certain_vae(), clustered_data(100)
    vae = with_prior(trained, FITTED[name]())
    before = mean_log_prior(vae, x)
    fixed = {k: v.clone() for k, v in vae.state_dict().items() if not k.startswith("prior.")}
    records = list(fit_prior(vae, x, x, **OPTIONS))
    assert mean_log_prior(vae, x) > before + 0.002
    assert records[-1].validation_elbo > records[0].validation_elbo - 0.01
    after = vae.state_dict()
    assert all(torch.equal(after[key], value) for key, value in fixed.items())
    assert all(weight.requires_grad for weight in trained.encoder.parameters())


def test_the_prior_of_classes_and_style_becomes_what_labels_and_guide_say() -> None:
    """The mean of q(z|x), with y = the label where it is known, and y ~ q(y|x) elsewhere."""
    trained = certain_vae()
    parts = trained.encoder, trained.decoder, trained.prior, trained.likelihood
    x, labels = clustered_data(60), torch.arange(60) % 4 - 1  # a quarter has no label
    vae = with_prior(SemiSupervisedVAE(*parts, alpha=2.0), AutoregressivePrior(D, K))
    assert isinstance(vae, SemiSupervisedVAE)
    assert vae.alpha == 2
    options = {"batch_size": 60, "learning_rate": 0.2, "averaging": 0.9}
    list(fit_prior(vae, (x, labels), None, epochs=80, **options))
    with torch.no_grad():
        q = vae.posterior(x).base_dist.probs.clone()  # (N, D, K)
        q[labels >= 0, 0] = one_hot(labels[labels >= 0], K, dtype=q.dtype)
        codes = enumerate_codes(D, K)
        wanted = torch.einsum("cdk,ndk->cnd", codes, q).prod(-1).mean(1)
        found = vae.prior_codes().log_prob(codes).exp()
    assert wanted.max() > 2 / len(codes)
    torch.testing.assert_close(found, wanted, atol=0.02, rtol=0)


def test_a_wide_prior_becomes_the_aggregate_posterior() -> None:
    """Where E_q log p(z) is minus the aggregate posterior's entropy, and no prior does better."""
    trained, x = certain_vae(), clustered_data(60)
    q = trained.posterior(x).base_dist.probs  # (N, D, K)
    aggregate = torch.einsum("nk,nl->kl", q[:, 0], q[:, 1]) / len(x)
    best = (aggregate * aggregate.log()).sum().item()
    independent = sum((p * p.log()).sum().item() for p in (aggregate.sum(1), aggregate.sum(0)))
    found = {}
    for prior in (LearnedPrior(D, K), AutoregressivePrior(D, K, 8)):
        vae = with_prior(trained, prior)
        options = {"epochs": 40, "batch_size": 30, "learning_rate": 0.1}
        list(fit_prior(vae, x, None, averaging=0.9, **options))
        found[type(prior)] = mean_log_prior(vae, x)
    assert best - 0.01 < found[AutoregressivePrior] <= best + 1e-9
    assert independent - 0.01 < found[LearnedPrior] <= independent + 1e-9
    assert best - independent > 0.02


def test_records_are_elbos_and_the_best_is_kept() -> None:
    x = tiny_data(40)
    vae = with_prior(certain_vae(), AutoregressivePrior(D, K, 5))
    options = {**OPTIONS, "epochs": 20, "learning_rate": 0.5}
    records = list(fit_prior(vae, x[:20], x[20:], patience=3, seed=1, **options))
    best = max(records, key=lambda record: record.validation_elbo or 0)
    assert best.epoch <= records[-1].epoch - 3 < 17
    assert evaluate(vae, x[20:]).elbo == pytest.approx(best.validation_elbo)


class _Dropping(nn.Module):
    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.drop = encoder, nn.Dropout(0.5)
        self.modes: list[bool] = []

    def forward(self, x: Tensor) -> Tensor:
        self.modes.append(self.drop.training)
        return self.encoder(self.drop(x))


def test_networks_run_as_they_are_evaluated() -> None:
    trained = tiny_vae()
    trained.encoder = _Dropping(trained.encoder)
    vae = with_prior(trained, LearnedPrior(D, K))
    trainer = PriorTrainer(vae, tiny_data(20), batch_size=10)
    trained.encoder.modes.clear()
    list(trainer.run(1))
    assert trained.encoder.modes == [False, False]


def test_the_fixed_weights_ask_for_no_gradient_within_steps_alone() -> None:
    """Who looks in at a record, or trains the whole model in turns, finds the flags as set."""
    vae = with_prior(tiny_vae(), LearnedPrior(D, K))
    weights = [*vae.decoder.parameters()]
    seen: list[bool] = []
    vae.decoder.register_forward_hook(
        lambda *_: seen.append(any(weight.requires_grad for weight in weights))
    )
    trainer = PriorTrainer(vae, tiny_data(20), batch_size=10)
    own = next(vae.encoder.parameters()).requires_grad_(False)
    seen.clear()
    records = trainer.run(3)
    next(records)
    assert seen == [False, False]
    assert all(weight.requires_grad for weight in weights)
    assert not own.requires_grad
    records.close()
    assert all(weight.requires_grad for weight in weights)


def test_labels_are_the_conditional_priors() -> None:
    x, labels = tiny_data(60), torch.arange(60) % 2
    x[labels == 1] = 1
    vae = with_prior(certain_vae(), PRIORS["conditional"]())
    before = evaluate(vae, x, labels).log_prior
    list(fit_prior(vae, (x, labels), (x, labels), **OPTIONS))
    assert evaluate(vae, x, labels).log_prior > before + 0.002


def test_refuses_what_cannot_be_fitted() -> None:
    vae = tiny_vae()
    with pytest.raises(ValueError, match="Expected a prior with weights to fit; got UniformPrior"):
        PriorTrainer(vae, tiny_data(4))
    frozen = with_prior(vae, LearnedPrior(2, 3).requires_grad_(False))
    with pytest.raises(
        ValueError, match=r"Expected a prior .* LearnedPrior, whose weights are all"
    ):
        PriorTrainer(frozen, tiny_data(4))
    with pytest.raises(ValueError, match=r"of shape \(D, K\) = \(2, 3\); got \(3, 3\)"):
        with_prior(vae, LearnedPrior(3, 3))


@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize("prior", ["uniform", "learned", "autoregressive", "conditional"])
@pytest.mark.parametrize("beta", [1.0, 3.0])
def test_with_a_fixed_model_the_elbo_has_the_enumerated_gradient_of_the_guide(
    beta: float, prior: str, guide: str
) -> None:
    vae = make_vae(prior, guide=guide)
    rows = make_batch(vae, num_data=5)
    weights = [*vae.encoder.parameters(), *vae.posterior_family.parameters()]
    values, gradients = [], []
    for elbo in (EnumeratedELBO(beta=beta), FixedModelELBO(vae)):
        elbo.beta = beta  # as `Trainer` anneals it
        loss = elbo.differentiable_loss(vae.model, vae.guide, *rows)
        values += [loss.item(), elbo.loss(vae.model, vae.guide, *rows)]
        gradients.append(torch.autograd.grad(loss, weights))
    assert values == pytest.approx([values[0]] * 4, rel=1e-12)
    for ours, oracle in zip(gradients[1], gradients[0], strict=True):
        torch.testing.assert_close(ours, oracle, rtol=1e-9, atol=1e-10)


def test_codes_are_decoded_once_for_all_steps() -> None:
    vae = tiny_vae()
    trainer = GuideTrainer(vae, tiny_data(25), batch_size=10)
    calls: list[int] = []
    vae.decoder.register_forward_hook(lambda *_: calls.append(1))
    list(trainer.run(3))
    assert len(calls) <= 2  # in the first step: a trial run, and all codes


@pytest.mark.parametrize("exact", [True, False])
def test_the_guide_comes_nearer_and_nothing_else_moves(
    exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fixed_model, "sums_cheaply", lambda *_: exact)
    vae, x = certain_vae(), clustered_data(100)
    assert type(guide_objective(vae, x)) is (FixedModelELBO if exact else RlooELBO)
    before = evaluate(vae, x)
    fixed = {k: v.clone() for k, v in vae.state_dict().items() if not k.startswith("encoder.")}
    list(fit_guide(vae, x, None, epochs=30, batch_size=20, learning_rate=0.05))
    after = evaluate(vae, x)
    assert after.log_marginal == before.log_marginal
    gap, left = (scores.log_marginal - scores.elbo for scores in (before, after))
    assert left < gap / 2
    weights = vae.state_dict()
    assert all(torch.equal(weights[key], value) for key, value in fixed.items())
    assert all(weight.requires_grad for weight in vae.parameters())


def test_refuses_a_guide_that_cannot_be_fitted() -> None:
    vae = tiny_vae()
    vae.encoder.requires_grad_(False)
    with pytest.raises(ValueError, match=r"Expected an encoder .* whose weights are all frozen"):
        GuideTrainer(vae, tiny_data(4))
    own = SemiSupervisedVAE.__new__(SemiSupervisedVAE)
    with pytest.raises(ValueError, match="Expected a model without classes"):
        GuideTrainer(own, tiny_data(4))
