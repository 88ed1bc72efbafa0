"""What else happens in the process while a model trains: the weights are those it gets alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import Trace_ELBO
from torch import Tensor
from zoo import tiny_vae

from pyro_dvae import DisarmELBO, LearnedPrior, RlooELBO, Trainer, evaluate, fit, fit_prior
from pyro_dvae import with_prior as under
from pyro_dvae.process import PROCESS_STATE

ELBOS: dict[str, Callable[[], Any]] = {
    "rloo": lambda: RlooELBO(2),
    "disarm": DisarmELBO,
    "trace": Trace_ELBO,
}
OPTIONS: dict[str, Any] = {"batch_size": 4, "learning_rate": 0.05, "averaging": 0.9}


@pytest.fixture(params=ELBOS)
def elbo(request: pytest.FixtureRequest) -> Callable[[], Any]:
    return ELBOS[request.param]


@pytest.fixture(autouse=True)
def same_process() -> Iterator[None]:
    """Nothing of the process is another afterwards."""
    store = pyro.get_param_store()
    pyro.param("somebody's", torch.ones(()))
    before = set(store.keys())
    yield
    assert pyro.infer.util.is_validation_enabled()
    assert pyro.distributions.is_validation_enabled()
    assert pyro.poutine.runtime._PYRO_STACK == []
    assert set(store.keys()) == before
    assert torch.is_grad_enabled()
    assert PROCESS_STATE.acquire(blocking=False)
    PROCESS_STATE.release()


def bits(num_data: int) -> Tensor:
    generator = torch.Generator().manual_seed(num_data)
    return torch.randint(2, (num_data, 4), generator=generator).double()


def make(elbo: Callable[[], Any], seed: int = 0, data: Any = None, **options: Any) -> Trainer:
    x = bits(12) if data is None else data
    torch.manual_seed(seed)
    return Trainer(tiny_vae(), elbo(), x, bits(3), seed=seed, **{**OPTIONS, **options})


def weights(trainer: Trainer) -> Tensor:
    return torch.nn.utils.parameters_to_vector(trainer.vae.parameters()).detach().clone()


def alone(elbo: Callable[[], Any], seed: int = 0) -> Tensor:
    trainer = make(elbo, seed)
    list(trainer.run(2))
    return weights(trainer)


class Meddling:
    """Data that let something happen within each step."""

    def __init__(self, x: Tensor, happen: Callable[[], object]) -> None:
        self.x, self.happen = x, happen
        self.trained = False  # the first batch is of the checks

    def __len__(self) -> int:
        return len(self.x)

    def batch(self, index: Tensor, generator: torch.Generator) -> Tensor:
        if self.trained:
            self.happen()
        self.trained = True
        return self.x[index]


class Threads:
    """Starts an action in a thread of its own, and keeps what it raised."""

    def __init__(self, action: Callable[[], object]) -> None:
        self.action, self.threads, self.errors = action, list[threading.Thread](), list[str]()

    def __call__(self) -> None:
        thread = threading.Thread(target=self._try)
        self.threads.append(thread)
        thread.start()
        thread.join(0.01)  # time to do harm; what takes turns waits for the steps to end

    def _try(self) -> None:
        try:
            self.action()
        except Exception as error:
            self.errors.append(str(error))

    def join(self) -> None:
        for thread in self.threads:
            thread.join()


def meddled(elbo: Callable[[], Any], action: Callable[[], object]) -> tuple[Tensor, list[str]]:
    threads = Threads(action)
    meddling = make(elbo, data=Meddling(bits(12), threads))
    list(meddling.run(2))
    threads.join()
    assert len(threads.threads) == 6
    return weights(meddling), threads.errors


def test_two_fits_in_two_threads(elbo: Callable[[], Any]) -> None:
    expected = [alone(elbo, seed) for seed in (1, 2)]
    trainers = [make(elbo, seed) for seed in (1, 2)]
    runs = [
        threading.Thread(target=lambda trainer=trainer: list(trainer.run(2)))
        for trainer in trainers
    ]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert all(torch.equal(weights(t), w) for t, w in zip(trainers, expected, strict=True))


# What this library does in other threads waits for its turn.
OTHERS: dict[str, Callable[[Any], object]] = {
    "evaluation": lambda vae: evaluate(vae, bits(5), importance_samples=3),
    "samples": lambda vae: vae.sample(3),
    "another fit": lambda vae: list(fit(vae, DisarmELBO(), bits(5), None, epochs=1)),
}


@pytest.mark.parametrize("other", OTHERS)
def test_another_thread_takes_its_turn(elbo: Callable[[], Any], other: str) -> None:
    vae = tiny_vae()
    found, errors = meddled(elbo, lambda: OTHERS[other](vae))
    assert errors == []
    assert torch.equal(found, alone(elbo))


def test_an_evaluation_in_another_thread_is_that_between_epochs(elbo: Callable[[], Any]) -> None:
    """Of the very model that trains, which is in training mode within its steps."""
    x, found = bits(5), list[float]()
    holder: list[Trainer] = []
    expected = make(elbo)
    threads = Threads(lambda: found.append(evaluate(holder[0].vae, x).elbo))
    holder.append(make(elbo, data=Meddling(bits(12), threads)))
    possible = [evaluate(expected.vae, x).elbo]
    for _ in expected.run(2):
        possible.append(evaluate(expected.vae, x).elbo)  # the average
    list(holder[0].run(2))
    threads.join()
    possible.append(evaluate(expected.vae, x).elbo)
    assert torch.equal(weights(holder[0]), weights(expected))
    raw = make(elbo)
    run = raw.run(2)
    next(run)
    run.close()
    possible.append(evaluate(raw.vae, x).elbo)
    assert threads.errors == []
    assert {round(elbo, 12) for elbo in found} <= {round(elbo, 12) for elbo in possible}


# What Pyro does in other threads, without this library, is refused there.
PROGRAMS: dict[str, Callable[[], object]] = {
    "a draw": lambda: pyro.sample("z", dist.Normal(0.0, 1.0)),
    "a trace": lambda: poutine.trace(lambda: pyro.sample("x", dist.Normal(0.0, 1.0))).get_trace(),
    "a parameter": lambda: pyro.param("w", torch.zeros(())),
    "a plate": lambda: _plate(),
}


def _plate() -> None:
    with pyro.plate("data", 3):
        pass


@pytest.mark.parametrize("program", PROGRAMS)
def test_pyro_in_another_thread_is_refused(elbo: Callable[[], Any], program: str) -> None:
    found, errors = meddled(elbo, PROGRAMS[program])
    message = "Expected Pyro programs of one thread at a time, .* while MainThread trained a model"
    assert len(errors) == 6
    for error in errors:
        with pytest.raises(RuntimeError, match=message):
            raise RuntimeError(error)
    assert torch.equal(found, alone(elbo))


def test_handlers_of_another_thread_below_those_of_a_step_are_refused() -> None:
    """The other thread's failure takes the step's handlers away."""
    entered, asked = threading.Event(), threading.Event()

    def other() -> None:
        with poutine.trace():
            entered.set()
            asked.wait()
            pyro.sample("z", dist.Normal(0.0, 1.0))

    threads = Threads(other)
    trainer = make(DisarmELBO)

    def forward(z: Tensor) -> Tensor:
        asked.set()
        threads.join()
        return decode(z)

    decode, trainer.vae.decoder.forward = trainer.vae.decoder.forward, forward
    data = Meddling(bits(12), lambda: (threads(), entered.wait()))
    trainer.data, data.trained = data, True
    with pytest.raises(RuntimeError, match="Expected Pyro programs of one thread at a time"):
        list(trainer.run(1))
    assert "Expected Pyro programs of one thread" in threads.errors[0]


# What happens in the same thread, between steps or records.
WITHIN: dict[str, Callable[[Any], object]] = {
    "draws": lambda vae: torch.rand(7),
    "a seed": lambda vae: torch.manual_seed(5),
    "evaluation": OTHERS["evaluation"],
    "a fit": OTHERS["another fit"],
    "a trace": lambda vae: _traced(vae),
    "an evaluation that another thread makes": lambda vae: _waited(OTHERS["evaluation"], vae),
}


def _traced(vae: Any) -> None:
    with pyro.get_param_store().scope():
        poutine.trace(vae.model).get_trace(bits(2))


def _waited(action: Callable[[Any], object], vae: Any) -> None:
    threads = Threads(lambda: action(vae))
    threads()
    threads.join()
    assert threads.errors == []


@pytest.mark.parametrize("within", WITHIN)
def test_a_callback_finds_the_process_as_its_caller_left_it(
    elbo: Callable[[], Any], within: str
) -> None:
    trainer, vae = make(elbo), tiny_vae()
    torch.manual_seed(8)
    expected = torch.rand(6)
    torch.manual_seed(8)
    drawn: list[float] = []

    def on_step(*_: int) -> None:
        drawn.append(torch.rand(()).item())
        state = torch.get_rng_state()
        WITHIN[within](vae)
        torch.set_rng_state(state)

    list(trainer.run(2, on_step=on_step))
    assert torch.equal(weights(trainer), alone(elbo))
    assert drawn == expected.tolist()


def test_two_fits_in_turns(elbo: Callable[[], Any]) -> None:
    expected = [alone(elbo, seed) for seed in (1, 2)]
    trainers = [make(elbo, seed) for seed in (1, 2)]
    for _ in zip(*(trainer.run(2) for trainer in trainers), strict=True):
        torch.rand(3)
    for trainer, weight in zip(trainers, expected, strict=True):
        list(trainer.run(2))
        assert torch.equal(weights(trainer), weight)


def test_a_run_that_is_closed_leaves_nothing_behind(elbo: Callable[[], Any]) -> None:
    trainer = make(elbo)
    torch.manual_seed(4)
    state = torch.get_rng_state()
    run = trainer.run(9)
    next(run)
    run.close()
    assert torch.equal(torch.get_rng_state(), state)
    list(trainer.run(2))
    assert torch.equal(weights(trainer), alone(elbo))


def test_the_second_stage_freezes_nothing_outside_of_its_steps() -> None:
    """In turns with a training of all the networks, which it shares."""
    first = make(ELBOS["rloo"], averaging=0.0)
    x = first.data.x  # type: ignore[attr-defined]
    prior = under(first.vae, LearnedPrior(2, 3))
    for _ in zip(first.run(2), fit_prior(prior, x, None, epochs=2, averaging=0.0), strict=True):
        assert all(weight.requires_grad for weight in first.vae.parameters())
    list(first.run(2))
    alone = make(ELBOS["rloo"], averaging=0.0)
    list(alone.run(2))
    assert torch.equal(weights(first), weights(alone))
