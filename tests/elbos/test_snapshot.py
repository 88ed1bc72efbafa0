"""An earlier model as control variate: unbiased whatever it is, exact when it is the model."""

from __future__ import annotations

import copy
import math
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from oracle import exact_elbo, expected, gradient
from pyro.infer import SVI
from pyro.nn import PyroModule, pyro_method
from torch import Tensor, nn
from zoo import LIKELIHOODS, PLAIN, PROGRAMS, IndependentSites, cat, make_vae, tiny_data, tiny_vae

from pyro_dvae import EnumeratedELBO, MLPDecoder, SnapshotELBO, Trainer
from pyro_dvae.elbos import earlier_model, sketch
from pyro_dvae.elbos.snapshot import at_codes, conditional_means
from pyro_dvae.training.adam import FusedAdam
from pyro_dvae.training.backward import Backward
from pyro_dvae.training.together import StepTogether

EXACT = {"atol": 1e-10, "rtol": 0}


def step(elbo: Any, program: Any, *args: Any) -> Tensor:
    return gradient(elbo.differentiable_loss(program.model, program.guide, *args), program)


def moved(program: Any, size: float = 0.3) -> None:
    with torch.no_grad():
        for weight in program.parameters():
            weight.add_(size * torch.randn_like(weight))


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("beta", [1.0, 0.4])
def test_the_gradient_is_unbiased_under_any_earlier_model(name: str, beta: float) -> None:
    (build, nesting), x = PROGRAMS[name], tiny_data()
    program = build()
    elbo = SnapshotELBO(2, beta=beta, max_plate_nesting=nesting)
    step(elbo, program, x)
    moved(program)
    before = elbo.snapshot.weights.clone()
    _, grad = expected(lambda: copy.deepcopy(elbo), program, x, 2, nesting)
    torch.testing.assert_close(grad, -gradient(exact_elbo(program, x, beta), program), **EXACT)
    assert torch.equal(elbo.snapshot.weights, before)
    assert step(copy.deepcopy(elbo), program, x).sub(grad).abs().max() > 1e-3  # a draw is not exact


@pytest.mark.parametrize("name", ["vae", "plated latents", "index-valued", "two sites"])
def test_the_guide_has_the_exact_gradient_where_the_model_is_the_snapshot(name: str) -> None:
    """Where the KL is in closed form too, so that r is 0."""
    program = IndependentSites() if name == "two sites" else PROGRAMS[name][0]()
    x = tiny_data(3)
    exact, found = step(EnumeratedELBO(), program, x), step(SnapshotELBO(), program, x)
    guided = torch.cat(
        [
            torch.full((weight.numel(),), key.startswith(("guide", "encoder")))
            for key, weight in program.named_parameters()
        ]
    )
    assert guided.any()
    torch.testing.assert_close(found[guided], exact[guided], **EXACT)


def test_the_variance_of_the_guides_gradient_grows_with_the_age_of_the_snapshot() -> None:
    vae, x = tiny_vae(), tiny_data(3)
    sizes = []
    for size in (0.0, 0.01, 0.1):
        elbo = SnapshotELBO(2, every=1_000)
        step(elbo, vae, x)
        moved(vae.decoder, size)
        draws = torch.stack([step(elbo, vae, x) for _ in range(30)])
        sizes.append(draws[:, : sum(w.numel() for w in vae.encoder.parameters())].std(0).max())
    assert sizes[0] < 1e-12 < 1e-4 < sizes[1] < sizes[2]


def test_scales_and_masks_count() -> None:
    """Of a plate that subsamples, of `poutine.scale`, and of data that a mask leaves out."""
    vae, x = tiny_vae(), tiny_data(6)
    index, seen = torch.tensor([4, 1, 3]), torch.tensor([True, False, True])

    class Part:
        parameters = vae.parameters

        @poutine.scale(scale=0.3)
        def model(self, x: Tensor) -> None:
            with pyro.plate("data", 6, subsample=index):
                z = pyro.sample("z", vae.prior_codes())
                with poutine.mask(mask=seen):
                    pyro.sample("x", vae.decode(z), obs=x[index])

        @poutine.scale(scale=0.3)
        def guide(self, x: Tensor) -> None:
            with pyro.plate("data", 6, subsample=index):
                pyro.sample("z", vae.posterior(x[index]))

    pyro.module("decoder", vae.decoder)
    exact, found = step(EnumeratedELBO(), Part(), x), step(SnapshotELBO(), Part(), x)
    num = sum(weight.numel() for weight in vae.encoder.parameters())
    torch.testing.assert_close(found[:num], exact[:num], **EXACT)
    assert exact[:num].abs().max() > 1e-3


@pytest.mark.parametrize("sizes", [(3,), (2, 3), (2, 3, 2), (3, 1, 2, 2, 3)])
def test_conditional_means_by_hand(sizes: tuple[int, ...]) -> None:
    q = [torch.rand(4, size).softmax(-1) for size in sizes]
    values = torch.randn(4, math.prod(sizes))
    joint = torch.ones(4, 1)
    for latent in q:
        joint = (joint[:, :, None] * latent[:, None]).flatten(1)
    tables = (joint * values).reshape(4, *sizes)
    for place, (found, latent) in enumerate(zip(conditional_means(q, values), q, strict=True), 1):
        others = [dim for dim in range(1, len(sizes) + 1) if dim != place]
        mean = tables.sum(others) / latent if others else tables / latent
        expected_means = mean - (joint * values).sum(1, keepdim=True)
        torch.testing.assert_close(found, expected_means, **EXACT)


def test_values_at_codes_by_hand() -> None:
    values = torch.arange(12.0).reshape(6, 2)  # of codes (0, 0), (0, 1), (0, 2), (1, 0), ...
    digits = [torch.tensor([[1, 0]]), torch.tensor([[2, 1]])]
    assert at_codes(values, digits, (2, 3)).tolist() == [[10.0, 3.0]]


# --- When it is taken ---


def taken(elbo: SnapshotELBO, program: Any, x: Tensor, number: int) -> list[bool]:
    """Whether each of some steps took a new snapshot; the weights move after each step."""
    found = []
    for _ in range(number):
        before = elbo.snapshot.weights
        step(elbo, program, x)
        found.append(elbo.snapshot.weights is not before)
        moved(program, 0.01)
    return found


def test_a_snapshot_is_taken_every_so_many_steps() -> None:
    vae, x = tiny_vae(), tiny_data(3)
    elbo = SnapshotELBO(every=3)
    for _ in range(5):
        elbo.loss(vae.model, vae.guide, x)  # no step
    assert taken(elbo, vae, x, 7) == [False, False, False, True, False, False, True]
    own = nn.utils.parameters_to_vector(vae.decoder.parameters())
    assert elbo.snapshot.weights.shape == own.shape
    assert taken(elbo, vae, tiny_data(2), 2) == [False, False]  # other data


def test_the_table_is_made_anew_only_where_it_must_be(monkeypatch: pytest.MonkeyPatch) -> None:
    vae, x, calls = tiny_vae(), tiny_data(3), []
    original = earlier_model.Snapshot._tabulate
    monkeypatch.setattr(
        earlier_model.Snapshot,
        "_tabulate",
        lambda self, *args: (calls.append(1), original(self, *args))[1],
    )
    elbo = SnapshotELBO(every=100)
    taken(elbo, vae, x, 5)
    assert len(calls) == 1
    step(elbo, vae, tiny_data(2))
    step(elbo, vae, x)
    assert len(calls) == 3


class Shifted(PyroModule):
    """A decoder with a covariate of each datum."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(4, 3), nn.Linear(4, 4)

    @pyro_method
    def model(self, x: Tensor, shift: Tensor) -> None:
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.OneHotCategorical(logits=torch.zeros(3)))
            logits = self.decoder(cat(z, shift[:, None]))
            pyro.sample("x", dist.Bernoulli(logits=logits).to_event(1), obs=x)

    @pyro_method
    def guide(self, x: Tensor, shift: Tensor) -> None:
        with pyro.plate("data", len(x)):
            pyro.sample("z", dist.OneHotCategorical(logits=self.encoder(x)))


def test_a_model_that_depends_on_the_datum_is_tabulated_for_each_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else c would be that of other data, and the guide's gradient would not be exact.

    A sketch of one direction would not be exact either, and no step would use it again.
    """
    monkeypatch.setattr(sketch, "RANK", 1)
    monkeypatch.setattr(sketch, "MOST_LOST", 1.0)
    program, elbo = Shifted(), SnapshotELBO(every=100)
    for _ in range(3):
        x, shift = tiny_data(3), torch.randn(3)
        exact = step(EnumeratedELBO(), program, x, shift)
        found = step(elbo, program, x, shift)
        torch.testing.assert_close(found[:15], exact[:15], **EXACT)  # of the encoder
    assert not elbo.snapshot._is_of_all_data


def test_a_model_whose_weights_pyro_does_not_know_is_its_own_snapshot() -> None:
    encoder, decoder, x = nn.Linear(4, 3), nn.Linear(3, 4), tiny_data(3)

    def model() -> None:
        with pyro.plate("data", 3):
            z = pyro.sample("z", dist.OneHotCategorical(logits=torch.zeros(3)))
            pyro.sample("x", dist.Bernoulli(logits=decoder(z)).to_event(1), obs=x)

    def guide() -> None:
        with pyro.plate("data", 3):
            pyro.sample("z", dist.OneHotCategorical(logits=encoder(x)))

    elbo = SnapshotELBO(every=100)
    for _ in range(2):
        exact, found = (
            gradient(each.differentiable_loss(model, guide), encoder)
            for each in (EnumeratedELBO(), elbo)
        )
        torch.testing.assert_close(found, exact, **EXACT)
        moved(decoder)


def test_weights_in_pyros_store() -> None:
    """Of `pyro.param`, and constrained: the table is that of the snapshot, not of the model now."""
    x = tiny_data(3)

    def model() -> None:
        between = dist.constraints.unit_interval
        rate = pyro.param("rate", torch.full((3, 4), 0.5), constraint=between)
        with pyro.plate("data", 3):
            z = pyro.sample("z", dist.OneHotCategorical(logits=torch.zeros(3)))
            pyro.sample("x", dist.Bernoulli(z @ rate).to_event(1), obs=x)

    def guide() -> None:
        logits = pyro.param("logits", torch.randn(3, 3))
        with pyro.plate("data", 3):
            pyro.sample("z", dist.OneHotCategorical(logits=logits))

    elbo = SnapshotELBO(every=100)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.1}), loss=elbo)
    svi.step()
    table = elbo.snapshot._table
    assert table is not None
    first = table.fns["x"].base_dist.probs.clone()
    assert first.unique().tolist() == [0.5]
    elbo.snapshot._table = None  # so that it is made again, by weights that have moved since
    svi.step()
    table = elbo.snapshot._table
    assert table is not None
    torch.testing.assert_close(table.fns["x"].base_dist.probs, first)
    assert (pyro.param("rate") - 0.5).abs().max() > 0.01


# --- Trainer ---


COMPILED = pytest.param({"compiled": True}, marks=pytest.mark.slow)


@pytest.mark.parametrize("options", [{}, COMPILED, {"prior": "mixture"}, {"dropout": 0.4}])
def test_a_saved_training_goes_on_alike(options: dict[str, Any]) -> None:
    """Between two snapshots, and in a batch that is shorter than the others."""
    compiled, x = options.get("compiled", False), tiny_data(7)

    def new() -> Trainer:
        torch.manual_seed(1)
        vae = make_vae(options.get("prior", "uniform"))
        vae.decoder = MLPDecoder((4,), 2, 3, (5,), dropout=options.get("dropout", 0.0))
        elbo = SnapshotELBO(every=4, max_plate_nesting=1)
        return Trainer(vae, elbo, x, batch_size=3, compiled=compiled, **PLAIN)

    def weights(trainer: Trainer) -> Tensor:
        return nn.utils.parameters_to_vector(trainer.vae.parameters())

    whole = new()
    list(whole.run(4))
    cut = new()
    states: list[Any] = []

    def on_step(*_: int) -> None:
        states.append(cut.state_dict())

    list(cut.run(2, on_step=on_step))
    for state in states:
        other = new()
        other.load_state_dict(state)
        list(other.run(4))
        assert torch.equal(weights(other), weights(whole))


@pytest.mark.parametrize("likelihood", ["bernoulli", "normal", "poisson"])
def test_bfloat16_changes_the_draws_share_alone(likelihood: str) -> None:
    """c differs, in the exact part and in the drawn one, so that the mean is the same."""
    vae, x = make_vae(likelihood=likelihood).float(), LIKELIHOODS[likelihood].data((400, 4)).float()
    means = []
    for flag in (False, True):
        elbo = SnapshotELBO(bfloat16=flag)
        draws = torch.stack([step(elbo, vae, x) for _ in range(30)])
        means.append((draws.mean(0), draws.std(0) / math.sqrt(30)))
    (a, sa), (b, sb) = means
    own = sum(weight.numel() for weight in vae.encoder.parameters())
    rounds = bool(sb[:own].max() > 10 * sa[:own].max())  # in float32 r is nearly 0
    assert rounds == (likelihood != "normal")  # whose log-density is no matrix product
    assert ((a - b).abs() <= 4.5 * (sa**2 + sb**2).sqrt() + 1e-4 * a.abs().max()).all()


def test_a_subclass_has_the_snapshot_in_training_too() -> None:
    """With an `advantage` of its own, which a step without traces obeys."""

    class Without(SnapshotELBO):
        def advantage(self, signal: Tensor) -> Tensor:
            return torch.zeros_like(signal)

    vae, x, elbo = tiny_vae(), tiny_data(3), Without(max_plate_nesting=1)
    exact = step(EnumeratedELBO(), vae, x) / 3
    backward = Backward(vae, elbo, FusedAdam([*vae.parameters()], 0.1), (x,))
    backward((x,), torch.zeros((), dtype=torch.float32))
    found = nn.utils.parameters_to_vector(weight.grad for weight in vae.encoder.parameters())
    torch.testing.assert_close(found, exact[: len(found)], **EXACT)


def test_processes_do_not_exchange_the_snapshot() -> None:
    vae, x, elbo = tiny_vae(), tiny_data(3), SnapshotELBO()
    elbo.loss(vae.model, vae.guide, x)
    assert len(elbo.snapshot.weights)
    assert StepTogether(FusedAdam([*vae.parameters()], 0.1), elbo)._means == []


# --- What is refused ---


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 step per snapshot; got 0"):
        SnapshotELBO(every=0)
    with pytest.raises(ValueError, match="at least 2 particles"):
        SnapshotELBO(1)
    vae, x = tiny_vae(), tiny_data(3)
    for run in ("loss", "differentiable_loss"):
        with pytest.raises(ValueError, match=r"at most 8 codes to enumerate; got K\^D = 3\^2 = 9"):
            getattr(SnapshotELBO(max_codes=8), run)(vae.model, vae.guide, x)
    with pytest.raises(ValueError, match="at most 8 codes"):
        Trainer(vae, SnapshotELBO(max_codes=8), x)
