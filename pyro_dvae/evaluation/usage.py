"""KL and information of each latent, use of the codes, and a warning of posterior collapse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_dvae.codes import MAX_CODES, code_logits, entropy, latent_kl_divergence
from pyro_dvae.posteriors import FactorisedPosterior, Posterior

ACTIVE_INFORMATION = 0.01
"""A latent is active if its information about the data is at least this, in nats."""

LEAST_ROWS = 10
"""Unused categories are counted from so many data per category on: with fewer, a category can be
rare by chance."""
_NAMED = 8
"""The most latents that a message names."""

_MORE_EPOCHS = (
    "Try more epochs with a longer patience, such as epochs=400 and patience=200 if an epoch has "
    "few steps; "
)
_SUM = 'estimator="marginal", which maximises log p(x); '
_PATHWISE = 'estimator="reinmax" or reinmax_steps=300, which have less noise with many latents; '
"""With 49 latents of 64 and the network conv-grid, on 4,750 images of MNIST in batches of 25, the
validation ELBO stood at -207.8 nats after 4 epochs of `rloo`, and at -169.3 after 4 of `reinmax`.
Both had begun at -208.9, one seed each. With 30 epochs in batches of 100 `reinmax` ended at -142.3,
and `rloo` after 144 steps of `reinmax` at -114.0."""
_OTHERS = "more free bits, more particles, a lower learning rate, or fewer latents."
"""The first two were tried on a table of 178 rows, with a code of 4 x 8, and 50 epochs of `rloo`
with a patience of 10, where 0 of 4 latents were active. Either of them alone made it 4 of 4. Log
p(x) rose from -22.0 to -18.8 and -19.0 nats per row. The ELBO rose to -19.1 with the first. It fell
to -38.3 with the second, whose guide is fitted to the exact posterior, in too few steps here."""


class Usage(NamedTuple):
    """How a data set uses D latents with K categories. `Evaluation` explains the fields."""

    kl_per_latent: tuple[float, ...] | None
    information_per_latent: tuple[float, ...]
    perplexity_per_latent: tuple[float, ...]
    unused_categories: tuple[int, ...] | None
    active_latents: int
    codes_used: int
    code_perplexity: float


class BlockUsage(NamedTuple):
    """What a block of B data adds to the figures of D latents with K categories."""

    num_data: int
    """B."""
    factorised: bool
    """Whether the latents are independent under q(z|x)."""
    aggregate: Tensor
    """(D, K) the sum of q(z_d|x)."""
    entropy: Tensor
    """(D,) the sum of the entropies of q(z_d|x), in nats."""
    kl: Tensor | None
    """(D,) the sum of KL(q(z_d|x) || p(z_d)), in nats; None if the prior has no such factors."""
    codes: Tensor
    """(B, D) the most probable codes."""


class UsageCounter:
    """Counts how the latents are used over a whole data set, block by block.

    A mean of the perplexities of batches would mislead, since a batch cannot use all codes.

    Args:
        prior: the distribution p(z), event shape (D, K); None if it is p(z|y) of each datum.
    """

    def __init__(self, prior: object) -> None:
        self.prior_logits = code_logits(prior)
        self.factorised = self.prior_logits is not None
        self.num_data = 0
        self.aggregate: Tensor = torch.zeros((), device="cpu")
        self.entropy: Tensor = torch.zeros((), device="cpu")
        self.kl: Tensor = torch.zeros((), device="cpu")
        self.codes: Counter[tuple[int, ...]] = Counter()

    def of(self, posterior: Posterior) -> BlockUsage:
        """What is counted of a block of data.

        Args:
            posterior: their q(z|x).
        """
        log_q = posterior.marginals()  # (B, D, K)
        kl = None
        if self.prior_logits is not None:
            kl = latent_kl_divergence(log_q, self.prior_logits.detach().to(log_q))
            kl = kl.clamp(min=0).sum(0).cpu()
        return BlockUsage(
            len(log_q),
            isinstance(posterior, FactorisedPosterior),
            log_q.exp().sum(0).cpu(),
            entropy(log_q.unsqueeze(-2)).sum(0).cpu(),
            kl,
            posterior.mode().cpu(),
        )

    def add(self, counted: BlockUsage) -> None:
        """Count a block of data."""
        self.factorised &= counted.factorised
        self.num_data += counted.num_data
        self.aggregate = self.aggregate + counted.aggregate
        self.entropy = self.entropy + counted.entropy
        if counted.kl is not None:
            self.kl = self.kl + counted.kl
        self.codes.update(map(tuple, counted.codes.tolist()))

    def usage(self) -> Usage:
        """The figures of all data that were counted."""
        # The logits of a category that no datum uses are -inf, which `entropy` leaves out.
        aggregate = entropy((self.aggregate / self.num_data).log().unsqueeze(-2))  # (D,)
        information = (aggregate - self.entropy / self.num_data).clamp(min=0)
        counts = torch.tensor(list(self.codes.values()), dtype=torch.float64, device="cpu")
        return Usage(
            _numbers(self.kl / self.num_data) if self.factorised else None,
            _numbers(information),
            _numbers(aggregate.exp()),
            self._unused(),
            int((information >= ACTIVE_INFORMATION).sum()),
            len(self.codes),
            entropy(counts.log()[None]).exp().item(),
        )

    def _unused(self) -> tuple[int, ...] | None:
        """How many categories of each latent have less than half a datum; None for few data."""
        if self.num_data < LEAST_ROWS * self.aggregate.shape[-1]:
            return None
        return tuple((self.aggregate < 0.5).sum(-1).tolist())


class ClassCounter:
    """Counts for how many data the most probable category of the first latent is their label.

    Args:
        labels: (N,) int64, negative where the class is not known; None to count nothing.
    """

    def __init__(self, labels: Tensor | None) -> None:
        self.labels = None if labels is None else labels.cpu()
        self.guesses: list[Tensor] = []

    def of(self, posterior: Posterior) -> Tensor | None:
        """The most probable class of each datum of a block, (B,); None to count nothing.

        Args:
            posterior: their q(z|x).
        """
        return None if self.labels is None else posterior.marginals()[:, 0].argmax(-1).cpu()

    def add(self, counted: Tensor | None) -> None:
        """Add the next block of data."""
        if counted is not None:
            self.guesses.append(counted)

    def accuracy(self) -> float | None:
        """The share of the data with a known class that are right; None if there are none."""
        if self.labels is None or not (self.labels >= 0).any():
            return None
        known = self.labels >= 0
        right = torch.cat(self.guesses)[known] == self.labels[known]
        return right.double().mean().item()


def _numbers(values: Tensor) -> tuple[float, ...]:
    return tuple(values.tolist())


def describe_collapse(
    information: Sequence[Sequence[float]], num_codes: int | None = None
) -> str | None:
    """One line: which latents have less information than 0.01 nats, since when, and what to try.

    A latent has collapsed if q(z_d|x) hardly depends on x. It may still differ from the prior.

    Args:
        information: `Evaluation.information_per_latent` in nats, one row per epoch from epoch 1 on.
            If there is only one row, no epoch is named.
        num_codes: K^D; None if it is not known. A sum over all codes is only advised where it is
            possible, and else an estimator that follows the gradient of the decoder.

    Returns:
        The line, or None if every latent is active in the last row.
    """
    since: dict[int, int] = {}
    for epoch, row in enumerate(information, 1):
        for latent, value in enumerate(row, 1):
            if value < ACTIVE_INFORMATION:
                since.setdefault(latent, epoch)
            else:
                since.pop(latent, None)
    if not since:
        return None
    shown = sorted(since)[:_NAMED]
    which = [
        f"z{latent}" + (f" since epoch {since[latent]}" if len(information) > 1 else "")
        for latent in shown
    ]
    if len(since) > len(shown):
        which.append(f"and {len(since) - len(shown)} more")
    can_sum = num_codes is None or num_codes <= MAX_CODES
    return (
        f"Posterior collapse: {len(since)} of {len(information[-1])} latents carry less than "
        f"{ACTIVE_INFORMATION:g} nats about the data ({', '.join(which)}). "
        f"{_MORE_EPOCHS}{_SUM if can_sum else _PATHWISE}{_OTHERS}"
    )


def describe_unused(unused: Sequence[int] | None, num_categories: int) -> str | None:
    """One line: how many categories no datum has, in which latents, and what to do.

    Args:
        unused: `Evaluation.unused_categories`, one number per latent.
        num_categories: K.

    Returns:
        The line, or None if every category is used, or if there are too few data to tell.
    """
    if unused is None or not any(unused):
        return None
    order = sorted((d for d in range(len(unused)) if unused[d]), key=lambda d: -unused[d])
    which = [f"z{latent + 1}: {unused[latent]}" for latent in order[:_NAMED]]
    if len(order) > _NAMED:
        which.append(f"and {len(order) - _NAMED} more latents")
    needed = max(2, num_categories - min(unused))
    fewer = f"num_categories={needed}, or " if needed < num_categories else ""
    return (
        f"Unused categories: {sum(unused)} of {len(unused) * num_categories:,} have less than half "
        f"a datum ({', '.join(which)}; of {num_categories} each). Under a uniform prior they "
        f'cost KL for nothing. Use {fewer}prior="learned".'
    )
