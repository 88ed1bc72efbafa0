"""The estimators by their names, and what each can do."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from inspect import signature
from typing import TYPE_CHECKING, Any, NamedTuple

from pyro.infer import ELBO, Trace_ELBO

from pyro_dvae.codes import FEW_CODES, MAX_CODES
from pyro_dvae.elbos.arsm import ArsmELBO
from pyro_dvae.elbos.carms import CarmsELBO
from pyro_dvae.elbos.control_variate import RelaxELBO
from pyro_dvae.elbos.coupled import DisarmELBO
from pyro_dvae.elbos.exact import EnumeratedELBO, MarginalELBO
from pyro_dvae.elbos.first_latent import SumFirstELBO
from pyro_dvae.elbos.gumbel_softmax import GumbelSoftmaxELBO, RaoGumbelELBO
from pyro_dvae.elbos.jsa import JsaELBO
from pyro_dvae.elbos.local_expectation import LocalExpectationELBO
from pyro_dvae.elbos.multi_sample import VimcoELBO
from pyro_dvae.elbos.reinmax import ReinMaxELBO, ReinMaxRaoELBO
from pyro_dvae.elbos.score_function import ReinforceELBO, RlooELBO
from pyro_dvae.elbos.snapshot import SnapshotELBO
from pyro_dvae.elbos.straight_through import GappedStraightThroughELBO, StraightThroughELBO
from pyro_dvae.elbos.wake_sleep import WakeSleepELBO
from pyro_dvae.networks.mlp import MLPBaseline, MLPControl
from pyro_dvae.runs.own import own_estimator
from pyro_dvae.specs import is_own

if TYPE_CHECKING:
    from pyro_dvae.runs.config import Config

Shape = Sequence[int]


class Estimator(NamedTuple):
    """What there is to know of an estimator: how its ELBO is built, and what it can do."""

    build: Callable[[Config, Shape], ELBO]
    """(settings, shape of a datum) -> the ELBO."""
    particles: int = 1
    """S, the number of draws per data point and step, where the user names none."""
    least_particles: int = 1
    """The least S that the ELBO can do with."""
    value: str = "ELBO"
    """What the values are that it reports in training."""
    has_beta: bool = True
    """Whether the KL term has a weight, so that annealing and free bits are possible."""
    takes_temperature: bool = False
    """Whether it relaxes the codes at a temperature."""
    takes_decoder_particles: bool = False
    """Whether it can differentiate the decoder at some of its draws alone."""
    max_codes: float = math.inf
    """The largest K^D, where it sums over all codes."""


def _drawn(cls: Callable[..., ELBO], **facts: Any) -> Estimator:
    """The row of a class that draws S codes per data point."""
    particles = signature(cls).parameters["num_particles"].default
    return Estimator(_builder(cls), particles, **facts)


def _builder(cls: Callable[..., ELBO], **fixed: Any) -> Callable[[Config, Shape], ELBO]:
    def build(config: Config, event_shape: Shape) -> ELBO:
        # The number of plates is known, so that no trial run has to count them.
        options: dict[str, Any] = {"max_plate_nesting": 1, **fixed}
        options |= {"beta": config.beta, "free_bits": config.free_bits}
        if config.temperature is not None:
            options["temperature"] = config.temperature
        if config.decoder_particles is not None:
            options["decoder_particles"] = config.decoder_particles
        return cls(config.particles, **options)

    return build


def _summed(cls: Callable[..., ELBO]) -> Callable[[Config, Shape], ELBO]:
    return lambda config, _: cls(max_plate_nesting=1, beta=config.beta, free_bits=config.free_bits)


def _marginal(config: Config, event_shape: Shape) -> ELBO:
    return MarginalELBO(max_plate_nesting=1, noisy=config.dropout > 0, beta=config.beta)


def _trace(config: Config, event_shape: Shape) -> ELBO:
    return Trace_ELBO(config.particles, 1, vectorize_particles=True)


def _reinforce(config: Config, event_shape: Shape) -> ELBO:
    return _builder(ReinforceELBO, baseline=baseline_of(config.baseline))(config, event_shape)


def _nvil(config: Config, event_shape: Shape) -> ELBO:
    return _builder(ReinforceELBO, baseline=MLPBaseline(event_shape))(config, event_shape)


def _snapshot(config: Config, event_shape: Shape) -> ELBO:
    return _builder(SnapshotELBO, bfloat16=config.bfloat16)(config, event_shape)


def _relax(config: Config, event_shape: Shape) -> ELBO:
    network = MLPControl(event_shape, config.num_latents, config.num_categories)
    return _builder(RelaxELBO, network=network)(config, event_shape)


ESTIMATORS: dict[str, Estimator] = {
    "trace": Estimator(_trace, has_beta=False),
    "reinforce": Estimator(_reinforce),
    "nvil": Estimator(_nvil),
    "rloo": _drawn(RlooELBO, least_particles=2, takes_decoder_particles=True),
    "snapshot": Estimator(
        _snapshot, 2, least_particles=2, takes_decoder_particles=True, max_codes=FEW_CODES
    ),
    "disarm": _drawn(DisarmELBO),
    "carms": _drawn(CarmsELBO, least_particles=2),
    "arsm": _drawn(ArsmELBO),
    "local-expectation": _drawn(LocalExpectationELBO),
    "sum-first": _drawn(SumFirstELBO, least_particles=2),
    "rebar": _drawn(RelaxELBO, takes_temperature=True),
    "relax": Estimator(_relax, takes_temperature=True),
    "vimco": _drawn(VimcoELBO, least_particles=2, value="S-sample bound"),
    "rws": _drawn(WakeSleepELBO, least_particles=2, value="S-sample bound"),
    "jsa": _drawn(JsaELBO, least_particles=2, value="(S-1)-sample bound"),
    "straight-through": _drawn(StraightThroughELBO, takes_temperature=True),
    "gumbel-softmax": _drawn(GumbelSoftmaxELBO, takes_temperature=True, value="surrogate"),
    "st-gumbel": Estimator(_builder(GumbelSoftmaxELBO, hard=True), takes_temperature=True),
    "rao-gumbel": _drawn(RaoGumbelELBO, takes_temperature=True),
    "gapped-st": _drawn(GappedStraightThroughELBO, takes_temperature=True),
    "reinmax": _drawn(ReinMaxELBO, takes_temperature=True),
    "reinmax-rao": _drawn(ReinMaxRaoELBO, takes_temperature=True),
    "exact": Estimator(_summed(EnumeratedELBO), max_codes=MAX_CODES),
    "marginal": Estimator(_marginal, value="log p(x)", has_beta=False, max_codes=MAX_CODES),
}
"""Every estimator by its name, as `Config.estimator` and the command line take it."""


def _own(config: Config, event_shape: Shape) -> ELBO:
    settings = {
        "num_particles": config.num_particles,
        "temperature": config.temperature,
        "beta": config.beta,
        "free_bits": config.free_bits,
    }
    sizes = {
        "event_shape": tuple(event_shape),
        "num_latents": config.num_latents,
        "num_categories": config.num_categories,
        "max_plate_nesting": 1,
    }
    given = {name: value for name, value in settings.items() if value is not None}
    return own_estimator(config.estimator, given, sizes)


_OWN = Estimator(_own, value="estimate", takes_temperature=True)
"""An estimator of the user's own, of which the factory knows the rest."""


def estimator_of(name: str) -> Estimator:
    """What there is to know of an estimator, by its name; no code of the user's own is imported."""
    return _OWN if is_own(name, ESTIMATORS) else ESTIMATORS[name]


def baseline_of(text: str) -> str | float | None:
    """The baseline that a setting names, as `ReinforceELBO` takes it.

    Raises:
        ValueError: it is neither "none", "running_mean" nor a finite number.
    """
    if text in ("none", "running_mean"):
        return None if text == "none" else text
    with suppress(ValueError):
        if math.isfinite(float(text)):
            return float(text)
    raise ValueError(
        f"Expected none, running_mean or a finite number as baseline; got {text!r}. Choose one."
    )
