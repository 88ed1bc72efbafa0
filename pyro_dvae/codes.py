"""The distribution of D one-hot variables with K categories each, seen through its logits.

Everything here is a pure function of a `(..., D, K)` tensor of logits, normalised or not. Of
probabilities p pass `p.log()`. `entropy` and `kl_divergence` refuse probabilities by name;
`draw_codes` and `latent_kl_divergence` cannot: training calls them at every step, and a step never
reads values from its device.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions.distribution import Distribution
from pyro.distributions.relaxed_straight_through import (
    RelaxedBernoulliStraightThrough,
    RelaxedOneHotCategoricalStraightThrough,
)
from torch import Tensor

from pyro_dvae.tensors import has_values

# Torch's classes are also the bases of Pyro's straight-through ones.
_OneHot, _Index = torch.distributions.OneHotCategorical, torch.distributions.Categorical
_QUANTISED = (RelaxedOneHotCategoricalStraightThrough, RelaxedBernoulliStraightThrough)
"""Straight-through distributions whose support is that of the relaxation, which they score."""

MAX_CODES = 65_536
"""Largest K^D that is enumerated in one pass with gradients."""

ROWS = 256
"""Data that are encoded or scored at once."""


def num_codes(num_latents: int, num_categories: int) -> int:
    """K^D, the number of codes; 2^63 stands for every number beyond it.

    The power itself would take minutes and gigabytes for the D that a damaged file may hold.
    """
    if num_latents > 63 and num_categories > 1:
        return 2**63
    return min(int(num_categories**num_latents), 2**63)


def describe_codes(num_latents: int, num_categories: int) -> str:
    """K^D for a message: "8^4 = 4096", without the digits where they would fill lines."""
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
    """The codes number `start` to `stop` of all K^D, the last latent varying fastest.

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
    """The same as categories: (stop - start, D) integers from 0 to K - 1."""
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
    """Their sum; where there are none a zero on the CPU, which goes with tensors of any device."""
    each = iter(values)
    return sum(each, next(each, torch.zeros((), device="cpu")))


def wide(tensor: Tensor) -> Tensor:
    """The tensor in double precision, where its device has that."""
    return tensor if tensor.device.type == "mps" else tensor.double()


def code_log_probs(log_probs: Tensor) -> Tensor:
    """Log-probability of every code, as sums over latents: (..., D, K) to (..., K^D).

    The codes come in the order of `enumerate_codes`.
    """
    total = log_probs[..., 0, :]
    for latent in log_probs.unbind(-2)[1:]:
        total = (total.unsqueeze(-1) + latent.unsqueeze(-2)).flatten(-2)
    return total


def drawn_log_probs(log_probs: Tensor, index: Tensor) -> Tensor:
    """Log q(z|x) of drawn codes: (..., D, K) and categories (..., S, D) to (..., S)."""
    # A gather, not a product with one-hot codes: 0 * -inf must not be reached.
    return log_probs.gather(-1, index.transpose(-1, -2)).sum(-2)


def log_exponentials(like: Tensor, *num: int) -> Tensor:
    """Draw log E, E ~ Exp(1) independent, (*num, *like.shape), even if `like` is expanded."""
    shape = (*num, *like.shape)
    return torch.empty(shape, dtype=like.dtype, device=like.device).exponential_().log()


@torch.no_grad()
def draw_codes(logits: Tensor) -> Tensor:
    """Draw one_hot(argmax_k(log pi_k - log E_k)), E ~ Exp(1): the Gumbel-max draw of a code.

    Exactly one-hot, and without `torch.multinomial`, which reads from a GPU at every call.

    Args:
        logits: (..., D, K), normalised or not.

    Returns:
        (..., D, K) one-hot.
    """
    index = (logits - log_exponentials(logits)).argmax(-1)
    return one_hot(index, logits.shape[-1], dtype=logits.dtype)


def entropy(logits: Tensor) -> Tensor:
    """-sum_d sum_k q_dk log q_dk, in nats (Eqs. 6 and 9 of [JL25]).

    Args:
        logits: (..., D, K).

    Returns:
        (...), between 0 and D log K.

    Raises:
        ValueError: probabilities in place of logits.
    """
    _refuse_probabilities(logits)
    log_q = logits.log_softmax(-1)
    return -_expectation(log_q.exp(), log_q).sum(-1)


def latent_kl_divergence(q_logits: Tensor, p_logits: Tensor) -> Tensor:
    """KL of each latent alone: (..., D, K) and (..., D, K) to (..., D), in nats."""
    log_q = q_logits.log_softmax(-1)
    return _expectation(log_q.exp(), log_q - p_logits.log_softmax(-1))


def kl_divergence(q_logits: Tensor, p_logits: Tensor) -> Tensor:
    """KL(q || p) = sum_d sum_k q_dk (log q_dk - log p_dk), in nats (Eq. 3 of [JL25]).

    Args:
        q_logits: (..., D, K).
        p_logits: (..., D, K), broadcast against q.

    Returns:
        (...), never negative but for rounding; against the uniform prior D log K - entropy(q)
        (Eqs. 59 to 70 of [JL25]).

    Raises:
        ValueError: probabilities in place of logits.
    """
    _refuse_probabilities(q_logits)
    _refuse_probabilities(p_logits)
    return latent_kl_divergence(q_logits, p_logits).sum(-1)


def _refuse_probabilities(logits: Tensor) -> None:
    """Raise a ValueError where every row lies in [0, 1] and sums to one, as no logits do by chance.

    Softmax would make of them another distribution, near the uniform one, without a word.
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


def _expectation(q: Tensor, value: Tensor) -> Tensor:
    # A category of probability zero contributes nothing, though its log is -inf.
    return (q * torch.where(q > 0, value, 0)).sum(-1)


def code_logits(fn: object) -> Tensor | None:
    """The logits of a Pyro site, if its distribution is one of categorical codes.

    Args:
        fn: the distribution of a site: a `OneHotCategorical` (straight-through or not) or a
            `Categorical`, alone or in `.to_event(n)`.

    Returns:
        (*batch_shape, D, K) normalised logits, D being the product of the event's leading
        dimensions (1 without `.to_event`); None for any other distribution.
    """
    base, num_event = _unwrap(fn)
    if not isinstance(
        base, (torch.distributions.OneHotCategorical, torch.distributions.Categorical)
    ):
        return None
    logits: Tensor = base.logits
    if num_event == 0:
        return logits.unsqueeze(-2)
    return logits if num_event == 1 else logits.flatten(-1 - num_event, -2)


def code_value(fn: object, codes: Tensor) -> Tensor:
    """One-hot codes (..., K) as values of the site: category indices for a `Categorical`."""
    return codes if is_one_hot(fn) else codes.argmax(-1)


def is_one_hot(fn: object) -> bool:
    """Whether a distribution is one of codes as one-hot vectors, in `.to_event(n)` or not."""
    return isinstance(_unwrap(fn)[0], _OneHot)


def without_straight_through(fn: Any) -> Any:
    """The distribution of a site whose draws, if discrete, have no gradient.

    A straight-through distribution says that its draws are reparametrised. Pyro then leaves out
    the score function and follows the biased gradient of the draws. So the same codes as a plain
    Pyro distribution take its place.

    Args:
        fn: any distribution.

    Returns:
        A plain distribution of codes in place of a straight-through one; any other `fn` itself.

    Raises:
        TypeError: a straight-through distribution that is not one of codes, or one of torch that
            is not Pyro's.
    """
    base, num_event = _unwrap(fn)
    if isinstance(fn, torch.distributions.Distribution) and not isinstance(fn, Distribution):
        raise TypeError(
            f"Expected a distribution of Pyro; got torch's {base}. Use the class of the same name "
            "in pyro.distributions."
        )
    if not (isinstance(fn, Distribution) and fn.has_rsample):
        return fn
    if isinstance(base, _OneHot):
        return dist.OneHotCategorical(logits=base.logits).to_event(num_event)
    if isinstance(base, _Index):
        return dist.Categorical(logits=base.logits).to_event(num_event)
    if _is_straight_through(fn):
        raise TypeError(
            f"Expected draws whose gradient is exact; got the straight-through {base}. Use "
            "OneHotCategorical, or Bernoulli for one bit: the ELBO chooses how to differentiate."
        )
    return fn


def _is_straight_through(fn: Any) -> bool:
    layer = fn
    while layer is not None:
        if isinstance(
            layer, (RelaxedOneHotCategoricalStraightThrough, RelaxedBernoulliStraightThrough)
        ):
            return True
        layer = vars(layer).get("base_dist")  # of `.to_event`, `.mask`, `.expand`, a transform
    try:
        return bool(fn.support.is_discrete)  # and it has `rsample`
    except (AttributeError, NotImplementedError):
        return False


def _unwrap(fn: object) -> tuple[object, int]:
    num_event = 0
    while isinstance(fn, torch.distributions.Independent):
        num_event += fn.reinterpreted_batch_ndims
        fn = fn.base_dist
    return fn, num_event
