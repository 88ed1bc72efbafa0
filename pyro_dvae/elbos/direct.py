"""One run of a `DiscreteVAE`'s programs without Pyro's traces: the same draws, the same numbers."""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import WeakSet

from pyro.infer.util import is_validation_enabled
from pyro.poutine.runtime import am_i_wrapped
from torch import Tensor

from pyro_dvae.codes import code_logits, draw_codes
from pyro_dvae.elbos.pair import Pair, Program
from pyro_dvae.vae import DiscreteVAE

_PLAIN: WeakSet[DiscreteVAE] = WeakSet()
"""Models whose traces held no site but z, its KL in closed form, and x."""


class Run(NamedTuple):
    """Guide and model at S draws a datum."""

    q_logits: Tensor
    """(S, B, D, K) normalised."""
    p_logits: Tensor
    """(D, K), or (B, D, K) given labels; normalised."""
    code: Tensor
    """(S, B, D, K) one-hot."""
    log_likelihood: Tensor
    """(S, B) nats."""


def owner(model: Program, guide: Program) -> DiscreteVAE | None:
    """The `DiscreteVAE`, of no subclass, whose `model` and `guide` these are."""
    vae = getattr(model, "__self__", None)
    own = type(vae) is DiscreteVAE and model == vae.model and guide == vae.guide
    return vae if own else None


def remember(vae: DiscreteVAE, pair: Pair, closed: set[str]) -> None:
    """Note whether a model's own traces say that it is plain: its networks may hold more sites."""
    if set(pair.model_sites) == {"z", "x"} and set(pair.guide_sites) == closed == {"z"}:
        _PLAIN.add(vae)
    else:
        _PLAIN.discard(vae)


def run(vae: DiscreteVAE, num_particles: int, args: Any, kwargs: Any) -> Run | None:
    """Draw codes and score them; None where only the traces will do.

    They do where a messenger wants to see the sites, where Pyro's checks are on, and until
    `remember` has seen the model's traces.

    Args:
        vae: a model.
        num_particles: S.
        args: x (B, *event), and labels (B,) where the prior takes them.
        kwargs: none.
    """
    if vae not in _PLAIN or kwargs or am_i_wrapped() or is_validation_enabled():
        return None
    x, *labels = args
    q_logits, p_logits = code_logits(vae.posterior(x)), code_logits(vae.prior_codes(*labels))
    if q_logits is None or p_logits is None:  # a part was swapped since
        return None
    drawn = q_logits if num_particles == 1 else q_logits.expand(num_particles, *q_logits.shape)
    code = draw_codes(drawn)
    log_likelihood = vae.decode(code).log_prob(x)
    if num_particles == 1:
        drawn, code, log_likelihood = drawn[None], code[None], log_likelihood[None]
    return Run(drawn, p_logits, code, log_likelihood)
