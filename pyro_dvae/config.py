"""The settings of a run, and how they become a model and an ELBO."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pyro.infer import ELBO, Trace_ELBO

from pyro_dvae.checks import at_least, code_shape, one_of, training_settings
from pyro_dvae.codes import MAX_CODES, describe_codes, num_codes
from pyro_dvae.data import BINARIZATIONS
from pyro_dvae.elbos.exact import EnumeratedELBO
from pyro_dvae.elbos.score_function import ReinforceELBO, RlooELBO
from pyro_dvae.likelihoods import Bernoulli
from pyro_dvae.networks import MLPDecoder, MLPEncoder
from pyro_dvae.priors import UniformPrior
from pyro_dvae.vae import DiscreteVAE

# One plate, known beforehand, spares Pyro's trial run.
ESTIMATORS: dict[str, Callable[[Config], ELBO]] = {
    "trace": lambda c: Trace_ELBO(c.num_particles, 1, vectorize_particles=True),
    "reinforce": lambda c: ReinforceELBO(
        c.num_particles, baseline=_baseline(c.baseline), max_plate_nesting=1
    ),
    "rloo": lambda c: RlooELBO(c.num_particles, max_plate_nesting=1),
    "exact": lambda c: EnumeratedELBO(max_plate_nesting=1),
}
"""Estimator name -> the ELBO of a config."""


@dataclass(frozen=True)
class Config:
    """Everything that decides a run; `config.json` holds it.

    Raises:
        ValueError: a setting out of its range; the message says what was expected.
    """

    binarize: str = "dynamic"
    num_latents: int = 4
    num_categories: int = 8
    estimator: str = "rloo"
    num_particles: int = 4
    baseline: str = "running_mean"
    """Of `reinforce`: "none", "running_mean", or a number of nats."""
    epochs: int = 50
    batch_size: int = 100
    learning_rate: float = 1e-3
    averaging: float = 0.999
    """Decay of the average of the weights that is validated and kept."""
    validation: float = 0.05
    """Fraction of the training data kept for the validation ELBO."""
    patience: int | None = 10
    seed: int = 0

    def __post_init__(self) -> None:
        one_of("estimator", self.estimator, ESTIMATORS)
        one_of("binarisation", self.binarize, BINARIZATIONS)
        code_shape(self.num_latents, self.num_categories)
        at_least("particles", self.num_particles, 2 if self.estimator == "rloo" else 1)
        at_least("seed", self.seed, 0)
        training_settings(
            self.epochs, self.batch_size, self.learning_rate, self.averaging, self.patience
        )
        if not 0 < self.validation < 1:
            raise ValueError(
                f"Expected a validation fraction between 0 and 1; got {self.validation}. "
                "Use 0.05, say."
            )
        total = num_codes(self.num_latents, self.num_categories)
        if self.estimator == "exact" and total > MAX_CODES:
            raise ValueError(
                f"Expected at most {MAX_CODES} codes for the exact estimator; got K^D = "
                f"{describe_codes(self.num_latents, self.num_categories)}. Use rloo, or fewer "
                "latents or categories."
            )
        _baseline(self.baseline)


def build_vae(config: Config, event_shape: Sequence[int]) -> DiscreteVAE:
    """The untrained model; its initial weights come from torch's global generator."""
    code = (config.num_latents, config.num_categories)
    return DiscreteVAE(
        MLPEncoder(event_shape, *code),
        MLPDecoder(event_shape, *code),
        UniformPrior(*code),
        Bernoulli(),
    )


def build_elbo(config: Config) -> ELBO:
    """The ELBO that the config's estimator names."""
    return ESTIMATORS[config.estimator](config)


def _baseline(text: str) -> Any:
    if text in ("none", "running_mean"):
        return None if text == "none" else text
    with suppress(ValueError):
        if math.isfinite(float(text)):
            return float(text)
    raise ValueError(
        f"Expected none, running_mean or a finite number as baseline; got {text!r}. Choose one."
    )
