from __future__ import annotations

from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.image import imread
from zoo import tiny_data, tiny_vae

from pyro_dvae import EpochRecord, plots


def _images(figure: Figure) -> list[torch.Tensor]:
    return [torch.tensor(image.get_array()) for axes in figure.axes for image in axes.get_images()]


@pytest.mark.parametrize("number", [1, 7, 64])
def test_grid_shows_every_image(number: int, tmp_path: Path) -> None:
    images = torch.rand(number, 3, 5)
    figure = plots.image_grid(images, 4, "title")
    for shown, image in zip(_images(figure), images, strict=True):
        assert torch.equal(shown, image)
    plots.save_figure(figure, tmp_path / "grid.png")
    assert imread(tmp_path / "grid.png").std() > 0


def test_reconstructions_show_what_they_say() -> None:
    vae, binary = tiny_vae(event=(2, 3)), tiny_data(4, (2, 3))
    grey = torch.rand(4, 2, 3)
    shown = _images(plots.reconstruction_figure(vae, grey, binary))
    assert len(shown) == 16
    means = vae.reconstruct(binary)
    for column in range(4):
        assert torch.equal(shown[column], grey[column])
        assert torch.equal(shown[4 + column], binary[column])
        torch.testing.assert_close(shown[8 + column], means[column])
        assert set(shown[12 + column].unique().tolist()) <= {0.0, 1.0}


def test_latents_vary_alone() -> None:
    vae, x = tiny_vae(event=(2, 3)), tiny_data(1, (2, 3))[0]
    figure = plots.latents_figure(vae, x)
    shown = _images(figure)
    assert len(shown) == 6
    index = vae.encode(x[None])[0].argmax(-1)
    framed = [axes for axes in figure.axes if axes.spines["left"].get_visible()]
    assert [figure.axes.index(axes) for axes in framed] == [int(index[0]), 3 + int(index[1])]
    for axes in framed:
        torch.testing.assert_close(
            torch.tensor(axes.get_images()[0].get_array()), vae.reconstruct(x[None])[0]
        )


@pytest.mark.parametrize("validation", [None, -2.0])
@pytest.mark.parametrize("epochs", [0, 1, 3])
def test_elbo_figure(validation: float | None, epochs: int, tmp_path: Path) -> None:
    records = [EpochRecord(e + 1, -3.0, validation, validation, e == 0, 1.0) for e in range(epochs)]
    figure = plots.elbo_figure(records, "caption")
    plots.save_figure(figure, tmp_path / "elbo.png")
    curves = [line for line in figure.axes[0].lines if line.get_marker() == "."]
    assert len(curves) == (1 if validation is None and epochs else 3)
    assert all(len(line.get_xdata()) == epochs for line in curves)
