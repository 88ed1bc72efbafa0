"""Tests of the lean step: torch's numbers, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from pyro_dvae.training.adam import FusedAdam

SIZES = [(5, 3), (3,), (), (4, 2)]
Weights = list[Tensor]


def make_weights(dtypes: list[torch.dtype]) -> Weights:
    torch.manual_seed(0)
    pairs = zip(SIZES, dtypes * len(SIZES), strict=False)
    return [nn.Parameter(torch.randn(size, dtype=dtype)) for size, dtype in pairs]


def set_gradients(weights: Weights, number: int) -> None:
    """Others at each step; the last weight has none before the third."""
    torch.manual_seed(number)
    for place, weight in enumerate(weights):
        missing = place == len(weights) - 1 and number < 2
        weight.grad = None if missing else torch.randn_like(weight) * 10.0 ** (-2 * number)


def flag(value: bool) -> Tensor:
    return torch.tensor(float(value), dtype=torch.float32)


def by_torch(weights: Weights, skipped: int | None) -> torch.optim.Adam:
    optimizer = torch.optim.Adam(weights, 0.01, fused=True)
    for number in range(5):
        set_gradients(weights, number)
        optimizer.found_inf = flag(number == skipped)  # type: ignore[attr-defined]
        optimizer.step()
    return optimizer


def leanly(weights: Weights, skipped: int | None) -> FusedAdam:
    optimizer = FusedAdam(weights, 0.01)
    for number in range(5):
        set_gradients(weights, number)
        optimizer.take_step(flag(number == skipped))
    return optimizer


@pytest.mark.parametrize("skipped", [None, 0, 3])
@pytest.mark.parametrize(
    "dtypes", [[torch.float32], [torch.float64], [torch.float32, torch.float64]]
)
def test_equals_torch(dtypes: list[torch.dtype], skipped: int | None) -> None:
    found, expected = make_weights(dtypes), make_weights(dtypes)
    states = [
        take(weights, skipped).state_dict()["state"]
        for take, weights in ((leanly, found), (by_torch, expected))
    ]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert states[0].keys() == states[1].keys()
    for index, state in states[1].items():
        assert state.keys() == states[0][index].keys()
        for name, value in state.items():
            assert torch.equal(states[0][index][name], value), (index, name)


@pytest.mark.parametrize("begin", [leanly, by_torch])
def test_continues_from_a_state(begin: Callable[..., torch.optim.Adam]) -> None:
    """Its own, or one that torch's has left."""
    weights = make_weights([torch.float32])
    state = begin(weights, None).state_dict()
    results = []
    for make in (
        lambda copies: FusedAdam(copies, 0.01),
        lambda copies: torch.optim.Adam(copies, 0.01, fused=True),
    ):
        copies: Weights = [nn.Parameter(weight.detach().clone()) for weight in weights]
        optimizer = make(copies)
        # As a checkpoint does, each tensor by itself; what is shared torch would count twice.
        each = {i: {k: v.clone() for k, v in own.items()} for i, own in state["state"].items()}
        optimizer.load_state_dict({**state, "state": each})
        set_gradients(copies, 7)
        if isinstance(optimizer, FusedAdam):
            optimizer.take_step(flag(False))
        else:
            optimizer.step()
        results.append(copies)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def shift(optimizer: torch.optim.Optimizer, *_: object) -> None:
    for group in optimizer.param_groups:
        for weight in group["params"]:
            if weight.grad is not None:
                weight.grad.sub_(1.0)


@pytest.mark.parametrize(
    "change",
    [
        lambda optimizer: optimizer.register_step_pre_hook(shift),
        lambda optimizer: optimizer.register_step_post_hook(
            lambda optimizer, *_: optimizer.param_groups[0].update(lr=0.5)
        ),
        lambda optimizer: register_optimizer_step_pre_hook(shift),
        *[
            lambda optimizer, name=name, value=value: optimizer.param_groups[0].update(
                {name: value}
            )
            for name, value in {"weight_decay": 0.1, "amsgrad": True, "maximize": True}.items()
        ],
    ],
)
def test_obeys_hooks_and_options(change: Callable[[torch.optim.Adam], Any]) -> None:
    results = []
    for make in (
        lambda weights: FusedAdam(weights, 0.01),
        lambda weights: torch.optim.Adam(weights, 0.01, fused=True),
        lambda weights: None,
    ):
        weights = make_weights([torch.float32])
        optimizer = make(weights)
        changed = None if optimizer is None else change(optimizer)
        optimizer = FusedAdam(weights, 0.01) if optimizer is None else optimizer
        for number in range(2):
            set_gradients(weights, number)
            if isinstance(optimizer, FusedAdam):
                optimizer.take_step(flag(False))
            else:
                optimizer.step()
        if changed is not None:
            changed.remove()
        results.append(weights)
    found, expected, unchanged = results
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(found, unchanged, strict=True))


@pytest.mark.parametrize("hook", [False, True])  # with one, torch takes the step
def test_the_learning_rate_has_a_factor(hook: bool) -> None:
    results = []
    for rate, factor in ((0.04, 0.25), (0.01, 1.0)):
        weights = make_weights([torch.float32])
        optimizer = FusedAdam(weights, rate)
        if hook:
            optimizer.register_step_pre_hook(lambda *_: None)
        optimizer.factor = factor
        set_gradients(weights, 0)
        optimizer.take_step(flag(False))
        results.append(weights)
        assert optimizer.param_groups[0]["lr"] == rate
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_gradients() -> None:
    weights = make_weights([torch.float32])
    optimizer = FusedAdam(weights, 0.01)
    set_gradients(weights, 0)
    assert [id(grad) for grad in optimizer.gradients] == [id(w.grad) for w in weights[:3]]
    optimizer.forget_gradients()
    assert optimizer.gradients == []
    before = [weight.clone() for weight in weights]
    optimizer.take_step(flag(False))
    assert all(torch.equal(a, b) for a, b in zip(weights, before, strict=True))
