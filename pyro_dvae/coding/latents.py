"""How codes are coded: one distribution per latent, given the latents before it."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_dvae.codes import code_logits, one_hot
from pyro_dvae.coding.grid import log_probs_on_grid
from pyro_dvae.coding.stack import Checksum, Stack
from pyro_dvae.sequences import SequentialCodes


class LatentLaw(Protocol):
    """A distribution of the codes of B data, one latent after the other."""

    num_latents: int

    def following(self, index: Tensor) -> Tensor:
        """Log p(z_{d+1} | z_1 ... z_d), (B, K), given categories (B, d)."""


class Factorised:
    """Independent latents.

    Args:
        logits: (B, D, K), or (D, K) for the same distribution of all data.
    """

    def __init__(self, logits: Tensor) -> None:
        self.log_probs, self.num_latents = logits.double().log_softmax(-1), logits.shape[-2]

    def following(self, index: Tensor) -> Tensor:
        """Log p(z_{d+1}), (B, K)."""
        return self.log_probs[..., index.shape[1], :].expand(len(index), -1)


class Sequential:
    """Latents that depend on those before them.

    Args:
        codes: batch shape (B,) or ().
    """

    def __init__(self, codes: SequentialCodes) -> None:
        self.codes, (self.num_latents, self.num_categories) = codes, codes.event_shape

    def following(self, index: Tensor) -> Tensor:
        """Log p(z_{d+1} | z_1 ... z_d), (B, K)."""
        prefix = one_hot(index, self.num_categories, dtype=torch.float64)
        return self.codes.conditional(prefix).double().expand(len(index), -1)


def law_of(codes: Any, what: str) -> LatentLaw:
    """How a distribution over codes is coded.

    Args:
        codes: event shape (D, K).
        what: the part of the model whose distribution it is, for the message.

    Raises:
        ValueError: its conditional probabilities are not known.
    """
    if isinstance(codes, SequentialCodes):
        return Sequential(codes)
    logits = code_logits(codes)
    if logits is None:
        raise ValueError(
            f"Expected a {what} with known probabilities of each latent given those before it, to "
            f"compress; got {type(codes).__name__}, whose normaliser is an estimate. Use another "
            f"{what}, or so few codes that they can all be summed over."
        )
    return Factorised(logits)


def push_codes(stack: Stack, law: LatentLaw, index: Tensor, num: int, check: Checksum) -> None:
    """Push the codes of the first `num` of B data.

    Args:
        stack: where to.
        law: the distribution of the codes.
        index: (B, D) categories.
        num: n <= B.
        check: what the grids are added to.
    """
    grids = []
    for latent in range(law.num_latents):
        grids.append(log_probs_on_grid(law.following(index[:, :latent])[:num]))
        check.add(grids[-1])
    symbols = index[:num].numpy().astype(np.int32)
    for latent in reversed(range(law.num_latents)):
        stack.push(np.ascontiguousarray(symbols[:, latent]), grids[latent])


def pop_codes(stack: Stack, law: LatentLaw, size: int, num: int, check: Checksum) -> Tensor:
    """Pop the codes of `num` data, and put zeros after them: (B, D) categories.

    Args:
        stack: where from.
        law: the distribution of the codes.
        size: B.
        num: n <= B.
        check: what the grids are added to.
    """
    index = torch.zeros(size, 0, dtype=torch.int64)
    for _ in range(law.num_latents):
        grid = log_probs_on_grid(law.following(index)[:num])
        check.add(grid)
        latent: NDArray[np.int64] = np.zeros(size, np.int64)
        latent[:num] = stack.pop(grid)
        index = torch.cat([index, torch.from_numpy(latent)[:, None]], 1)
    return index
