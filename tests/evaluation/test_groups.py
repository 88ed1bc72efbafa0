"""Groups of runs over seeds, against figures worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from pyro_dvae.evaluation import GroupFigures, compare_groups
from pyro_dvae.evaluation.groups import t_p_value

FIRST = {0: [1.0], 1: [2.0], 2: [3.0]}  # mean 2, sd 1
SECOND = {2: [2.4], 0: [0.0], 1: [1.5]}  # less by 1, 0.5 and 0.6: mean 0.7, squares 0.14
ELSEWHERE = {5: [1.0], 6: [1.4]}  # mean 1.2, variance 0.08


@pytest.mark.parametrize("t", [0.0, 0.3, -2.0, 7.0])
def test_p_values_of_one_and_two_degrees_have_closed_forms(t: float) -> None:
    assert t_p_value(t, 1) == pytest.approx(1 - 2 / math.pi * math.atan(abs(t)), abs=1e-12)
    assert t_p_value(t, 2) == pytest.approx(1 - abs(t) / math.sqrt(t**2 + 2), abs=1e-12)


@pytest.mark.parametrize("degrees", [3, 4, 9, 30])
def test_p_values_are_the_integral_of_the_density(degrees: int) -> None:
    x = torch.linspace(-1.7, 1.7, 20_001, dtype=torch.float64)
    density = torch.distributions.StudentT(torch.tensor(float(degrees))).log_prob(x).exp()
    inside = torch.trapezoid(density, x).item()
    assert t_p_value(1.7, degrees) == pytest.approx(1 - inside, abs=1e-6)


def test_a_difference_is_paired_by_seed() -> None:
    first, second = compare_groups([FIRST, SECOND])
    assert first == GroupFigures(3, 3, 2.0, 1.0, verdict="best")
    assert second.mean == pytest.approx(1.3)
    assert second.deviation == pytest.approx(math.sqrt((1.3**2 + 0.2**2 + 1.1**2) / 2))
    assert second.difference == pytest.approx(-0.7)
    error = math.sqrt(0.14 / (3 * 2))
    assert second.standard_error == pytest.approx(error)
    assert second.num_pairs == 3
    assert second.p_value == pytest.approx(1 - math.sqrt(21 / 23))  # t^2 = 0.49 / (0.14 / 6) = 21
    assert second.verdict == "worse"  # 0.045


def test_more_groups_make_chance_differences_more_frequent() -> None:
    _, second, _ = compare_groups([FIRST, SECOND, ELSEWHERE])
    assert second.p_value == pytest.approx(1 - math.sqrt(21 / 23))
    assert second.adjusted_p_value == pytest.approx(3 * (1 - math.sqrt(21 / 23)))
    assert second.verdict == "perhaps worse"


def test_groups_without_shared_seeds_are_independent_samples() -> None:
    _, other = compare_groups([FIRST, ELSEWHERE])
    assert other.num_pairs == 0
    assert other.difference == pytest.approx(-0.8)
    variance = 1 / 3 + 0.08 / 2
    assert other.standard_error == pytest.approx(math.sqrt(variance))
    # Welch: variance^2 / ((1/3)^2 / 2 + 0.04^2 / 1) = 2.4 degrees of freedom, and so 2.
    t_squared = 0.64 / variance
    assert other.p_value == pytest.approx(1 - math.sqrt(t_squared / (t_squared + 2)))
    assert other.verdict == "within the noise"


def test_runs_of_one_seed_count_once() -> None:
    (group,) = compare_groups([{0: [1.0, 2.0], 1: [2.5]}])
    assert (group.num_runs, group.num_seeds, group.mean) == (3, 2, 2.0)
    assert group.deviation == pytest.approx(math.sqrt(0.5))
    assert group.verdict == ""


def test_one_seed_tells_no_noise() -> None:
    _, other = compare_groups([{0: [1.0]}, {0: [0.5]}])
    assert (other.difference, other.standard_error, other.p_value) == (-0.5, None, None)
    assert other.verdict == "not known: needs 2 seeds or more"


@pytest.mark.parametrize(("less", "verdict"), [(0.0, "within the noise"), (0.5, "worse")])
def test_differences_that_are_the_same_at_every_seed(less: float, verdict: str) -> None:
    _, other = compare_groups([{0: [1.0], 1: [2.0]}, {0: [1.0 - less], 1: [2.0 - less]}])
    assert (other.difference, other.standard_error, other.verdict) == (-less, 0.0, verdict)
