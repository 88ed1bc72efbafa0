from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pyro
import pytest
import torch
from zoo import tiny_data, tiny_vae

from pyro_dvae import BinaryImages, Config, RlooELBO, Trainer, TrainingState, build_elbo
from pyro_dvae.runs.config import ESTIMATORS


class _Doubles:
    """Binary images, redrawn at each batch, in the tests' precision."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        pixels = torch.randint(256, (23, 4), dtype=torch.uint8, generator=generator)
        self.images = BinaryImages(pixels)

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, index: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return self.images.batch(index, generator).double()


def trainer(estimator: str = "rloo", **options: Any) -> Trainer:
    pyro.set_rng_seed(0)
    particles = ESTIMATORS[estimator].particles
    config = Config(estimator=estimator, num_latents=2, num_categories=3, num_particles=particles)
    vae, elbo = tiny_vae(), build_elbo(config, (4,))
    options = {"batch_size": 5, "learning_rate": 0.01, "averaging": 0.9, "seed": 3, **options}
    if ESTIMATORS[estimator].has_beta:
        options |= {"annealing": 3, "initial_beta": 2.0, "warmup": 2, "reinmax_steps": 3}
    return Trainer(vae, elbo, _Doubles(), tiny_data(7), **options)


class _Stop(Exception):
    pass


def train_steps(target: Trainer, num_steps: int, epochs: int = 10) -> None:
    """Train until some step of the third epoch or so, as an interrupted run does."""
    left = [num_steps]

    def on_step(*_: int) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise _Stop

    with pytest.raises(_Stop):
        list(target.run(epochs, on_step=on_step))


def through_json(state: TrainingState) -> TrainingState:
    return TrainingState(state.tensors, json.loads(json.dumps(state.progress)))


def same(first: Trainer, second: Trainer) -> bool:
    ours, theirs = first.state_dict(), second.state_dict()
    assert ours.tensors.keys() == theirs.tensors.keys()
    equal = all(torch.equal(value, theirs.tensors[name]) for name, value in ours.tensors.items())
    without_clock = [
        {**state.progress, "seconds": 0, "best": {**(state.progress["best"] or {}), "seconds": 0}}
        for state in (ours, theirs)
    ]
    return equal and without_clock[0] == without_clock[1]


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_two_and_two_epochs_are_four(estimator: str) -> None:
    whole, first, second = (trainer(estimator) for _ in range(3))
    records = list(whole.run(4))
    parts = list(first.run(2))
    torch.rand(3)
    second.load_state_dict(through_json(first.state_dict()))
    parts += list(second.run(4))
    assert same(whole, second)
    assert [r.train_elbo for r in parts] == [r.train_elbo for r in records]
    assert [r.is_best for r in parts] == [r.is_best for r in records]


@pytest.mark.parametrize("estimator", ["rloo", "reinforce", "relax", "trace", "jsa"])
@pytest.mark.parametrize("num_steps", [1, 4, 5, 13])
def test_any_step_is_a_place_to_continue_from(estimator: str, num_steps: int) -> None:
    whole, first, second = (trainer(estimator) for _ in range(3))
    uninterrupted = [record.train_elbo for record in whole.run(4)]
    train_steps(first, num_steps)
    second.load_state_dict(through_json(first.state_dict()))
    assert second.epoch * 5 + second.step == num_steps
    records = list(second.run(4))
    assert same(whole, second)
    assert [record.train_elbo for record in records] == uninterrupted[4 - len(records) :]


@pytest.mark.parametrize("num_steps", [1, 13])
def test_a_falling_learning_rate_continues(num_steps: int) -> None:
    """It depends on the number of epochs that `run` is asked for, so the same one is."""
    whole, first, second = (trainer(cooldown=3) for _ in range(3))
    list(whole.run(4))
    train_steps(first, num_steps, epochs=4)
    second.load_state_dict(through_json(first.state_dict()))
    list(second.run(4))
    assert same(whole, second)


@pytest.mark.parametrize("how", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
@pytest.mark.parametrize("estimator", ["rloo", "disarm", "relax", "trace", "jsa"])
@pytest.mark.parametrize("num_steps", [0, 7])
def test_a_copy_goes_on_alike(estimator: str, num_steps: int, how: Any) -> None:
    first = trainer(estimator)
    if num_steps:
        train_steps(first, num_steps)
    other = how(first)
    list(first.run(3))
    before = {name: value.clone() for name, value in first.state_dict().tensors.items()}
    list(other.run(3))
    assert same(first, other)
    after = first.state_dict().tensors
    assert all(torch.equal(value, after[name]) for name, value in before.items())


@pytest.mark.parametrize("how", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_has_graphs_of_its_own(how: Any) -> None:
    """In bfloat16 too, and where it was taken at a record, while the module holds the average."""
    first = trainer(bfloat16=True)
    run = first.run(3)
    next(run)
    other = how(first)
    list(run)
    list(other.run(3))
    assert same(first, other)


@pytest.mark.parametrize("num_steps", [1, 4, 5, 13])
def test_run_goes_on_where_an_exception_stopped_it(num_steps: int) -> None:
    whole, stopped = trainer(), trainer()
    list(whole.run(4))
    train_steps(stopped, num_steps)
    list(stopped.run(4))
    assert same(whole, stopped)


def test_an_epoch_whose_first_batch_fails_keeps_its_order() -> None:
    whole, stopped = trainer(), trainer()
    list(whole.run(2))
    batch = stopped.data.batch
    stopped.data.batch = lambda *_: 1 / 0  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        list(stopped.run(2))
    stopped.data.batch = batch  # type: ignore[method-assign]
    list(stopped.run(2))
    assert same(whole, stopped)


def test_a_run_that_waits_at_a_record_does_not_spoil_what_follows() -> None:
    """There the module holds the average, and what closes the run takes it out again."""
    whole, other = trainer(), trainer()
    list(whole.run(2))
    waiting = other.run(4)
    next(waiting)
    list(other.run(2))
    assert list(waiting) == []
    assert same(whole, other)

    waiting = other.run(4)
    next(waiting)
    other.keep_best()
    whole.load_state_dict(other.state_dict())
    whole.keep_best()
    waiting.close()
    for name, value in whole.vae.state_dict().items():
        assert torch.equal(value, other.vae.state_dict()[name])

    waiting, state = whole.run(4), other.state_dict()
    next(waiting)
    whole.load_state_dict(state)
    waiting.close()
    assert same(whole, other)


def test_a_run_within_a_step_of_the_same_trainer_is_refused() -> None:
    one = trainer()
    with pytest.raises(RuntimeError, match="Expected one run of a trainer at a time"):
        list(one.run(1, on_step=lambda *_: list(one.run(1))))


def test_a_state_taken_at_a_record_or_in_a_step_is_that_after_it() -> None:
    """While the module holds the average, and while the draws' stream is in use."""
    whole = trainer()
    list(whole.run(3))
    first, states = trainer(), []
    for record in first.run(1, on_step=lambda *_: states.append(first.state_dict())):
        states.append(first.state_dict())
        assert record.epoch == 1
    for state in states:
        second = trainer()
        second.load_state_dict(state)
        list(second.run(3))
        assert same(whole, second)


def test_a_state_is_a_copy() -> None:
    first = trainer()
    list(first.run(1))
    state = first.state_dict()
    before = {name: value.clone() for name, value in state.tensors.items()}
    second = trainer()
    second.load_state_dict(state)
    list(first.run(2))
    list(second.run(2))
    assert all(torch.equal(value, before[name]) for name, value in state.tensors.items())
    assert same(first, second)


def test_best_weights_and_patience_are_remembered() -> None:
    def make() -> Trainer:
        pyro.set_rng_seed(0)
        x, held_out = torch.zeros(20, 4), torch.ones(5, 4)  # what is learned makes it worse
        options = {"learning_rate": 0.05, "annealing": 1}
        return Trainer(tiny_vae(), RlooELBO(2), x, held_out, **options)

    first, second = make(), make()
    list(first.run(2, patience=3))
    second.load_state_dict(first.state_dict())
    assert [record.epoch for record in second.run(50, patience=3)] == [3, 4]
    assert second.best is not None
    assert second.best.epoch == 1
    second.keep_best()
    first.keep_best()
    for name, value in first.vae.state_dict().items():
        assert torch.equal(value, second.vae.state_dict()[name])


def test_another_device_starts_other_streams() -> None:
    first, second = trainer(), trainer()
    list(first.run(2))
    state = first.state_dict()
    state.progress["device"] = "cuda"
    state.tensors["random.draws.1"] = torch.zeros(16, dtype=torch.uint8)
    second.load_state_dict(state)
    assert torch.equal(second.shuffling.get_state(), first.shuffling.get_state())
    fresh = trainer()
    assert not torch.equal(second.noise.get_state(), fresh.noise.get_state())
    assert [record.epoch for record in second.run(3)] == [3]


def _drop(name: str) -> Any:
    return lambda state: state.tensors.pop(name)


def _put(name: str, value: torch.Tensor) -> Any:
    return lambda state: state.tensors.update({name: value})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_drop("vae.encoder.layers.0.weight"), "vae.encoder.layers.0.weight is missing"),
        (_drop("random.noise"), "random.noise is missing"),
        (_drop("best.encoder.layers.0.weight"), "best.encoder.layers.0.weight is missing"),
        (_put("vae.encoder.layers.0.weight", torch.zeros(3)), r"is torch.float32 \(3,\), not"),
        (_put("optimizer.0.exp_avg", torch.zeros(3)), r"optimizer.0.exp_avg is torch.float32"),
        (_put("optimizer.99.exp_avg", torch.zeros(3)), "optimizer.99.exp_avg is unknown here"),
        (_put("new", torch.zeros(3)), "new is unknown here"),
        (lambda state: state.tensors["random.order"].fill_(255), "Invalid mt19937 state"),
        (lambda state: state.tensors["random.noise"].fill_(255), "Invalid mt19937 state"),
        (lambda state: state.progress.pop("epoch"), "'epoch'"),
        (lambda state: state.progress.update(step="two"), "two"),
        (lambda state: state.progress.update(best={"epoch": 1}), "missing"),
        (lambda state: state.progress.clear(), "'best'"),
    ],
)
def test_another_trainings_state_is_refused_whole(damage: Any, message: str) -> None:
    first, second, untouched = trainer(), trainer(), trainer()
    list(first.run(1))
    state = first.state_dict()
    damage(state)
    with pytest.raises(ValueError, match=f"state of this training; got another .*{message}"):
        second.load_state_dict(state)
    assert same(second, untouched)
