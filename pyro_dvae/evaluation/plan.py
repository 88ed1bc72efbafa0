"""Whether figures are sums over all codes or means over draws: decided once for a data set."""

from __future__ import annotations

from dataclasses import dataclass

from pyro_dvae.checks import at_least
from pyro_dvae.codes import MAX_CODES
from pyro_dvae.evaluation.joint import Joint
from pyro_dvae.evaluation.marginal import MAX_SUMMED_CODES
from pyro_dvae.memory import refuse_bytes
from pyro_dvae.posteriors import CONDITIONALS

_MOST_NUMBERS = 2**22
"""Numbers per datum that are computed to sum over all codes, unless `exact` asks for more.

They take some 20 ms of a CPU."""

_TABLE_ELEMENTS = 2**22
"""Log-probabilities of codes or draws, (data, codes), that are held at once."""

_DRAW_BYTES = 40
"""Bytes per draw of a datum: five figures in double precision, at least."""


def check_settings(num_samples: int, importance_samples: int | None, batch_size: int) -> None:
    """Refuse settings of an evaluation that are out of range.

    Raises:
        ValueError: fewer than 2 samples of a kind, more than memory holds, or `batch_size` < 1.
    """
    at_least("batch size", batch_size, 1)
    numbers = {"samples": num_samples, "importance samples": importance_samples}
    for what, number in numbers.items():
        if number is not None:
            at_least(what, number, 2)
            # All draws of a datum are held at once: the error of their mean needs all of them.
            needed = _DRAW_BYTES * min(number, 2**63)
            refuse_bytes(f"{number} {what} for each datum", needed, f"the number of {what}")


@dataclass(frozen=True)
class Plan:
    """How the figures of each datum are computed; `exact` implies both tables."""

    exact: bool
    """The ELBO and log p(x) are sums over all K^D codes; else the ELBO is a mean over draws."""
    tabulates_guide: bool
    """Log q(z|x) may be computed for all K^D codes, where the guide's latents are dependent."""
    tabulates_joint: bool
    """Log p(z) and log p(x|z) are computed for all K^D codes, and those of draws looked up."""
    num_samples: int
    """Draws of z per datum for the ELBO, where it is no sum."""
    importance_samples: int | None
    """k, draws of z per datum for the importance-weighted bound; None without that bound."""
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
    """Decide how to compute the figures, so that time and memory are bounded.

    Args:
        joint: p(z) and p(x|z) of the model.
        exact: True for sums over all codes, False for draws, None for sums where they are cheap.
        num_samples: draws of z per datum for the ELBO, where it is no sum.
        importance_samples: k, draws of z per datum for the importance-weighted bound, or None.
        batch_size: the most data in a block.

    Raises:
        ValueError: `exact` is True, and K^D exceeds `MAX_CODES`.
    """
    is_enumerable = joint.num_codes <= MAX_CODES
    is_cheap = is_enumerable and joint.cost <= _MOST_NUMBERS
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
    # Too many codes for a table: the marginals of a guide are then means over draws.
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
