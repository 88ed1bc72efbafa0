"""ARSM: the codes that arise when the noise of two categories is swapped, for every two of them."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from pyro_dvae.codes import one_hot
from pyro_dvae.elbos.pair import scored_codes
from pyro_dvae.elbos.rerun import RerunELBO
from pyro_dvae.elbos.sites import CodeSite
from pyro_dvae.elbos.terms import Terms


class ArsmELBO(RerunELBO):
    """sum_c (f(z^cj) - 1/K sum_m f(z^mj)) (1/K - pi_dj) grad log q_d(c), summed over c, j and d.

    This is ARSM (Yin, Yue & Zhou 2019), augment-REINFORCE-swap-merge. Each latent d has noise
    pi_d ~ Dirichlet(1, ..., 1) over its K categories, and the draw is the category
    z_d = argmin_k pi_dk / q_d(k). z^cj is the code that arises if the noise of the categories c and
    j is swapped, in all latents at once; z^cc is z. f is the learning signal: the part of the
    objective that depends on the draw. The noise keeps its distribution under a swap. So each j
    gives an unbiased estimate, and the estimator is the mean of these. With K = 2 it is ARM (Yin &
    Zhou 2019).

    The noise is drawn given the guide's draw z. If there are several sites, each is swapped alone.
    Earlier sites keep their draws, and the guide draws later sites anew, given the swapped code.
    The gradient in the decoder and the prior is that at z alone.

    Many swaps give the same code. On the CPU, the codes of a datum are therefore compared, and each
    is decoded once. With one site it takes at most 1 + K (K-1) / 2 decoder evaluations per datum
    and particle, one of them with gradient. The programs run all data of a batch together. So it
    takes as many for each datum as the datum with the most distinct codes needs. On a GPU, it
    decodes all codes: a comparison would make each step wait.

    Args:
        num_particles: S, draws of z per datum. The estimate is their mean.
        chunk_size: codes per datum and particle that are run at once, or None for all. Memory grows
            with it. The result does not depend on it, except that later sites get other draws.
        **options: `beta`, `free_bits`, `analytic_kl`, `max_plate_nesting` of `DiscreteELBO`.

    Raises:
        ValueError: chunk_size < 1.
        TypeError: when it is run, a site that needs a score is not categorical. The message names
            the site.
    """

    is_unbiased: ClassVar[bool] = True

    def surrogate(self, terms: Terms) -> Tensor:
        """(*batch) nats. Its gradient is the estimate."""
        score = torch.zeros_like(terms.kl)
        for name, site in scored_codes(terms.pair).items():
            with torch.no_grad():
                gradient = self._gradient(terms, name, site)
                possible = site.logits > -torch.inf
            # The logits of categories with q = 0 are -inf. Their gradient has mean zero.
            logits = torch.where(possible, site.logits, 0)
            score = score + (torch.where(possible, gradient, 0) * logits).sum((-2, -1))
        return self.objective(terms) + score.mean(0)

    def _gradient(self, terms: Terms, name: str, site: CodeSite) -> Tensor:
        """(S, *batch, D, K) the estimate of the gradient in the logits of a site."""
        num_categories = site.logits.shape[-1]
        noise = self._noise(site.logits, site.code)
        pairs = torch.combinations(torch.arange(num_categories, device=noise.device))
        index = site.code.argmax(-1)
        swapped = swapped_categories(noise, site.logits, pairs)  # (V, S, *batch, D)
        signal = self._signals(terms, name, torch.cat([index[None], swapped]))
        # (S, *batch, K, K): the signal after the swap of each two categories
        both = signal.new_empty(*signal.shape[1:], num_categories, num_categories)
        both[...] = signal[0][..., None, None]
        both[..., pairs[:, 0], pairs[:, 1]] = signal[1:].movedim(0, -1)
        both[..., pairs[:, 1], pairs[:, 0]] = signal[1:].movedim(0, -1)
        centred = both - both.mean(-2, keepdim=True)
        weight = 1 / num_categories - noise / noise.sum(-1, keepdim=True)
        return weight @ centred.mT

    def _noise(self, logits: Tensor, code: Tensor) -> Tensor:
        return noise_given(logits, code)

    def _signals(self, terms: Terms, name: str, index: Tensor) -> Tensor:
        """(V, S, *batch) learning signals of codes (V, S, *batch, D), of which the first is z."""
        site = terms.pair.codes[name]
        if index.device.type == "cpu":
            number, distinct = distinct_rows(index, site.logits.shape[-1])
        else:  # to know how many codes there are, a step would wait for the device
            number, distinct = _all_rows(index)
        order = list(terms.pair.guide_sites)
        later = order[order.index(name) + 1 :]
        signals = [terms.learning_signal.detach()[None]]
        others = distinct[1:]  # the signal of z is known
        for chunk in others.split(self.chunk_size or max(1, len(others))) if len(others) else ():
            code = one_hot(chunk, site.logits.shape[-1], dtype=site.logits.dtype)
            at = self.split(terms.pair.at({name: code}, redraw=later))
            signals.append(at.learning_signal.expand(len(chunk), *number.shape[1:]))
        return torch.cat(signals).gather(0, number)


def noise_given(logits: Tensor, code: Tensor) -> Tensor:
    """p_k E_0 + 1[k != b] E_k: exponential noise e whose e_k / p_k is least at a given category b.

    E are independent standard exponential variables. If the code is drawn from p, the result is
    independent standard exponential noise: the least e_k / p_k is exponential with rate 1, and all
    others exceed it by independent exponential variables. Divided by its sum, it is the noise pi of
    ARSM.

    Args:
        logits: (..., K) log p, normalised.
        code: (..., K) one-hot, a draw from p.

    Returns:
        (..., K) positive numbers.
    """
    p = logits.exp()
    least = torch.empty_like(p[..., :1]).exponential_()
    excess = torch.empty_like(p).exponential_()
    noise = p * least + torch.where(code > 0, 0, excess)
    return noise.clamp_min(torch.finfo(p.dtype).tiny)  # a logarithm of it is taken


def swapped_categories(noise: Tensor, logits: Tensor, pairs: Tensor) -> Tensor:
    """argmin_k e_k / p_k if e_i and e_j are swapped, for several pairs (i, j), (V, ...) int64.

    Args:
        noise: e, (..., K) positive.
        logits: (..., K) log p.
        pairs: (V, 2) int64, categories i and j.
    """
    log_e = noise.log()
    value = log_e - logits  # (..., K)
    # Without i and j, the least value is among the three least ones of all.
    top, where = value.topk(min(3, value.shape[-1]), largest=False)
    first, second = (pairs[:, n].reshape(-1, *[1] * value.dim()) for n in (0, 1))
    taken = (where == first) | (where == second)
    least, at = torch.where(taken, torch.inf, top).min(-1, keepdim=True)  # (V, ..., 1)
    rest = where.expand(len(pairs), *where.shape).gather(-1, at)

    def of(tensor: Tensor, category: Tensor) -> Tensor:
        everywhere = category.expand(len(pairs), *tensor.shape[:-1], 1)
        return tensor.expand(len(pairs), *tensor.shape).gather(-1, everywhere)

    candidates = torch.cat(
        [least, of(log_e, second) - of(logits, first), of(log_e, first) - of(logits, second)], -1
    )
    shape = rest.shape
    categories = torch.cat([rest, first.expand(shape), second.expand(shape)], -1)
    return categories.gather(-1, candidates.argmin(-1, keepdim=True)).squeeze(-1)


def distinct_rows(index: Tensor, num_categories: int) -> tuple[Tensor, Tensor]:
    """Number the codes of each datum, so that equal codes have one number, and the first has 0.

    Args:
        index: (V, ..., D) int64 categories, V codes for each element of the other dimensions.
        num_categories: K.

    Returns:
        number: (V, ...) int64, the number of each code.
        distinct: (U, ..., D) the codes by number. U is the largest number of distinct codes of an
            element. Where there are fewer, the first code fills the rest.
    """
    key, size = index[..., 0], num_categories
    for latent in index.unbind(-1)[1:]:
        if size * num_categories >= 2**62:  # the rank of the code so far tells as much
            key, size = _dense_rank(key), len(index)
        key, size = key * num_categories + latent, size * num_categories
    rank = _dense_rank(key)
    first = rank[:1]
    number = torch.where(rank == first, 0, torch.where(rank < first, rank + 1, rank))
    most = int(number.max()) + 1
    source = torch.zeros(most, *number.shape[1:], dtype=torch.int64, device=index.device)
    rows = torch.arange(len(index), device=index.device).reshape(-1, *[1] * (number.dim() - 1))
    source.scatter_(0, number, rows.expand_as(number))
    source[0] = 0
    where = source.unsqueeze(-1).expand(*source.shape, index.shape[-1])
    return number, index.gather(0, where)


def _all_rows(index: Tensor) -> tuple[Tensor, Tensor]:
    """What `distinct_rows` returns if all codes are taken for distinct ones."""
    number = torch.arange(len(index), device=index.device).reshape(-1, *[1] * (index.dim() - 2))
    return number.expand(index.shape[:-1]), index


def _dense_rank(key: Tensor) -> Tensor:
    """The rank of each key along the first dimension; equal keys have equal ranks."""
    ordered, order = key.sort(0)
    new = torch.zeros_like(order)
    new[1:] = ordered[1:] != ordered[:-1]
    return torch.empty_like(order).scatter_(0, order, new.cumsum(0))
