"""The settings of a run, and how they become a model and an ELBO."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyro.infer import ELBO, Trace_ELBO

from pyro_dvae.checks import at_least, code_shape, hidden_sizes, one_of, training_settings
from pyro_dvae.codes import MAX_CODES, describe_codes, num_codes
from pyro_dvae.data.prepare import Preparation
from pyro_dvae.elbos.control_variate import RelaxELBO
from pyro_dvae.elbos.coupled import DisarmELBO
from pyro_dvae.elbos.exact import EnumeratedELBO, MarginalELBO
from pyro_dvae.elbos.local_expectation import LocalExpectationELBO
from pyro_dvae.elbos.multi_sample import VimcoELBO
from pyro_dvae.elbos.pathwise import (
    GappedStraightThroughELBO,
    GumbelSoftmaxELBO,
    RaoGumbelELBO,
    StraightThroughELBO,
)
from pyro_dvae.elbos.reinmax import ReinMaxELBO, ReinMaxRaoELBO
from pyro_dvae.elbos.score_function import ReinforceELBO, RlooELBO
from pyro_dvae.likelihoods import Bernoulli
from pyro_dvae.networks import MLPBaseline, MLPControl, MLPDecoder, MLPEncoder
from pyro_dvae.priors import UniformPrior
from pyro_dvae.vae import DiscreteVAE

Shape = Sequence[int]


class Estimator(NamedTuple):
    """How to build an ELBO from a config and the shape of a datum."""

    build: Callable[[Config, Shape], ELBO]
    particles: int = 1
    """S where the user names none."""
    least_particles: int = 1
    value: str = "ELBO"
    """What the training value is."""
    has_beta: bool = True


def _ours(cls: Callable[..., ELBO], **fixed: Any) -> Callable[[Config, Shape], ELBO]:
    def build(config: Config, event_shape: Shape) -> ELBO:
        # One plate, known beforehand, spares the trial run.
        options: dict[str, Any] = {"max_plate_nesting": 1, **fixed}
        options |= {"beta": config.beta, "free_bits": config.free_bits}
        if config.temperature is not None:
            options["temperature"] = config.temperature
        return cls(config.num_particles, **options)

    return build


def _summed(cls: Callable[..., ELBO]) -> Callable[[Config, Shape], ELBO]:
    return lambda config, _: cls(max_plate_nesting=1, beta=config.beta, free_bits=config.free_bits)


def _reinforce(config: Config, event_shape: Shape) -> ELBO:
    return _ours(ReinforceELBO, baseline=_baseline(config.baseline))(config, event_shape)


def _nvil(config: Config, event_shape: Shape) -> ELBO:
    return _ours(ReinforceELBO, baseline=MLPBaseline(event_shape))(config, event_shape)


def _relax(config: Config, event_shape: Shape) -> ELBO:
    network = MLPControl(event_shape, config.num_latents, config.num_categories)
    return _ours(RelaxELBO, network=network)(config, event_shape)


ESTIMATORS: dict[str, Estimator] = {
    "trace": Estimator(
        lambda c, _: Trace_ELBO(c.num_particles, 1, vectorize_particles=True), has_beta=False
    ),
    "reinforce": Estimator(_reinforce),
    "nvil": Estimator(_nvil),
    "rloo": Estimator(_ours(RlooELBO), 4, 2),
    "disarm": Estimator(_ours(DisarmELBO)),
    "local-expectation": Estimator(_ours(LocalExpectationELBO)),
    "rebar": Estimator(_ours(RelaxELBO)),
    "relax": Estimator(_relax),
    "vimco": Estimator(_ours(VimcoELBO), 4, 2, "S-sample bound"),
    "straight-through": Estimator(_ours(StraightThroughELBO)),
    "gumbel-softmax": Estimator(_ours(GumbelSoftmaxELBO), value="surrogate"),
    "st-gumbel": Estimator(_ours(GumbelSoftmaxELBO, hard=True)),
    "rao-gumbel": Estimator(_ours(RaoGumbelELBO)),
    "gapped-st": Estimator(_ours(GappedStraightThroughELBO)),
    "reinmax": Estimator(_ours(ReinMaxELBO)),
    "reinmax-rao": Estimator(_ours(ReinMaxRaoELBO)),
    "exact": Estimator(_summed(EnumeratedELBO)),
    "marginal": Estimator(_summed(MarginalELBO), value="log p(x)", has_beta=False),
}
"""Name on the command line -> how to build the ELBO."""

TEMPERED = {
    "rebar",
    "relax",
    "straight-through",
    "gumbel-softmax",
    "st-gumbel",
    "rao-gumbel",
    "gapped-st",
    "reinmax",
    "reinmax-rao",
}
"""The estimators that take a temperature."""


@dataclass(frozen=True)
class Config:
    """Everything that decides a run; `config.json` holds it.

    Raises:
        ValueError: a setting out of its range; the message says what was expected.
    """

    binarize: str = "dynamic"
    """One of `data.POLICIES`; "none" for data that are zeros and ones."""
    range: tuple[float, float] | None = None
    """The stored values that stand for 0 and 1; None for uint8 values of 255."""
    num_latents: int = 4
    num_categories: int = 8
    hidden: tuple[int, ...] = (512, 256)
    """Widths of the encoder's hidden layers; the decoder's are the same, reversed."""
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
    seed: int = 0

    def __post_init__(self) -> None:
        one_of("estimator", self.estimator, ESTIMATORS)
        if self.range is not None:
            object.__setattr__(self, "range", tuple(self.range))  # JSON has lists
        Preparation(self.binarize, self.range)
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
        hidden_sizes(self.hidden)
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
        _baseline(self.baseline)
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


def build_vae(config: Config, event_shape: Sequence[int]) -> DiscreteVAE:
    """The untrained model; its initial weights come from torch's global generator."""
    code = (config.num_latents, config.num_categories)
    return DiscreteVAE(
        MLPEncoder(event_shape, *code, config.hidden),
        MLPDecoder(event_shape, *code, config.hidden[::-1]),
        UniformPrior(*code),
        Bernoulli(),
    )


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


def _baseline(text: str) -> Any:
    if text in ("none", "running_mean"):
        return None if text == "none" else text
    with suppress(ValueError):
        if math.isfinite(float(text)):
            return float(text)
    raise ValueError(
        f"Expected none, running_mean or a finite number as baseline; got {text!r}. Choose one."
    )
