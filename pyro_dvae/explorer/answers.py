"""What `Explorer` answers with."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from pyro_dvae.explorer.views import View


class Datum(NamedTuple):
    """One datum as the model takes it, and as people see it."""

    x: Tensor
    """(1, *event_shape) on the CPU."""
    view: View
    label: int | None
    """Its class, if it is known."""


class Figure(NamedTuple):
    """A figure of a datum."""

    name: str
    nats: float
    error: float
    """The standard error over the draws, in nats; 0 where nothing is drawn."""


class Inferred(NamedTuple):
    """What a model makes of a datum."""

    code: list[int]
    """(D,) the most probable code of q(z|x)."""
    q: Tensor
    """(D, K) q(z_d=k|x), by the encoder."""
    exact: Tensor | None
    """(D, K) p(z_d=k|x); None if there are too many codes to sum over."""
    taken: View
    """The datum as the model takes it: zeros and ones where these are drawn from an image."""
    mean: View
    """The mean of p(x|z) at the code."""
    figures: list[Figure]
    """The ELBO with its parts, and log p(x) or a bound on it."""
    given: str | None
    """The name of the class y that these are conditional on, where the prior is p(z|y)."""


class Step(NamedTuple):
    """A code on the way from one code to another."""

    code: list[int]
    latent: int | None
    """The number of the latent that has changed, from 0; None at the start."""
    mean: View
    """The mean of p(x|z)."""
