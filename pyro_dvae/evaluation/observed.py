"""p(z|x_o): what the observed elements of a datum say of its code."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor

from pyro_dvae.codes import draw_codes, enumerate_codes, num_codes, one_hot, wide
from pyro_dvae.evaluation.joint import precise
from pyro_dvae.likelihoods.elements import element_log_probs
from pyro_dvae.likelihoods.masked import unmasked
from pyro_dvae.streams import RandomStream

if TYPE_CHECKING:
    from pyro_dvae.vae import DiscreteVAE

_Function = Callable[[TorchDistribution], Tensor]

_CHUNK_NUMBERS = 2**23
"""Most numbers in memory at once, (codes, data, P), where data are scored under several codes."""

_PRIOR_DRAWS = 256
"""Codes drawn from the prior, where the mean of p(x) has to be known."""


class ObservedPosterior:
    """p(z|x_o) = p(z) p(x_o|z) / p(x_o) of B data, over all codes or over some that are drawn.

    With all codes it is exact. Else S codes are drawn per datum, half of them from q(z|x) and half
    from the prior, and each has the weight p(z) p(x_o|z) / (q(z|x)/2 + p(z)/2), divided by their
    sum. As S grows, sums over these codes tend to those over all codes, however bad the guide is.

    Args:
        vae: the model, in eval mode.
        x: (B, *event), with NaN for each missing element.
        labels: (B,), or None.
        num_draws: S; None for all codes.
        stream: the stream of the draws.
    """

    def __init__(
        self,
        vae: DiscreteVAE,
        x: Tensor,
        labels: Tensor | None,
        num_draws: int | None,
        stream: RandomStream,
    ) -> None:
        self.vae, self.missing, self.stream = vae, x.isnan(), stream
        self.filled = unmasked(vae.likelihood).filled(x)
        self.prior = vae.prior_codes(labels)
        self.num_latents, self.num_categories = self.prior.event_shape
        self.weight = next(vae.parameters())
        self.drawn: Tensor | None = None  # (S, B, D, K)
        log_q: Tensor | None = None
        if num_draws is not None:
            self.drawn, log_q = self._draw(x, num_draws)
        scores = [self._log_prior(codes) + log_p for codes, log_p in self._scored()]
        log_joint = torch.cat(scores)  # (C, B)
        log_weights = log_joint if log_q is None else log_joint - log_q
        self.log_weights = log_weights.log_softmax(0)
        """Log p(z|x_o) of each code, (C, B), in double precision."""

    @property
    def effective_draws(self) -> Tensor:
        """1 / sum_s w_s^2, (B,), from 1 to S: how many codes share the weight."""
        return 1 / self.log_weights.exp().square().sum(0)

    def mean(self, function: _Function) -> Tensor:
        """sum_z p(z|x_o) f(p(x|z)), (B, *event).

        Args:
            function: maps p(x|z), of batch shape (C, 1) or (C, B), to (..., *event).
        """
        total: Any = 0
        for start, codes in self._chunks():
            values = wide(function(self.vae.decode(codes)))
            weights = self.log_weights[start : start + len(codes)].exp()
            if values.shape[1] == 1:
                part = (weights.T @ values.flatten(1)).reshape(-1, *values.shape[2:])
            else:
                part = (weights.reshape(*weights.shape, *[1] * (values.dim() - 2)) * values).sum(0)
            total = total + part
        return total

    def log_mean(self, x: Tensor) -> Tensor:
        """Log sum_z p(z|x_o) p(x_p|z) of each element p of data x, (B, *event)."""
        total: Tensor | None = None
        for start, codes in self._chunks():
            log_p = wide(element_log_probs(self.vae.decode(codes), x))
            weights = self.log_weights[start : start + len(codes)]
            part = (weights.reshape(*weights.shape, *[1] * (x.dim() - 1)) + log_p).logsumexp(0)
            total = part if total is None else torch.logaddexp(total, part)
        assert total is not None
        return total

    def left_out(self) -> Tensor:
        """Log p(x_p|x_r) of each element p given all others r, (B, *event).

        It is -log sum_z p(z|x) / p(x_p|z), since p(x_r) = sum_z p(z) p(x|z) / p(x_p|z).
        """
        chunks = self._chunks()
        parts = [self._without(start, codes).logsumexp(0) for start, codes in chunks]
        return -torch.stack(parts).logsumexp(0)

    def left_out_mean(self, log_prob: Tensor, function: _Function) -> Tensor:
        """sum_z p(z|x_r) f_p(p(x|z)), (B, *event), by what `left_out` returned."""
        total: Any = 0
        for start, codes in self._chunks():
            weights = (self._without(start, codes) + log_prob).exp()
            total = total + (weights * wide(function(self.vae.decode(codes)))).sum(0)
        return total

    def _without(self, start: int, codes: Tensor) -> Tensor:
        """Log of p(z|x) / p(x_p|z), (C, B, *event); of a missing element, of p(z|x)."""
        log_p = wide(element_log_probs(self.vae.decode(codes), self.filled))
        log_p = log_p.masked_fill(self.missing, 0)
        weights = self.log_weights[start : start + len(codes)]
        return weights.reshape(*weights.shape, *[1] * (log_p.dim() - 2)) - log_p

    def sample(self) -> Tensor:
        """One draw of complete data from p(x|x_o) for each datum, (B, *event).

        Its observed elements are drawn too.
        """
        with self.stream:
            chosen = draw_codes(self.log_weights.T.unsqueeze(-2))[:, 0].argmax(-1)  # (B,)
            if self.drawn is None:
                power = torch.arange(self.num_latents - 1, -1, -1, device=chosen.device)
                digits = chosen[:, None] // self.num_categories**power % self.num_categories
                codes = one_hot(digits, self.num_categories, dtype=self.weight.dtype)
            else:
                codes = self.drawn[chosen, torch.arange(len(chosen), device=chosen.device)]
            return self.vae.decode(codes).sample()

    def _scored(self) -> Iterator[tuple[Tensor, Tensor]]:
        observed, some_missing = ~self.missing, bool(self.missing.any())
        for _, codes in self._chunks():
            p_x = self.vae.decode(codes)
            if some_missing:
                elements = wide(element_log_probs(p_x, self.filled))
                yield codes, (observed * elements).flatten(2).sum(-1)
            else:  # which may be a matrix product
                yield codes, wide(precise(p_x).log_prob(self.filled))

    def _chunks(self) -> Iterator[tuple[int, Tensor]]:
        """The number of the first code, and codes (C, 1, D, K) of all data, or (C, B, D, K)."""
        numbers = self.filled.numel() * max(1, self.vae.likelihood.cost)
        code = self.num_latents * self.num_categories
        size = max(1, _CHUNK_NUMBERS // max(numbers, code))
        if self.drawn is not None:
            start = 0
            for codes in self.drawn.split(size):
                yield start, codes
                start += len(codes)
            return
        total = num_codes(self.num_latents, self.num_categories)
        for start in range(0, total, size):
            codes = enumerate_codes(
                self.num_latents,
                self.num_categories,
                start=start,
                stop=min(start + size, total),
                device=self.weight.device,
                dtype=self.weight.dtype,
            )
            yield start, codes[:, None]

    def _log_prior(self, codes: Tensor) -> Tensor:
        return wide(self.prior.log_prob(codes))

    def _draw(self, x: Tensor, num_draws: int) -> tuple[Tensor, Tensor]:
        """Codes (S, B, D, K), and log of the density that they are drawn from, (S, B)."""
        with self.stream:
            q = self.vae.posterior(self._seen(x))
            p = self.prior.expand([len(x)])
            half = num_draws // 2
            codes = torch.cat([q.sample((num_draws - half,)), p.sample((half,))])
            share = half / num_draws
        log_q, log_p = wide(q.log_prob(codes)), wide(p.log_prob(codes))
        return codes, torch.logaddexp(log_q + math.log1p(-share), log_p + math.log(share))

    def _seen(self, x: Tensor) -> Tensor:
        """The data as the encoder takes them.

        An encoder that knows no missing elements sees their means under the prior.
        """
        if self.vae.likelihood.takes_missing:
            return x
        num = _PRIOR_DRAWS
        means = self.vae.decode(self.prior.sample((num,))).mean  # (num, [B,] *event)
        return torch.where(self.missing, means.mean(0), self.filled)
