"""`fit` in Python does what `pdvae fit` does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pyro_dvae import (
    BinaryImages,
    ReinMaxELBO,
    RlooELBO,
    SnapshotELBO,
    build_vae,
    fit,
    load_images,
    load_run,
)
from pyro_dvae.streams import RandomStream


def grid_elbo() -> RlooELBO:
    return RlooELBO(2, decoder_particles=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "estimator"),
    [
        ("kept apart by fit", "snapshot"),
        ("given", "snapshot"),
        ("given", "reinmax"),
        ("given", "grid"),
    ],
)
def test_fit_is_the_command(
    where: str, estimator: str, pdvae: Callable[..., tuple[int, str, str]]
) -> None:
    """The same weights, bit for bit, from the same seed, the defaults of both left alone."""
    options = ["--epochs=2", "--seed=3", "--batch-size=500"]
    if estimator == "grid":
        options += ["--network=conv-grid", "--latents=49"]
    else:
        options += ["--hidden=8", "--latents=2", f"--estimator={estimator}"]
    assert pdvae("fit", "run", "--data=mnist-sample", *options)[0] == 0
    run = load_run("run")
    with RandomStream(3):
        vae = build_vae(run.config, (28, 28))
    splits = run.data.splits()
    elbos = {"snapshot": SnapshotELBO, "reinmax": ReinMaxELBO, "grid": grid_elbo}
    elbo = elbos[estimator]()
    if where == "kept apart by fit":
        data = BinaryImages(load_images("mnist-sample").train)
        records = list(fit(vae, elbo, data, epochs=2, seed=3, batch_size=500))
    else:
        data, kept = splits.train, splits.validation
        records = list(fit(vae, elbo, data, kept, epochs=2, seed=3, batch_size=500))
    assert [r.validation_elbo for r in records] == [r.validation_elbo for r in run.metrics]
    for name, weight in vae.state_dict().items():
        assert torch.equal(weight, run.vae.state_dict()[name]), name
