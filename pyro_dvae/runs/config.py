"""The settings of a run, checked, and the model and the ELBO that they name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, get_type_hints

from pyro.infer import ELBO

from pyro_dvae.checks import (
    at_least,
    code_shape,
    dropout_share,
    hidden_sizes,
    labelled_share,
    one_of,
    training_settings,
)
from pyro_dvae.codes import describe_codes, num_codes
from pyro_dvae.data.serve.divide import SPLITS
from pyro_dvae.data.serve.prepare import POLICIES, Preparation, check_range
from pyro_dvae.defaults import ANNEALING, STARTS, RunSettings
from pyro_dvae.displays import html_table
from pyro_dvae.guides import GUIDES
from pyro_dvae.likelihoods import LIKELIHOODS
from pyro_dvae.networks import ENCODERS
from pyro_dvae.priors import PRIORS
from pyro_dvae.runs.estimators import ESTIMATORS, Shape, baseline_of, estimator_of
from pyro_dvae.runs.fields import check_fields
from pyro_dvae.runs.parts import (
    build_guide,
    build_likelihood,
    build_networks,
    build_prior,
    check_name,
)
from pyro_dvae.semi_supervised import SemiSupervisedVAE
from pyro_dvae.specs import is_own
from pyro_dvae.vae import DiscreteVAE

__all__ = [
    "ESTIMATORS",
    "Config",
    "build_elbo",
    "build_likelihood",
    "build_prior",
    "build_vae",
    "preparation_of",
]


_LONGEST = 2**20
"""The most characters of a setting. A table may have this many columns, each of its own kind."""


@dataclass(frozen=True)
class Config(RunSettings):
    """The settings of a run, which `config.json` holds: `RunSettings` explains each of them.

    `Config(num_latents=8, estimator="disarm")` has the defaults of all other settings. Once it is
    built, `num_particles`, `annealing` and `patience` hold what the training will use.

    Raises:
        ValueError: a setting has another type, or is out of its range, or two settings do not go
            together. The message says what was expected.
    """

    def _repr_html_(self) -> str:
        """The settings as a table for a notebook, with the default of each that differs from it."""
        default = vars(Config())
        rows = [
            [name, repr(value), "" if value == default[name] else repr(default[name])]
            for name, value in vars(self).items()
        ]
        heads = ["setting", "value", "default, where it differs"]
        return html_table(heads, rows, caption="Config: the settings of a run")

    def __post_init__(self) -> None:
        self._check_types()
        check_name("estimator", self.estimator, ESTIMATORS, own=True)
        check_name("prior", self.prior, PRIORS, own=True)
        check_name("likelihood", self.likelihood, LIKELIHOODS, own=True)
        check_name("guide", self.guide, GUIDES, own=True)
        check_name("network", self.network, ENCODERS)
        at_least("classes", self.num_classes, 0)
        code_shape(self.num_latents, self.num_categories)
        self._check_alpha()
        if self.start is not None:
            one_of("start", self.start, STARTS)
        at_least("seed", self.seed, 0)
        at_least("split seed", self.split_seed, 0)
        at_least("epochs", self.epochs, 0)
        at_least("epochs of the guide", self.guide_epochs, 0)
        hidden_sizes(self.hidden)
        dropout_share(self.dropout)
        labelled_share(self.labelled_share or 0.0)
        self._check_data()
        self._check_estimator()
        training_settings(
            self.batch_size,
            self.averaging,
            self.annealing or 0,
            self.initial_beta,
            self.learning_rate,
            self.warmup,
            self.cooldown,
            self.reinmax_steps,
        )
        self._set("hidden", tuple(self.hidden))  # JSON has lists

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # the dataclass is frozen for everybody else

    def _check_types(self) -> None:
        check_fields(vars(self), _types())
        for name, value in vars(self).items():
            if isinstance(value, str) and len(value) > _LONGEST:
                raise ValueError(
                    f"Expected {name} of at most {_LONGEST:,} characters; got {len(value):,}. "
                    "Shorten it."
                )

    def _check_data(self) -> None:
        one_of("binarisation", self.binarize, POLICIES)
        if self.range is not None:
            self._set("range", tuple(self.range))  # JSON has lists
            check_range(self.range)
        # The kind of a likelihood of the user's own is not known before its code is imported.
        if not is_own(self.likelihood, LIKELIHOODS):
            preparation = Preparation(self.binarize, self.range, self.likelihood)
            self._set("binarize", preparation.binarize)
        one_of("split", self.split, SPLITS)
        _check_kept("validation", self.validation)
        _check_kept("test", 0 if self.test is None else self.test)
        if not self.validation:
            self._set("patience", None)
        if self.patience is not None:
            at_least("patience", self.patience, 1)

    def _check_alpha(self) -> None:
        if self.alpha is None:
            return
        if not 0 <= self.alpha < math.inf:
            raise ValueError(f"Expected a finite alpha >= 0; got {self.alpha}. Use alpha=0.1.")
        if self.prior.partition(":")[0] == "conditional":
            raise ValueError(
                "Expected no alpha with the conditional prior, which takes a label of each datum; "
                f"got alpha={self.alpha}. Leave one of them out."
            )
        if self.guide_epochs:
            raise ValueError(
                "Expected guide_epochs=0 for a model with classes, whose guide is trained together "
                f"with it; got guide_epochs={self.guide_epochs}. Leave it out."
            )

    def _check_estimator(self) -> None:
        estimator = estimator_of(self.estimator)
        own = is_own(self.estimator, ESTIMATORS)  # whose code knows its defaults
        if self.num_particles is None and not own:
            self._set("num_particles", estimator.particles)
        at_least("particles", self.particles, estimator.least_particles)
        if self.annealing is None and not own:
            self._set("annealing", ANNEALING if estimator.has_beta else 0)
        for name, value in (("beta", self.beta), ("free bits", self.free_bits)):
            if not 0 <= value < math.inf:
                raise ValueError(f"Expected finite {name} >= 0; got {value}. Change it.")
        if not estimator.has_beta and (self.beta, self.free_bits, self.annealing) != (1, 0, 0):
            raise ValueError(
                f"Expected beta 1, free bits 0 and annealing 0 for the {self.estimator} "
                f"estimator; got {self.beta}, {self.free_bits} and {self.annealing}. Choose "
                'another estimator, such as estimator="rloo".'
            )
        if self.reinmax_steps and not estimator.has_beta:
            raise ValueError(
                f"Expected reinmax_steps=0 for the {self.estimator} estimator, whose objective has "
                f"no beta; got {self.reinmax_steps}. Leave it out, or use "
                'estimator="rloo".'
            )
        total = num_codes(self.num_latents, self.num_categories)
        if total > estimator.max_codes:
            raise ValueError(
                f"Expected at most {estimator.max_codes} codes for the {self.estimator} estimator; "
                f"got K^D = {describe_codes(self.num_latents, self.num_categories)}. Use "
                'estimator="rloo", or fewer latents or categories.'
            )
        baseline_of(self.baseline)
        if self.decoder_particles is not None:
            self._check_decoder_particles(self.decoder_particles)
        if self.temperature is not None:
            self._check_temperature(self.temperature)

    def _check_decoder_particles(self, number: int) -> None:
        if not estimator_of(self.estimator).takes_decoder_particles:
            raise ValueError(
                f"Expected the {self.estimator} estimator to differentiate the decoder at all of "
                f"its draws; got decoder_particles={number}. Leave it out, or use "
                'estimator="rloo".'
            )
        if not 1 <= number <= self.particles:
            raise ValueError(
                f"Expected the decoder to be differentiated at 1 to {self.particles} draws, the "
                f"number of particles; got decoder_particles={number}. Change one of them."
            )

    def _check_temperature(self, temperature: float) -> None:
        if not estimator_of(self.estimator).takes_temperature:
            known = sorted(name for name, row in ESTIMATORS.items() if row.takes_temperature)
            raise ValueError(
                f"Expected no temperature for the {self.estimator} estimator; got {temperature}. "
                f"Leave it out, or choose one of the estimators {', '.join(known)}."
            )
        if not 0 < temperature < math.inf:
            raise ValueError(
                f"Expected a positive, finite temperature; got {temperature}. Use "
                "temperature=1.0, for example."
            )

    @property
    def particles(self) -> int:
        """S, the number of draws of z per data point and step.

        It is 1 for an estimator of the user's own that is not built yet, if no number is given.
        """
        return 1 if self.num_particles is None else self.num_particles

    @property
    def training(self) -> dict[str, Any]:
        """The settings that `Trainer` and `fit` take, by the names of their arguments."""
        names = ("batch_size", "averaging", "annealing", "initial_beta", "learning_rate", "warmup")
        others = ("cooldown", "reinmax_steps", "seed", "bfloat16")
        options = {name: getattr(self, name) for name in names + others}
        return options | {"compiled": self.compile}


@cache
def _types() -> dict[str, Any]:
    return get_type_hints(Config)


def build_vae(config: Config, event_shape: Sequence[int]) -> DiscreteVAE:
    """The untrained model that the settings describe.

    Its initial weights come from torch's global generator.
    """
    shape = tuple(event_shape)
    likelihood = build_likelihood(config, shape)
    guide = build_guide(config)
    num_outputs = guide.num_outputs or config.num_categories
    networks = build_networks(config, shape, num_outputs, likelihood)
    parts = (*networks, build_prior(config, shape), likelihood, guide)
    if config.alpha is None:
        return DiscreteVAE(*parts)
    return SemiSupervisedVAE(*parts, alpha=config.alpha)


def model_code(config: Config) -> list[str]:
    """The parts of a model of a user's own that settings name, as "module:factory"."""
    named = {"likelihood": LIKELIHOODS, "prior": PRIORS, "guide": GUIDES}
    parts = [spec for spec in (config.encoder, config.decoder) if spec is not None]
    specs = {part: vars(config)[part] for part in named}
    return parts + [spec for part, spec in specs.items() if is_own(spec, named[part])]


def own_code(config: Config) -> list[str]:
    """All that settings name of a user's own: the parts of the model, and the estimator."""
    own = [config.estimator] if is_own(config.estimator, ESTIMATORS) else []
    return model_code(config) + own


def preparation_of(config: Config, event_shape: Sequence[int]) -> Preparation:
    """How stored values become those that the likelihood of the settings takes.

    Raises:
        ValueError: a likelihood of the user's own cannot be built, or takes no zeros and ones.
    """
    named = not is_own(config.likelihood, LIKELIHOODS)
    likelihood = config.likelihood if named else build_likelihood(config, event_shape)
    return Preparation(config.binarize, config.range, likelihood)


def build_elbo(config: Config, event_shape: Shape) -> ELBO:
    """The ELBO of the estimator that the settings name."""
    return estimator_of(config.estimator).build(config, event_shape)


def _check_kept(part: str, amount: float | str) -> None:
    if isinstance(amount, str) or 0 < amount < 1 or (isinstance(amount, int) and amount >= 0):
        return
    raise ValueError(
        f"Expected a {part} fraction between 0 and 1, a number of rows, or a file; got {amount}. "
        f"Use {part}=0.05, for example."
    )
