"""The plan of an evaluation: which figures are sums over all codes, and which are from draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyro_dvae.checks import at_least
from pyro_dvae.codes import MAX_CODES, num_codes
from pyro_dvae.evaluation.joint import Joint
from pyro_dvae.evaluation.marginal import MAX_SUMMED_CODES
from pyro_dvae.memory import refuse_bytes
from pyro_dvae.posteriors import CONDITIONALS

if TYPE_CHECKING:
    from pyro_dvae.vae import DiscreteVAE

_MOST_NUMBERS = 2**22
"""If a sum over all codes computes more numbers per datum than this, it is made only if `exact` is
True. So many numbers take about 20 ms on a CPU."""

_TABLE_ELEMENTS = 2**22
"""Largest number of log-probabilities, (data, codes or draws), in memory at once."""

_DRAW_BYTES = 40
"""Bytes per draw and datum, at least: five numbers in double precision."""


def check_settings(num_samples: int, importance_samples: int | None, batch_size: int) -> None:
    """Refuse settings of an evaluation that are out of range.

    Raises:
        ValueError: there are fewer than 2 samples of a kind, or more than fit into memory, or
            `batch_size` < 1.
    """
    at_least("batch size", batch_size, 1)
    numbers = {"samples": num_samples, "importance samples": importance_samples}
    for what, number in numbers.items():
        if number is not None:
            at_least(what, number, 2)
            # All draws of a datum are in memory at once, for the error of their mean.
            needed = _DRAW_BYTES * min(number, 2**63)
            refuse_bytes(f"{number} {what} for each datum", needed, f"the number of {what}")


@dataclass(frozen=True)
class Plan:
    """How the figures of each datum are computed. `exact` implies `tabulates_*`."""

    exact: bool
    """True if the ELBO and log p(x) are sums over all K^D codes, False for means over draws."""
    tabulates_guide: bool
    """Whether log q(z|x) of all K^D codes is computed, if the guide's latents are dependent."""
    tabulates_joint: bool
    """Whether log p(z) and log p(x|z) of all K^D codes are computed. Draws then look them up."""
    num_samples: int
    """Draws of z per datum for the ELBO, if it is not a sum."""
    importance_samples: int | None
    """k, draws of z per datum for the importance-weighted bound; None for no such bound."""
    block_size: int
    """Data that are encoded and scored at once."""


def make_plan(
    joint: Joint,
    *,
    exact: bool | None,
    num_samples: int,
    importance_samples: int | None,
    batch_size: int,
) -> Plan:
    """Choose how to compute the figures, so that time and memory are bounded.

    Args:
        joint: p(z) and p(x|z) of the model.
        exact: True for sums over all codes, False for draws, None for sums if they are cheap.
        num_samples: draws of z per datum for the ELBO, if it is not a sum.
        importance_samples: k, draws of z per datum for the importance-weighted bound, or None.
        batch_size: the largest number of data in a block.

    Raises:
        ValueError: `exact` is True, and K^D exceeds `MAX_CODES`.
    """
    is_enumerable = joint.num_codes <= MAX_CODES
    is_cheap = _is_cheap(joint.num_codes, joint.cost)
    exact = is_cheap if exact is None else exact
    if exact and not is_enumerable:
        raise ValueError(
            f"Expected at most {MAX_CODES} codes to sum the ELBO over; got K^D = "
            f"{joint.described}. Use draws (exact=None, importance_samples=1000), or "
            f"log_marginal, which sums up to {MAX_SUMMED_CODES}."
        )
    tabulates_joint = exact or (is_cheap and importance_samples is not None)
    is_sequential = joint.vae.is_sequential
    has_table = tabulates_joint or (is_sequential and is_enumerable)
    # If there are too many codes for a table, the marginals of the guide are means over draws.
    conditionals = CONDITIONALS if is_sequential and not is_enumerable else 1
    per_datum = max(
        joint.num_codes if has_table else 1,
        1 if exact else num_samples,
        conditionals * joint.num_latents * joint.num_categories,
    )
    block_size = min(batch_size, max(1, _TABLE_ELEMENTS // per_datum))
    return Plan(
        exact=exact,
        tabulates_guide=is_enumerable,
        tabulates_joint=tabulates_joint,
        num_samples=num_samples,
        importance_samples=importance_samples,
        block_size=block_size,
    )


def sums_cheaply(vae: DiscreteVAE, code_shape: tuple[int, int], event_shape: Sequence[int]) -> bool:
    """Whether `evaluate` sums over all codes, if the caller does not say it.

    Args:
        vae: the model.
        code_shape: (D, K).
        event_shape: the shape of a datum.
    """
    number = num_codes(*code_shape)
    return _is_cheap(number, number * math.prod(event_shape) * vae.likelihood.cost)


def _is_cheap(number: int, cost: int) -> bool:
    """Whether sums over so many codes, with so many numbers per datum, are cheap."""
    return number <= MAX_CODES and cost <= _MOST_NUMBERS
