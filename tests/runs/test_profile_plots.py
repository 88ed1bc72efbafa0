"""The picture of a profile: which rows and columns it has, and what stands in its cells."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.image import imread
from torch import Tensor

from pyro_dvae import Profile
from pyro_dvae.evaluation.profile_figures import Feature
from pyro_dvae.runs.plots import save_figure
from pyro_dvae.runs.profile_plots import profile_figure


def made(
    sizes: list[list[float]],
    features: list[Feature],
    information: list[float],
    class_counts: Tensor | None = None,
) -> Profile:
    """A profile whose feature i differs by i standard deviations per category."""
    shape = (len(sizes), len(sizes[0]), len(features))
    steps = torch.arange(shape[2]) * torch.arange(shape[1])[:, None]
    return Profile(
        num_data=int(sum(sizes[0])),
        features=tuple(features),
        whole=torch.full((shape[2],), 0.5),
        spread=torch.full((shape[2],), 0.25),
        sizes=torch.tensor(sizes, dtype=torch.float64),
        means=(0.5 + 0.25 * steps.double()).expand(shape),
        weights=torch.ones(shape),
        information=torch.tensor(information),
        typical=torch.zeros(1, *shape[:2], dtype=torch.int64),
        row_names={},
        classes=() if class_counts is None else ("cat", "dog"),
        class_counts=class_counts,
    )


def cells(axes: Axes) -> list[list[str]]:
    """The texts in the cells, row by row."""
    rows: dict[float, list[str]] = {}
    for text in axes.texts:
        rows.setdefault(text.get_position()[1], []).append(text.get_text())
    return [rows[row] for row in sorted(rows)]


def rows_of(axes: Axes) -> list[str]:
    return [label.get_text() for label in axes.get_yticklabels()]


BASIC = [Feature("mass", None), Feature("sex", "f"), Feature("sex", "m")]


def test_rows_are_features_and_columns_are_the_used_categories(tmp_path: Path) -> None:
    counts = torch.tensor([[[6.0, 0.0], [0.0, 0.0], [1.0, 3.0]]]).double()
    profile = made([[6.0, 0.1, 4.0]], BASIC, [0.5], counts)
    figure = profile_figure(profile)
    axes = figure.axes[0]
    assert rows_of(axes) == ["mass", "sex=m", "label=cat", "label=dog"]
    ticks = [label.get_text() for label in axes.get_xticklabels()]
    assert ticks == ["all", "0\n60%", "2\n40%"]
    assert cells(axes) == [
        ["0.5", "0.5", "0.5"],
        ["50%", "50%", "150%"],
        ["70%", "100%", "25%"],
        ["30%", "0%", "75%"],
    ]
    colours = torch.tensor(axes.get_images()[0].get_array().filled(math.nan))
    assert colours[:, 0].isnan().all()
    torch.testing.assert_close(colours[:2, 1:], torch.tensor([[0.0, 0.0], [0.0, 4.0]]).double())
    sd = math.sqrt(0.21)
    expected = torch.tensor([[0.3, -0.45], [-0.3, 0.45]]).double() / sd
    torch.testing.assert_close(colours[2:, 1:], expected)
    assert axes.get_title() == "z1: 0.50 nats"
    save_figure(figure, tmp_path / "profile.png")
    assert imread(tmp_path / "profile.png").std() > 0.01


@pytest.mark.parametrize(
    ("information", "titles"),
    [
        ([0.0, 0.5, 0.009], ["z2: 0.50 nats"]),
        ([0.0, 0.001, 0.0], ["z2: 0.00 nats"]),  # one is shown all the same
        ([0.1] * 14, [f"z{d + 1}: 0.10 nats" for d in range(12)]),
        ([0.1, 0.1, *[0.2] * 11], ["z1: 0.10 nats", *(f"z{d}: 0.20 nats" for d in range(3, 14))]),
    ],
)
def test_latents_that_tell_nothing_are_left_out(
    information: list[float], titles: list[str]
) -> None:
    figure = profile_figure(made([[1.0, 1.0]] * len(information), BASIC, information))
    assert [axes.get_title() for axes in figure.axes if axes.get_title()] == titles


def test_many_features_become_those_that_differ_most() -> None:
    features = [Feature("kind", str(i)) for i in range(9)]
    features += [Feature(f"x{i}", None) for i in range(50)]
    figure = profile_figure(made([[1.0, 1.0]], features, [0.5]))
    assert rows_of(figure.axes[0]) == [f"x{i}" for i in range(10, 50)]
    assert "the features that differ most" in figure.get_suptitle()
    figure = profile_figure(made([[1.0, 1.0]], features[:9], [0.5]))
    assert rows_of(figure.axes[0]) == [f"kind={i}" for i in range(3, 9)]


def test_many_categories_become_the_largest() -> None:
    profile = made([[float(k) for k in range(1, 41)]], BASIC, [0.5])
    axes = profile_figure(profile).axes[0]
    assert axes.get_title() == "z1: 0.50 nats, 32 of 40 categories"
    assert [label.get_text().partition("\n")[0] for label in axes.get_xticklabels()] == [
        "all",
        *map(str, range(8, 40)),
    ]
