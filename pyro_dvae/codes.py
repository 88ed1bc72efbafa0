"""Codes of D one-hot variables with K categories each: counting, scoring, drawing, KL.

All functions are pure. Most take logits, (..., D, K), normalised or not. If you have probabilities
p, pass `p.log()`. `entropy` and `kl_divergence` refuse probabilities. `draw_codes` and
`latent_kl_divergence` do not check: training calls them at every step, and a step never waits for
values from its device.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from pyro_dvae.tensors import has_values

MAX_CODES = 65_536
"""Largest K^D over which sums with gradients are computed."""
FEW_CODES = 4096
"""Largest K^D for which a step scores its data under all codes; see `SnapshotELBO`."""

_MANY_CATEGORIES = 64
"""The least K for which exponential noise is made of uniform numbers. Below, the draws of a seed
are those of earlier versions, and the time does not matter."""

ROWS = 256
"""Default number of data that are encoded or scored at once."""


def num_codes(num_latents: int, num_categories: int) -> int:
    """min(K^D, 2^63), the number of codes.

    A damaged file can have any D. To compute K^D itself could then take minutes and gigabytes.
    """
    if num_latents > 63 and num_categories > 1:
        return 2**63
    return min(int(num_categories**num_latents), 2**63)


def describe_codes(num_latents: int, num_categories: int) -> str:
    """K^D for a message: "8^4 = 4096", or "8^1000" if the number is too long to print."""
    power = f"{num_categories}^{num_latents}"
    total = num_codes(num_latents, num_categories)
    return f"{power} = {total}" if total < 10**12 else power


def enumerate_codes(
    num_latents: int,
    num_categories: int,
    *,
    start: int = 0,
    stop: int | None = None,
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Codes number `start` to `stop` - 1 of all K^D codes, where the last latent varies fastest.

    Args:
        num_latents: D.
        num_categories: K.
        start: number of the first code.
        stop: 1 + the number of the last code; None for K^D.
        device: device of the result.
        dtype: dtype of the result; None for torch's default dtype.

    Returns:
        (stop - start, D, K) one-hot.
    """
    digits = enumerate_digits(num_latents, num_categories, start=start, stop=stop, device=device)
    return one_hot(digits, num_categories, dtype=dtype)


def enumerate_digits(
    num_latents: int,
    num_categories: int,
    *,
    start: int = 0,
    stop: int | None = None,
    device: torch.device | None = None,
) -> Tensor:
    """The codes of `enumerate_codes` as categories, (stop - start, D) int64 from 0 to K - 1."""
    stop = num_codes(num_latents, num_categories) if stop is None else stop
    number = torch.arange(start, stop, device=device)
    place = num_categories ** torch.arange(num_latents - 1, -1, -1, device=device)
    return (number[:, None] // place) % num_categories


def one_hot(index: Tensor, num_categories: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """One-hot rows of category indices: (...,) integers to (..., K)."""
    dtype = torch.get_default_dtype() if dtype is None else dtype
    code = torch.zeros(*index.shape, num_categories, dtype=dtype, device=index.device)
    return code.scatter_(-1, index.unsqueeze(-1), 1)


def total(values: Iterable[Tensor]) -> Tensor:
    """The sum of some tensors. If there are none, it is 0 on the CPU, which works on any device."""
    each = iter(values)
    return sum(each, next(each, torch.zeros((), device="cpu")))


def wide(tensor: Tensor) -> Tensor:
    """The tensor in double precision, if its device has double precision."""
    return tensor if tensor.device.type == "mps" else tensor.double()


def code_log_probs(log_probs: Tensor) -> Tensor:
    """sum_d log p(z_d) of all codes, (..., K^D), in the order of `enumerate_codes`.

    Args:
        log_probs: log p(z_d = k), (..., D, K).
    """
    log_p = log_probs[..., 0, :]
    for latent in log_probs.unbind(-2)[1:]:
        log_p = (log_p.unsqueeze(-1) + latent.unsqueeze(-2)).flatten(-2)
    return log_p


def drawn_log_probs(log_probs: Tensor, index: Tensor) -> Tensor:
    """sum_d log q(z_d|x) of drawn codes, (..., S).

    Args:
        log_probs: log q(z_d = k|x), (..., D, K).
        index: the categories that were drawn, (..., S, D) int64.
    """
    # A gather, not a product with one-hot codes: 0 * -inf must not be reached.
    return log_probs.gather(-1, index.transpose(-1, -2)).sum(-2)


def log_exponentials(like: Tensor, *num: int) -> Tensor:
    """Log E, E ~ Exp(1) independent, (*num, *like.shape), of the dtype and device of `like`.

    The numbers are independent even where `like` is an expanded view.
    """
    shape = (*num, *like.shape)
    if like.shape[-1] < _MANY_CATEGORIES or like.dtype not in (torch.float32, torch.float64):
        return torch.empty(shape, dtype=like.dtype, device=like.device).exponential_().log()
    # -log U ~ Exp(1) takes a quarter of the time on a CPU, which is 20 % of a step with a code of
    # 8 x 256. U is a multiple of 2^-24 (float32). The least E of many categories, which decides a
    # draw, is some 1 / K, so that it still has 18 bits of precision at K = 64.
    uniform = torch.rand(shape, dtype=like.dtype, device=like.device)
    return uniform.clamp_(min=2.0**-25).log_().neg_().log_()


@torch.no_grad()
def draw_codes(logits: Tensor) -> Tensor:
    """z_d = one_hot(argmax_k(log pi_dk - log E_dk)), E ~ Exp(1): the Gumbel-max draw of a code.

    It does not use `torch.multinomial`, which waits for a GPU at every call.

    Args:
        logits: (..., D, K), normalised or not.

    Returns:
        (..., D, K) one-hot.
    """
    index = (logits - log_exponentials(logits)).argmax(-1)
    return one_hot(index, logits.shape[-1], dtype=logits.dtype)


def conditional_gumbels(log_p: Tensor, code: Tensor, *num: int) -> Tensor:
    """Log p + Gumbel noise whose argmax is a given code: -log E_b, and -log(E_k / p_k + E_b).

    E are independent standard exponential variables, b is the category of the code, and k is any
    other category. If the code is drawn from p, the result minus log p is independent standard
    Gumbel noise (Maddison, Tarlow & Minka 2014, "A* sampling"; Paulus et al. 2021).

    Args:
        log_p: (..., K), normalised. The result is differentiable in its finite elements.
        code: (..., K) one-hot.
        num: the shape of several independent draws; nothing for one draw.

    Returns:
        (*num, ..., K).
    """
    log_e = log_exponentials(log_p, *num)
    drawn = code.argmax(-1, keepdim=True).expand(*num, *code.shape[:-1], 1)
    top = log_e.gather(-1, drawn)
    return -torch.where(code > 0, top, torch.logaddexp(log_e - log_p, top))


def entropy(logits: Tensor) -> Tensor:
    """-sum_d sum_k q_dk log q_dk, in nats (Eqs. 6 and 9 of [JL25]).

    Args:
        logits: (..., D, K).

    Returns:
        (...), between 0 and D log K.

    Raises:
        ValueError: probabilities are given in place of logits.
    """
    _refuse_probabilities(logits)
    log_q = logits.log_softmax(-1)
    return -expectation(log_q.exp(), log_q).sum(-1)


def latent_kl_divergence(q_logits: Tensor, p_logits: Tensor) -> Tensor:
    """KL(q_d || p_d) = sum_k q_dk (log q_dk - log p_dk) of each latent, (..., D), in nats.

    Args:
        q_logits: (..., D, K).
        p_logits: (..., D, K), broadcast against q.
    """
    log_q = q_logits.log_softmax(-1)
    return expectation(log_q.exp(), log_q - p_logits.log_softmax(-1))


def kl_divergence(q_logits: Tensor, p_logits: Tensor) -> Tensor:
    """KL(q || p) = sum_d sum_k q_dk (log q_dk - log p_dk), in nats (Eq. 3 of [JL25]).

    Args:
        q_logits: (..., D, K).
        p_logits: (..., D, K), broadcast against q.

    Returns:
        (...), at least 0 up to rounding. For the uniform prior it is D log K - entropy(q)
        (Eqs. 59 to 70 of [JL25]).

    Raises:
        ValueError: probabilities are given in place of logits.
    """
    _refuse_probabilities(q_logits)
    _refuse_probabilities(p_logits)
    return latent_kl_divergence(q_logits, p_logits).sum(-1)


def _refuse_probabilities(logits: Tensor) -> None:
    """Raise a ValueError if each row lies in [0, 1] and sums to one, as no logits do by chance.

    The softmax of probabilities is another distribution, and close to the uniform one.
    """
    if (
        has_values(logits)
        and logits.numel()
        and (logits >= 0).all()
        and ((logits.sum(-1) - 1).abs() < 1e-3).all()
    ):
        raise ValueError(
            "Expected logits; got probabilities: each row lies in [0, 1] and sums to one. Pass "
            "p.log() of probabilities p, or log_softmax(-1) of logits that look like them."
        )


def expectation(q: Tensor, value: Tensor, dim: int = -1) -> Tensor:
    """sum_k q_k value_k over one dimension, with 0 * -inf = 0.

    Args:
        q: probabilities.
        value: of the same shape, or broadcast against q. It may be -inf where q is 0.
        dim: the dimension of k.
    """
    return (q * torch.where(q > 0, value, 0)).sum(dim)


def code_logits(fn: object) -> Tensor | None:
    """The logits of a site's distribution, if its draws are categorical codes.

    Args:
        fn: the distribution of a site: a `OneHotCategorical` (straight-through or not) or a
            `Categorical`, alone or in `.to_event(n)`.

    Returns:
        (*batch_shape, D, K) normalised logits, D being the product of the event's leading
        dimensions (1 without `.to_event`); None for any other distribution.
    """
    base, num_event = unwrap(fn)
    if not isinstance(
        base, (torch.distributions.OneHotCategorical, torch.distributions.Categorical)
    ):
        return None
    logits: Tensor = base.logits
    if num_event == 0:
        return logits.unsqueeze(-2)
    return logits if num_event == 1 else logits.flatten(-1 - num_event, -2)


def code_value(fn: object, codes: Tensor) -> Tensor:
    """Values of a site from one-hot codes (..., K): for a `Categorical`, indices (...).

    Args:
        fn: the distribution of the site.
        codes: (..., K) one-hot.
    """
    return codes if is_one_hot(fn) else codes.argmax(-1)


def is_one_hot(fn: object) -> bool:
    """Whether the draws of a distribution, or of that in its `.to_event(n)`, are one-hot."""
    return isinstance(unwrap(fn)[0], torch.distributions.OneHotCategorical)


def unwrap(fn: object) -> tuple[object, int]:
    """The distribution inside of all `.to_event(n)`, and the sum of their n."""
    num_event = 0
    while isinstance(fn, torch.distributions.Independent):
        num_event += fn.reinterpreted_batch_ndims
        fn = fn.base_dist
    return fn, num_event
