"""Multilayer perceptrons: encoder, decoder, baseline and control variate.

An encoder maps data (B, *event) to logits (B, D, K). A decoder maps codes (..., D, K), with any
leading dimensions, to the parameters of the likelihood: (..., *event), or (..., *event, num_params)
if the likelihood needs more than one parameter per element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from pyro_dvae.checks import dropout_share
from pyro_dvae.displays import named


def mlp(sizes: Sequence[int], dropout: float = 0.0) -> nn.Sequential:
    """Linear layers of the given sizes, with a ReLU after each but the last.

    Args:
        sizes: the sizes of input, hidden layers and output.
        dropout: the share of the units of each hidden layer that a training step leaves out.

    Raises:
        ValueError: the share is not in [0, 1).
    """
    dropout_share(dropout)
    layers: list[nn.Module] = []
    for number, (size_in, size_out) in enumerate(pairwise(sizes)):
        if number:
            layers.append(nn.ReLU())
            if dropout:
                layers.append(nn.Dropout(dropout))
        layers.append(nn.Linear(size_in, size_out))
    return nn.Sequential(*layers)


class MLPEncoder(nn.Module):
    """f_phi: (B, *event) -> logits (B, D, K); layers 784-512-256-(D·K) with ReLU in [JL25].

    >>> import torch
    >>> from pyro_dvae import MLPEncoder
    >>> MLPEncoder((28, 28), num_latents=4, num_categories=8)(torch.zeros(5, 28, 28)).shape
    torch.Size([5, 4, 8])

    Args:
        event_shape: the shape of one datum.
        num_latents: D, the number of latents of a code.
        num_categories: K, the number of categories of a latent, or whatever number of outputs per
            latent the guide needs.
        hidden: the sizes of the hidden layers, from the data to the code.
        dropout: the share of the units of each hidden layer that a training step leaves out.
    """

    def __init__(
        self,
        event_shape: Sequence[int],
        num_latents: int,
        num_categories: int,
        hidden: Sequence[int] = (512, 256),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.event_shape = tuple(event_shape)
        self.code_shape = (num_latents, num_categories)
        sizes = [math.prod(event_shape), *hidden, num_latents * num_categories]
        self.layers = mlp(sizes, dropout)

    def extra_repr(self) -> str:
        """The arguments, for `repr`."""
        num_latents, num_outputs = self.code_shape
        return named(
            event_shape=self.event_shape, num_latents=num_latents, num_categories=num_outputs
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, *event) -> (B, D, K)."""
        if x.shape[1:] != self.event_shape:
            raise ValueError(
                f"Expected data of shape (B, {', '.join(map(str, self.event_shape))}); "
                f"got {tuple(x.shape)}. Build the encoder with event_shape={tuple(x.shape[1:])}."
            )
        return self.layers(_flat(x)).reshape(-1, *self.code_shape)


class MLPBaseline(nn.Module):
    """b_psi: (B, *event) -> (B,), a prediction of the learning signal (Mnih & Gregor 2014).

    Pass it to `ReinforceELBO` as its baseline.

    Args:
        event_shape: the shape of one datum.
        hidden: the sizes of the hidden layers.
    """

    def __init__(self, event_shape: Sequence[int], hidden: Sequence[int] = (100,)) -> None:
        super().__init__()
        self.event_shape = tuple(event_shape)
        self.layers = mlp([math.prod(event_shape), *hidden, 1])

    def extra_repr(self) -> str:
        """The arguments, for `repr`."""
        return named(event_shape=self.event_shape)

    def forward(self, x: Tensor, *_: Tensor) -> Tensor:
        """(B, *event) -> (B,); labels, if there are any, are ignored. A missing element is 0."""
        return self.layers(_flat(x).nan_to_num(0)).squeeze(-1)


class MLPControl(nn.Module):
    """c_phi(z, x) = w · tanh(A z + C x + b): the learned control variate of RELAX.

    z is a relaxed code and x a datum (Grathwohl et al. 2018). It is 0 until it is trained. Pass it
    to `RelaxELBO` as its network.

    Args:
        event_shape: the shape of one datum.
        num_latents: D, the number of latents of a code.
        num_categories: K, the number of categories of a latent.
        hidden: the size of the one hidden layer.
    """

    def __init__(
        self, event_shape: Sequence[int], num_latents: int, num_categories: int, hidden: int = 100
    ) -> None:
        super().__init__()
        self.event_shape, self.code_shape = tuple(event_shape), (num_latents, num_categories)
        self.from_code = nn.Linear(num_latents * num_categories, hidden)
        self.from_data = nn.Linear(math.prod(event_shape), hidden, bias=False)
        self.out = nn.Linear(hidden, 1)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def extra_repr(self) -> str:
        """The arguments, for `repr`."""
        num_latents, num_categories = self.code_shape
        return named(
            event_shape=self.event_shape, num_latents=num_latents, num_categories=num_categories
        )

    def forward(self, codes: Tensor, x: Tensor, *_: Tensor) -> Tensor:
        """Relaxed codes (..., B, D·K), data (B, *event) -> (..., B, 1). A missing element is 0."""
        return self.out((self.from_code(codes) + self.from_data(_flat(x).nan_to_num(0))).tanh())


class MLPDecoder(nn.Module):
    """g_theta: codes (..., D, K) -> parameters (..., *event); (D·K)-256-512-784 in [JL25].

    >>> import torch
    >>> from pyro_dvae import MLPDecoder
    >>> MLPDecoder((28, 28), num_latents=4, num_categories=8)(torch.zeros(3, 5, 4, 8)).shape
    torch.Size([3, 5, 28, 28])

    Args:
        event_shape: the shape of one datum.
        num_latents: D, the number of latents of a code.
        num_categories: K, the number of categories of a latent.
        hidden: the sizes of the hidden layers, from the code to the data.
        num_params: the number of parameters of the likelihood per element of a datum.
        dropout: the share of the units of each hidden layer that a training step leaves out.
    """

    def __init__(
        self,
        event_shape: Sequence[int],
        num_latents: int,
        num_categories: int,
        hidden: Sequence[int] = (256, 512),
        num_params: int = 1,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.code_shape = (num_latents, num_categories)
        self.output_shape = tuple(event_shape) + ((num_params,) if num_params > 1 else ())
        sizes = [num_latents * num_categories, *hidden, math.prod(self.output_shape)]
        self.layers = mlp(sizes, dropout)

    def extra_repr(self) -> str:
        """The arguments, for `repr`."""
        num_latents, num_categories = self.code_shape
        return named(
            num_latents=num_latents, num_categories=num_categories, output_shape=self.output_shape
        )

    def forward(self, z: Tensor) -> Tensor:
        """(..., D, K) -> (..., *event) or (..., *event, num_params)."""
        x = self.layers(z.flatten(-2))
        return x.reshape(*z.shape[:-2], *self.output_shape)


def _flat(x: Tensor) -> Tensor:
    """(B, *event) -> (B, P); an event of shape () has P = 1."""
    return x.flatten(1) if x.dim() > 1 else x.unsqueeze(-1)
