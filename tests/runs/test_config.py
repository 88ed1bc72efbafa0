from __future__ import annotations

import inspect
from typing import Any

import pytest
from pyro.infer import ELBO

from pyro_dvae import Config, Trainer, build_elbo, build_vae
from pyro_dvae.runs.config import ESTIMATORS


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_builds_and_runs(name: str) -> None:
    from zoo import tiny_data

    config = Config(estimator=name, num_latents=2, num_categories=3, num_particles=2)
    vae, elbo = build_vae(config, (4,)), build_elbo(config, (4,))
    assert isinstance(elbo, ELBO)
    assert elbo.loss(vae.model, vae.guide, tiny_data(3)) > 0


@pytest.mark.parametrize(("text", "value"), [("none", None), ("-125", -125.0)])
def test_baselines(text: str, value: float | None) -> None:
    assert build_elbo(Config(estimator="reinforce", baseline=text), (4,)).baseline == value


def test_the_decoder_is_differentiated_at_as_many_draws_as_named() -> None:
    elbos = [build_elbo(Config(decoder_particles=number), (4,)) for number in (None, 1)]
    assert [elbo.decoder_particles for elbo in elbos] == [None, 1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"estimator": "sgd"}, r"estimator to be one of trace, reinforce, .*marginal; got 'sgd'"),
        ({"binarize": "maybe"}, "binarisation to be one of dynamic, static, threshold"),
        ({"num_latents": 0}, "latents of at least 1"),
        ({"num_categories": 1}, "categories of at least 2"),
        ({"num_particles": 1}, "particles of at least 2; got 1"),
        ({"estimator": "trace", "num_particles": 0}, "particles of at least 1"),
        (
            {"decoder_particles": 0},
            "at 1 to 4 draws, the number of particles; got decoder_particles=0",
        ),
        ({"num_particles": 2, "decoder_particles": 3}, "differentiated at 1 to 2 draws"),
        (
            {"estimator": "vimco", "decoder_particles": 1},
            "the vimco estimator to differentiate the decoder at all",
        ),
        ({"epochs": -1}, "epochs of at least 0"),
        ({"batch_size": 0}, "batch size of at least 1"),
        ({"learning_rate": float("nan")}, "finite learning rate; got nan"),
        ({"patience": 0}, "patience of at least 1"),
        ({"seed": -1}, "seed of at least 0"),
        ({"averaging": -0.1}, r"averaging in \[0, 1\)"),
        ({"annealing": -1}, "epochs of annealing of at least 0; got -1"),
        ({"initial_beta": float("inf")}, "finite initial beta"),
        ({"warmup": -1}, "epochs of warm-up of at least 0; got -1"),
        ({"cooldown": -1}, "epochs of cool-down of at least 0; got -1"),
        ({"reinmax_steps": -1}, "steps by ReinMax of at least 0; got -1"),
        ({"estimator": "marginal", "reinmax_steps": 1}, "reinmax_steps=0 for the marginal"),
        ({"beta": -1.0}, "finite beta >= 0"),
        ({"hidden": (5, 0)}, "hidden units of at least 1"),
        ({"estimator": "trace", "num_particles": 1, "annealing": 5}, "annealing 0 for the trace"),
        ({"estimator": "marginal", "beta": 2.0}, "beta 1, .* for the marginal"),
        ({"validation": 1.0}, "validation fraction between 0 and 1"),
        ({"baseline": "mean"}, "none, running_mean or a finite number"),
        ({"baseline": "nan"}, "finite"),
        ({"estimator": "exact", "num_latents": 9}, r"exact estimator; got K\^D = 8\^9"),
    ],
)
def test_settings_out_of_range(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        Config(**settings)
    assert "\n" not in str(error.value)


def test_a_trainer_takes_the_settings() -> None:
    """Every one of its options but the capture, which the command line does not offer."""
    parameters = inspect.signature(Trainer).parameters.values()
    options = {option.name for option in parameters if option.kind is option.KEYWORD_ONLY}
    config = Config(estimator="trace", compile=True)
    assert set(config.training) == options - {"capture"}
    assert config.training["compiled"]
    assert config.training["annealing"] == 0
