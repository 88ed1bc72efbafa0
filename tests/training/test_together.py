"""Several processes train as one does."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyro
import pytest
import torch
from crew import Crew
from torch import Tensor
from zoo import ELBOS, GUIDES, PRIORS, make_batch, make_vae, tiny_vae

from pyro_dvae import (
    EnumeratedELBO,
    MarginalELBO,
    ReinforceELBO,
    RlooELBO,
    Trainer,
    fit,
)
from pyro_dvae.processes import ProcessError, in_turn, rank
from pyro_dvae.runs import encode_blocks
from pyro_dvae.training import summing

pytestmark = pytest.mark.slow
MEMORY = Path("/dev/shm")


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    crew = Crew(4)
    yield crew
    crew.close()


def _data(num_data: int = 23) -> Tensor:
    return (torch.rand(num_data, 4, generator=torch.Generator().manual_seed(7)) < 0.4).double()


def _exact(elbo: Any, options: dict[str, Any]) -> tuple[dict[str, Tensor], list[Any]]:
    """Weights and records of an exact training, from weights that differ between processes."""
    pyro.set_rng_seed(10 + rank())
    vae = tiny_vae()
    if rank() == 0:
        pyro.set_rng_seed(0)
        vae = tiny_vae()
    x = _data()
    records = list(fit(vae, elbo, x, _data(9), epochs=4, batch_size=5, **options))
    return vae.state_dict(), [{**vars(record), "seconds": 0} for record in records]


@pytest.mark.parametrize(
    ("elbo", "options"),
    [
        (EnumeratedELBO(), {"annealing": 2, "averaging": 0.9}),
        (EnumeratedELBO(free_bits=0.05), {"annealing": 0, "averaging": 0.0}),
        (MarginalELBO(), {"averaging": 0.5, "guide_epochs": 2, "patience": 2}),
    ],
    ids=["exact", "free bits", "marginal"],
)
def test_any_number_of_processes_trains_the_same_weights(
    crew: Crew, elbo: Any, options: dict[str, Any]
) -> None:
    """23 data in batches of 5: the last batch has 3, less than one datum per process of 4."""
    weights, records = _exact(elbo, options)
    for size in (2, 4):
        for theirs, told in crew.run(size, _exact, elbo, options):
            for name, weight in weights.items():
                torch.testing.assert_close(theirs[name], weight, atol=1e-10, rtol=0)
            for ours, other in zip(records, told, strict=True):
                for name, value in ours.items():
                    assert other[name] == pytest.approx(value, abs=1e-10), name


def _halved() -> dict[str, Tensor]:
    """Weights after an exact training whose gradients a hook of the user changes in place."""
    pyro.set_rng_seed(0)
    vae = tiny_vae()
    trainer = Trainer(vae, EnumeratedELBO(), _data(), batch_size=5, annealing=0, averaging=0)

    def halve(optimizer: Any, *_: Any) -> None:
        for weight in optimizer.weights:
            weight.grad.mul_(0.5).clamp_(-0.01, 0.01)

    trainer.optimizer.register_step_pre_hook(halve)
    list(trainer.run(2))
    return vae.state_dict()


def test_gradients_may_be_changed_in_place(crew: Crew) -> None:
    weights = _halved()
    for size in (2, 4):
        for theirs in crew.run(size, _halved):
            for name, weight in weights.items():
                torch.testing.assert_close(theirs[name], weight, atol=1e-10, rtol=0)


class _Recorded:
    """Data that note which of them are asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __len__(self) -> int:
        return 23

    def batch(self, index: Tensor, generator: torch.Generator) -> Tensor:
        self.asked += index.tolist()
        return _data()[index]


def _order(start: Any, num_steps: int) -> tuple[list[int], Any]:
    """The data that this process takes in some steps from a state; and the state after them."""
    data = _Recorded()
    trainer = Trainer(tiny_vae(), EnumeratedELBO(), data, batch_size=6, seed=3)
    if start is not None:
        trainer.load_state_dict(start)
    data.asked, left = [], num_steps

    def on_step(*_: int) -> None:
        nonlocal left
        left -= 1
        if trainer.agree_to_stop(left <= 0) and left <= 0:
            raise KeyboardInterrupt

    try:
        list(trainer.run(9, on_step=on_step))
    except KeyboardInterrupt:
        return data.asked, trainer.state_dict()
    raise AssertionError("it did not stop")


def test_a_state_goes_on_in_any_number_of_processes(crew: Crew) -> None:
    """Two steps of 6 data in one process, three more in 2 or 3: the order of one process."""
    whole, _ = _order(None, 6)
    first, state = _order(None, 2)
    assert first == whole[:12]
    for size in (2, 3):
        parts = [asked for asked, _ in crew.run(size, _order, state, 3)]
        # One more step, as the wish to stop is told with it. The fourth batch has 5 data.
        together: list[int] = []
        for at, num in ((0, 6), (6, 5), (11, 6), (17, 6)):
            bounds = torch.arange(at, at + num).tensor_split(size)
            together += [parts[r].pop(0) for r in range(size) for _ in bounds[r]]
        assert parts == [[] for _ in parts]
        assert together == whole[12:35]


def _gradients(name: str, num: int) -> Tensor:
    """The gradients of steps at fixed weights, (steps, weights), the same in all processes."""
    pyro.set_rng_seed(1)
    vae, found = tiny_vae(), []
    trainer = Trainer(
        vae, ELBOS[name](), _data(8), batch_size=8, learning_rate=1e-30, averaging=0, annealing=0
    )

    def on_step(*_: int) -> None:
        found.append(torch.cat([weight.grad.flatten() for weight in vae.parameters()]))

    list(trainer.run(num, on_step=on_step))
    return torch.stack(found)


@pytest.mark.parametrize("name", ["reinforce", "st-gumbel"])
def test_sampled_gradients_have_the_same_mean(crew: Crew, name: str) -> None:
    num = 200
    alone = _gradients(name, num)
    first, second = crew.run(2, _gradients, name, num)
    assert torch.equal(first, second)
    error = ((alone.var(0) + first.var(0)) / num).sqrt()
    z = ((alone.mean(0) - first.mean(0)) / error.clamp(min=1e-12)).square()
    # The mean square of some ten standard normal numbers, which are not independent.
    assert z[error > 0].mean() < 4
    # Each process draws numbers of its own: together they vary as one process does.
    ratio = first.var(0).sum() / alone.var(0).sum()
    assert 0.7 < ratio < 1.4


def _one_step_each() -> list[str]:
    """Which rows of the tables do not train: all estimators, priors and guides."""
    failed = []
    rows = [("mean-field", "uniform", name) for name in ELBOS if not ELBOS[name]().keeps_codes]
    rows += [("mean-field", prior, "enumerated") for prior in PRIORS]
    rows += [("mean-field", prior, "rloo") for prior in PRIORS]
    rows += [(guide, "uniform", elbo) for guide in GUIDES for elbo in ("rloo", "enumerated")]
    for guide, prior, name in rows:
        try:
            pyro.set_rng_seed(5)
            vae = make_vae(prior, "bernoulli", guide)
            x, *labels = make_batch(vae, num_data=5)
            data = (x, labels[0]) if labels else x
            elbo = ELBOS[name]()
            trainer = Trainer(vae, elbo, data, batch_size=3, averaging=0, annealing=0)
            before = [weight.detach().clone() for weight in vae.parameters()]
            (record,) = trainer.run(1)
            assert math.isfinite(record.train_elbo)
            assert any(
                not torch.equal(old, new) for old, new in zip(before, vae.parameters(), strict=True)
            )
            mine = torch.cat([weight.detach().flatten() for weight in trainer.optimizer.weights])
            torch.distributed.broadcast(theirs := mine.clone(), src=0)
            assert torch.equal(mine, theirs), "the processes differ"
        except Exception as error:
            failed.append(f"{guide}, {prior}, {name}: {error!r}")
    return failed


def test_every_part_trains_in_two_processes(crew: Crew) -> None:
    assert crew.run(2, _one_step_each) == [[], []]


def _running_mean() -> float:
    pyro.set_rng_seed(2)
    elbo = ReinforceELBO(baseline="running_mean")
    list(Trainer(tiny_vae(), elbo, _data(), batch_size=5, annealing=0).run(1))
    return float(elbo.mean)


def test_a_running_mean_is_one_of_all_processes(crew: Crew) -> None:
    first, second = crew.run(2, _running_mean)
    assert first == second


def _encoded(num_data: int, probabilities: bool) -> list[Tensor]:
    pyro.set_rng_seed(4)
    options = {"probabilities": probabilities, "together": True}
    return list(encode_blocks(tiny_vae(), _data(num_data), **options))


@pytest.mark.parametrize("num_data", [1, 256, 700])
def test_codes_are_those_of_one_process_in_order(crew: Crew, num_data: int) -> None:
    for probabilities in (False, True):
        blocks = _encoded(num_data, probabilities)
        for size in (2, 3):
            for theirs in crew.run(size, _encoded, num_data, probabilities):
                assert len(theirs) == len(blocks)
                assert all(map(torch.equal, blocks, theirs))


def _sums(num: int, shares: bool) -> tuple[list[Tensor], bool, bool]:
    """Three sums, whether by shared memory, and whether its folder is gone."""
    made: list[Path] = []  # not all of /dev/shm: other tests use it at the same moment
    new_folder = summing._new_folder

    def noted(num_bytes: int) -> Path | None:
        folder = new_folder(num_bytes) if shares else None  # none as where there is no room
        made.extend([folder] if folder is not None else [])
        return folder

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(summing, "_new_folder", noted)
        total = summing.SumOfAll(num, torch.float64, torch.device("cpu"))
    sums = []
    for step in range(3):
        total.own.copy_(torch.arange(num) * 10.0**step + rank())
        sums.append(total().clone())
    torch.distributed.barrier()
    assert len(made) == (total.is_shared and rank() == 0)
    return sums, total.is_shared, not any(folder.exists() for folder in made)


@pytest.mark.parametrize("shares", [True, False])
def test_a_sum_is_one_of_all_processes(crew: Crew, shares: bool) -> None:
    for size, num in ((2, 7), (4, 3), (3, 1000)):
        for sums, is_shared, is_clean in crew.run(size, _sums, num, shares):
            assert is_shared is (shares and MEMORY.is_dir())
            assert is_clean
            for step, found in enumerate(sums):
                expected = size * torch.arange(num) * 10.0**step + sum(range(size))
                torch.testing.assert_close(found, expected, rtol=1e-15, atol=0)


def _leaves() -> None:
    total = summing.SumOfAll(5, torch.float64, torch.device("cpu"))
    assert total.is_shared
    total()
    if rank() != 1:
        total()


@pytest.mark.skipif(not MEMORY.is_dir(), reason="shared memory has no files here")
def test_a_sum_notices_a_process_that_has_left(crew: Crew) -> None:
    first, second, third = crew.run(3, _leaves)
    assert second is None
    for error in (first, third):
        assert isinstance(error, ProcessError)
        assert "3 processes that work together" in str(error)


def _in_turn(error: type[Exception] | None) -> list[int]:
    def value(number: int) -> int:
        if error is not None and number == 4:
            raise error(f"number {number} of process {rank()}")
        return number**2

    return list(in_turn(value, 7))


def test_values_come_in_turn_and_an_error_comes_to_all(crew: Crew) -> None:
    assert crew.run(3, _in_turn, None) == [[number**2 for number in range(7)]] * 3
    for error, kind in ((ValueError, ValueError), (OSError, OSError), (KeyError, ProcessError)):
        found = crew.run(3, _in_turn, error)
        assert [type(each) for each in found] == [kind, error, kind]
        assert all("number 4 of process 1" in str(each) for each in found)


class _Broken:
    """Data of which process 1 cannot read some."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __len__(self) -> int:
        return 23

    def batch(self, index: Tensor, generator: torch.Generator) -> Tensor:
        if rank() == 1 and len(index) == 2 and int(index[0]) % 2:
            if self.how == "raises":
                raise OSError("a disk that is broken")
            return _data()[index] * torch.nan
        return _data()[index]


def _fails(how: str) -> None:
    trainer = Trainer(tiny_vae(), RlooELBO(2), _Broken(how), batch_size=5, seed=1)
    list(trainer.run(9))


def test_all_processes_stop_where_one_fails(crew: Crew) -> None:
    first, second = crew.run(2, _fails, "raises")
    assert isinstance(second, OSError)
    assert isinstance(first, ProcessError)
    assert "in process 1, OSError: a disk that is broken" in str(first)
    first, second = crew.run(2, _fails, "nan")
    assert isinstance(first, FloatingPointError)
    assert str(first) == str(second)
    assert "the data of process 1, at step" in str(first)


def _other_settings(name: str) -> None:
    options: dict[str, Any] = {"batch_size": 4, "seed": 3}
    data = _data(20 + rank()) if name == "data" else _data()
    if name != "data":
        options[name] = 1 + (name == "seed") * rank()
    Trainer(tiny_vae(), RlooELBO(2), data, **options)


def _keeping_codes() -> None:
    Trainer(tiny_vae(), ELBOS["jsa"](), _data())


def test_codes_are_not_kept_in_several_processes(crew: Crew) -> None:
    for error in crew.run(2, _keeping_codes):
        assert isinstance(error, ValueError)
        assert "keeps no codes, since there are 2 processes" in str(error)
        assert "got JsaELBO. Use WakeSleepELBO, or one process." in str(error)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("data", "the same number of training data in all 2 processes of the group; got 20, 21"),
        ("seed", "the same seed in all 2 processes of the group; got 1, 2"),
        ("batch_size", "one datum per process, of which there are 2; got batch_size=1"),
    ],
)
def test_processes_that_do_not_do_the_same_are_refused(crew: Crew, name: str, message: str) -> None:
    for error in crew.run(2, _other_settings, name):
        assert isinstance(error, ValueError)
        assert message in str(error)


def _seconds() -> int:
    """Steps that are taken where process 1 has a slow clock, which does not count."""
    ticks = iter(range(10_000))
    clock = (lambda: float(next(ticks))) if rank() == 0 else (lambda: 1e6 * next(ticks))
    trainer = Trainer(tiny_vae(), RlooELBO(2), _data(), batch_size=5, annealing=0)
    list(trainer.run(9, max_seconds=7.5, clock=clock))
    return trainer.epoch


def test_the_clock_of_process_0_ends_a_training_everywhere(crew: Crew) -> None:
    assert crew.run(2, _seconds) == [2, 2]
