from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyro
import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.nn import pyro_method
from torch.utils.data import DataLoader, TensorDataset
from zoo import ELBOS, PLAIN, PRIORS, SCALE_DEPENDENT, tiny_data, tiny_vae

from pyro_dvae import (
    BinaryImages,
    DisarmELBO,
    DiscreteVAE,
    EnumeratedELBO,
    RlooELBO,
    ScoreFunctionELBO,
    Trainer,
    evaluate,
    fit,
    with_prior,
)
from pyro_dvae.training.batches import TensorData
from pyro_dvae.training.schedules import rate_factor

EXACT = {"atol": 1e-10, "rtol": 0}


def weights(vae: DiscreteVAE) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(vae.parameters()).detach().clone()


def train(seed: int = 0, **options: Any) -> tuple[Any, Any]:
    pyro.set_rng_seed(0)
    vae, x = tiny_vae(), tiny_data(23)
    options = {
        "epochs": 3,
        "batch_size": 5,
        "learning_rate": 0.01,
        "seed": seed,
        **PLAIN,
        **options,
    }
    elbo = options.pop("elbo", None) or RlooELBO(2)
    return vae, list(fit(vae, elbo, x, options.pop("validation", None), **options))


@pytest.mark.parametrize("elbo", [*sorted(ELBOS.keys() - SCALE_DEPENDENT), "trace"])
def test_a_step_is_svis_step(elbo: str) -> None:
    """Of the mean loss per datum, so SVI's programs are scaled by 1/B."""
    make = ELBOS.get(elbo, Trace_ELBO)
    vae, x = tiny_vae(), tiny_data(4)
    twin = tiny_vae()
    twin.load_state_dict(vae.state_dict())
    options = {"epochs": 1, "batch_size": 4, "learning_rate": 0.01, "seed": 3, **PLAIN}
    list(fit(vae, make(), x, None, **options))

    order = torch.randperm(4, generator=torch.Generator().manual_seed(3))
    scaled = [poutine.scale(program, 1 / 4) for program in (twin.model, twin.guide)]
    pyro.set_rng_seed(3 + 2)
    SVI(*scaled, pyro.optim.Adam({"lr": 0.01}), loss=make()).step(x[order])
    torch.testing.assert_close(weights(vae), weights(twin), **EXACT)


@pytest.mark.parametrize("elbo", [*ELBOS, "trace"])
def test_the_elbo_rises(elbo: str) -> None:
    vae = tiny_vae(event=(6,))
    x = tiny_data(2, (6,)).repeat(40, 1)
    before = evaluate(vae, x).elbo
    make = ELBOS.get(elbo, lambda: Trace_ELBO(10, vectorize_particles=True))
    list(fit(vae, make(), x, None, epochs=30, batch_size=20, learning_rate=0.02))
    assert evaluate(vae, x).elbo > before + 0.5


def test_beta_falls_to_its_own_and_is_given_back() -> None:
    seen: list[float] = []

    class Seeing(RlooELBO):
        def differentiable_loss(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            seen.append(self.beta)
            return super().differentiable_loss(*args, **kwargs)

    elbo = Seeing(2, beta=0.5)
    list(
        fit(
            tiny_vae(),
            elbo,
            tiny_data(23),
            None,
            epochs=3,
            batch_size=12,
            annealing=2,
            initial_beta=2,
        )
    )
    assert seen == pytest.approx([2.0, 1.625, 1.25, 0.875, 0.5, 0.5])
    assert elbo.beta == 0.5
    trainer = Trainer(tiny_vae(), elbo, tiny_data(23), annealing=2, initial_beta=2)
    list(trainer.run(1))
    assert (elbo.beta, trainer.beta) == (0.5, 1.25)


def test_the_learning_rate_grows_over_the_epochs_of_warmup() -> None:
    """Linearly, from its first part to all of it in the last step of these epochs."""
    trainer = Trainer(tiny_vae(), RlooELBO(2), tiny_data(7), batch_size=3, warmup=2)
    seen: list[float] = []
    list(trainer.run(3, on_step=lambda *_: seen.append(trainer.optimizer.factor)))
    assert seen == pytest.approx([1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1, 1, 1, 1])
    assert Trainer(tiny_vae(), RlooELBO(2), tiny_data(7)).optimizer.factor == 1


def test_the_learning_rate_falls_over_the_last_epochs() -> None:
    """Linearly, and its last step is not 0. Further epochs begin with the whole rate again."""
    trainer = Trainer(tiny_vae(), RlooELBO(2), tiny_data(7), batch_size=3, cooldown=2)
    seen: list[float] = []

    def note(*_: int) -> None:
        seen.append(trainer.optimizer.factor)

    falling = [6 / 6, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]
    for epochs in (3, 6):
        list(trainer.run(epochs, on_step=note))
        assert seen[-9:] == pytest.approx([1, 1, 1, *falling])


@pytest.mark.parametrize(
    ("warmup", "cooldown", "factors"),
    [(2, 2, [0.25, 0.75, 1, 0.75, 0.25]), (4, 4, [0.125, 0.375, 0.5, 0.375, 0.125])],
)
def test_the_learning_rate_grows_and_falls(
    warmup: int, cooldown: int, factors: list[float]
) -> None:
    """Of four epochs, at five times; where the two overlap, the smaller one counts."""
    times = (0.5, 1.5, 2, 2.5, 3.5)
    found = [rate_factor(time, 4 - time, warmup, cooldown) for time in times]
    assert found == pytest.approx(factors)


def test_annealing_needs_beta() -> None:
    with pytest.raises(ValueError, match="Expected an ELBO with beta to anneal; got Trace_ELBO"):
        next(fit(tiny_vae(), Trace_ELBO(), tiny_data(4), None, annealing=1))


@pytest.mark.parametrize("averaging", [0.0, 0.9])
def test_records(averaging: float) -> None:
    x = tiny_data(10)
    vae, records = train(validation=x, averaging=averaging)
    assert [record.epoch for record in records] == [1, 2, 3]
    assert all(record.train_elbo < 0 for record in records)
    best = max(record.validation_elbo for record in records)
    assert evaluate(vae, x).elbo == pytest.approx(best, abs=1e-12)
    assert [r.is_best for r in records if r.validation_elbo == best] == [True]
    assert [r.seconds for r in records] == sorted(r.seconds for r in records)


def test_train_elbo_is_the_mean_over_all_data() -> None:
    """23 data in batches of 5: the short last batch counts as 3 data."""
    pyro.set_rng_seed(0)
    vae, x = tiny_vae(), tiny_data(23)
    exact = evaluate(vae, x).elbo
    record = next(fit(vae, EnumeratedELBO(), x, None, epochs=1, batch_size=5, learning_rate=1e-12))
    assert record.train_elbo == pytest.approx(exact, abs=1e-8)


def test_batches_are_without_replacement() -> None:
    class Counting:
        seen: list[int] = []  # noqa: RUF012

        def __len__(self) -> int:
            return 23

        def batch(self, index: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
            self.seen += index.tolist()
            return tiny_data(len(index))

    data = Counting()
    list(fit(tiny_vae(), RlooELBO(2), data, None, epochs=2, batch_size=5))
    first_epoch, second_epoch = data.seen[-46:-23], data.seen[-23:]
    assert sorted(first_epoch) == sorted(second_epoch) == list(range(23))
    assert first_epoch != second_epoch


def test_seed_decides_everything() -> None:
    first, _ = train(seed=1)
    torch.rand(5)
    second, _ = train(seed=1)
    other, _ = train(seed=2)
    assert torch.equal(weights(first), weights(second))
    assert not torch.equal(weights(first), weights(other))


def test_validation_and_the_callers_draws_do_not_change_training() -> None:
    _, plain_records = train()
    pyro.set_rng_seed(0)
    vae, x = tiny_vae(), tiny_data(23)
    state = torch.get_rng_state()
    records = []
    held_out = x[:4]
    options = {"epochs": 3, "batch_size": 5, "learning_rate": 0.01, **PLAIN}
    for record in fit(vae, RlooELBO(2), x, held_out, **options):
        records.append(record)
        torch.rand(100)
        torch.set_rng_state(state)
    assert [r.train_elbo for r in records] == [r.train_elbo for r in plain_records]


def test_two_models_in_one_process_do_not_touch() -> None:
    """Even with a parameter store full of others' parameters of the same names."""
    alone, _ = train()
    vae, x = tiny_vae(3, 4), tiny_data(4)
    svi = SVI(vae.model, vae.guide, pyro.optim.Adam({"lr": 0.1}), loss=Trace_ELBO())
    svi.step(x)
    store = {name: value.detach().clone() for name, value in pyro.get_param_store().items()}
    assert store
    second, _ = train()
    assert torch.equal(weights(alone), weights(second))
    after = dict(pyro.get_param_store().items())
    assert store.keys() == after.keys()
    assert all(torch.equal(store[name], after[name]) for name in store)


def test_two_fits_alternating() -> None:
    alone = [train(seed=seed)[0] for seed in (0, 1)]
    pyro.set_rng_seed(0)
    models, x = [tiny_vae()], tiny_data(23)
    pyro.set_rng_seed(0)
    models.append(tiny_vae())
    options = {"epochs": 3, "batch_size": 5, "learning_rate": 0.01, **PLAIN}
    runs = [
        fit(model, RlooELBO(2), x, None, seed=seed, **options) for seed, model in enumerate(models)
    ]
    for _ in zip(*runs, strict=True):
        pass
    for model, twin in zip(models, alone, strict=True):
        assert torch.equal(weights(model), weights(twin))


def test_averaging_is_the_mean_of_the_weights_and_does_not_change_training() -> None:
    plain, averaged = (train(averaging=averaging)[1] for averaging in (0.0, 0.8))
    assert [r.train_elbo for r in plain] == [r.train_elbo for r in averaged]

    path = []
    pyro.set_rng_seed(0)
    vae, x = tiny_vae(), tiny_data(23)
    mean = weights(vae)
    options = {"batch_size": 5, "learning_rate": 0.01, **PLAIN}
    list(
        fit(
            vae,
            RlooELBO(2),
            x,
            None,
            epochs=1,
            on_step=lambda *_: path.append(weights(vae)),
            **options,
        )
    )
    for step, weight in enumerate(path, 1):
        decay = min(0.8, (1 + step) / (10 + step))
        mean = decay * mean + (1 - decay) * weight
    vae, _ = train(epochs=1, averaging=0.8)
    torch.testing.assert_close(weights(vae), mean)


def test_patience_stops_and_the_best_weights_stay() -> None:
    pyro.set_rng_seed(0)
    vae = tiny_vae()
    x, held_out = torch.zeros(20, 4), torch.ones(5, 4)  # what is learned makes validation worse
    options = {"epochs": 50, "learning_rate": 0.05, "patience": 3, "annealing": 1}
    records = list(fit(vae, RlooELBO(2), x, held_out, **options))
    assert [record.is_best for record in records] == [True, False, False, False]
    again = fit(tiny_vae(), RlooELBO(2), x, held_out, **{**options, "annealing": 6})
    assert len(list(again)) >= 6 + 3  # nothing stops while beta falls
    assert evaluate(vae, held_out).elbo == pytest.approx(records[0].validation_elbo)


def test_time_ends_training_in_the_middle_of_an_epoch() -> None:
    _, records = train(epochs=5, max_seconds=0.0)
    assert len(records) == 1
    assert records[0].seconds > 0
    assert math.isfinite(records[0].train_elbo)


def test_no_epoch_changes_nothing() -> None:
    vae, records = train(epochs=0)
    pyro.set_rng_seed(0)
    assert records == []
    assert torch.equal(weights(vae), weights(tiny_vae()))


@pytest.mark.parametrize("num_data", [1, 5, 6])
def test_any_number_of_data(num_data: int) -> None:
    options = {"epochs": 1, "batch_size": 5}
    records = list(fit(tiny_vae(), RlooELBO(2), tiny_data(num_data), None, **options))
    assert math.isfinite(records[0].train_elbo)


def test_binary_images_and_steps() -> None:
    steps = []
    data = BinaryImages(torch.randint(256, (7, 2, 3), dtype=torch.uint8), "dynamic")
    vae = tiny_vae(event=(2, 3)).float()
    list(
        fit(
            vae,
            RlooELBO(2),
            data,
            None,
            epochs=2,
            batch_size=3,
            on_step=lambda step, total: steps.append((step, total)),
        )
    )
    assert steps == [(1, 3), (2, 3), (3, 3)] * 2


def test_grey_data_is_refused_before_the_first_step() -> None:
    with pytest.raises(ValueError, match=r"Expected data in \{0, 1\}.*from 0.5 to 0.5"):
        next(fit(tiny_vae(), RlooELBO(2), torch.full((9, 4), 0.5), None))
    x = tiny_data(100)
    x[77, 1] = 3.0
    with pytest.raises(ValueError, match=r"from 0 to 3"):
        next(fit(tiny_vae(), RlooELBO(2), x, None))


def test_wrong_event_shape_is_refused_before_the_first_step() -> None:
    with pytest.raises(ValueError, match=r"shape \(B, 4\); got \(2, 5\)"):
        next(fit(tiny_vae(), RlooELBO(2), tiny_data(9, (5,)), None))


def test_infinite_loss_names_step_and_term() -> None:
    what = r"NaN or infinity in the reconstruction term, .*, at step 2 of 5 of epoch 1"
    with pytest.raises(FloatingPointError, match=what) as error:
        train(learning_rate=1e300)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("check_every", [1, 3, 100])
def test_a_step_that_is_not_finite_is_not_taken(
    check_every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor any after it, where the device is looked at later."""

    class Spoilt(RlooELBO):
        steps = 0

        def differentiable_loss(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            self.steps += 1
            loss = super().differentiable_loss(*args, **kwargs)
            if self.steps == 7:  # the value stays finite
                weight = vae.decoder.layers[0].bias
                loss = loss + (weight - weight.detach()).sum().sqrt()
            return loss

    monkeypatch.setattr(Trainer, "check_every", check_every)
    pyro.set_rng_seed(0)
    vae, path = tiny_vae(), []
    trainer = Trainer(vae, Spoilt(2), tiny_data(23), batch_size=5, learning_rate=0.01)
    what = "infinity in the .*gradient.*, at step 2 of 5 of epoch 2; the step was not taken"
    with pytest.raises(FloatingPointError, match=what):
        list(trainer.run(3, on_step=lambda *_: path.append(weights(vae))))
    assert torch.equal(weights(vae), path[5])
    assert len(path) <= 5 + check_every


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": -1}, "epochs of at least 0; got -1"),
        ({"batch_size": 0}, "batch size of at least 1"),
        ({"learning_rate": math.nan}, "finite learning rate; got nan"),
        ({"learning_rate": 0.0}, "positive, finite learning rate"),
        ({"averaging": 1.0}, r"averaging in \[0, 1\)"),
        ({"patience": 0, "validation": tiny_data(1)}, "patience of at least 1"),
        ({"patience": 1}, "validation data for early stopping"),
    ],
)
def test_arguments_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train(**options)


_BITS = tiny_data(9).numpy()
# Name -> the same data in another form.
FORMS: dict[str, Callable[[np.ndarray[Any, Any]], Any]] = {
    **{
        f"tensor of {dtype}": lambda bits, dtype=dtype: torch.tensor(bits, dtype=dtype)
        for dtype in (torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool)
    },
    "array": lambda bits: bits,
    "array of bytes": lambda bits: bits.astype("u1"),
    "table": lambda bits: pd.DataFrame(bits),
    "list": lambda bits: bits.tolist(),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("form", FORMS)
def test_data_of_every_form_are_the_same_data(form: str, dtype: torch.dtype) -> None:
    """Data and validation data; the numbers are those of a tensor of the model's type."""
    found = []
    for data in (torch.tensor(_BITS, dtype=dtype), FORMS[form](_BITS)):
        torch.manual_seed(0)
        vae = tiny_vae().to(dtype)
        records = list(fit(vae, RlooELBO(2), data, data, epochs=2, batch_size=4))
        found.append((weights(vae), [(r.train_elbo, r.validation_elbo) for r in records]))
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


@pytest.mark.parametrize("served", [torch.float32, torch.float64])
def test_served_data_come_in_the_models_type(served: torch.dtype) -> None:
    data = TensorData(torch.tensor(_BITS, dtype=served))
    found = []
    for given in (torch.tensor(_BITS), data):
        torch.manual_seed(0)
        found += [
            record.train_elbo for record in fit(tiny_vae(), RlooELBO(2), given, None, epochs=1)
        ]
    assert found[0] == found[1]


@pytest.mark.parametrize("labels", [np.array([0, 1, 1], "u1"), pd.Series([0, 1, 1]), [0, 1, 1]])
def test_labels_of_every_form(labels: Any) -> None:
    found = []
    for given in (torch.tensor([0, 1, 1]), labels):
        torch.manual_seed(0)
        vae = with_prior(tiny_vae(), PRIORS["conditional"]())
        pair = (_BITS[:3], given)
        (record,) = fit(vae, RlooELBO(2), pair, pair, epochs=1)
        found.append((record.train_elbo, record.validation_elbo))
    assert found[0] == found[1]


_ROWS = TensorDataset(torch.tensor(_BITS))


class _Pairs:
    """Serves what is no tensor."""

    def __len__(self) -> int:
        return 9

    def batch(self, index: torch.Tensor, generator: torch.Generator) -> Any:
        return {"x": index}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (DataLoader(_ROWS), r"Expected data as .*; got DataLoader\. .*torch\.cat"),
        (iter(DataLoader(_ROWS)), "Expected data as .*; got _SingleProcess"),
        ((row for row in _BITS), "Expected data as .*; got generator"),
        ((_BITS, None, None), r"Expected data x, or a pair \(x, labels\); got a tuple of 3"),
        ("train.csv", "Expected data as .*; got str"),
        (_Pairs(), r"Expected a tensor, or a pair .*; got dict from _Pairs"),
    ],
)
def test_data_that_are_none_are_refused_in_one_line(data: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        next(fit(tiny_vae(), RlooELBO(2), data, None))
    assert "\n" not in str(error.value)
    if not isinstance(data, _Pairs):
        with pytest.raises(ValueError, match=message):
            next(fit(tiny_vae(), RlooELBO(2), _BITS, data))


def test_no_data() -> None:
    with pytest.raises(ValueError, match="training data of at least 1; got 0"):
        next(fit(tiny_vae(), RlooELBO(2), tiny_data(0), None))


def _frozen() -> Any:
    return tiny_vae().requires_grad_(False)


def _unused() -> Any:
    vae = _frozen()
    vae.encoder.extra = torch.nn.Parameter(torch.zeros(3))
    return vae


def _mixes_a_batch() -> Any:
    vae = tiny_vae()
    vae.decoder.layers.insert(1, torch.nn.BatchNorm1d(5))
    return vae


class _Halved(ScoreFunctionELBO):
    """Biased, though its gradient does not go through the draw."""

    is_unbiased = False

    def advantage(self, signal: torch.Tensor) -> torch.Tensor:
        return signal / 2


def test_a_biased_score_function_refuses_a_decoder_that_mixes_codes() -> None:
    with pytest.raises(ValueError, match=r"treats each code by itself .* at 'layers\.1'"):
        Trainer(_mixes_a_batch(), _Halved(), tiny_data(5))


class _Temperature(torch.nn.Module):
    """Scales logits by a number that Pyro's store alone holds."""

    def forward(self, logits: torch.Tensor) -> Any:
        return logits * pyro.param("temperature", torch.ones(()))


def _with_a_param_of_its_own() -> Any:
    vae = tiny_vae()
    vae.encoder = torch.nn.Sequential(vae.encoder, _Temperature())
    return vae


def _made_in_inference_mode() -> Any:
    with torch.inference_mode():
        return tiny_vae()


@pytest.mark.filterwarnings("ignore:.*was not registered in the param store")
@pytest.mark.parametrize("elbo", [lambda: RlooELBO(2), DisarmELBO, Trace_ELBO])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_frozen, "a model with weights to train; got DiscreteVAE, whose weights are all frozen"),
        (_unused, "a loss that depends on a weight that is trained"),
        (_mixes_a_batch, r"a decoder that treats each code by itself .* at 'layers\.1'"),
        (_with_a_param_of_its_own, r"all that is trained .* pyro\.param 'temperature' in its"),
        (_made_in_inference_mode, r"a training outside of torch\.inference_mode"),
    ],
)
def test_what_cannot_learn_is_refused_in_one_line(elbo: Any, make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"Expected {message}") as error:
        list(fit(make(), elbo(), tiny_data(4), None, epochs=1))
    assert "\n" not in str(error.value)


def test_a_model_that_is_frozen_between_epochs_is_refused() -> None:
    vae = tiny_vae()
    records = fit(vae, RlooELBO(2), tiny_data(4), None, epochs=2)
    next(records)
    vae.requires_grad_(False)
    with pytest.raises(ValueError, match="whose weights are all frozen"):
        next(records)


@pytest.mark.parametrize("elbo", [lambda: RlooELBO(2), DisarmELBO, Trace_ELBO])
def test_training_needs_no_ambient_gradients(elbo: Any) -> None:
    found, x = [], tiny_data(9)
    for ambient in (contextlib.nullcontext, torch.no_grad):
        torch.manual_seed(0)
        vae = tiny_vae()
        with ambient():
            list(fit(vae, elbo(), x, x, epochs=2, batch_size=4))
            assert torch.is_grad_enabled() == (ambient is contextlib.nullcontext)
        found.append(weights(vae))
    assert torch.equal(*found)
    with torch.inference_mode(), pytest.raises(ValueError, match="outside of torch"):
        list(fit(tiny_vae(), elbo(), x, None, epochs=1))


class _Inner(DiscreteVAE):
    """A guide that takes a gradient step of its own."""

    ambient: Any = contextlib.nullcontext

    @pyro_method
    def guide(self, x: torch.Tensor) -> torch.Tensor:
        with pyro.plate("data", len(x)):
            with self.ambient():
                logits = self.encoder(x)
                target = self.decoder(logits.softmax(-1)).square().sum()
                (slope,) = torch.autograd.grad(target, logits, create_graph=True)
            return pyro.sample("z", self.posterior_family(logits - 0.1 * slope))


@pytest.mark.parametrize("elbo", [lambda: RlooELBO(2), DisarmELBO, EnumeratedELBO, Trace_ELBO])
def test_a_guide_that_calls_autograd(elbo: Any) -> None:
    """Its gradient is that of the whole program: a step is SVI's."""
    vae = tiny_vae()
    inner, twin = (
        _Inner(copy.deepcopy(vae.encoder), copy.deepcopy(vae.decoder), vae.prior, vae.likelihood)
        for _ in range(2)
    )
    x = tiny_data(4)
    for model in (inner, twin):
        model.ambient = torch.enable_grad
    options = {"epochs": 1, "batch_size": 4, "learning_rate": 0.01, "seed": 3, **PLAIN}
    list(fit(inner, elbo(), x, None, **options))
    order = torch.randperm(4, generator=torch.Generator().manual_seed(3))
    scaled = [poutine.scale(program, 1 / 4) for program in (twin.model, twin.guide)]
    pyro.set_rng_seed(3 + 2)
    SVI(*scaled, pyro.optim.Adam({"lr": 0.01}), loss=elbo()).step(x[order])
    torch.testing.assert_close(weights(inner), weights(twin), **EXACT)


@pytest.mark.parametrize("elbo", [lambda: RlooELBO(2), DisarmELBO, EnumeratedELBO])
def test_a_guide_that_calls_autograd_where_there_is_none_is_refused(elbo: Any) -> None:
    vae = tiny_vae()
    inner = _Inner(vae.encoder, vae.decoder, vae.prior, vae.likelihood)
    with pytest.raises(ValueError, match=r"without gradients too, .* torch\.enable_grad") as error:
        next(fit(inner, elbo(), tiny_data(4), None))
    assert "\n" not in str(error.value)
