"""Tests of the captured step: without a card by operations recorded and replayed on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from conftest import NO_CUDA
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from zoo import ELBOS, make_vae, tiny_data

from pyro_dvae import (
    BinaryImages,
    ContinuousBernoulli,
    RlooELBO,
    SnapshotELBO,
    Trainer,
)
from pyro_dvae.data import BlockData
from pyro_dvae.process import without_checks
from pyro_dvae.training import backward, graphs, steps
from pyro_dvae.training.compiled import torch_compiles

BATCH_SIZE = 4
NUM_DATA = 22  # five full batches, so that some are replayed in the first epoch, and a short one
NAMES = ["reinforce", "reinforce, running mean", "rloo", "reinmax"]
PRIORS = ["uniform", "learned"]
ANNEALED = {"annealing": 2, "initial_beta": 3.0}


class Recording(TorchDispatchMode):
    """The operations of a function, to be done again on the same memory, as a CUDA graph does.

    To record does nothing: what the function changed, it changed for the recording alone.
    """

    def __init__(self, function: Callable[[], Any], generators: Sequence[torch.Generator]) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self._before: dict[int, tuple[Tensor, Tensor]] = {}
        states = [generator.get_state() for generator in generators]
        with torch.random.fork_rng(devices=[]), self:
            self.result = function()
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        with torch.no_grad():
            for tensor, value in self._before.values():
                tensor.copy_(value)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            for tensor in _tensors((args, kwargs)):
                self._before.setdefault(id(tensor), (tensor, tensor.clone()))
        result = func(*args, **kwargs)
        old = {tensor.untyped_storage()._cdata for tensor in _tensors((args, kwargs))}
        new = [out for out in _tensors(result) if out.untyped_storage()._cdata not in old]
        self.calls.append((func, args, kwargs, new))
        return result

    @torch.no_grad()
    def __call__(self) -> Any:
        for func, args, kwargs, outputs in self.calls:
            old = {tensor.untyped_storage()._cdata for tensor in _tensors((args, kwargs))}
            results = _tensors(func(*args, **kwargs))
            results = [out for out in results if out.untyped_storage()._cdata not in old]
            for kept, value in zip(outputs, results, strict=True):
                kept.copy_(value)
        return self.result


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Captures on the CPU; what was done to the batches, in order."""
    said: list[str] = []

    @contextmanager
    def aside(device: torch.device) -> Iterator[None]:
        said.append("warm up")
        yield

    def record(
        function: Callable[[], Any], generators: Sequence[torch.Generator], device: torch.device
    ) -> Callable[[], Any]:
        said.append("record")
        recording = Recording(function, generators)

        def replay() -> Any:
            said.append("replay")
            return recording()

        return replay

    monkeypatch.setattr(graphs, "aside", aside)
    monkeypatch.setattr(graphs, "record", record)
    monkeypatch.setattr(steps, "check_capture", lambda *_: None)
    monkeypatch.setattr(Trainer, "check_every", 100)
    return said


class Doubles:
    """Binary images, redrawn at each batch, in the default precision."""

    def __init__(self, device: str = "cpu") -> None:
        pixels = torch.randint(256, (NUM_DATA, 4), generator=torch.Generator().manual_seed(1))
        self.images = BinaryImages(pixels.to(torch.uint8)).to(device)

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, index: Tensor, generator: torch.Generator) -> Tensor:
        x = self.images.batch(index, generator)
        assert isinstance(x, Tensor)
        return x.to(torch.get_default_dtype())


def make_trainer(
    name: str = "rloo", prior: str = "uniform", device: str = "cpu", **options: Any
) -> Trainer:
    torch.manual_seed(1)
    vae = make_vae(prior).to(device)
    options = {"batch_size": BATCH_SIZE, "averaging": 0.9, "learning_rate": 0.01, **options}
    return Trainer(vae, ELBOS[name](), Doubles(device), tiny_data(7).to(device), **options)


def state(trainer: Trainer) -> dict[str, Tensor]:
    return trainer.state_dict().tensors


def assert_same(found: Trainer, expected: Trainer) -> None:
    there = state(found)
    for name, value in state(expected).items():
        assert torch.equal(there[name], value), name


@pytest.mark.parametrize("options", [{}, ANNEALED, {"bfloat16": True}, {"averaging": 0.0}])
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("name", NAMES)
def test_trains_alike_bit_for_bit(
    name: str, prior: str, options: dict[str, Any], log: list[str]
) -> None:
    """Weights, averages, Adam's and the ELBO's state, random streams, and what was recorded."""
    torch.set_default_dtype(torch.float32)  # else there is nothing to round to bfloat16
    eager, captured = (make_trainer(name, prior, capture=flag, **options) for flag in (False, True))
    expected, found = ([*trained.run(3)] for trained in (eager, captured))
    for left, right in zip(found, expected, strict=True):
        assert left.train_elbo == right.train_elbo
        assert left.validation_elbo == right.validation_elbo
    assert_same(captured, eager)
    assert log == 3 * ["warm up"] + ["record"] + 12 * ["replay"]
    assert not options.get("annealing") or isinstance(captured.elbo.beta, float)


def test_is_recorded_again_after_a_load(log: list[str]) -> None:
    """For Adam's state then lies elsewhere."""
    whole, first, second = (make_trainer(capture=True, **ANNEALED) for _ in range(3))
    list(whole.run(4))
    list(first.run(2))
    list(second.run(1))
    log.clear()
    second.load_state_dict(first.state_dict())
    list(second.run(4))
    assert log == 3 * ["warm up"] + ["record"] + 7 * ["replay"]
    assert_same(second, whole)


def test_is_recorded_again_where_a_part_was_changed(log: list[str]) -> None:
    """Here from the traces, which no card would record."""
    trained = make_trainer(capture=True)
    list(trained.run(1))
    trained.vae.likelihood = ContinuousBernoulli()
    log.clear()
    list(trained.run(2))
    assert log == 3 * ["warm up"] + ["record"] + 2 * ["replay"]


def test_stays_where_it_is(log: list[str]) -> None:
    trainer = make_trainer("reinforce, running mean", "learned", **ANNEALED)

    def places() -> list[int]:
        adam = [value for state in trainer.optimizer.state.values() for value in state.values()]
        kept = [trainer.total, trainer._bad, trainer._num_good]
        average = [*trainer.average.average.values()]
        held = [*trainer.vae.state_dict().values(), *trainer.elbo.state_dict().values()]
        return [tensor.data_ptr() for tensor in (*adam, *kept, *average, *held)]

    list(trainer.run(1))
    before = places()
    list(trainer.run(3))
    assert places() == before


class NoReads(TorchDispatchMode):
    """Refuses to bring a number to the host, and to mix devices."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any | None = None
    ) -> Any:
        name = func._schema.name
        reads = ("_local_scalar_dense", "nonzero", "is_nonzero", "item", "equal", "masked_select")
        assert name.removeprefix("aten::") not in reads, name
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("name", NAMES)
def test_reads_nothing(name: str, prior: str, log: list[str]) -> None:
    trainer = make_trainer(name, prior, capture=True, **ANNEALED)
    taken = []

    def advance(index: Tensor) -> tuple[Tensor, ...]:
        with NoReads():
            taken.append(len(index))
            return trainer._advance(index)

    trainer._on_device = advance
    list(trainer.run(1))
    assert taken == [4, 4, 4, 4, 4, 2]


@pytest.mark.skipif(not torch_compiles(), reason="this torch's fused Adam refuses such tensors")
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("name", NAMES)
def test_has_no_part_on_the_host(
    name: str, prior: str, log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By tensors without numbers: those on the host would be told from them, and none is read."""
    seen = set()

    class OnDevice(NoReads):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any | None = None
        ) -> Any:
            result = super().__torch_dispatch__(func, types, args, kwargs)
            seen.update(tensor.device.type for tensor in _tensors((args, kwargs, result)))
            assert seen == {"meta"}, func
            return result

    vae = make_vae(prior).to("meta")
    options: dict[str, Any] = {"averaging": 0.9, "capture": True, **ANNEALED}
    monkeypatch.setattr(steps, "check_data", lambda *_: None)
    monkeypatch.setattr(steps, "show_likelihood", lambda *_: None)
    monkeypatch.setattr(Trainer, "restart_streams", lambda trainer: None)
    monkeypatch.setattr(Trainer, "noise", torch.Generator(), raising=False)
    monkeypatch.setattr(backward, "needs_no_traces", lambda *_: True)
    monkeypatch.setattr(steps, "needs_no_traces", lambda *_: True)
    data = torch.zeros(NUM_DATA, 4, device="meta")
    trainer = Trainer(vae, ELBOS[name](), data, batch_size=4, **options)
    trainer.elbo.beta = trainer._beta
    for _ in range(2):
        trainer.average.prepare()
        with OnDevice(), without_checks():
            trainer._advance(torch.zeros(4, dtype=torch.int64, device="meta"))
    assert seen == {"meta"}


def test_refuses_what_cannot_be_recorded() -> None:
    vae, data = make_vae(), torch.zeros(4, 4)
    with pytest.raises(ValueError, match=r"Expected a CUDA device .* got cpu\. .* capture=False\."):
        Trainer(vae, RlooELBO(2), data, capture=True)
    cuda = torch.device("cuda")
    with pytest.raises(ValueError, match="Expected a model and an ELBO whose step needs no traces"):
        graphs.check_capture(cuda, data, RlooELBO(), False, {})
    with pytest.raises(ValueError, match="RlooELBO or ReinMaxELBO"):
        graphs.check_capture(cuda, data, SnapshotELBO(), True, {})
    for name in ("warmup", "cooldown", "reinmax_steps"):
        with pytest.raises(ValueError, match=rf"{name}=0 to capture the step.*got 2"):
            graphs.check_capture(cuda, data, RlooELBO(), True, {"epochs": 0, name: 2})
    blocks = object.__new__(BlockData)
    with pytest.raises(ValueError, match=r"Expected data on the device .* got BlockData"):
        graphs.check_capture(cuda, blocks, RlooELBO(), True, {})
    graphs.check_capture(cuda, Doubles(), RlooELBO(), True, {"warmup": 0})


def test_says_what_could_not_be_recorded(log: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def record(*_: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing\nmore of it")

    monkeypatch.setattr(graphs, "record", record)
    trainer = make_trainer(capture=True)
    why = r"got 'operation not permitted when stream is capturing'\. Use capture=False\."
    with pytest.raises(graphs.CaptureError, match=why):
        list(trainer.run(1))


def test_names_a_bad_step_among_replays(log: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the batch that the graph holds, also where a short one was taken in between."""
    trainer = make_trainer(capture=True)
    list(trainer.run(1))
    with torch.no_grad():
        next(trainer.vae.decoder.parameters()).fill_(torch.nan)
    monkeypatch.setattr(trainer, "check_every", 2)
    with pytest.raises(FloatingPointError, match=r"in the reconstruction term, .* at step 1 of 6"):
        list(trainer.run(2))


@NO_CUDA
@pytest.mark.parametrize("options", [{}, ANNEALED, {"compiled": True}])
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("name", NAMES)
def test_trains_alike_on_a_card(name: str, prior: str, options: dict[str, Any]) -> None:
    """Over 12 steps, two of them short."""
    eager, captured = (
        make_trainer(name, prior, "cuda", capture=flag, **options) for flag in (False, True)
    )
    for trained in (eager, captured):
        list(trained.run(2))
    assert captured._on_device._replay is not None  # type: ignore[attr-defined]
    there = state(captured)
    for key, value in state(eager).items():
        torch.testing.assert_close(there[key], value, rtol=1e-9, atol=1e-9, msg=key)


@NO_CUDA
def test_continues_on_a_card() -> None:
    whole, first, second = (make_trainer(device="cuda", capture=True, **ANNEALED) for _ in range(3))
    list(whole.run(4))
    list(first.run(2))
    second.load_state_dict(first.state_dict())
    list(second.run(4))
    there = state(second)
    for key, value in state(whole).items():
        torch.testing.assert_close(there[key], value, rtol=1e-9, atol=1e-9, msg=key)
