"""Convolutional residual networks for images of any size.

The encoder computes feature maps of smaller and smaller sizes: each side is halved, and rounded up,
while it is longer than 8. The decoder passes through the same sizes in reverse. No layer mixes the
data of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from pyro_dvae.displays import named

SMALL = 8
"""The longest side of the last feature map."""
WIDTH = 16
"""The default number of channels of the first feature map."""

Size = tuple[int, int]


def grid_size(event_shape: Sequence[int]) -> Size:
    """Height and width of the last feature map of an image.

    With `grid=True` there is one latent per position of that map, so D must be their product.

    >>> from pyro_dvae import grid_size
    >>> grid_size((28, 28))
    (7, 7)

    Args:
        event_shape: (H, W) or (channels, H, W).

    Raises:
        ValueError: the shape is not that of an image.
    """
    return _sizes(event_shape)[-1]


class ConvEncoder(nn.Module):
    """Images (B, *event) -> (B, D, C): strided 3 x 3 convolutions and residual blocks.

    Args:
        event_shape: (H, W) or (channels, H, W), of any size.
        num_latents: D, the number of latents of a code.
        num_outputs: C, the number of outputs per latent. A mean-field guide needs the logits of K
            categories, C = K.
        width: the number of channels of the first feature map. The second map has twice as many,
            all others four times as many.
        grid: whether each latent is computed from one position of the last map, row by row. If
            not, every latent is computed from the whole map.

    Raises:
        ValueError: the shape is not that of an image, or D is not the number of positions of the
            grid.
    """

    def __init__(
        self,
        event_shape: Sequence[int],
        num_latents: int,
        num_outputs: int,
        width: int = WIDTH,
        grid: bool = False,
    ) -> None:
        super().__init__()
        sizes, channels = _plan(event_shape, num_latents, width, grid)
        self.event_shape, self.grid = tuple(event_shape), grid
        self.code_shape = (num_latents, num_outputs)
        layers: list[nn.Module] = []
        for (tall, wide), (now, then) in zip(sizes[:-1], pairwise(channels), strict=True):
            stride = (1 + (tall > SMALL), 1 + (wide > SMALL))
            layers += [nn.ReLU()] if layers else []
            layers += [_conv(now, then, stride), _Residual(then)]
        features = channels[-1] if grid else channels[-1] * math.prod(sizes[-1])
        out = num_outputs if grid else num_latents * num_outputs
        self.layers = nn.Sequential(*layers, nn.ReLU())
        self.head = nn.Linear(features, out)

    def extra_repr(self) -> str:
        """The arguments, for `repr`."""
        num_latents, num_outputs = self.code_shape
        return named(
            event_shape=self.event_shape,
            num_latents=num_latents,
            num_outputs=num_outputs,
            grid=self.grid,
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, *event) -> (B, D, C)."""
        if x.shape[1:] != self.event_shape:
            raise ValueError(
                f"Expected data of shape (B, {', '.join(map(str, self.event_shape))}); "
                f"got {tuple(x.shape)}. Build the encoder with event_shape={tuple(x.shape[1:])}."
            )
        x = x.unsqueeze(1) if x.dim() == 3 else x
        maps = self.layers(_channels_last(x))  # (B, channels, h, w)
        if self.grid:
            return self.head(maps.flatten(2).mT)
        return self.head(maps.flatten(1)).unflatten(-1, self.code_shape)


class ConvDecoder(nn.Module):
    """Codes (..., D, K) -> parameters (..., *event), through the sizes of `ConvEncoder` in reverse.

    Each feature map is convolved, and then enlarged to exactly the next size by repeating the
    nearest value.

    Args:
        event_shape: (H, W) or (channels, H, W), of any size.
        num_latents: D, the number of latents of a code.
        num_categories: K, the number of categories of a latent.
        width: the number of channels of the last feature map before the image. The map before it
            has twice as many, all others four times as many.
        num_params: the number of parameters of the likelihood per element of a datum.
        grid: whether each latent gives one position of the first, smallest map, row by row. If
            not, the whole code gives the whole map.

    Raises:
        ValueError: the shape is not that of an image, or D is not the number of positions of the
            grid.
    """

    def __init__(
        self,
        event_shape: Sequence[int],
        num_latents: int,
        num_categories: int,
        width: int = WIDTH,
        num_params: int = 1,
        grid: bool = False,
    ) -> None:
        super().__init__()
        sizes, channels = _plan(event_shape, num_latents, width, grid)
        self.code_shape = (num_latents, num_categories)
        self.sizes, self.channels = sizes[::-1], channels[:0:-1]
        self.event_shape, self.num_params, self.grid = tuple(event_shape), num_params, grid
        if grid:
            self.foot = nn.Linear(num_categories, self.channels[0])
        else:
            features = self.channels[0] * math.prod(self.sizes[0])
            self.foot = nn.Linear(num_latents * num_categories, features)
        layers: list[nn.Module] = [_Residual(self.channels[0])]
        for size, (now, then) in zip(
            self.sizes[1:], pairwise((*self.channels, self.channels[-1])), strict=True
        ):
            layers += [nn.ReLU(), _conv(now, then), _Enlarge(size)]
            layers += [_Residual(then)] if size != self.sizes[-1] else []
        self.layers = nn.Sequential(*layers, nn.ReLU())
        self.head = nn.Conv2d(self.channels[-1], channels[0] * num_params, 3, padding=1)

    def extra_repr(self) -> str:
        """The arguments, for `repr`."""
        num_latents, num_categories = self.code_shape
        return named(
            event_shape=self.event_shape,
            num_latents=num_latents,
            num_categories=num_categories,
            num_params=self.num_params,
            grid=self.grid,
        )

    def forward(self, z: Tensor) -> Tensor:
        """(..., D, K) -> (..., *event) or (..., *event, num_params)."""
        lead = z.shape[:-2]
        z = z.reshape(-1, *z.shape[-2:])
        features = self.foot(z).mT if self.grid else self.foot(z.flatten(1))
        maps = features.reshape(-1, self.channels[0], *self.sizes[0])
        x = self.head(self.layers(_channels_last(maps)))  # (N, channels * num_params, H, W)
        if self.num_params > 1:
            x = x.unflatten(1, (-1, self.num_params)).movedim(2, -1)
            return x.reshape(*lead, *self.event_shape, self.num_params)
        return x.reshape(*lead, *self.event_shape)


class _Residual(nn.Module):
    """x + f(x). f is small at first, so that a network of any depth begins near the identity."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReLU(), _conv(channels, channels), nn.ReLU(), _conv(channels, channels, gain=0.1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


class _Enlarge(nn.Module):
    """Enlarge a map to a size by repeating the nearest value."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        return interpolate(x, self.size)


def _conv(now: int, then: int, stride: Size = (1, 1), gain: float = 1.0) -> nn.Conv2d:
    """A 3 x 3 convolution, with weights that keep the variance through a ReLU.

    A stride of 2 halves a side, rounded up.
    """
    layer = nn.Conv2d(now, then, 3, stride, padding=1)
    nn.init.normal_(layer.weight, std=gain * math.sqrt(2 / (9 * now)))
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layer


def _channels_last(maps: Tensor) -> Tensor:
    """The same maps in a memory layout in which a CPU convolves nearly twice as fast."""
    return maps.contiguous(memory_format=torch.channels_last)


def _sizes(event_shape: Sequence[int]) -> list[Size]:
    """The sizes of the image and of every map, the smallest last.

    There is at least one map; that of a small image has the size of the image.
    """
    if len(event_shape) not in (2, 3) or min(event_shape) < 1:
        raise ValueError(
            "Expected images (H, W) or (channels, H, W) for a convolutional network; got data of "
            f'shape {tuple(event_shape)}. Use network="mlp".'
        )
    sizes = [(int(event_shape[-2]), int(event_shape[-1]))]
    while max(sizes[-1]) > SMALL or len(sizes) == 1:
        height, width = (-(-side // 2) if side > SMALL else side for side in sizes[-1])
        sizes.append((height, width))
    return sizes


def _plan(
    event_shape: Sequence[int], num_latents: int, width: int, grid: bool
) -> tuple[list[Size], list[int]]:
    """The size and the number of channels of the image and of every map."""
    sizes = _sizes(event_shape)
    if width < 1:
        raise ValueError(f"Expected a width of at least 1; got {width}. Use {WIDTH}, say.")
    if grid and num_latents != math.prod(sizes[-1]):
        height, width = sizes[-1]
        raise ValueError(
            f"Expected {height * width} latents, one per position of the {height} x {width} grid "
            f"of images {tuple(event_shape)}; got {num_latents}. Use num_latents="
            f"{height * width}, or a network without a grid."
        )
    channels = [1 if len(event_shape) == 2 else int(event_shape[0])]
    return sizes, channels + [width * min(4, 2**level) for level in range(len(sizes) - 1)]
