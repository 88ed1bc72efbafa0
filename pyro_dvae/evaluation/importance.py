"""The importance-weighted bound, and draws of q(z|x) in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from pyro_dvae.posteriors import Posterior


def draw_in_chunks(
    posterior: Posterior,
    num_data: int,
    num_samples: int,
    limit: int,
    generator: torch.Generator,
) -> Iterator[tuple[slice, slice, Tensor, Tensor]]:
    """Draw z ~ q(z|x), chunk by chunk, in the order of the data.

    A chunk is several data with all their draws. If one datum has more draws than the limit, a
    chunk is one datum with some of its draws.

    Args:
        posterior: q(z|x) of B data.
        num_data: B.
        num_samples: S, draws per datum.
        limit: the largest number of codes in a chunk. The draws do not depend on it.
        generator: a random number generator of the CPU.

    Yields:
        The slice of the data, the slice of their draws, the categories (b, s, D) and log q (b, s).
    """
    rows, samples = max(1, limit // num_samples), max(1, min(num_samples, limit))
    for row in range(0, num_data, rows):
        some = slice(row, min(row + rows, num_data))
        for start in range(0, num_samples, samples):
            stop = min(start + samples, num_samples)
            yield some, slice(start, stop), *posterior.draw(some, stop - start, generator)


def importance_bound(
    posterior: Posterior,
    log_joint: Callable[[slice, Tensor], Tensor],
    num_data: int,
    num_samples: int,
    limit: int,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """E[log 1/k sum_i p(x, z_i) / q(z_i|x)], z_i ~ q(z|x) independent (Burda et al. 2016).

    The bound is the ELBO at k = 1, rises with k, and tends to log p(x).

    Args:
        posterior: q(z|x) of B data.
        log_joint: maps a slice of the data, and categories (b, s, D), to log p(x, z), (b, s).
        num_data: B.
        num_samples: k, draws per datum.
        limit: the largest number of codes that are drawn at once. The result does not depend on it.
        generator: a random number generator of the CPU.

    Returns:
        One estimate per datum in nats, (B,), and its variance over the draws, (B,).
    """
    bounds: list[tuple[Tensor, Tensor]] = []
    weights: list[Tensor] = []
    chunks = draw_in_chunks(posterior, num_data, num_samples, limit, generator)
    for rows, draws, index, log_q in chunks:
        weights.append(log_joint(rows, index) - log_q)  # (b, s)
        if draws.stop == num_samples:
            bounds.append(log_mean_exp(torch.cat(weights, 1)))
            weights.clear()
    bound, variance = zip(*bounds, strict=True)
    return torch.cat(bound), torch.cat(variance)


def log_mean_exp(log_weights: Tensor) -> tuple[Tensor, Tensor]:
    """Log 1/k sum_i w_i, and its variance by the jackknife, (k-1)/k sum_i (l_i - mean l)^2.

    l_i = log sum_{j != i} w_j leaves draw i out. If no weight dominates, this is the variance of
    the delta method, sum_i v_i^2 - 1/k, where v are the normalised weights. But the delta method's
    variance never exceeds 1. If q is far from the posterior, one draw of many can have almost all
    the weight, and the delta method then gives a tenth of the error. The jackknife depends on how
    far the second largest weight is from the largest.

    Args:
        log_weights: log w, (B, k), k >= 2.

    Returns:
        The logarithm of the mean, (B,), and its variance, (B,).
    """
    num_samples = log_weights.shape[-1]
    total = log_weights.logsumexp(-1)
    left_out = torch.log1p(-(log_weights - total[:, None]).exp())  # (B, k), l_i - l
    # 1 - v loses its digits if v is almost 1. Only the largest weight can be.
    largest = log_weights.argmax(-1, keepdim=True)
    rest = log_weights.scatter(-1, largest, -math.inf).logsumexp(-1)
    left_out.scatter_(-1, largest, (rest - total)[:, None])
    variance = left_out.var(-1, correction=0) * (num_samples - 1)
    # If all weights but one are 0, the variance is unknown.
    return total - math.log(num_samples), variance.nan_to_num(nan=math.inf)
