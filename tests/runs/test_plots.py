from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.image import imread
from zoo import tiny_data, tiny_vae

from pyro_dvae import EpochRecord, GradientStatistics
from pyro_dvae.codes import one_hot
from pyro_dvae.diagnostics import Estimate
from pyro_dvae.runs import plots


def _images(figure: Figure, shape: tuple[int, int], axes: int = 0) -> torch.Tensor:
    """The images (R, C, H, W) that are shown side by side, what is between them cut off."""
    mosaic = torch.tensor(figure.axes[axes].get_images()[0].get_array())
    height, width = shape
    gap = 1 + max(shape) // 16
    rows, columns = ((n + gap) // (side + gap) for n, side in zip(mosaic.shape, shape, strict=True))
    assert mosaic.shape == (rows * (height + gap) - gap, columns * (width + gap) - gap)
    full = torch.nn.functional.pad(mosaic, (0, gap, 0, gap), value=1.0)
    cells = full.view(rows, height + gap, columns, width + gap).transpose(1, 2)
    assert (cells[..., height:, :] == 1).all()
    assert (cells[..., width:] == 1).all()
    return cells[..., :height, :width]


def _labels(figure: Figure, axes: int = 0) -> tuple[list[str], list[str]]:
    shown = figure.axes[axes]
    return [t.get_text() for t in shown.get_yticklabels()], [
        t.get_text() for t in shown.get_xticklabels()
    ]


@pytest.mark.parametrize(("height", "width"), [(3, 5), (28, 28), (1, 40)])
@pytest.mark.parametrize("number", [1, 7, 64])
def test_grid_shows_every_image(number: int, height: int, width: int, tmp_path: Path) -> None:
    images = torch.rand(number, height, width)
    figure = plots.image_grid(images, 4, "title")
    shown = _images(figure, (height, width)).flatten(0, 1)
    assert torch.equal(shown[:number], images)
    assert (shown[number:] == 1).all()
    plots.save_figure(figure, tmp_path / "grid.png")
    assert imread(tmp_path / "grid.png").std() > 0


def test_a_large_grid_is_drawn(tmp_path: Path) -> None:
    figure = plots.image_grid(torch.rand(1000, 1, 1), 1000, "title")
    assert figure.get_size_inches().max() * 150 < 2**16
    assert _images(figure, (1, 1)).shape[:2] == (1, 1000)


@pytest.mark.parametrize("event", [(3, 5), (1, 3, 5), (3, 3, 5)])
def test_a_mosaic_shows_every_image(event: tuple[int, ...], tmp_path: Path) -> None:
    images = torch.arange(7 * 45).reshape(7, 45)[:, : torch.Size(event).numel()] % 256 / 255
    images = images.reshape(7, *event)
    plots.save_mosaic(images, 4, tmp_path / "x.png")
    pixels = torch.tensor(imread(tmp_path / "x.png"))
    assert pixels.shape == (2 * 4 - 1, 4 * 6 - 1, 3)[: 2 + (event[0] == 3 and len(event) == 3)]
    for i, image in enumerate(images):
        row, column = i // 4 * 4, i % 4 * 6
        shown = pixels[row : row + 3, column : column + 5]
        right = image.permute(1, 2, 0) if len(event) == 3 else image
        torch.testing.assert_close(shown, right.squeeze(-1), check_dtype=False)
    assert (pixels[3] == 1).all()
    assert (pixels[:, 5] == 1).all()


def test_reconstructions_show_what_they_say() -> None:
    vae, binary = tiny_vae(event=(2, 3)), tiny_data(4, (2, 3))
    grey = torch.rand(4, 2, 3)
    figure = plots.reconstruction_figure(vae, grey, binary)
    shown = _images(figure, (2, 3))
    assert _labels(figure)[0] == ["input", "binarised", "mean of p(x|z)", "draw"]
    assert shown.shape == (4, 4, 2, 3)
    assert torch.equal(shown[0], grey)
    assert torch.equal(shown[1], binary)
    torch.testing.assert_close(shown[2], vae.reconstruct(binary))
    assert set(shown[3].unique().tolist()) <= {0.0, 1.0}


@pytest.mark.parametrize("number", [6, 12])
def test_reconstructions_fill_their_picture(number: int, tmp_path: Path) -> None:
    vae, x = tiny_vae(event=(28, 28)), tiny_data(number, (28, 28))
    plots.save_figure(plots.reconstruction_figure(vae, 1 - x, x), tmp_path / "x.png")
    used = torch.tensor(imread(tmp_path / "x.png"))[..., 0] < 1
    columns, rows = (used.any(dim).nonzero().flatten() for dim in (0, 1))
    height, width = used.shape
    inch = 150
    # The names are whole, for a margin is left of them.
    assert 0 < columns[0] <= 0.1 * inch
    assert width - columns[-1] <= 0.1 * inch
    assert 0 < rows[0] <= 0.1 * inch
    assert height - rows[-1] <= 0.1 * inch


def test_gradients_are_drawn_with_their_errors(tmp_path: Path) -> None:
    rows = [
        GradientStatistics(
            name,
            part,
            bias=Estimate(1.0, 1.0),
            relative_bias=bias,
            relative_bias_error=error,
            variance=Estimate(variance, 0.1),
            signal_to_noise=Estimate(math.inf if variance < 1e-9 else 1.0, 0.0),
            cosine=Estimate(0.5, 0.1),
            decoder_evaluations=1,
            milliseconds=1,
        )
        for name, bias, error, variance in [
            ("first", 0.2, 0.1, 1.0),
            ("second", 0.0, 90.0, 2.0),
            ("exact", 0.0, 0.0, 1e-18),
        ]
        for part in ("encoder", "decoder")
    ]
    figure = plots.gradient_figure(rows)
    plots.save_figure(figure, tmp_path / "x.png")
    for line in (figure.axes[:3], figure.axes[3:]):
        assert [t.get_text() for t in line[0].get_yticklabels()] == ["first", "second", "exact"]
        bottom, top = line[0].get_ylim()
        assert bottom > top  # the first estimator is at the top
        # A variance that is rounding alone, and an error of 90 times the norm, hide nothing.
        assert line[1].get_xlim()[0] == 0.5
        assert line[2].get_xlim() == (0, 1)
        segments = line[2].containers[0].lines[2][0].get_segments()
        assert segments[0][:, 0].tolist() == pytest.approx([0.1, 0.3])
        assert segments[1][:, 0].tolist() == pytest.approx([-90, 90])


def test_latents_vary_alone() -> None:
    vae, x = tiny_vae(event=(2, 3)), tiny_data(1, (2, 3))[0]
    figure = plots.latents_figure(vae, x)
    assert torch.equal(_images(figure, (2, 3), 0)[0, 0], x)
    shown = _images(figure, (2, 3), 1)
    assert shown.shape[:2] == (2, 3)
    assert _labels(figure, 1) == (["z1", "z2"], ["0", "1", "2"])
    index = vae.encode(x[None])[0].argmax(-1)
    for latent in range(2):
        for category in range(3):
            varied = index.clone()
            varied[latent] = category
            mean = vae.decode(one_hot(varied, 3)).mean
            torch.testing.assert_close(shown[latent, category], mean)
    # The gap is 1: images are 3 elements apart from top to top, and 4 from left to left.
    framed = [(p.get_y() + 1, p.get_x() + 1) for p in figure.axes[1].patches]
    assert framed == [(3 * latent, 4 * index[latent]) for latent in range(2)]


@pytest.mark.parametrize("validation", [None, -2.0])
@pytest.mark.parametrize("epochs", [0, 1, 3])
def test_elbo_figure(validation: float | None, epochs: int, tmp_path: Path) -> None:
    records = [
        EpochRecord(e + 1, -3.0, validation, validation, None, e == 0, 1.0) for e in range(epochs)
    ]
    figure = plots.elbo_figure(records, "caption")
    plots.save_figure(figure, tmp_path / "elbo.png")
    curves = [line for line in figure.axes[0].lines if line.get_marker() == "."]
    assert len(curves) == (1 if validation is None and epochs else 3)
    assert all(len(line.get_xdata()) == epochs for line in curves)


def test_elbo_figure_marks_the_epochs_of_the_guide() -> None:
    record = EpochRecord(1, -3.0, -2.0, -1.0, None, True, 1.0)
    further = [replace(record, epoch=epoch, of_guide=True) for epoch in (2, 3)]
    labels = [line.get_label() for line in plots.elbo_figure([record, *further], "").axes[0].lines]
    assert labels[-2:] == ["best epoch, 3", "guide alone, from epoch 2"]
    labels = [line.get_label() for line in plots.elbo_figure([record], "").axes[0].lines]
    assert labels[-1:] == ["best epoch, 1"]
