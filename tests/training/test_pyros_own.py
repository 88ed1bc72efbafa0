"""Pyro's own ELBOs under the trainer: the gradient is SVI's, or a line says what cannot work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pytest
import torch
from pyro.infer import (
    SVI,
    EnergyDistance,
    RenyiELBO,
    ReweightedWakeSleep,
    Trace_ELBO,
    TraceGraph_ELBO,
    TraceMeanField_ELBO,
    TraceTailAdaptive_ELBO,
)
from zoo import PLAIN, tiny_data, tiny_vae

from pyro_dvae import Trainer

VECTORIZED: dict[str, Any] = {"vectorize_particles": True, "max_plate_nesting": 1}
OWN: dict[str, Callable[[], Any]] = {
    "Trace_ELBO": lambda: Trace_ELBO(2, **VECTORIZED),
    "RenyiELBO": lambda: RenyiELBO(0.5, num_particles=3, **VECTORIZED),
    "RenyiELBO, particles one by one": lambda: RenyiELBO(num_particles=2),
    "ReweightedWakeSleep": lambda: ReweightedWakeSleep(3, **VECTORIZED),
    "TraceGraph_ELBO": lambda: TraceGraph_ELBO(2, **VECTORIZED),
}
EXACT = {"rtol": 1e-10, "atol": 1e-12}


@pytest.mark.parametrize("name", OWN)
def test_the_gradient_is_svis(name: str) -> None:
    """Of the mean loss per datum, so divided by the number of data of the batch."""
    vae, twin, x = tiny_vae(), tiny_vae(), tiny_data(4)
    twin.load_state_dict(vae.state_dict())
    trainer = Trainer(vae, OWN[name](), x, batch_size=4, seed=3, **PLAIN)
    (record,) = trainer.run(1)
    found = torch.cat([weight.grad.flatten() for weight in vae.parameters()])
    before = torch.nn.utils.parameters_to_vector(twin.parameters()).detach()
    order = torch.randperm(4, generator=torch.Generator().manual_seed(3))
    pyro.set_rng_seed(3 + 2)
    svi = SVI(twin.model, twin.guide, pyro.optim.SGD({"lr": 1.0}), loss=OWN[name]())
    loss = svi.step(x[order])
    after = torch.nn.utils.parameters_to_vector(twin.parameters()).detach()
    torch.testing.assert_close(found, (before - after) / 4, **EXACT)
    assert found.abs().max() > 0
    value = float(loss[0] if isinstance(loss, tuple) else loss)
    assert record.train_elbo == pytest.approx(-value / 4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["RenyiELBO", "TraceGraph_ELBO"])
def test_two_and_two_epochs_are_four(name: str) -> None:
    whole, first, second = (
        Trainer(tiny_vae(), OWN[name](), tiny_data(7), batch_size=3) for _ in range(3)
    )
    for trainer in (first, second):
        trainer.vae.load_state_dict(whole.vae.state_dict())
        trainer.data = whole.data
    start = whole.state_dict()
    list(whole.run(4))
    first.load_state_dict(start)
    list(first.run(2))
    second.load_state_dict(first.state_dict())
    list(second.run(4))
    for ours, theirs in zip(whole.vae.parameters(), second.vae.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TraceMeanField_ELBO(), "discrete draws; got TraceMeanField_ELBO, whose error is"),
        (lambda: TraceTailAdaptive_ELBO(2, **VECTORIZED), "got TraceTailAdaptive_ELBO, whose"),
        (lambda: EnergyDistance(num_particles=2), "got EnergyDistance, whose error is"),
        (
            lambda: ReweightedWakeSleep(2, insomnia=0.5, **VECTORIZED),
            "without a sleep phase.*got ReweightedWakeSleep. Use insomnia=1.0, or WakeSleepELBO",
        ),
    ],
)
def test_what_cannot_work_is_refused_by_name(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Trainer(tiny_vae(), make(), tiny_data(4))
