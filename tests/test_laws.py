"""What holds for every prior, likelihood and guide, in any combination, under every ELBO."""

from __future__ import annotations

import copy
from typing import Any

import pyro
import pytest
import torch
from oracle import exact_elbo, expected, gradient
from zoo import (
    ELBOS,
    GUIDES,
    LIKELIHOODS,
    PRIORS,
    SLOW_ROWS,
    D,
    K,
    P,
    is_pathwise,
    make_batch,
    make_vae,
)

from pyro_dvae import (
    EnumeratedELBO,
    LocalExpectationELBO,
    ReinforceELBO,
    RlooELBO,
    evaluate,
    log_marginal,
)
from pyro_dvae.codes import enumerate_codes

NO_CONDITIONALS = "boltzmann, log Z by chains"


def _impossible(prior: str, guide: str) -> bool:
    return prior == NO_CONDITIONALS and guide == "autoregressive"


MODELS = [(prior, guide) for prior in PRIORS for guide in GUIDES if not _impossible(prior, guide)]


class Given:
    """The programs with the labels of one datum."""

    def __init__(self, vae: Any, labels: tuple[torch.Tensor, ...]) -> None:
        self.vae, self.labels, self.parameters = vae, labels, vae.parameters

    def model(self, x: torch.Tensor) -> Any:
        return self.vae.model(x, *self.labels)

    def guide(self, x: torch.Tensor) -> Any:
        return self.vae.guide(x, *self.labels)


def _loss(vae: Any, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return EnumeratedELBO(max_plate_nesting=1).differentiable_loss(vae.model, vae.guide, *batch)


def _crossed() -> list[Any]:
    """Every triple; those that differ from the tutorial's model in several parts are slow."""
    return [
        pytest.param(
            prior,
            guide,
            likelihood,
            marks=[pytest.mark.slow] if prior != "uniform" and likelihood != "bernoulli" else [],
        )
        for prior, guide in MODELS
        for likelihood in LIKELIHOODS
    ]


@pytest.mark.parametrize(("prior", "guide", "likelihood"), _crossed())
class TestEveryModel:
    def test_draws_are_data(self, prior: str, guide: str, likelihood: str) -> None:
        vae = make_vae(prior, likelihood, guide)
        x, *labels = make_batch(vae, likelihood)
        vae.likelihood.check(x)
        drawn = vae.sample(7, labels=torch.arange(7) % 2 if labels else None)
        assert drawn.shape == (7, P)
        if likelihood != "beta":  # a draw may round to the end of the open interval
            vae.likelihood.check(drawn)
        assert vae.reconstruct(x).shape == x.shape
        assert vae.reconstruct(x).isfinite().all()
        z = vae.mode(x)
        assert z.shape == (3, D, K)
        assert ((z == 0) | (z == 1)).all()
        assert (z.sum(-1) == 1).all()
        trace = pyro.poutine.trace(vae.model).get_trace(None, *labels, num_data=3)
        assert trace.nodes["x"]["value"].shape == (3, P)

    def test_evaluation_is_the_sum_over_runs_of_the_programs(
        self, prior: str, guide: str, likelihood: str
    ) -> None:
        vae = make_vae(prior, likelihood, guide)
        vae.eval()
        batch = make_batch(vae, likelihood)
        scores = evaluate(vae, *batch)
        by_hand = []
        for i in range(3):
            x, *labels = (part[i : i + 1] for part in batch)
            by_hand.append(exact_elbo(Given(vae, tuple(labels)), x))
        assert scores.elbo == pytest.approx(torch.stack(by_hand).mean().item(), abs=1e-9)
        assert scores.elbo <= scores.log_marginal + 1e-9
        assert scores.log_marginal == pytest.approx(log_marginal(vae, *batch).mean().item())
        assert -scores.elbo == pytest.approx(_loss(vae, batch).item() / 3, abs=1e-9)
        drawn = evaluate(vae, *batch, exact=False, num_samples=500, importance_samples=50)
        error = drawn.standard_errors.get("elbo", 0.0)
        assert abs(drawn.elbo - scores.elbo) <= 4.5 * error + 1e-9
        assert scores.log_marginal - drawn.importance_bound >= -4.5 * max(
            drawn.standard_errors.get("importance_bound", 0.0), 1e-9
        )

    def test_two_steps_lower_the_loss(self, prior: str, guide: str, likelihood: str) -> None:
        vae = make_vae(prior, likelihood, guide)
        vae.eval()
        if prior == NO_CONDITIONALS:  # another estimate of its normaliser would hide the step
            vae.prior.requires_grad_(False)
        batch = make_batch(vae, likelihood)
        before = _loss(vae, batch).item()
        optimizer = torch.optim.SGD(vae.parameters(), 1e-4)
        for _ in range(2):
            optimizer.zero_grad()
            _loss(vae, batch).backward()
            optimizer.step()
        assert _loss(vae, batch).item() < before

    def test_weights_carry_everything(self, prior: str, guide: str, likelihood: str) -> None:
        vae = make_vae(prior, likelihood, guide)
        batch = make_batch(vae, likelihood)
        calibrate = getattr(vae.likelihood, "calibrate", None)
        if calibrate is not None:
            calibrate(batch[0])
        other = make_vae(prior, likelihood, guide)
        before = evaluate(vae, *batch)
        other.load_state_dict(copy.deepcopy(vae.state_dict()))
        assert evaluate(other, *batch) == before


@pytest.mark.parametrize(("prior", "guide"), MODELS)
class TestEveryPriorAndGuide:
    def test_codes_are_normalised(self, prior: str, guide: str) -> None:
        vae = make_vae(prior, guide=guide)
        vae.eval()
        x, *labels = make_batch(vae)
        codes = enumerate_codes(D, K)[:, None]
        for codes_of in (vae.prior_codes(*labels), vae.posterior(x)):
            total = codes_of.log_prob(codes).logsumexp(0)
            # A normaliser by annealing is known up to its error.
            error = 4.5 * float(getattr(codes_of, "log_normaliser_error", 0.0))
            torch.testing.assert_close(total, torch.zeros_like(total), rtol=0, atol=1e-10 + error)

    @pytest.mark.parametrize(
        ("make", "particles"),
        [
            (lambda: ReinforceELBO(max_plate_nesting=1), 1),
            pytest.param(lambda: RlooELBO(2, max_plate_nesting=1), 2, marks=pytest.mark.slow),
            pytest.param(
                lambda: LocalExpectationELBO(max_plate_nesting=1), 1, marks=pytest.mark.slow
            ),
        ],
    )
    def test_expected_gradient_is_exact(
        self, prior: str, guide: str, make: Any, particles: int
    ) -> None:
        vae = make_vae(prior, guide=guide)
        vae.eval()
        x, *labels = make_batch(vae, num_data=1)
        program = Given(vae, tuple(labels))
        exact = exact_elbo(program, x)
        loss, grad = expected(make, program, x, particles, 1)
        assert loss.item() == pytest.approx(-exact.item(), abs=1e-9)
        torch.testing.assert_close(grad, -gradient(exact, vae), rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("elbo", ELBOS)
def test_every_combination_has_a_gradient_or_says_why_not(
    elbo: str, prior: str, guide: str
) -> None:
    for likelihood in ("bernoulli", "mixed") if elbo in SLOW_ROWS else LIKELIHOODS:
        vae = make_vae(prior, likelihood, guide)
        batch = make_batch(vae, likelihood)
        estimator = ELBOS[elbo]()
        if _impossible(prior, guide):
            with pytest.raises(TypeError, match="Expected codes with known conditionals"):
                estimator.loss_and_grads(vae.model, vae.guide, *batch)
        elif prior == NO_CONDITIONALS and is_pathwise(estimator):
            with pytest.raises(ValueError, match="closed-form KL at site 'z'"):
                estimator.loss_and_grads(vae.model, vae.guide, *batch)
        else:
            loss = estimator.loss_and_grads(vae.model, vae.guide, *batch)
            assert torch.tensor(loss).isfinite()
            for part in (vae.encoder, vae.decoder, vae.posterior_family, vae.prior):
                gradients = [w.grad for w in part.parameters() if w.grad is not None]
                assert all(grad.isfinite().all() for grad in gradients)
                if any(True for _ in part.parameters()):
                    assert any((grad != 0).any() for grad in gradients), type(part)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize(("prior", "guide"), MODELS)
def test_device_moves(prior: str, guide: str, likelihood: str) -> None:
    vae = make_vae(prior, likelihood, guide)
    batch = make_batch(vae, likelihood)
    here = evaluate(vae, *batch)
    there = evaluate(vae.to("cuda"), *(part.to("cuda") for part in batch))
    assert there.elbo == pytest.approx(here.elbo, abs=1e-6)
    RlooELBO(2).loss_and_grads(vae.model, vae.guide, *(part.to("cuda") for part in batch))
    labels = torch.arange(4, device="cuda") % 2 if vae.takes_labels else None
    assert vae.sample(4, labels=labels).is_cuda
