"""Groups of runs over seeds: mean and spread of each, and its differences to the best group."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

LEVEL = 0.05
"""A difference is called real where chance alone gives one as large in less than this share of
cases."""


@dataclass(frozen=True)
class GroupFigures:
    """A figure of one group of runs, and how it differs from that of the best group.

    All figures are in the units of the figure, such as nats per datum.
    """

    num_runs: int
    num_seeds: int
    """n, the seeds of the group. Runs of one seed count as one, by their mean."""
    mean: float
    """m = (1/n) sum of y_s over the seeds s."""
    deviation: float | None
    """s = sqrt(sum of (y_s - m)^2 / (n - 1)), over seeds; None for one seed."""
    difference: float | None = None
    """The mean of this group less that of the best one, over the seeds that are compared; None for
    the best group itself."""
    standard_error: float | None = None
    """Of the difference; None where too few seeds are known."""
    num_pairs: int = 0
    """The seeds that both groups have. If there are at least 2, the difference is paired: it is the
    mean of the differences seed by seed. Else it is of two independent samples."""
    p_value: float | None = None
    """How often chance alone gives a t statistic as large, if this pair alone is compared."""
    adjusted_p_value: float | None = None
    """`p_value` times the number of pairs of groups, G (G - 1) / 2, at most 1: the best group was
    picked by the same figures, so that chance had as many trials."""
    verdict: str = ""
    """The comparison in words: "worse" if the adjusted p value is below `LEVEL`, "perhaps worse" if
    only the other is, and else "within the noise"."""


def compare_groups(groups: Sequence[Mapping[int, Sequence[float]]]) -> list[GroupFigures]:
    """Compare groups of runs with the best of them, seed by seed.

    Let y_s be the figure of a group at seed s, and b_s that of the group with the largest mean.
    Over the n seeds that both have, with d_s = y_s - b_s,

        d = (1/n) sum of d_s,    se^2 = sum of (d_s - d)^2 / (n (n - 1)),    t = d / se,

    with n - 1 degrees of freedom. If they share fewer than 2 seeds and have 2 or more each, d is
    the difference of the two means, se^2 = v_y + v_b with v = s^2 / n of each group, and the
    degrees of freedom are Welch's,

        se^4 / (v_y^2 / (n_y - 1) + v_b^2 / (n_b - 1)), rounded down.

    Args:
        groups: of each group the figures by seed: seed -> the figures of its runs, at least one.
            Larger is better.

    Returns:
        The figures of each group, in the order given.
    """
    by_seed = [{seed: fmean(values) for seed, values in group.items()} for group in groups]
    means = [fmean(group.values()) for group in by_seed]
    best = max(range(len(groups)), key=means.__getitem__)
    num_compared = len(groups) * (len(groups) - 1) // 2
    found = []
    for index, (runs, figures) in enumerate(zip(groups, by_seed, strict=True)):
        deviation = stdev(figures.values()) if len(figures) > 1 else None
        own = GroupFigures(sum(map(len, runs.values())), len(figures), means[index], deviation)
        if index != best:
            found.append(_compared(own, figures, by_seed[best], num_compared))
        else:
            found.append(replace(own, verdict="best") if len(groups) > 1 else own)
    return found


def _compared(
    own: GroupFigures, figures: Mapping[int, float], best: Mapping[int, float], num_compared: int
) -> GroupFigures:
    """The same figures, with the difference to the best group."""
    shared = sorted(figures.keys() & best.keys())
    if len(shared) > 1:
        pairs = len(shared)
        differences = [figures[seed] - best[seed] for seed in shared]
        difference, degrees = fmean(differences), pairs - 1
        error = stdev(differences) / math.sqrt(pairs)
    else:
        pairs = 0
        difference = fmean(figures.values()) - fmean(best.values())
        if min(len(figures), len(best)) < 2:
            unknown = "not known: needs 2 seeds or more"
            return replace(own, difference=difference, verdict=unknown)
        error, degrees = _welch([*figures.values()], [*best.values()])
    same = 0.0 if difference else 1.0  # at every seed
    p_value = t_p_value(difference / error, degrees) if error else same
    adjusted = min(1.0, num_compared * p_value)
    verdict = "worse" if difference < 0 else "better"
    if adjusted >= LEVEL:
        verdict = f"perhaps {verdict}" if p_value < LEVEL else "within the noise"
    return replace(
        own,
        difference=difference,
        standard_error=error,
        num_pairs=pairs,
        p_value=p_value,
        adjusted_p_value=adjusted,
        verdict=verdict,
    )


def _welch(one: Sequence[float], other: Sequence[float]) -> tuple[float, int]:
    """The standard error of the difference of two means, and its degrees of freedom."""
    terms = [stdev(values) ** 2 / len(values) for values in (one, other)]
    spread = sum(v**2 / (len(x) - 1) for v, x in zip(terms, (one, other), strict=True))
    least = min(len(one), len(other)) - 1
    return math.sqrt(sum(terms)), int(sum(terms) ** 2 / spread) if spread else least


def t_p_value(t: float, degrees: int) -> float:
    """P(|T| >= |t|) for Student's t distribution with a whole number of degrees of freedom.

    With theta = arctan(|t| / sqrt(degrees)), it is 1 - A, where A is a finite sum of powers of
    cos(theta): formulas 26.7.3 and 26.7.4 of Abramowitz and Stegun.

    Args:
        t: the statistic.
        degrees: of freedom, 1 or more.
    """
    theta = math.atan2(abs(t), math.sqrt(degrees))
    sine, cosine = math.sin(theta), math.cos(theta)
    odd = degrees % 2
    term = cosine if odd else 1.0
    total = 0.0
    for power in range(odd, degrees - 1, 2):
        total += term
        term *= cosine**2 * (power + 1) / (power + 2)
    inside = 2 / math.pi * (theta + sine * total) if odd else sine * total
    return min(1.0, max(0.0, 1.0 - inside))
