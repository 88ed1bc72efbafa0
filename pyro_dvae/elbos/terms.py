"""The terms of the ELBO, which each estimator differentiates in its own way."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from pyro_dvae.elbos.pair import Pair


class Terms(NamedTuple):
    """The terms of the ELBO, per particle and datum, in nats.

    Each tensor has shape (S, *batch): S particles, and one dimension for each plate of data. If the
    programs ran at several codes (`Pair.at`), it has further dimensions on the left.
    """

    log_likelihood: Tensor
    """log p(x|z)."""
    kl: Tensor
    """KL(q || p) in closed form, or log q(z|x) - log p(z) if there is no closed form."""
    penalty: Tensor
    """beta times the KL, which training subtracts. Free bits leave out some of it."""
    log_guide: Tensor
    """log q(z|x) of the sites that have no reparametrised gradient."""
    learning_signal: Tensor
    """The part of log p(x|z) - penalty that depends on the drawn z."""
    scale: float
    """The factor of the whole loss: N/B if plates subsample B of N data, else 1."""
    pair: Pair
    """The traces of model and guide. `pair.at` runs the programs at other codes."""

    def __repr__(self) -> str:
        values = self._asdict().items()
        shapes = [f"{name}{tuple(x.shape)}" for name, x in values if isinstance(x, Tensor)]
        return f"Terms({', '.join(shapes)}, scale={self.scale:g})"
