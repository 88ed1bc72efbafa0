"""How much each element of a datum surprises, given all the others."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor

from pyro_dvae.codes import ROWS, wide
from pyro_dvae.evaluation.imputation import MOST_LEVELS, level_numbers, probabilities
from pyro_dvae.evaluation.incomplete import codes_to_draw, incomplete
from pyro_dvae.evaluation.joint import evaluating
from pyro_dvae.evaluation.observed import ObservedPosterior
from pyro_dvae.likelihoods.elements import element_log_probs
from pyro_dvae.streams import RandomStream

if TYPE_CHECKING:
    from pyro_dvae.vae import DiscreteVAE

_MOST_NATS = 600.0
"""The reciprocal of a probability is cut off here, far below what a float can hold."""


class Surprise(NamedTuple):
    """How much each element p of N data surprises, given all other elements r of its datum."""

    values: Tensor
    """(N, *event) -log p(x_p|x_r) in nats, of a density for real numbers; NaN for a missing
    element."""
    expected: Tensor
    """(N, *event) E[x_p|x_r]; of bits and of up to 64 levels, the most probable one."""


def conditional_surprise(
    vae: DiscreteVAE,
    x: Any,
    labels: Any = None,
    *,
    exact: bool | None = None,
    importance_samples: int = 1000,
    batch_size: int = ROWS,
    seed: int = 0,
) -> Tensor:
    """-log p(x_p|x_r) = log sum_z p(z|x) / p(x_p|z), of each element p given all others r, in nats.

    It says which elements are unusual in view of the rest of their datum. p(z|x) is summed over all
    codes where they are few. Else codes are drawn and weighted; see `ObservedPosterior`.

    Args:
        vae: the model. It is in eval mode meanwhile.
        x: (N, *event), N >= 1: a tensor, an array or a table. A missing element is NaN.
        labels: (N,) integers if the prior is conditional on labels; otherwise None.
        exact: True for a sum over all K^D codes, which needs K^D <= 65,536; False for drawn codes;
            None for a sum if it is cheap.
        importance_samples: codes drawn per datum, if they are not summed over.
        batch_size: data that are scored at once.
        seed: seed of all draws.

    Returns:
        (N, *event), of a log density for real numbers; NaN for a missing element.

    Raises:
        ValueError: the elements of the likelihood are not independent given z, x is outside the
            support, or K^D is too large.

    Example:
        >>> from pyro_dvae.evaluation import conditional_surprise
        >>> conditional_surprise(vae, x).shape == x.shape
        True
    """
    x, labels = incomplete(vae, x, None, labels, "the surprise of single elements")
    levels = _few_levels(vae, x)
    parts = []
    draws: dict[str, Any] = {"exact": exact, "num_draws": importance_samples, "seed": seed}
    with evaluating(vae):
        for posterior in _posteriors(vae, x, labels, batch_size, **draws):
            log_prob = posterior.filled.new_zeros(()) if levels.all() else posterior.left_out()
            for level in range(int(levels.max())):
                has = levels > level
                value = torch.where(has, level, posterior.filled[:1])  # one datum, for all codes
                inverse = posterior.mean(partial(_inverse_probability, x=value))
                mine = has & (posterior.filled == level)
                log_prob = torch.where(mine, -inverse.log(), log_prob)
            parts.append(-log_prob)
    return torch.cat(parts).masked_fill(x.isnan(), torch.nan)


def explain(
    vae: DiscreteVAE,
    x: Any,
    labels: Any = None,
    *,
    exact: bool | None = None,
    importance_samples: int = 1000,
    batch_size: int = ROWS,
    seed: int = 0,
) -> Surprise:
    """What each element was expected to be given all others of its datum, and how it surprises.

    The arguments are those of `conditional_surprise`, which is faster where only the surprise of
    many data is wanted.

    Example:
        >>> from pyro_dvae.evaluation import explain
        >>> explain(vae, x[:1]).expected.shape
        torch.Size([1, 6])
    """
    x, labels = incomplete(vae, x, None, labels, "the surprise of single elements")
    levels = _few_levels(vae, x)
    parts: list[tuple[Tensor, Tensor]] = []
    draws: dict[str, Any] = {"exact": exact, "num_draws": importance_samples, "seed": seed}
    with evaluating(vae):
        for posterior in _posteriors(vae, x, labels, batch_size, **draws):
            log_prob = posterior.left_out()
            best = posterior.left_out_mean(log_prob, lambda p_x: p_x.mean)
            top = torch.full_like(best, -torch.inf)
            for level in range(int(levels.max())):
                value = torch.where(levels > level, level, posterior.filled[:1])
                p = posterior.left_out_mean(log_prob, partial(probabilities, x=value))
                is_best = (levels > level) & (p > top)
                best, top = torch.where(is_best, level, best), torch.where(is_best, p, top)
            parts.append((-log_prob, best))
    values, expected = (torch.cat(part) for part in zip(*parts, strict=True))
    return Surprise(values.masked_fill(x.isnan(), torch.nan), expected)


def _few_levels(vae: DiscreteVAE, x: Tensor) -> Tensor:
    """The number of levels of each element, *event; 0 of one that has none, or too many."""
    levels = level_numbers(vae.likelihood, tuple(x.shape[1:])).to(x.device)
    return torch.where(levels <= MOST_LEVELS, levels, 0)


def _posteriors(
    vae: DiscreteVAE,
    x: Tensor,
    labels: Tensor | None,
    batch_size: int,
    *,
    exact: bool | None,
    num_draws: int,
    seed: int,
) -> Iterator[ObservedPosterior]:
    """p(z|x) of the data, block by block."""
    stream = RandomStream(seed, x.device)
    draws, size = codes_to_draw(vae, x, labels, exact, num_draws)
    size = min(size, batch_size)
    for start in range(0, len(x), size):
        some = slice(start, start + size)
        its = None if labels is None else labels[some]
        yield ObservedPosterior(vae, x[some], its, draws, stream)


def _inverse_probability(p_x: TorchDistribution, x: Tensor) -> Tensor:
    return (-wide(element_log_probs(p_x, x))).clamp(max=_MOST_NATS).exp()
