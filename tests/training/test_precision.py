"""Tests of training in bfloat16."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from zoo import make_vae, tiny_data

from pyro_dvae import EnumeratedELBO, ReinforceELBO, RlooELBO, Trainer, evaluate
from pyro_dvae.training.compiled import CompiledBackward, torch_compiles


@pytest.fixture(autouse=True)
def single() -> None:
    """float32: torch's autocast leaves float64 alone."""
    torch.set_default_dtype(torch.float32)


def test_rounds_and_no_more() -> None:
    """The exact gradient, as no draw may flip; each layer rounds inputs, weights and output.

    Of relative 2^-8 each, in both passes: with two layers on either side 2 x 4 x 3 roundings.
    """
    gradients = []
    for flag in (False, True):
        torch.manual_seed(1)
        vae = make_vae()
        trainer = Trainer(vae, EnumeratedELBO(), tiny_data(8), batch_size=8, bfloat16=flag)
        list(trainer.run(1))
        assert all(weight.dtype == torch.float32 for weight in vae.parameters())
        gradients.append(torch.cat([weight.grad.flatten() for weight in vae.parameters()]))
    exact, rounded = gradients
    error = (exact - rounded).norm() / exact.norm()
    assert 2**-14 < error < 24 * 2**-8  # else no network was in bfloat16


def test_is_of_training_steps_alone() -> None:
    x, types = tiny_data(8), []
    vae = make_vae()

    class Seeing(ReinforceELBO):
        def surrogate(self, terms: Any) -> Tensor:
            types.append(terms.log_likelihood.dtype)
            return super().surrogate(terms)

    trainer = Trainer(vae, Seeing(), x, x, batch_size=4, averaging=0.0, bfloat16=True)
    (record,) = trainer.run(1)
    assert record.validation_elbo == evaluate(vae, x).elbo
    assert set(types) == {torch.float32}
    assert not {"forward"} & {*vars(vae.encoder), *vars(vae.decoder)}


@pytest.mark.skipif(not torch_compiles(), reason="this torch is too old")
def test_goes_with_a_compiled_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one graph, the epochs after the first included."""
    monkeypatch.setattr(CompiledBackward, "backend", "aot_eager")
    torch._dynamo.reset()  # type: ignore[no-untyped-call, unused-ignore]
    torch._dynamo.utils.counters.clear()
    found = []
    for flag in (False, True):
        torch.manual_seed(1)
        vae = make_vae()
        options: dict[str, Any] = {"batch_size": 4, "compiled": flag, "bfloat16": True}
        list(Trainer(vae, RlooELBO(2), tiny_data(8), **options).run(10))
        found.append(torch.cat([weight.flatten() for weight in vae.parameters()]))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    torch._dynamo.reset()  # type: ignore[no-untyped-call, unused-ignore]
    torch.testing.assert_close(*found)
