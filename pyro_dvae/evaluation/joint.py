"""log p(z) and log p(x|z) of a model, of all K^D codes or of drawn ones, in nats.

The networks run in the model's own precision. So does the likelihood, unless terms of thousands of
nats cancel: then it runs in double precision (`precise`). Sums of its results are made in double
precision, so that bounds keep their order to the last digits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor

from pyro_dvae.checks import at_least
from pyro_dvae.codes import code_logits, describe_codes, enumerate_codes, num_codes, one_hot, wide
from pyro_dvae.likelihoods.base import Likelihood
from pyro_dvae.likelihoods.elements import HasDouble
from pyro_dvae.networks.assembly import check_parts, in_eval_mode
from pyro_dvae.process import PROCESS_STATE, without_checks
from pyro_dvae.tensors import has_values

if TYPE_CHECKING:
    from pyro_dvae.vae import DiscreteVAE

_CHECKED = 10_000
"""Data whose support is checked at once. Each check makes several masks of their size."""

_CHUNK_ELEMENTS = 2**23
"""Largest number of elements in memory at once, of data under several codes, (codes, data, P), or
of the codes themselves, (codes, D, K)."""

_KEPT_ELEMENTS = 2**26
"""Largest number of parameters of p(x|z) under all codes, (K^D, P), that are kept for all blocks of
data. If there are more, all codes are decoded again for every block."""

_LOOKED_UP = 2**21
"""Categories that are drawn at once, (data, draws, D), if a table has their log-probabilities."""

_MOST_CANCELLED = 2048.0
"""If terms of more nats than this cancel in one log p(x|z), it is summed in double precision.

A matrix product in float32 has an error of about 2.5e-7 of these terms. So a sum in float32 is
right to about 5e-4 nats. A decoder that is trained on MNIST is far below the limit: it has 220 nats
after 20 epochs on the sample. If all sums were in double precision, `evaluate` of 10,000 images and
4,096 codes would take 1.8 times as long.
"""


@contextmanager
def unchecked(vae: DiscreteVAE) -> Iterator[None]:
    """Without Pyro's checks of the data, if the likelihood has checked all of them once.

    Threads take turns, since `Trainer` keeps a model in training mode within a step.
    """
    # A plain module may lack `check` and `support`. Then Pyro's checks stay on.
    with PROCESS_STATE, without_checks(isinstance(vae.likelihood, Likelihood)):
        yield


@contextmanager
def evaluating(vae: DiscreteVAE) -> Iterator[None]:
    """In eval mode, without gradients and without Pyro's checks of the data."""
    with unchecked(vae), in_eval_mode(vae):
        yield


def precise(p_x: TorchDistribution) -> TorchDistribution:
    """p(x|z) of some codes, in double precision if float32 would lose too many digits."""
    if not isinstance(p_x, HasDouble):
        return p_x
    with torch.no_grad():
        cancelled = wide(p_x.cancelled())
    if cancelled.dtype != torch.float64 or not has_values(cancelled):
        return p_x
    return cast(TorchDistribution, p_x.double()) if (cancelled > _MOST_CANCELLED).any() else p_x


class Joint:
    """p(z) and p(x|z) of a model with its present weights.

    Args:
        vae: the model.
        x: the data that will be scored, (N, *event), of the model's dtype and on its device: a
            tensor, or an object that returns slices of rows (`ServedRows`). The caller must check
            the rows of the latter by `vae.likelihood.check`.
        labels: (N,) labels of the data if the prior is conditional on labels, else None. With
            labels, each p(z) is p(z|y).
        guided: whether q(z|x) will be used too.

    Raises:
        ValueError: there are no data, they are outside the support of the likelihood, labels are
            missing, unknown to the prior or not one per datum, or the parts of the model do not fit
            each other (`check_parts`).
    """

    def __init__(
        self, vae: DiscreteVAE, x: Any, labels: Tensor | None = None, *, guided: bool = False
    ) -> None:
        _check_data(vae, x, labels)
        first: Tensor = x[:2]
        check_parts(vae, first, labels, guided=guided, num_data=len(x))
        self.vae = vae
        classes = None
        if labels is not None:
            classes = torch.arange(vae.prior.num_classes, device=labels.device)
        self.prior = vae.prior_codes(classes)
        """p(z), batch shape (); or p(z|y) of each label, batch shape (Y,)."""
        self.prior_error = vae.prior.log_prob_error()
        """Standard error of log p(z), which all codes share; 0 unless log Z is an estimate."""
        self.num_latents, self.num_categories = self.prior.event_shape
        self.num_codes = num_codes(self.num_latents, self.num_categories)
        self.described = describe_codes(self.num_latents, self.num_categories)
        self.device = first.device
        self.dtype = next((w.dtype for w in vae.parameters()), torch.get_default_dtype())
        size, cost = max(1, first[0].numel()), vae.likelihood.cost
        self.num_params = size * vae.likelihood.num_params
        self.numbers = max(1, size * cost)
        """How many numbers are computed to score a datum under one code."""
        self.cost = self.num_codes * size * cost
        """How many numbers per datum are computed to sum over all codes."""
        logits = code_logits(self.prior) if labels is None else None
        self.prior_log_probs = None if logits is None else wide(logits).log_softmax(-1)
        """Log p(z_d), (D, K), if the latents are independent under the prior; else None."""
        self._kept: list[tuple[Tensor, Any]] = []

    def codes_at_once(self, num_data: int) -> int:
        """The number of codes under which data can be scored at once in bounded memory.

        Args:
            num_data: the number of data.
        """
        # With few latents of many categories, the one-hot codes themselves need most memory.
        code = self.num_latents * self.num_categories
        return max(1, _CHUNK_ELEMENTS // max(num_data * self.numbers, self.num_params, code))

    def chunks(self, size: int) -> Iterator[tuple[Tensor, Any]]:
        """Score all codes, C = `size` of them at a time.

        Args:
            size: C; the last chunk may have fewer.

        Yields:
            Log p(z), (C, 1), or log p(z|y) of Y labels, (C, Y); and p(x|z), batch shape (C, 1).
        """
        for start in range(0, self.num_codes, size):
            codes = enumerate_codes(
                self.num_latents,
                self.num_categories,
                start=start,
                stop=min(start + size, self.num_codes),
                device=self.device,
                dtype=self.dtype,
            )
            p_x = precise(self.vae.decode(codes[:, None]))
            yield self._log_prior(codes[:, None]), p_x

    def all_codes(self, x: Tensor, num_rows: int = 1) -> tuple[Tensor, Tensor]:
        """Log p(z) or p(z|y), (Y, K^D), and log p(x|z), (B, K^D), of data (B, *event).

        Args:
            x: the data.
            num_rows: the least number of data for which the codes are divided into chunks. Kept
                codes stay in the chunks of the first call.
        """
        chunks: Any = self._kept
        if not chunks:
            chunks = self.chunks(self.codes_at_once(max(num_rows, len(x))))
            if self.num_codes * self.num_params <= _KEPT_ELEMENTS:
                chunks = self._kept = list(chunks)
        log_likelihood = wide(x.new_empty(len(x), self.num_codes, dtype=self.dtype))
        priors, start = [], 0
        for log_p_z, p_x in chunks:
            priors.append(log_p_z.T)
            stop = start + len(log_p_z)
            # `contiguous` first, since to transpose and convert in one step takes twice as long.
            log_likelihood[:, start:stop] = p_x.log_prob(x).T.contiguous()
            start = stop
        return torch.cat(priors, 1), log_likelihood

    def drawn(self, x: Tensor, labels: Tensor | None, index: Tensor) -> tuple[Tensor, Tensor]:
        """Log p(z) or p(z|y), and log p(x|z), (B, S) both, of drawn codes.

        Args:
            x: (B, *event).
            labels: (B,), or None.
            index: (B, S, D), the categories of S codes per datum.
        """
        codes = one_hot(index.transpose(0, 1), self.num_categories, dtype=self.dtype)
        p_x = precise(self.vae.decode(codes))
        log_likelihood = p_x.log_prob(x)  # (S, B)
        prior = None if labels is None else self.vae.prior_codes(labels)
        return self._log_prior(codes, prior).T, wide(log_likelihood.T)

    def _log_prior(self, codes: Tensor, prior: Any = None) -> Tensor:
        if self.prior_log_probs is None:
            return wide((self.prior if prior is None else prior).log_prob(codes))
        index = codes.argmax(-1)  # (..., D)
        latent = torch.arange(self.num_latents, device=codes.device)
        return self.prior_log_probs[latent, index].sum(-1)


def _check_data(vae: DiscreteVAE, x: Any, labels: Tensor | None) -> None:
    at_least("data", len(x), 1)
    if isinstance(x, Tensor):
        for rows in x.split(_CHECKED):
            vae.likelihood.check(rows)
    vae.prior.refresh()  # so that log p(z) is the same in training and in evaluation mode
    if labels is not None:
        if labels.shape != (len(x),):
            raise ValueError(
                f"Expected one label for each of {len(x)} data; got labels of shape "
                f"{tuple(labels.shape)}. Pass data and labels of the same rows."
            )
        vae.prior.check_labels(labels)


class JointBlock(ABC):
    """log p(z) and log p(x|z) of one block of data, at codes that are drawn for them.

    Args:
        joint: p(z) and p(x|z) of the model.
        x: (B, *event).
        labels: (B,) if the prior is conditional on labels, else None.
    """

    draws_at_once: int
    """Largest number of codes, (data, draws), that one call of `drawn` scores in bounded memory."""

    def __init__(self, joint: Joint, x: Tensor, labels: Tensor | None) -> None:
        self.joint, self.x, self.labels = joint, x, labels

    @abstractmethod
    def drawn(self, rows: slice, index: Tensor) -> tuple[Tensor, Tensor]:
        """Log p(z) and log p(x|z) of drawn codes, (b, S) each.

        Args:
            rows: slice of b of the B data.
            index: (b, S, D), the categories of S codes per datum.
        """

    def log_joint(self, rows: slice, index: Tensor) -> Tensor:
        """Log p(x, z), (b, S) nats. The arguments are those of `drawn`."""
        log_prior, log_likelihood = self.drawn(rows, index)
        return log_prior + log_likelihood


class DecodedBlock(JointBlock):
    """A block that decodes each drawn code."""

    def __init__(self, joint: Joint, x: Tensor, labels: Tensor | None = None) -> None:
        super().__init__(joint, x, labels)
        self.draws_at_once = joint.codes_at_once(1)

    def drawn(self, rows: slice, index: Tensor) -> tuple[Tensor, Tensor]:
        """Log p(z) and log p(x|z), (b, S) each."""
        labels = None if self.labels is None else self.labels[rows]
        return self.joint.drawn(self.x[rows], labels, index)


class TabulatedBlock(JointBlock):
    """A block that scores all K^D codes once, and looks drawn codes up in this table."""

    def __init__(self, joint: Joint, x: Tensor, labels: Tensor | None = None) -> None:
        super().__init__(joint, x, labels)
        self.draws_at_once = _LOOKED_UP // joint.num_latents
        log_prior, self.log_likelihood = joint.all_codes(x)
        """Log p(x|z), (B, K^D)."""
        self.log_prior = log_prior if labels is None else log_prior[labels]
        """Log p(z), (1, K^D), or log p(z|y), (B, K^D)."""

    def drawn(self, rows: slice, index: Tensor) -> tuple[Tensor, Tensor]:
        """Log p(z) and log p(x|z), (b, S) each."""
        number = index[..., 0]
        for digit in index.unbind(-1)[1:]:
            number = number * self.joint.num_categories + digit
        shared = len(self.log_prior) == 1
        log_prior = self.log_prior[0][number] if shared else self.log_prior[rows].gather(1, number)
        return log_prior, self.log_likelihood[rows].gather(1, number)

    def table(self) -> Tensor:
        """Log p(x, z) of all codes, (B, K^D)."""
        return self.log_prior + self.log_likelihood
