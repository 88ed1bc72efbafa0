"""Whether the bounds of an evaluation are in their order."""

from __future__ import annotations

import math
from itertools import pairwise

from pyro_dvae.evaluation.figures import Evaluation

_ROUNDING = 1e-7
"""Relative difference of two figures up to which rounding explains it."""
_CHANCE = 4.5
"""Difference of two figures, in standard errors, up to which chance explains it."""


def ordering(evaluation: Evaluation) -> str:
    """One line: whether ELBO <= bound(k) <= log p(x) holds, or by how much it fails, and why.

    Args:
        evaluation: the result of `evaluate`. Figures that are None are left out.
    """
    errors = evaluation.standard_errors
    figures = [
        ("elbo", "ELBO", evaluation.elbo),
        (
            "importance_bound",
            f"bound({evaluation.importance_samples})",
            evaluation.importance_bound,
        ),
        ("log_marginal", "log p(x)", evaluation.log_marginal),
    ]
    chain = [(name, label, value) for name, label, value in figures if value is not None]
    if len(chain) == 1:
        return "ELBO <= log p(x) was not checked: neither log p(x) nor a tighter bound is known."
    violations, reason = [], "Monte Carlo error explains it"
    for (low, low_label, low_value), (high, high_label, high_value) in pairwise(chain):
        excess = low_value - high_value
        if excess <= _ROUNDING * max(1.0, abs(high_value)):
            continue
        violation = f"{low_label} exceeds {high_label} by {excess:.2g} nats"
        if low in errors or high in errors:
            error = math.hypot(errors.get(low, 0.0), errors.get(high, 0.0))
            violation += f" (standard error {error:.2g})"
            if excess > _CHANCE * error:
                reason = "codes that are too rare to be drawn may explain it, use more draws"
        else:
            reason = "no draws are involved, so this is a bug: please report it"
        violations.append(violation)
    claim = " <= ".join(label for _, label, _ in chain)
    return f"{claim} fails: {'; '.join(violations)}; {reason}." if violations else f"{claim} holds."


def is_far(gap: float, log_p: float) -> bool:
    """Whether q(z|x) is far from p(z|x): by 1 nat or more, and by a tenth of |log p(x)| or more.

    Args:
        gap: KL(q(z|x) || p(z|x)), in nats per datum.
        log_p: log p(x), in nats per datum.
    """
    return gap >= max(1.0, 0.1 * abs(log_p))
