"""log p(x, z) of all codes of a model with few codes, computed alike by coder and decoder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pyro_dvae.codes import MAX_CODES, describe_codes, num_codes
from pyro_dvae.evaluation.joint import Joint

if TYPE_CHECKING:
    from pyro_dvae.vae import DiscreteVAE


class CodeTable:
    """log p(z) of all K^D codes, and log p(x, z) of blocks of data.

    Args:
        model: of `reference_model`.
        size: B, the number of data in a block.
        event_shape: the shape of a datum.

    Raises:
        ValueError: there are too many codes.
    """

    def __init__(self, model: DiscreteVAE, size: int, event_shape: tuple[int, ...]) -> None:
        zeros = torch.zeros(size, *event_shape, dtype=torch.float64)  # bits, levels and counts
        self._joint = Joint(model, zeros)
        self.shape = (self._joint.num_categories,) * self._joint.num_latents
        number = num_codes(self._joint.num_latents, self._joint.num_categories)
        if number > MAX_CODES:
            described = describe_codes(self._joint.num_latents, self._joint.num_categories)
            raise ValueError(
                f"Expected at most {MAX_CODES} codes to sum over for way='exact'; got K^D = "
                f"{described}. Use way='bits-back'."
            )
        self.log_prior = self._joint.all_codes(zeros)[0].log_softmax(-1)
        """(1, K^D), in the order of `enumerate_codes`; normalised, whatever the prior estimates."""

    def log_joint(self, x: Tensor) -> Tensor:
        """Log p(x, z), (B, K^D) nats, of a block of data (B, *event)."""
        return self.log_prior + self._joint.all_codes(x)[1]

    def posterior(self, x: Tensor) -> TableLaw:
        """p(z|x) of a block of data (B, *event)."""
        return TableLaw(self.log_joint(x), self.shape)

    def most_probable(self, x: Tensor) -> Tensor:
        """The most probable code of each datum, (B, D) categories."""
        number = self.log_joint(x).argmax(-1)
        return torch.stack(torch.unravel_index(number, self.shape), -1)


class TableLaw:
    """p(z_{d+1} | z_1 ... z_d) of a table of all codes, for `push_codes` and `pop_codes`.

    One symbol for a whole code would do as well. But the entropy coder gives every symbol a
    probability of at least 2^-24. With thousands of symbols, it would now and then draw a code that
    cannot be, which takes hundreds of nats.

    Args:
        log_p: (B, K^D) log-probabilities, up to a constant per datum; (1, K^D) for the same of all.
        shape: (K, ..., K), of D numbers.
    """

    def __init__(self, log_p: Tensor, shape: tuple[int, ...]) -> None:
        self.num_latents, self._num_categories = len(shape), shape[0]
        self._sums = [log_p]  # per d, the table (B, K^d) of log p(z_1 ... z_d)
        for size in shape[:0:-1]:
            self._sums.insert(0, self._sums[0].unflatten(-1, (-1, size)).logsumexp(-1))

    def following(self, index: Tensor) -> Tensor:
        """Log p(z_{d+1} | z_1 ... z_d) up to a constant, (B, K), given categories (B, d)."""
        table = self._sums[index.shape[1]].unflatten(-1, (-1, self._num_categories))
        number = torch.zeros(len(index), dtype=torch.int64)
        for digit in index.unbind(-1):
            number = number * self._num_categories + digit
        rows = torch.arange(len(index)) if len(table) > 1 else 0
        return table[rows, number]
