"""M2 with a discrete latent: the objective by a sum over all codes, labels, and the accuracy."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pytest
import torch
from oracle import gradient
from torch import Tensor
from zoo import ELBOS, GUIDES, OTHER_BOUND, PRIORS, SLOW_ROWS, D, K, P, is_pathwise, tiny_data

from pyro_dvae import (
    Bernoulli,
    DiscreteVAE,
    EnumeratedELBO,
    MarginalELBO,
    MLPDecoder,
    MLPEncoder,
    RlooELBO,
    SemiSupervisedVAE,
    SumFirstELBO,
    Trainer,
    UniformPrior,
    datum_scores,
    evaluate,
    fit,
    impute,
    log_marginal,
    save_run,
)
from pyro_dvae.codes import enumerate_codes
from pyro_dvae.evaluation import (
    conditional_surprise,
    excess_log_probs,
    log_probs,
    simple_models,
)
from pyro_dvae.tensors import as_labels

EXACT = {"atol": 1e-10, "rtol": 0}
ALPHA = 0.7
LABELS = torch.tensor([0, -1, 2, -1])
MODELS = [(prior, guide) for prior in PRIORS for guide in GUIDES if prior != "conditional"]


def make(prior: str = "learned", guide: str = "mean-field", alpha: float = ALPHA) -> Any:
    family, num_outputs = GUIDES[guide]
    vae = SemiSupervisedVAE(
        MLPEncoder((P,), D, num_outputs, hidden=(5,)),
        MLPDecoder((P,), D, K, (5,)),
        PRIORS[prior](),
        Bernoulli(),
        family(),
        alpha=alpha,
    )
    return vae.eval()


def exact_objective(vae: Any, x: Tensor, labels: Tensor) -> Tensor:
    """What the class says of each datum, as sums over all codes, with nothing of its programs."""
    codes = enumerate_codes(D, K)
    log_q = vae.posterior(x).log_prob(codes[:, None]).T  # (B, K^D)
    log_p = vae.prior_codes().log_prob(codes)
    joint = log_p + vae.decode(codes[:, None]).log_prob(x).T
    classes = codes[:, 0].argmax(-1)
    total = torch.zeros(())
    for row, label in enumerate(labels.tolist()):
        some = classes == label if label >= 0 else torch.ones(len(codes), dtype=torch.bool)
        log_q_y = log_q[row, some].logsumexp(0)  # log q(y|x), or 0
        given = log_q[row, some] - log_q_y  # log q(z|x, y), or log q(y, z|x)
        total = total + (given.exp() * (joint[row, some] - given)).sum() + vae.alpha * log_q_y
    return total


@pytest.mark.parametrize(("prior", "guide"), MODELS)
def test_the_objective_is_its_formula(prior: str, guide: str) -> None:
    vae, x = make(prior, guide), tiny_data(4)
    exact = -exact_objective(vae, x, LABELS)
    loss = EnumeratedELBO().differentiable_loss(vae.model, vae.guide, x, LABELS)
    torch.testing.assert_close(loss.detach(), exact.detach(), **EXACT)
    torch.testing.assert_close(gradient(loss, vae), gradient(exact, vae), **EXACT)


@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize(
    "name", [name for name in ELBOS if not is_pathwise(ELBOS[name]()) and name not in OTHER_BOUND]
)
def test_mean_gradient_is_exact(name: str, guide: str) -> None:
    """z-tests over copies of four rows, two of which have a label."""
    vae, four = make(guide=guide), tiny_data(4)
    for weight in vae.posterior_family.parameters():  # rare codes would defy a standard error
        weight.data.mul_(0.3)
    exact = gradient(-exact_objective(vae, four, LABELS), vae)
    elbo, copies = ELBOS[name](), 200
    x, labels = four.repeat(copies, 1), LABELS.repeat(copies)
    grads = []
    for _ in range(40 if name in {*SLOW_ROWS, "snapshot"} else 20):
        loss = elbo.differentiable_loss(vae.model, vae.guide, x, labels)
        grads.append(gradient(loss, vae) / copies)
    found = torch.stack(grads)
    error = (found.mean(0) - exact).abs()
    assert (error <= 4.5 * found.std(0) / math.sqrt(len(found)) + 1e-9).all()


@pytest.mark.parametrize("name", ELBOS)
def test_every_elbo_takes_labels(name: str) -> None:
    vae, x = make(guide="autoregressive"), tiny_data(4)
    loss = ELBOS[name]().differentiable_loss(vae.model, vae.guide, x, LABELS)
    assert gradient(loss, vae).isfinite().all()


def test_log_p_of_what_is_known() -> None:
    """log p(x, y) where y is known, and log p(x) elsewhere; alpha log q(y|x) beside it."""
    vae, x = make(alpha=0.0), tiny_data(4)
    codes = enumerate_codes(D, K)
    joint = vae.prior_codes().log_prob(codes) + vae.decode(codes[:, None]).log_prob(x).T
    classes = codes[:, 0].argmax(-1)
    exact = sum(
        joint[row, (classes == label) | (label < 0)].logsumexp(0)
        for row, label in enumerate(LABELS.tolist())
    )
    loss = MarginalELBO().loss(vae.model, vae.guide, x, LABELS)
    assert -loss == pytest.approx(exact.item(), abs=1e-10)


@pytest.mark.parametrize(("prior", "guide"), MODELS)
def test_without_labels_it_is_a_discrete_vae(prior: str, guide: str) -> None:
    vae, x = make(prior, guide), tiny_data(4)
    plain = DiscreteVAE(
        vae.encoder, vae.decoder, vae.prior, vae.likelihood, vae.posterior_family
    ).eval()
    losses = [
        EnumeratedELBO().loss(model.model, model.guide, x, *labels)
        for model, labels in ((vae, ()), (vae, (torch.full((4,), -1),)), (plain, ()))
    ]
    assert losses[0] == pytest.approx(losses[2], abs=1e-10)
    assert losses[1] == pytest.approx(losses[2], abs=1e-10)
    assert evaluate(vae, x) == evaluate(plain, x)
    assert torch.equal(datum_scores(vae, x, LABELS), datum_scores(plain, x))
    for score in (conditional_surprise, excess_log_probs, log_probs, impute):
        assert torch.equal(score(vae, x, labels=LABELS), score(plain, x))
    assert simple_models(vae, x, x, LABELS) == simple_models(plain, x, x)
    drawn = pyro.poutine.trace(vae.model).get_trace(num_data=3).nodes["x"]["value"]
    assert drawn.shape == (3, P)


@pytest.mark.parametrize("guide", GUIDES)
def test_accuracy_counts_known_classes(guide: str) -> None:
    vae, x = make(guide=guide), tiny_data(50)
    probabilities = vae.class_probabilities(x)
    log_q = vae.posterior(x).log_prob(enumerate_codes(D, K)[:, None]).exp().T
    torch.testing.assert_close(probabilities, log_q.unflatten(-1, (K, K)).sum(-1), **EXACT)
    labels = torch.randint(-1, K, (50,))
    known = labels >= 0
    right = (probabilities.argmax(-1) == labels)[known].double().mean().item()
    scores = evaluate(vae, x, labels, batch_size=7)
    assert scores.accuracy == right
    assert f"class accuracy {right:.4f}" in repr(scores)
    assert evaluate(vae, x, torch.full((50,), -1)).accuracy is None
    assert scores.elbo == pytest.approx(log_marginal(vae, x).mean().item() - scores.posterior_gap)


def two_kinds(num_data: int) -> tuple[Tensor, Tensor]:
    """Rows of bits of two kinds, which differ in their probability."""
    labels = torch.arange(num_data) % 2
    return torch.bernoulli((0.2 + 0.6 * labels).unsqueeze(-1).expand(-1, 8)), labels


@pytest.mark.parametrize("elbo", [RlooELBO, SumFirstELBO])
def test_few_labels_name_the_classes(elbo: Any) -> None:
    """The latent finds the two kinds by itself; four labels say which is which."""
    x, labels = two_kinds(400)
    few = labels.double()
    few[4:] = torch.nan
    vae = SemiSupervisedVAE(
        MLPEncoder((8,), 1, 2, hidden=(20,)),
        MLPDecoder((8,), 1, 2, (20,)),
        UniformPrior(1, 2),
        Bernoulli(),
        alpha=10.0,
    )
    for _ in fit(vae, elbo(), (x, few), epochs=15, learning_rate=0.01):
        pass
    accuracy = evaluate(vae, x, labels).accuracy
    assert accuracy is not None
    assert accuracy > 0.9  # Bayes' rule is right for 95 %


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([0, 1, K, -1]), r"from 0 to 2, and -1 for none; got 3"),
        (torch.tensor([0.5, 1.0, 1.0, 1.0]), r"integers, -1 for none; got torch.float"),
        (torch.tensor([True, False, True, True]), r"integers, -1 for none; got torch.bool"),
    ],
)
def test_labels_refused(labels: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Trainer(make(), RlooELBO(), (tiny_data(4), labels))


def test_arguments_refused() -> None:
    for alpha in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=r"finite alpha >= 0"):
            make(alpha=alpha)
    with pytest.raises(ValueError, match=r"takes no labels.*got ConditionalPrior"):
        make("conditional")
    with pytest.raises(ValueError, match=r"Expected data x"):
        make().guide()


def test_a_model_trained_in_python_is_saved_as_a_run(tmp_path: Path) -> None:
    vae, x = make("learned", "autoregressive"), tiny_data(20)
    labels = torch.randint(-1, K, (20,))
    vae.float()
    run = save_run(tmp_path / "run", vae)
    assert isinstance(run.vae, SemiSupervisedVAE)
    assert run.config.alpha == ALPHA
    scores = [evaluate(model.eval(), x, labels) for model in (vae, run.vae)]
    assert scores[0].elbo == pytest.approx(scores[1].elbo, abs=1e-4)  # one may be in float64
    assert scores[0].accuracy == scores[1].accuracy is not None


def test_nan_stands_for_no_label() -> None:
    given = np.array([1.0, np.nan, 0.0])
    assert as_labels(given, torch.device("cpu")).tolist() == [1, -1, 0]
    fractions = as_labels(np.array([0.5, np.nan]), torch.device("cpu"))
    assert fractions.is_floating_point()  # the model refuses them
