"""Draws of q(z|x) that depend on nothing but a seed, and the importance-weighted bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from pyro_dvae.joint import drawn_log_probs


def draw_categories(log_q: Tensor, num_samples: int, generator: torch.Generator) -> Tensor:
    """Draw z_d = min {k : F_d(k) > u}, u ~ U[0, 1), F the distribution function of q(z_d|x).

    The uniforms are drawn on the CPU, in double precision and datum by datum, and so are the same
    for every device and however the data are split.

    Args:
        log_q: (B, D, K), normalised.
        num_samples: S, for each datum.
        generator: of the CPU.

    Returns:
        (B, S, D) categories; one of probability zero is never drawn.
    """
    batch, num_latents, num_categories = log_q.shape
    uniforms = torch.rand(
        batch, num_samples, num_latents, dtype=torch.float64, generator=generator
    ).transpose(1, 2)
    cumulative = log_q.cpu().double().exp().cumsum(-1)
    # The last is exactly 1, above every uniform, whatever the sum was rounded to.
    cumulative = cumulative / cumulative[..., -1:]
    index = torch.searchsorted(cumulative, uniforms.contiguous(), right=True)  # (B, D, S)
    return index.clamp(max=num_categories - 1).transpose(1, 2).to(log_q.device)


def draw_in_chunks(
    log_q: Tensor, num_samples: int, limit: int, generator: torch.Generator
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield rows, draws and their categories (b, s, D), at most `limit` codes at once.

    Several data with all their draws or, where these alone exceed the limit, one datum with some:
    either way in the order of the data.
    """
    rows, samples = max(1, limit // num_samples), max(1, min(num_samples, limit))
    for row in range(0, len(log_q), rows):
        some = slice(row, min(row + rows, len(log_q)))
        for start in range(0, num_samples, samples):
            stop = min(start + samples, num_samples)
            index = draw_categories(log_q[some], stop - start, generator)
            yield some, slice(start, stop), index


def importance_bound(
    log_q: Tensor,
    log_joint: Callable[[slice, Tensor], Tensor],
    num_samples: int,
    limit: int,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """E[log 1/k sum_i p(x, z_i) / q(z_i|x)], z_i ~ q(z|x) independent (Burda et al. 2016).

    The mean over draws is taken inside the logarithm, datum by datum, by a running log-sum-exp. It
    is the ELBO at k = 1, rises with k, and tends to log p(x).

    Args:
        log_q: (B, D, K), normalised.
        log_joint: (rows, categories (b, s, D)) -> log p(x, z), (b, s).
        num_samples: k.
        limit: draws held at once; the result does not change with it.
        generator: of the CPU.

    Returns:
        (B,) one estimate a datum, in nats, and (B,) its variance over draws (`jackknife`).
    """
    bound, variance = log_q.new_empty(2, len(log_q))
    weights: list[Tensor] = []
    for rows, draws, index in draw_in_chunks(log_q, num_samples, limit, generator):
        weights.append(log_joint(rows, index) - drawn_log_probs(log_q[rows], index))  # (b, s)
        if draws.stop == num_samples:
            bound[rows], variance[rows] = log_mean_exp(torch.cat(weights, 1))
            weights.clear()
    return bound, variance


def log_mean_exp(log_weights: Tensor) -> tuple[Tensor, Tensor]:
    """Log 1/k sum_i w_i, and its variance by the jackknife, (k-1)/k sum_i (l_i - mean l)^2.

    l_i = log sum_{j != i} w_j leaves draw i out. Where no weight dominates the variance is that of
    the delta method, sum_i v_i^2 - 1/k with v the normalised weights. But that one never exceeds 1,
    and where q misses the posterior, as in a trained model, and one draw of many carries all the
    weight, it understates the error tenfold; the jackknife then sees the distance to the next.

    Args:
        log_weights: (B, k), k >= 2.

    Returns:
        (B,) and (B,).
    """
    num_samples = log_weights.shape[-1]
    total = log_weights.logsumexp(-1)
    left_out = torch.log1p(-(log_weights - total[:, None]).exp())  # (B, k), l_i - l
    # 1 - v cancels where v is almost 1, which only the largest can be.
    largest = log_weights.argmax(-1, keepdim=True)
    rest = log_weights.scatter(-1, largest, -math.inf).logsumexp(-1)
    left_out.scatter_(-1, largest, (rest - total)[:, None])
    variance = left_out.var(-1, correction=0) * (num_samples - 1)
    # Where all weights but one are 0, nothing is known of the next draws.
    return total - math.log(num_samples), variance.nan_to_num(nan=math.inf)
