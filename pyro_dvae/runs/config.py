"""The settings of a run, and how they become a model and an ELBO."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, get_type_hints

from pyro.infer import ELBO

from pyro_dvae.checks import at_least, code_shape, hidden_sizes, one_of, training_settings
from pyro_dvae.codes import MAX_CODES, describe_codes, num_codes
from pyro_dvae.data.serve.prepare import POLICIES, Preparation, check_range
from pyro_dvae.guides import GUIDES
from pyro_dvae.likelihoods.names import is_own
from pyro_dvae.networks import ENCODERS
from pyro_dvae.priors import PRIORS
from pyro_dvae.runs.estimators import ESTIMATORS, TEMPERED, Shape, baseline_of
from pyro_dvae.runs.fields import check_fields
from pyro_dvae.runs.parts import (
    build_guide,
    build_likelihood,
    build_networks,
    build_prior,
    check_likelihood,
    check_name,
)
from pyro_dvae.vae import DiscreteVAE

__all__ = [
    "ESTIMATORS",
    "TEMPERED",
    "Config",
    "build_elbo",
    "build_likelihood",
    "build_prior",
    "build_vae",
    "preparation_of",
]


_LONGEST = 2**20
"""Characters of a setting: as many columns of a table, each of its own kind, as can be built."""


@dataclass(frozen=True)
class Config:
    """Everything that decides a run; `config.json` holds it.

    Raises:
        ValueError: a setting of another type, or out of its range; the message says what was
            expected.
    """

    binarize: str = "dynamic"
    """One of `data.POLICIES`; "none" for data that are zeros and ones."""
    range: tuple[float, float] | None = None
    """The stored values that stand for 0 and 1; None for uint8 values of 255."""
    num_latents: int = 4
    num_categories: int = 8
    prior: str = "uniform"
    """One of `priors.PRIORS`, or with an argument, "mixture:20" say; so the next three."""
    likelihood: str = "bernoulli"
    """Or "module:factory" of a likelihood of the user's own."""
    guide: str = "mean-field"
    network: str = "mlp"
    encoder: str | None = None
    """"module:factory" of an encoder of the user's own, in place of the network's."""
    decoder: str | None = None
    num_classes: int = 0
    """Of the labels; 0 where the model knows none."""
    hidden: tuple[int, ...] = (512, 256)
    """Widths of the MLP encoder's hidden layers; the decoder's are the same, reversed."""
    estimator: str = "rloo"
    num_particles: int = 4
    baseline: str = "running_mean"
    """Of `reinforce`: "none", "running_mean", or a number of nats."""
    temperature: float | None = None
    """Of the relaxations; None for the estimator's own default."""
    beta: float = 1.0
    """Weight of the KL term in the gradient; no reported number knows it."""
    annealing: int | None = None
    """Epochs in which beta falls from `initial_beta`; None for 10, or 0 where there is no beta."""
    initial_beta: float = 4.0
    free_bits: float = 0.0
    """Nats a latent may carry for nothing; no reported number knows it."""
    epochs: int = 50
    batch_size: int = 100
    learning_rate: float = 1e-3
    averaging: float = 0.999
    """Decay of the average of the weights that is validated and kept."""
    validation: float | str = 0.05
    """Kept for the validation ELBO: a fraction or number of the training data, or a file."""
    test: float | str | None = None
    """Kept for testing, likewise; None for the data's own test part."""
    patience: int | None = 10
    """None where nothing is kept for validation."""
    compile: bool = False
    """Whether the training step is one compiled graph: see `Trainer`."""
    bfloat16: bool = False
    """Whether the networks compute in bfloat16 in training steps."""
    seed: int = 0

    def __post_init__(self) -> None:
        self._check_types()
        one_of("estimator", self.estimator, ESTIMATORS)
        check_name("prior", self.prior, PRIORS)
        check_likelihood(self.likelihood)
        check_name("guide", self.guide, GUIDES)
        check_name("network", self.network, ENCODERS)
        at_least("classes", self.num_classes, 0)
        if self.range is not None:
            object.__setattr__(self, "range", tuple(self.range))  # JSON has lists
        one_of("binarisation", self.binarize, POLICIES)
        if self.range is not None:
            check_range(self.range)
        if not is_own(self.likelihood):  # whose kind is not known before its code is imported
            preparation = Preparation(self.binarize, self.range, self.likelihood)
            object.__setattr__(self, "binarize", preparation.binarize)
        code_shape(self.num_latents, self.num_categories)
        at_least("particles", self.num_particles, ESTIMATORS[self.estimator].least_particles)
        at_least("seed", self.seed, 0)
        at_least("epochs", self.epochs, 0)
        _held_out("validation", self.validation)
        _held_out("test", 0 if self.test is None else self.test)
        if not self.validation:
            object.__setattr__(self, "patience", None)
        if self.patience is not None:
            at_least("patience", self.patience, 1)
        has_beta = ESTIMATORS[self.estimator].has_beta
        if self.annealing is None:
            object.__setattr__(self, "annealing", 10 if has_beta else 0)
        training_settings(
            self.batch_size,
            self.learning_rate,
            self.averaging,
            self.annealing or 0,
            self.initial_beta,
        )
        hidden_sizes(self.hidden)  # whose number is bounded, for each is built
        object.__setattr__(self, "hidden", tuple(self.hidden))  # JSON has lists
        for name, value in (("beta", self.beta), ("free bits", self.free_bits)):
            if not 0 <= value < math.inf:
                raise ValueError(f"Expected finite {name} >= 0; got {value}. Change it.")
        if not has_beta and (self.beta, self.free_bits, self.annealing) != (1, 0, 0):
            raise ValueError(
                f"Expected beta 1, free bits 0 and annealing 0 for the {self.estimator} "
                f"estimator; got {self.beta}, {self.free_bits} and {self.annealing}. Choose "
                "another estimator, rloo say."
            )
        total = num_codes(self.num_latents, self.num_categories)
        if self.estimator in ("exact", "marginal") and total > MAX_CODES:
            raise ValueError(
                f"Expected at most {MAX_CODES} codes for the {self.estimator} estimator; got K^D = "
                f"{describe_codes(self.num_latents, self.num_categories)}. Use rloo, or fewer "
                "latents or categories."
            )
        baseline_of(self.baseline)
        if self.temperature is not None:
            if self.estimator not in TEMPERED:
                raise ValueError(
                    f"Expected no temperature for the {self.estimator} estimator; got "
                    f"{self.temperature}. Leave it out, or choose one of "
                    f"{', '.join(sorted(TEMPERED))}."
                )
            if not 0 < self.temperature < math.inf:
                raise ValueError(
                    f"Expected a positive, finite temperature; got {self.temperature}. Use 1, say."
                )

    def _check_types(self) -> None:
        check_fields(vars(self), _types())
        for name, value in vars(self).items():
            if isinstance(value, str) and len(value) > _LONGEST:
                raise ValueError(
                    f"Expected {name} of at most {_LONGEST:,} characters; got {len(value):,}. "
                    "Shorten it."
                )

    @property
    def training(self) -> dict[str, Any]:
        """What `Trainer` and `fit` take of these settings, by name."""
        names = ("batch_size", "learning_rate", "averaging", "initial_beta", "seed", "bfloat16")
        options = {name: getattr(self, name) for name in names}
        return options | {"annealing": self.annealing or 0, "compiled": self.compile}


@cache
def _types() -> dict[str, Any]:
    return get_type_hints(Config)


def build_vae(config: Config, event_shape: Sequence[int]) -> DiscreteVAE:
    """The untrained model; its initial weights come from torch's global generator."""
    shape = tuple(event_shape)
    likelihood = build_likelihood(config, shape)
    guide = build_guide(config)
    num_outputs = guide.num_outputs or config.num_categories
    networks = build_networks(config, shape, num_outputs, likelihood.num_params)
    return DiscreteVAE(*networks, build_prior(config, shape), likelihood, guide)


def preparation_of(config: Config, event_shape: Sequence[int]) -> Preparation:
    """How stored values become those of the config's likelihood.

    Raises:
        ValueError: a likelihood of the user's own cannot be built, or takes no bits to binarise.
    """
    named = not is_own(config.likelihood)
    likelihood = config.likelihood if named else build_likelihood(config, event_shape)
    return Preparation(config.binarize, config.range, likelihood)


def build_elbo(config: Config, event_shape: Shape) -> ELBO:
    """The ELBO that the config's estimator names."""
    return ESTIMATORS[config.estimator].build(config, event_shape)


def _held_out(part: str, amount: float | str) -> None:
    if isinstance(amount, str) or 0 < amount < 1 or (isinstance(amount, int) and amount >= 0):
        return
    raise ValueError(
        f"Expected a {part} fraction between 0 and 1, a number of rows, or a file; got {amount}. "
        "Use 0.05, say."
    )
