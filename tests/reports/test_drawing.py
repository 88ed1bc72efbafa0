"""Figures and images as parts of a page."""

from __future__ import annotations

import base64
import io
import re

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image

from pyro_dvae.reports.blocks import Picture
from pyro_dvae.reports.drawing import PLACE, SERIES, drawing, page_style
from pyro_dvae.reports.images import mosaic, png


def pixels(picture: Picture) -> np.ndarray:
    """The pixels of a PNG within a page."""
    data = str(picture.source).removeprefix("data:image/png;base64,")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


def test_an_image_keeps_its_shades() -> None:
    grey = torch.linspace(0, 1, 12).reshape(3, 4)
    picture = png(grey, "shades", scale=2)
    assert np.array_equal(pixels(picture), (grey * 255).round().to(torch.uint8).numpy())
    assert (picture.alt, picture.width, picture.height) == ("shades", 8, 6)
    colour = torch.rand(3, 2, 5)
    assert pixels(png(colour, "colours")).shape == (2, 5, 3)


def test_images_side_by_side() -> None:
    images = torch.arange(3.0).reshape(3, 1, 1).expand(3, 2, 2) / 2
    whole = mosaic(images, 2, gap=1)
    assert whole.shape == (1, 5, 5)
    assert whole[0, 0, :2].tolist() == [0, 0]
    assert whole[0, 0, 3:].tolist() == [0.5, 0.5]
    assert whole[0, 3, 0] == 1
    assert whole[0, 2].isnan().all()  # the gap
    assert whole[0, 3:, 3:].isnan().all()  # there is no fourth image
    alpha = pixels(png(whole, "grid"))[..., -1]
    assert np.array_equal(alpha == 0, whole[0].isnan().numpy())


def test_a_figure_takes_the_colours_of_the_page() -> None:
    with page_style():
        figure = Figure(figsize=(3, 2))
        axes = figure.subplots()
        axes.plot([0, 1], [1, 2])
        axes.set_xlabel('"epoch" < 2')
        picture = drawing(figure, 'a "line"')
    svg = str(picture.source)
    assert svg.startswith('<svg role="img" aria-label="a &#34;line&#34;"')
    assert SERIES[0] not in svg
    assert "var(--series-0)" in svg
    assert "var(--ink)" in svg
    assert '"epoch" &lt; 2</text>' in svg  # a text, not its outlines
    assert "http" not in svg
    assert "<metadata" not in svg
    names = re.findall(r'\bid="([^"]*)"', svg)
    assert names
    assert all(name.startswith(PLACE) for name in names)
    assert all(f"#{PLACE}" in use for use in re.findall(r'(?:url\(|href=")[^)"]*', svg))


def test_settings_of_the_user_play_no_part() -> None:
    with matplotlib.rc_context({"text.usetex": True, "svg.fonttype": "path"}):
        with page_style():
            assert not matplotlib.rcParams["text.usetex"]
            assert matplotlib.rcParams["svg.fonttype"] == "none"
        assert matplotlib.rcParams["text.usetex"]
