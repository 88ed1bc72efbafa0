"""log p(x), as a sum over all K^D codes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from pyro_dvae.codes import ROWS, wide
from pyro_dvae.evaluation.joint import Joint, unchecked
from pyro_dvae.tensors import as_arguments

if TYPE_CHECKING:
    from pyro_dvae.vae import DiscreteVAE

MAX_SUMMED_CODES = 2**20
"""Largest K^D that `log_marginal` sums over."""

_PRODUCT_BLOCKS = 32
"""Number of blocks of `ROWS` data that are scored at once if p(x|z) is a matrix product. With fewer
blocks, most of the time would go into the fixed cost of each chunk of codes."""

_CACHED_ELEMENTS = 2**17
"""Log-probabilities, (data, codes), whose log-sum-exp is computed at once. They fit into a
processor's cache, which makes it four times as fast."""


def log_sum(log_prior: Tensor, log_likelihood: Tensor) -> Tensor:
    """Log p(x) = log sum_z p(z) p(x|z), (B,).

    Args:
        log_prior: log p(z), (1, K^D) or (B, K^D).
        log_likelihood: log p(x|z), (B, K^D).
    """
    size = max(1, _CACHED_ELEMENTS // log_likelihood.shape[1])
    log_priors = log_prior.expand_as(log_likelihood).split(size)
    parts = zip(log_priors, log_likelihood.split(size), strict=True)
    return torch.cat([(some + log_p_x).logsumexp(-1) for some, log_p_x in parts])


def log_marginal(
    vae: DiscreteVAE, x: Any, labels: Any = None, *, chunk_size: int | None = None
) -> Tensor:
    """Log p(x) = log sum_z p(z) p(x|z), over all K^D codes (Eqs. 16, 17, 28 and 29 of [JL25]).

    It is exact, with one exception. A `BoltzmannPrior` with more than `max_codes` codes estimates
    its log Z. An error of log Z is added to log p(x) of every datum; its standard error is
    `vae.prior.log_prob_error()`. Dropout is on if the model is in training mode. Call `vae.eval()`
    first for a figure that you report.

    Args:
        vae: a model with K^D <= 1,048,576 (`MAX_SUMMED_CODES`).
        x: (N, *event) in the support of the likelihood: a tensor, an array or a table.
        labels: (N,) integers if the prior is conditional on labels; then the result is log p(x|y).
            Otherwise None.
        chunk_size: codes that are decoded at once; None for as many as bounded memory allows. The
            result does not depend on it.

    Returns:
        (N,) in nats and double precision, differentiable in the weights of decoder and prior.

    Raises:
        ValueError: K^D exceeds `MAX_SUMMED_CODES`, or x is outside the support.

    Example:
        >>> with torch.no_grad():
        ...     nats = log_marginal(vae.eval(), x)
        >>> nats.shape == (len(x),)
        True
    """
    x, labels = as_arguments(vae, x, labels)
    joint = Joint(vae, x, labels)
    if joint.num_codes > MAX_SUMMED_CODES:
        raise ValueError(
            f"Expected at most {MAX_SUMMED_CODES} codes to sum over; got K^D = "
            f"{joint.described}. Use fewer latents or categories, or the importance-weighted "
            "bound of evaluate(vae, x, importance_samples=1000)."
        )
    blocks = x.split(ROWS * max(1, _PRODUCT_BLOCKS // joint.numbers))
    classes = [slice(None)] * -(-len(x) // ROWS) if labels is None else labels.split(ROWS)
    log_p_x: Tensor | None = None
    with unchecked(vae):
        for log_p_z, p_x in joint.chunks(chunk_size or joint.codes_at_once(len(blocks[0]))):
            if log_p_z.max() == -math.inf:
                continue  # if every term is -inf, the gradient of a log-sum-exp is NaN
            tables = (table for some in blocks for table in p_x.log_prob(some).split(ROWS, 1))
            part = torch.cat(
                [
                    (wide(table) + log_p_z[:, which]).logsumexp(0)
                    for table, which in zip(tables, classes, strict=True)
                ]
            )
            log_p_x = part if log_p_x is None else torch.logaddexp(log_p_x, part)
    return cast(Tensor, log_p_x)
