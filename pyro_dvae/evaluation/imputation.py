"""`impute`: fill missing elements in, by what the model says of them given the observed ones."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor

from pyro_dvae.codes import ROWS
from pyro_dvae.evaluation.incomplete import codes_to_draw, incomplete
from pyro_dvae.evaluation.joint import evaluating
from pyro_dvae.evaluation.observed import ObservedPosterior
from pyro_dvae.likelihoods.base import Likelihood
from pyro_dvae.likelihoods.elements import element_log_probs
from pyro_dvae.likelihoods.masked import unmasked
from pyro_dvae.likelihoods.mixed import Mixed
from pyro_dvae.streams import RandomStream

if TYPE_CHECKING:
    from pyro_dvae.vae import DiscreteVAE

MOST_LEVELS = 64
"""Elements of more levels than this get their mean level in place of the most probable one."""


def impute(
    vae: DiscreteVAE,
    x: Any,
    missing: Any = None,
    labels: Any = None,
    *,
    draws: bool = False,
    exact: bool | None = None,
    importance_samples: int = 1000,
    batch_size: int = ROWS,
    seed: int = 0,
) -> Tensor:
    """E[x_m|x_o] = sum_z p(z|x_o) E[x_m|z], or draws x_m ~ p(x_m|x_o), of the missing elements m.

    p(z|x_o) is summed over all codes where they are few. Else codes are drawn and weighted; see
    `ObservedPosterior`.

    Args:
        vae: the model. It is in eval mode meanwhile. It need not have been trained on data with
            gaps: where its likelihood is no `Masked`, the sum over all codes is exact all the same.
        x: (N, *event), N >= 1, with NaN for each missing element: a tensor, an array or a table.
        missing: (N, *event) bools: elements that count as missing though they are there; or None.
        labels: (N,) integers if the prior is conditional on labels; otherwise None.
        draws: draw the missing elements of each datum jointly. Several draws, by several seeds,
            show how uncertain they are. Otherwise zeros and ones, and up to 64 levels, become the
            most probable one; all other elements become their mean.
        exact: True for a sum over all K^D codes, which needs K^D <= 65,536; False for drawn codes;
            None for a sum if it is cheap.
        importance_samples: codes drawn per datum, if they are not summed over.
        batch_size: data that are filled in at once.
        seed: seed of all draws.

    Returns:
        (N, *event), the data without gaps, in the dtype of the model.

    Raises:
        ValueError: an observed element is outside the support, K^D is too large, or the elements of
            the likelihood are not independent given z.

    Example:
        >>> from pyro_dvae import impute
        >>> gaps = x.clone()
        >>> gaps[0, :2] = torch.nan
        >>> impute(vae, gaps).isnan().any()
        tensor(False)
    """
    x, labels = incomplete(vae, x, missing, labels)
    blocks = impute_blocks(
        vae,
        x,
        labels,
        draws=draws,
        exact=exact,
        importance_samples=importance_samples,
        batch_size=batch_size,
        seed=seed,
    )
    return torch.cat(list(blocks))


def impute_blocks(
    vae: DiscreteVAE,
    x: Any,
    labels: Tensor | None = None,
    *,
    draws: bool = False,
    exact: bool | None = None,
    importance_samples: int = 1000,
    batch_size: int = ROWS,
    seed: int = 0,
) -> Iterator[Tensor]:
    """What `impute` returns, block by block, so that memory holds one block at a time.

    Args:
        vae: the model.
        x: (N, *event), with NaN for each missing element: a tensor, or what serves rows by slices,
            on the device and in the dtype of the model.
        labels: (N,), or None.
        draws: as for `impute`, and so are the arguments that follow.
        exact: True, False or None.
        importance_samples: codes drawn per datum.
        batch_size: data per block, at most.
        seed: seed of all draws.

    Yields:
        (B, *event), the data without gaps.
    """

    def some(start: int, size: int) -> tuple[Tensor, Tensor | None]:
        its = None if labels is None else labels[start : start + size]
        return incomplete(vae, x[start : start + size], None, its)

    stream = RandomStream(seed, next(vae.parameters()).device)
    with evaluating(vae):
        num_draws, size = codes_to_draw(vae, *some(0, 1), exact, importance_samples)
    size = min(size, batch_size)
    for start in range(0, len(x), size):
        rows, its = some(start, size)
        gaps = rows.isnan()
        if gaps.any():
            with evaluating(vae):
                posterior = ObservedPosterior(vae, rows, its, num_draws, stream)
                values = posterior.sample() if draws else _best(posterior, vae.likelihood)
            rows = torch.where(gaps, values.to(rows.dtype), rows)
        yield rows


def level_numbers(likelihood: Likelihood, event_shape: tuple[int, ...]) -> Tensor:
    """The number of levels of each element of a datum, *event int64; 0 of one that has no levels.

    Args:
        likelihood: the likelihood, masked or not.
        event_shape: the shape of a datum.
    """
    its = unmasked(likelihood)
    if isinstance(its, Mixed):
        numbers = [_levels(block) for block, _ in its.by_block(torch.empty(sum(its.sizes)))]
        return torch.repeat_interleave(torch.tensor(numbers), torch.tensor(its.sizes))
    return torch.full(event_shape, _levels(its))


def _levels(likelihood: Likelihood) -> int:
    return {"bits": 2, "levels": likelihood.levels}.get(likelihood.kind, 0)


def level_log_probs(posterior: ObservedPosterior, levels: Tensor) -> Iterator[Tensor]:
    """Log p(x_p = l|x_o), (B, *event), of the levels l = 0, 1, ..., -inf where l is no level.

    Args:
        posterior: p(z|x_o).
        levels: the number of levels of each element, *event; of one without levels it is 0.
    """
    filled = posterior.filled[:1]
    for level in range(int(levels.max())):
        has = levels.to(filled.device) > level
        value = torch.where(has, level, filled)  # one datum, which all codes score
        p = posterior.mean(partial(probabilities, x=value))
        yield torch.where(has, p.log(), -torch.inf)


def probabilities(p_x: TorchDistribution, x: Tensor) -> Tensor:
    """p(x_p|z) of each element of discrete data, (..., *event)."""
    return element_log_probs(p_x, x).exp()


def _best(posterior: ObservedPosterior, likelihood: Likelihood) -> Tensor:
    """The means; the most probable level where there are few."""
    best = posterior.mean(lambda p_x: p_x.mean)
    levels = level_numbers(likelihood, tuple(best.shape[1:]))
    few = torch.where(levels <= MOST_LEVELS, levels, 0)
    if few.any():
        top = torch.full_like(best, -torch.inf)
        named = best.clone()
        for level, log_p in enumerate(level_log_probs(posterior, few)):
            named = torch.where(log_p > top, level, named)
            top = torch.maximum(top, log_p)
        best = torch.where((few > 0).to(best.device), named, best)
    return torch.where((levels > MOST_LEVELS).to(best.device), best.round(), best)
