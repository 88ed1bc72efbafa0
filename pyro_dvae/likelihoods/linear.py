"""Likelihoods whose log-probability is linear in numbers of the datum: one matrix product."""

from __future__ import annotations

import torch
from pyro.distributions.util import broadcast_shape
from torch import Tensor

from pyro_dvae.likelihoods.base import Likelihood


class ExponentialFamily(Likelihood):
    """log p(x_p|z) = sum_f eta_f(params_p) T_f(x_p) - A(params_p) + h(x_p), in nats.

    B data under C codes are scored by one matrix product of (C, P F) and (P F, B), in place of a
    (C, B, P) array. With missing elements, their rows of T and of h are 0, and A is multiplied by
    what is observed.

    A subclass defines `element_log_probs`, `natural` and `statistics` together. Where a subclass of
    it defines `element_log_probs` anew, no product is used, since it would not be the same density.
    """

    cost = 0

    def natural(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """The natural parameters eta, (..., P, F), and the log-normalizer A, (..., P)."""
        raise NotImplementedError

    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """The statistics T, (..., P, F), and h, (..., P); None if h is 0."""
        raise NotImplementedError

    def log_prob(self, params: Tensor, x: Tensor) -> Tensor:
        """Log-probability or log-density of a datum in nats, summed over its elements."""
        return self.observed_log_prob(params, x, None)

    def observed_log_prob(self, params: Tensor, x: Tensor, observed: Tensor | None) -> Tensor:
        """The same of the observed elements alone: see `Likelihood.observed_log_prob`."""
        of_elements = params[..., 0] if self.num_params > 1 else params
        if is_paired(x, of_elements) or not self._scores_by_product(x):
            # Element by element, which is exact up to rounding even where terms cancel.
            return super().observed_log_prob(params, x, observed)
        eta, normalizer = self.natural(params)
        statistics, h = self.statistics(x)
        if observed is None:
            rest = -normalizer.sum(-1)
        else:
            seen = observed.to(statistics.dtype)
            statistics = statistics * seen.unsqueeze(-1)
            h = None if h is None else h * seen
            rest = -product(normalizer, seen)
        scored = product(eta.flatten(-2), statistics.flatten(-2)) + rest
        return (scored if h is None else scored + h.sum(-1)).to(params.dtype)

    def _scores_by_product(self, x: Tensor) -> bool:
        """Whether nobody has defined the elements anew; x tells the device."""
        kinds = type(self).__mro__
        own, scored = (
            next(kind for kind in kinds if name in vars(kind))
            for name in ("natural", "element_log_probs")
        )
        return own is scored


def is_paired(x: Tensor, params: Tensor) -> bool:
    """Whether each parameter scores one datum, so that a matrix product would save nothing.

    Args:
        x: (..., P) data.
        params: (..., P) parameters, such as (C, 1, P) of C codes, which score B data each.
    """
    return broadcast_shape(x.shape, params.shape) == params.shape


def linear_log_prob(x: Tensor, natural: Tensor, log_normalizer: Tensor) -> Tensor:
    """sum_p (x_p natural_p - log_normalizer_p), (...).

    For data (B, P) and parameters (C, 1, P) this is a matrix product of (C, P) and (P, B).

    Args:
        x: (..., P) data.
        natural: (..., P) natural parameters.
        log_normalizer: (..., P) log-normalizers.
    """
    if is_paired(x, natural):
        # Element by element, which is exact up to rounding even if the two terms cancel.
        return (x * natural - log_normalizer).sum(-1)
    return product(natural, x) - log_normalizer.sum(-1)


def product(a: Tensor, b: Tensor) -> Tensor:
    """sum_p a_p b_p of (..., P) and (..., P), whose leading dimensions are broadcast."""
    return torch.einsum("...p,...p->...", a, b)
