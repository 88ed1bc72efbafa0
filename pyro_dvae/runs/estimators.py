"""The estimators by their names on the command line."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from pyro.infer import ELBO, Trace_ELBO

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
from pyro_dvae.networks.mlp import MLPBaseline, MLPControl

if TYPE_CHECKING:
    from pyro_dvae.runs.config import Config

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
    return _ours(ReinforceELBO, baseline=baseline_of(config.baseline))(config, event_shape)


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


def baseline_of(text: str) -> Any:
    """What `--baseline` names."""
    if text in ("none", "running_mean"):
        return None if text == "none" else text
    with suppress(ValueError):
        if math.isfinite(float(text)):
            return float(text)
    raise ValueError(
        f"Expected none, running_mean or a finite number as baseline; got {text!r}. Choose one."
    )
