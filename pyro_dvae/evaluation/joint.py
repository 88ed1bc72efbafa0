"""log p(x, z) of a model, of all K^D codes or of drawn ones.

The networks and the likelihood run in the model's own precision, the likelihood in double where
terms of thousands of nats cancel (`precise`); what they give is summed in double, so that bounds
keep their order to the last digits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor

from pyro_dvae.checks import at_least
from pyro_dvae.codes import (
    ROWS,
    code_logits,
    describe_codes,
    enumerate_codes,
    num_codes,
    one_hot,
    wide,
)
from pyro_dvae.networks.assembly import check_parts
from pyro_dvae.process import PROCESS_STATE, without_checks
from pyro_dvae.tensors import as_arguments, has_values

MAX_SUMMED_CODES = 2**20
"""Largest K^D that `log_marginal` sums over, in chunks."""

_CHECKED = 10_000
"""Data whose support is checked at once: each check makes several masks of their size."""
_PRODUCT_BLOCKS = 32
"""Times `ROWS` that are scored at once where that is a matrix product: what a chunk of codes costs
beside it is then little."""

_CHUNK_ELEMENTS = 2**23
"""Elements of data under different codes, (codes, data, P), or of the codes, (codes, D, K), that
are held at once."""

_CACHED_ELEMENTS = 2**17
"""Figures of codes, (data, codes), that a log-sum-exp reads at once: its passes are four times as
fast within a processor's cache."""

_KEPT_ELEMENTS = 2**26
"""Decoded codes, (K^D, P), that are kept rather than decoded for every block of data."""

_LOOKED_UP = 2**21
"""Categories that are drawn at once, (data, draws, D), where their codes are looked up."""


_MOST_CANCELLED = 2048.0
"""Nats of terms that cancel in one log p(x|z), beyond which it is summed in double precision.

A matrix product in float32 misses by some 2.5e-7 of them, so that what stays in float32 is right to
about 5e-4 nats. Trained on MNIST a decoder is far below: 220 nats after 20 epochs of the sample.
Always in double, `evaluate` of 10,000 images and 4,096 codes takes 1.8 times as long.
"""


@contextmanager
def unchecked(vae: Any) -> Iterator[None]:
    """Without Pyro's checks of the data: `Joint` has the likelihood check all, once.

    Threads take turns, as one that trains the model keeps it in training mode within its steps.
    """
    checked = getattr(vae.likelihood, "check", None) is not None
    with PROCESS_STATE, without_checks() if checked else nullcontext():
        yield


def log_sum(log_prior: Tensor, log_likelihood: Tensor) -> Tensor:
    """Log p(x), (B,), of log p(z), (1 or B, K^D), and log p(x|z), (B, K^D)."""
    size = max(1, _CACHED_ELEMENTS // log_likelihood.shape[1])
    log_priors = log_prior.expand_as(log_likelihood).split(size)
    parts = zip(log_priors, log_likelihood.split(size), strict=True)
    return torch.cat([(some + log_p_x).logsumexp(-1) for some, log_p_x in parts])


def precise(p_x: Any, likelihood: Any) -> Any:
    """p(x|z) itself, or with its parameters in double where float32 would lose digits.

    Args:
        p_x: of some codes.
        likelihood: its `cancelled(params)`, where it has one, says how much cancels.
    """
    cancelled, params = getattr(likelihood, "cancelled", None), getattr(p_x, "flat_params", None)
    if cancelled is None or params is None or wide(params.new_empty(0)).dtype == params.dtype:
        return p_x
    if not has_values(params):
        return p_x
    with torch.no_grad():
        is_much = bool((cancelled(params) > _MOST_CANCELLED).any())
    return p_x.double() if is_much else p_x


class Joint:
    """p(z) and p(x|z) of a model, in nats, as it is now.

    Args:
        vae: a `DiscreteVAE`.
        x: the data that will be scored, (N, *event), on the device of the model; see `as_data`. Of
            what is no tensor, but serves rows by slices, each is to be checked when it is there.
        labels: (N,) of the data, where the prior is conditional on them.
        guided: whether q(z|x) will be asked too.

    Raises:
        ValueError: no data, data outside the support of the likelihood, labels that are missing,
            unknown to the prior, or of other data, parts that do not fit (`check_parts`).
    """

    def __init__(
        self, vae: Any, x: Any, labels: Tensor | None = None, *, guided: bool = False
    ) -> None:
        at_least("data", len(x), 1)
        self.vae = vae
        for rows in x.split(_CHECKED) if isinstance(x, Tensor) else ():
            self.check(rows)
        first: Tensor = x[:2]
        refresh = getattr(vae.prior, "refresh", None)
        if refresh is not None:
            refresh()  # so that log p(z) is the same in training and in evaluation mode
        if labels is not None:
            if labels.shape != (len(x),):
                raise ValueError(
                    f"Expected a label for each of {len(x)} data; got labels of shape "
                    f"{tuple(labels.shape)}. Pass both of the same rows."
                )
            vae.prior.check_labels(labels)
        check_parts(vae, first, labels, guided=guided, num_data=len(x))
        if labels is not None:
            self.num_classes = int(vae.prior.num_classes)
            self.prior = vae.prior_codes(torch.arange(self.num_classes, device=labels.device))
        else:
            self.prior, self.num_classes = vae.prior_codes(), 1
        self.prior_error = float(getattr(self.prior, "log_normaliser_error", 0.0))
        """Standard error of log p(z), the same for all codes, where log Z is estimated."""
        self.num_latents, self.num_categories = self.prior.event_shape
        self.num_codes = num_codes(self.num_latents, self.num_categories)
        self.described = describe_codes(self.num_latents, self.num_categories)
        self.device = first.device
        self.dtype = next((w.dtype for w in vae.parameters()), torch.get_default_dtype())
        size, cost = max(1, first[0].numel()), int(getattr(vae.likelihood, "cost", 1))
        self.num_params = size * int(vae.likelihood.num_params)
        self.cost = self.num_codes * size * cost
        """Numbers that summing over all codes makes for each datum."""
        self.numbers = max(1, size * cost)
        """Numbers that scoring a datum under one code makes."""
        logits = code_logits(self.prior)
        if labels is not None:
            logits = None
        self.prior_log_probs = None if logits is None else wide(logits).log_softmax(-1)
        """(D, K) where the latents are independent under the prior, else None."""
        self._kept: list[tuple[Tensor, Any]] = []

    def check(self, x: Tensor) -> None:
        """Refuse data outside the support of the likelihood, where it can check them."""
        check = getattr(self.vae.likelihood, "check", None)
        if check is not None:
            check(x)

    def codes_at_once(self, num_data: int) -> int:
        """How many codes to score so many data under in bounded memory."""
        # A one-hot code is large itself where there are few latents of many categories.
        code = self.num_latents * self.num_categories
        return max(1, _CHUNK_ELEMENTS // max(num_data * self.numbers, self.num_params, code))

    def chunks(self, size: int) -> Iterator[tuple[Tensor, Any]]:
        """For one `size` codes after the other: log p(z) or log p(z|y), (C, Y), and p(x|z).

        Y is 1 without labels; p(x|z) has batch shape (C, 1).
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
            p_x = precise(self.vae.decode(codes[:, None]), self.vae.likelihood)
            yield self._log_prior(codes[:, None]), p_x

    def all_codes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Log p(z) or p(z|y), (Y, K^D), and log p(x|z), (B, K^D), of data (B, *event)."""
        chunks: Any = self._kept
        if not chunks:
            chunks = self.chunks(self.codes_at_once(len(x)))
            if self.num_codes * self.num_params <= _KEPT_ELEMENTS:
                chunks = self._kept = list(chunks)
        log_likelihood = wide(x.new_empty(len(x), self.num_codes, dtype=self.dtype))
        priors, start = [], 0
        for log_p_z, p_x in chunks:
            priors.append(log_p_z.T)
            stop = start + len(log_p_z)
            # Contiguous first: to transpose and to convert in one go takes twice as long.
            log_likelihood[:, start:stop] = p_x.log_prob(x).T.contiguous()
            start = stop
        return torch.cat(priors, 1), log_likelihood

    def drawn(self, x: Tensor, labels: Tensor | None, index: Tensor) -> tuple[Tensor, Tensor]:
        """Log p(z) or p(z|y), and log p(x|z), (B, S) both, of data (B, *event).

        The categories (B, S, D) were drawn for them.
        """
        codes = one_hot(index.transpose(0, 1), self.num_categories, dtype=self.dtype)
        p_x = precise(self.vae.decode(codes), self.vae.likelihood)
        log_likelihood = p_x.log_prob(x)  # (S, B)
        prior = None if labels is None else self.vae.prior_codes(labels)
        return self._log_prior(codes, prior).T, wide(log_likelihood.T)

    def _log_prior(self, codes: Tensor, prior: Any = None) -> Tensor:
        if self.prior_log_probs is None:
            return wide((self.prior if prior is None else prior).log_prob(codes))
        index = codes.argmax(-1)  # (..., D)
        latent = torch.arange(self.num_latents, device=codes.device)
        return self.prior_log_probs[latent, index].sum(-1)


class JointBlock:
    """p(z) and p(x|z) for one block of data, its draws looked up where all codes are tabulated.

    Args:
        joint: of the model.
        x: (B, *event).
        tabulate: whether to score all K^D codes, once for the whole block.
        labels: (B,), where the prior is conditional on them.
    """

    def __init__(
        self, joint: Joint, x: Tensor, tabulate: bool, labels: Tensor | None = None
    ) -> None:
        self.joint, self.x, self.labels = joint, x, labels
        self.all_codes: tuple[Tensor, Tensor] | None = None
        """Log p(z) or p(z|y), (1 or B, K^D), and log p(x|z), (B, K^D), where tabulated."""
        self.draws_at_once = _LOOKED_UP // joint.num_latents if tabulate else joint.codes_at_once(1)
        if tabulate:
            log_prior, log_likelihood = joint.all_codes(x)
            self.all_codes = log_prior if labels is None else log_prior[labels], log_likelihood

    def drawn(self, rows: slice, index: Tensor) -> tuple[Tensor, Tensor]:
        """Log p(z) and log p(x|z), (b, s) both, of categories (b, s, D) drawn for these rows."""
        if self.all_codes is None:
            labels = None if self.labels is None else self.labels[rows]
            return self.joint.drawn(self.x[rows], labels, index)
        number = index[..., 0]
        for digit in index.unbind(-1)[1:]:
            number = number * self.joint.num_categories + digit
        log_prior, log_likelihood = self.all_codes
        some = log_prior[0][number] if len(log_prior) == 1 else log_prior[rows].gather(1, number)
        return some, log_likelihood[rows].gather(1, number)

    def log_joint(self, rows: slice, index: Tensor) -> Tensor:
        """Log p(x, z), (b, s), of the same."""
        log_prior, log_likelihood = self.drawn(rows, index)
        return log_prior + log_likelihood


def log_marginal(vae: Any, x: Any, labels: Any = None, *, chunk_size: int | None = None) -> Tensor:
    """Exact log p(x) = log sum_z p(x|z) p(z), over all K^D codes (Eqs. 16, 17, 28 and 29).

    As exact as p(z): a `BoltzmannPrior` of more than its `max_codes` codes has an estimate of log
    Z, the same in training and in evaluation mode, which moves all data's log p(x) alike;
    `vae.prior.log_normaliser_error` is its standard error. Layers that draw, dropout say, follow
    the mode of `vae`: call `vae.eval()` for a figure to report.

    Args:
        vae: a `DiscreteVAE` whose K^D codes can be summed.
        x: (N, *event) observations in the support of the likelihood, a tensor or what `as_data`
            makes one of.
        labels: (N,) where the prior is conditional on them: then log p(x|y).
        chunk_size: codes decoded at once, None for as many as bounded memory allows; the result
            does not change.

    Returns:
        (N,) nats per datum in double precision, differentiable in decoder and prior.

    Raises:
        ValueError: K^D exceeds `MAX_SUMMED_CODES`; the message names K^D.
    """
    x, labels = as_arguments(vae, x, labels)
    joint = Joint(vae, x, labels)
    if joint.num_codes > MAX_SUMMED_CODES:
        raise ValueError(
            f"Expected at most {MAX_SUMMED_CODES} codes to sum over; got K^D = "
            f"{joint.described}. Use fewer latents or categories, or the importance-weighted "
            "bound of evaluate(vae, x, importance_samples=1000)."
        )
    blocks = x.split(ROWS * max(1, _PRODUCT_BLOCKS // joint.numbers))
    classes = [slice(None)] * -(-len(x) // ROWS) if labels is None else labels.split(ROWS)
    total: Tensor | None = None
    with unchecked(vae):
        for log_p_z, p_x in joint.chunks(chunk_size or joint.codes_at_once(len(blocks[0]))):
            if log_p_z.max() == -math.inf:
                continue  # the gradient of a log-sum-exp is NaN where every term is -inf
            tables = (table for some in blocks for table in p_x.log_prob(some).split(ROWS, 1))
            part = torch.cat(
                [
                    (wide(table) + log_p_z[:, which]).logsumexp(0)
                    for table, which in zip(tables, classes, strict=True)
                ]
            )
            total = part if total is None else torch.logaddexp(total, part)
    return cast(Tensor, total)
