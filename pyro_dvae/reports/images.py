"""Images of data as PNG files within a page."""

from __future__ import annotations

import base64
import io

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pyro_dvae.reports.blocks import Picture


def png(
    pixels: Tensor, alt: str, scale: float = 1.0, caption: str = "", colours: int = 0
) -> Picture:
    """An image as a PNG within the page.

    Args:
        pixels: (H, W), (1, H, W) or (3, H, W) in [0, 1]; a pixel of NaN is transparent.
        alt: what it shows.
        scale: CSS pixels per pixel.
        caption: the text below it.
        colours: shades of grey or colours to keep, which makes the file smaller; 0 for all.
    """
    planes = pixels if pixels.dim() == 3 else pixels[None]  # (C, H, W)
    hidden = planes.isnan().any(0)
    values = planes.nan_to_num(1.0).clamp(0, 1).mul(255).round().to(torch.uint8).cpu()
    array = values.permute(1, 2, 0).numpy()  # (H, W, C)
    array = array[..., 0] if len(planes) == 1 else array
    image = Image.fromarray(np.ascontiguousarray(array))
    if colours:
        image = image.quantize(colours, dither=Image.Dither.NONE)
    elif hidden.any():
        image.putalpha(Image.fromarray((~hidden).cpu().numpy().astype(np.uint8) * 255))
    file = io.BytesIO()
    image.save(file, format="png", optimize=True)
    uri = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    height, width = planes.shape[-2:]
    return Picture(uri, alt, round(width * scale), round(height * scale), caption)


def mosaic(images: Tensor, num_columns: int, gap: int = 2) -> Tensor:
    """Images side by side, with gaps of NaN.

    Args:
        images: (N, *event) in [0, 1].
        num_columns: images per row.
        gap: pixels between two images.

    Returns:
        (C, H, W).
    """
    planes = images.unsqueeze(1) if images.dim() == 3 else images  # (N, C, H, W)
    num_rows = -(-len(planes) // num_columns)
    blank = planes.new_full((num_rows * num_columns - len(planes), *planes.shape[1:]), torch.nan)
    padded = torch.nn.functional.pad(torch.cat([planes, blank]), (0, gap, 0, gap), value=torch.nan)
    grid = padded.unflatten(0, (num_rows, num_columns)).permute(2, 0, 3, 1, 4)  # (C, R, H, Q, W)
    whole = grid.flatten(3, 4).flatten(1, 2)
    return whole[:, : whole.shape[1] - gap, : whole.shape[2] - gap]
