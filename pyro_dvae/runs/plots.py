"""The pictures of a run. Each function returns a matplotlib `Figure`, which a notebook shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image
from torch import Tensor

from pyro_dvae.codes import one_hot
from pyro_dvae.diagnostics import GradientStatistics
from pyro_dvae.runs.figure import ShownFigure
from pyro_dvae.runs.pictures import Shade
from pyro_dvae.runs.profile_plots import profile_figure as profile_figure
from pyro_dvae.runs.storage import write_atomically
from pyro_dvae.streams import RandomStream
from pyro_dvae.training.records import EpochRecord
from pyro_dvae.vae import DiscreteVAE

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure as a PNG, without blank margins. A failed write leaves what was at `path`."""
    # Images keep their shape, so that they leave blank some of the room that they are given.
    options: dict[str, Any] = {"bbox_inches": "tight", "pad_inches": 0.05, "dpi": 150}
    write_atomically(path, lambda beside: figure.savefig(beside, format="png", **options))


def elbo_figure(records: Sequence[EpochRecord], caption: str, datum: str = "image") -> Figure:
    """The learning curve: the ELBO of training and validation data per epoch, in nats per datum.

    The exact log p(x) of the validation data is shown too, where all epochs know it.

    Args:
        records: one record per epoch, such as `load_run(folder).metrics`.
        caption: the text above the axes.
        datum: what to call a datum in the label of the axis.
    """
    figure = ShownFigure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    curves: dict[str, list[float | None]] = {
        "ELBO, train (running)": [r.train_elbo for r in records],
        "ELBO, validation": [r.validation_elbo for r in records],
        "log p(x), validation": [r.validation_log_marginal for r in records],
    }
    for label, values in curves.items():
        if None not in values:
            axes.plot([r.epoch for r in records], np.asarray(values, float), ".-", label=label)
    for epoch in [record.epoch for record in records if record.is_best][-1:]:
        axes.axvline(epoch, color="0.7", linewidth=1, label=f"best epoch, {epoch}")
    for epoch in [record.epoch for record in records if record.of_guide][:1]:
        axes.axvline(epoch, color="0.4", linestyle=":", label=f"guide alone, from epoch {epoch}")
    # The first epoch starts so far below that the others would look alike.
    tail = [v for r in records[1:] for v in (r.train_elbo, r.validation_elbo) if v is not None]
    if tail:
        axes.set_ylim(bottom=min(tail) - 2)
    axes.set(xlabel="epoch", ylabel=f"nats per {datum}", title=caption)
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def image_grid(images: Tensor, num_columns: int, title: str, rows: Sequence[str] = ()) -> Figure:
    """Images side by side, in rows.

    Args:
        images: (N, H, W), (N, 1, H, W) or (N, 3, H, W) in [0, 1].
        num_columns: images per row.
        title: the text above the grid.
        rows: a name per row, shown at its left; or none.
    """
    grid = _in_rows(images, num_columns)
    num_rows, tall = len(grid), images.shape[-2] / images.shape[-1]
    figure = _figure(0.55 * num_columns, 0.55 * num_rows * tall + 0.4)
    _show_grid(figure.subplots(), grid, rows or [""] * num_rows)
    figure.suptitle(title, fontsize=9)
    return figure


def save_mosaic(images: Tensor, num_columns: int, path: str | Path) -> None:
    """Write a PNG of images side by side, without matplotlib, for more than a figure can hold.

    Each element is one point, of one byte per channel. A figure takes some 36 bytes per element.

    Args:
        images: (N, H, W), (N, 1, H, W) or (N, 3, H, W) in [0, 1].
        num_columns: images per row.
        path: the PNG.
    """
    shades = images.clamp(0, 1).mul(255).round().to(torch.uint8)
    pixels = _mosaic(_in_rows(shades, num_columns, white=255), white=255).cpu().numpy()
    write_atomically(path, lambda beside: Image.fromarray(pixels).save(beside, format="png"))


@torch.no_grad()
def reconstruction_figure(
    vae: DiscreteVAE,
    grey: Tensor,
    x: Tensor,
    seed: int = 0,
    shade: Shade | None = None,
    codes: Tensor | None = None,
) -> Figure:
    """Images, their zeros and ones, and at their codes z: E[x|z], and a draw of p(x|z).

    Args:
        vae: the model.
        grey: (N, *event_shape) in [0, 1], the images as people see them. An event shape is (H, W),
            (1, H, W) or (3, H, W).
        x: (N, *event_shape), the images as the model takes them.
        seed: of the draws.
        shade: how to show other values than zeros and ones in [0, 1] (`pictures.shade_of`). Then x
            is not shown. None for zeros and ones.
        codes: (N, D, K) one-hot, the codes of the images; None for the most probable of q(z|x).
    """
    p = vae.decode(vae.mode(x) if codes is None else codes)
    with RandomStream(seed, x.device):
        draws = p.sample()
    rows = {"input": grey} | ({"binarised": x} if shade is None else {})
    made = {"mean of p(x|z)": p.mean, "draw": draws}
    rows |= made if shade is None else {name: shade(image) for name, image in made.items()}
    figure = _figure(0.66 * len(grey) + 1.8, 0.6 * len(rows) + 0.2)
    _show_grid(figure.subplots(), torch.stack(list(rows.values())), list(rows))
    return figure


@torch.no_grad()
def latents_figure(
    vae: DiscreteVAE, x: Tensor, shade: Shade | None = None, code: Tensor | None = None
) -> Figure:
    """Each latent varied alone: row d shows E[x|z] for z_d = 0 to K - 1, the others as encoded.

    Args:
        vae: the model.
        x: (H, W), (1, H, W) or (3, H, W), the image whose code is varied, and framed in each row.
        shade: how to show values that are not zeros and ones in [0, 1]; None for zeros and ones.
        code: (D, K) one-hot, the code of the image; None for the most probable of q(z|x).
    """
    code = vae.mode(x[None])[0] if code is None else code  # (D, K)
    index = code.argmax(-1)
    num_latents, num_categories = code.shape
    varied = index.expand(num_latents, num_categories, num_latents).clone()
    for latent in range(num_latents):
        varied[latent, :, latent] = torch.arange(num_categories, device=varied.device)
    means = vae.decode(one_hot(varied, num_categories, dtype=code.dtype)).mean  # (D, K, *event)
    if shade is not None:
        x, means = shade(x), shade(means)
    figure = _figure(0.7 * (num_categories + 1) + 0.8, 0.7 * num_latents + 0.7)
    left, right = figure.subplots(1, 2, width_ratios=(1, num_categories))
    _show_grid(left, x[None, None], [""], ["input"])
    left.set_anchor("N")
    rows = [f"z{latent + 1}" for latent in range(num_latents)]
    step_y, step_x = _show_grid(right, means, rows, [str(k) for k in range(num_categories)])
    for latent, category in enumerate(index.tolist()):
        right.add_patch(
            Rectangle(
                (category * step_x - 1, latent * step_y - 1),
                x.shape[-1] + 1,
                x.shape[-2] + 1,
                fill=False,
                color="tab:red",
                clip_on=False,
            )
        )
    figure.suptitle(
        "means of p(x|z), each latent varied alone (framed: the input's code)", fontsize=8
    )
    return figure


def gradient_figure(rows: Sequence[GradientStatistics]) -> Figure:
    """Cosine to the exact gradient, variance, and bias over the exact norm, of each estimator.

    The lines at the end of the bars are one standard error to each side.

    Args:
        rows: what `gradient_statistics` yielded.
    """
    parts = list(dict.fromkeys(row.part for row in rows))
    names = list(dict.fromkeys(row.estimator for row in rows))
    figure = ShownFigure(figsize=(10, 0.28 * len(names) * len(parts) + 1.2), layout="constrained")
    grid = figure.subplots(len(parts), 3, squeeze=False, sharey="row")
    for line, part in zip(grid, parts, strict=True):
        shown = [row for row in rows if row.part == part]
        places = np.arange(len(shown))
        columns: dict[str, tuple[list[float], list[float]]] = {
            "cosine to the exact gradient": (
                [row.cosine.value for row in shown],
                [row.cosine.error for row in shown],
            ),
            "variance": (
                [row.variance.value for row in shown],
                [row.variance.error for row in shown],
            ),
            "bias / |exact gradient|": (
                [row.relative_bias for row in shown],
                [row.relative_bias_error for row in shown],
            ),
        }
        for axes, (title, (values, errors)) in zip(line, columns.items(), strict=True):
            axes.barh(places, values, xerr=errors, color="tab:blue", ecolor="0.3")
            axes.set(title=f"{title}, {part}", yticks=places)
            axes.set_yticklabels([row.estimator for row in shown], fontsize=8)
            axes.title.set_fontsize(9)
            axes.grid(alpha=0.3, axis="x")
        # Of an estimator without noise rounding alone is left, which would stretch the axis.
        positive = [row.variance.value for row in shown if row.signal_to_noise.value < math.inf]
        if positive:
            line[1].set_xscale("log")
            line[1].set_xlim(left=min(positive) / 2)
        # An error that is many times the exact norm would hide the others.
        bias, error = map(np.nan_to_num, columns["bias / |exact gradient|"])
        most = max(1.0, 1.1 * bias.max())
        line[2].set_xlim(0, min(most, 1.1 * (bias + error).max() or 1.0))
        line[0].invert_yaxis()
    return figure


def surprise_figure(x: Tensor, expected: Tensor, surprise: Tensor, shade: Shade | None) -> Figure:
    """An image, what was expected of each pixel given all others, and how much it surprises.

    Args:
        x: (H, W) or (C, H, W), as the likelihood takes it.
        expected: the same shape.
        surprise: the same shape, in nats; of colours the sum is shown.
        shade: how values are shown in [0, 1]; None for zeros and ones.
    """
    figure = _figure(8, 3)
    left, middle, right = figure.subplots(1, 3)
    for axes, image, title in ((left, x, "observed"), (middle, expected, "expected")):
        shown = image if shade is None else shade(image)
        _show_grid(axes, shown[None, None], [], [])
        axes.set_title(title, fontsize=9)
    nats = surprise.nan_to_num()
    nats = nats.sum(0) if nats.dim() == 3 else nats
    drawn = right.imshow(nats.numpy(), cmap="magma", interpolation="nearest")
    right.set_title("-log p(pixel | all others), nats", fontsize=9)
    figure.colorbar(drawn, ax=right)
    for axes in (left, middle, right):
        axes.set_axis_off()
    return figure


def _figure(width: float, height: float) -> Figure:
    # At least as wide as a title. A PNG of 150 dots per inch cannot be 2^16 dots wide or high.
    return ShownFigure(figsize=(min(max(width, 4), 400), min(height, 400)), layout="constrained")


def _in_rows(images: Tensor, num_columns: int, white: float = 1.0) -> Tensor:
    """(N, *event) as (R, C, *event), the last row filled up."""
    num_rows = -(-len(images) // num_columns)
    blank = images.new_full((num_rows * num_columns - len(images), *images.shape[1:]), white)
    return torch.cat([images, blank]).unflatten(0, (num_rows, num_columns))


def _gap(images: Tensor) -> int:
    """Elements between two images."""
    return 1 + max(images.shape[-2:]) // 16


def _mosaic(images: Tensor, white: float = 1.0) -> Tensor:
    """Images (R, C, *event) as one, (H, W) or (H, W, 3)."""
    gap = _gap(images)
    padded = torch.nn.functional.pad(images, (0, gap, 0, gap), value=white)
    channels = padded.unsqueeze(2) if images.dim() == 4 else padded  # (R, C, 1 or 3, H', W')
    mosaic = channels.permute(0, 3, 1, 4, 2).flatten(2, 3).flatten(0, 1)[:-gap, :-gap]
    return mosaic.squeeze(-1)


def _show_grid(
    axes: Axes, images: Tensor, rows: Sequence[str], columns: Sequence[str] = ()
) -> tuple[int, int]:
    """Show images (R, C, *event) in [0, 1] as one, for hundreds of axes take minutes.

    Returns:
        Elements from the top of an image to that of the next one, and from left to left.
    """
    height, width = images.shape[-2:]
    step_y, step_x = height + _gap(images), width + _gap(images)
    pixels = _mosaic(images).detach().cpu().numpy()
    axes.imshow(pixels, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes.set_yticks([r * step_y + (height - 1) / 2 for r in range(len(rows))], rows, fontsize=8)
    axes.set_xticks(
        [c * step_x + (width - 1) / 2 for c in range(len(columns))], columns, fontsize=8
    )
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return step_y, step_x
