"""Data with missing elements: what is checked of them, and which codes are summed over."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pyro_dvae.checks import at_least
from pyro_dvae.codes import MAX_CODES, describe_codes, num_codes
from pyro_dvae.likelihoods.masked import refuse_dependent, unmasked
from pyro_dvae.networks.assembly import check_parts
from pyro_dvae.tensors import as_arguments

if TYPE_CHECKING:
    from pyro_dvae.vae import DiscreteVAE

_TABLE_ELEMENTS = 2**22
"""Most weights of codes, (data, codes), in memory at once."""

_MOST_NUMBERS = 2**24
"""If a sum over all codes computes more numbers per datum than this, codes are drawn, unless
`exact` is True."""


def incomplete(
    vae: DiscreteVAE,
    x: Any,
    missing: Any,
    labels: Any,
    purpose: str = "data with missing values",
) -> tuple[Tensor, Tensor | None]:
    """Data and labels as tensors, with NaN for each missing element; checked.

    Args:
        vae: the model.
        x: (N, *event).
        missing: (N, *event) bools, which elements are missing beside those that are NaN; or None.
        labels: (N,), or None.
        purpose: what independent elements are needed for, as a message says it.

    Raises:
        ValueError: there are no data, an observed element is outside of the support, the elements
            are not independent given z, or the shapes differ.
    """
    refuse_dependent(unmasked(vae.likelihood), purpose)
    x, labels = as_arguments(vae, x, labels)
    labels = vae.prior_labels(labels)
    at_least("data", len(x), 1)
    if missing is not None:
        mask = torch.as_tensor(missing, device=x.device)
        if mask.dtype != torch.bool or mask.shape != x.shape:
            raise ValueError(
                f"Expected bools of shape {tuple(x.shape)} that say which elements are missing; "
                f"got {mask.dtype} of shape {tuple(mask.shape)}. Pass x.isnan(), say."
            )
        x = x.masked_fill(mask, torch.nan)
    filled = unmasked(vae.likelihood).filled(x)
    vae.likelihood.check(filled)
    vae.prior.refresh()
    if labels is not None:
        vae.prior.check_labels(labels)
    check_parts(vae, filled, labels)
    return x, labels


def codes_to_draw(
    vae: DiscreteVAE, x: Tensor, labels: Tensor | None, exact: bool | None, num_draws: int
) -> tuple[int | None, int]:
    """None for a sum over all codes, or the number of codes to draw; and how many data at once.

    Args:
        vae: the model.
        x: the data.
        labels: (N,), or None.
        exact: True for all codes, False for draws, None for all codes where they are few.
        num_draws: the number of draws.

    Raises:
        ValueError: `exact` is True, and there are too many codes; or there are fewer than 2 draws.
    """
    at_least("importance samples", num_draws, 2)
    shape = vae.prior_codes(None if labels is None else labels[:1]).event_shape
    total = num_codes(*shape)
    if exact and total > MAX_CODES:
        raise ValueError(
            f"Expected at most {MAX_CODES} codes to sum over; got K^D = {describe_codes(*shape)}. "
            "Use exact=None, which draws codes where there are more."
        )
    if exact is None:
        exact = sums_over_codes(vae, shape, x.shape[1:])
    size = max(1, _TABLE_ELEMENTS // (total if exact else num_draws))
    return (None, size) if exact else (num_draws, size)


def sums_over_codes(
    vae: DiscreteVAE, code_shape: Sequence[int], event_shape: Sequence[int]
) -> bool:
    """Whether `impute` and `predict` sum over all codes, where the caller does not say it.

    Args:
        vae: the model.
        code_shape: (D, K).
        event_shape: the shape of a datum.
    """
    total = num_codes(*code_shape)
    cost = total * math.prod(event_shape) * max(1, vae.likelihood.cost)
    return total <= MAX_CODES and cost <= _MOST_NUMBERS
