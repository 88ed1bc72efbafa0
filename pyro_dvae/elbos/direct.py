"""One run of a `DiscreteVAE`'s programs without Pyro's traces: the same draws, the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast
from weakref import WeakSet

from pyro.infer.util import is_validation_enabled
from pyro.poutine.runtime import am_i_wrapped
from torch import Tensor

from pyro_dvae.codes import code_logits, log_exponentials, normalised_kl, one_hot
from pyro_dvae.elbos.pair import Pair, Program
from pyro_dvae.guides import MeanFieldGuide
from pyro_dvae.likelihoods import Bernoulli
from pyro_dvae.likelihoods.base import Likelihood
from pyro_dvae.priors import LearnedPrior, UniformPrior
from pyro_dvae.vae import DiscreteVAE

_PLAIN: WeakSet[DiscreteVAE] = WeakSet()
"""Models whose traces held no site but z, its KL in closed form, and x."""


class Run(NamedTuple):
    """What guide and model say at S draws a datum, in nats."""

    log_likelihood: Tensor
    """(S, B) log p(x|z)."""
    log_guide: Tensor
    """(S, B) log q(z|x)."""
    kl_latent: Tensor
    """(B, D) KL of each latent alone."""


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


def is_plain(vae: DiscreteVAE) -> bool:
    """Whether `score` may take the place of the traces.

    Not where a messenger wants to see the sites, where Pyro's checks are on, and until `remember`
    has seen the model's traces.
    """
    return vae in _PLAIN and not am_i_wrapped() and not is_validation_enabled()


def score(
    vae: DiscreteVAE,
    num_particles: int,
    args: Sequence[Tensor],
    log_e: Callable[[Tensor], Tensor] = log_exponentials,
) -> Run | None:
    """Draw codes by the Gumbel-max trick and score them; None where a part was swapped.

    Args:
        vae: a plain model.
        num_particles: S.
        args: x (B, *event), and labels (B,) where the prior takes them.
        log_e: of a tensor, gives log E, E ~ Exp(1), of its shape: the draws.
    """
    x, *labels = args
    log_q, log_p = _log_q(vae, x), _log_p(vae, labels)
    if log_q is None or log_p is None:
        return None
    each = log_q.expand(num_particles, *log_q.shape) if num_particles > 1 else log_q
    index = (each - log_e(each)).argmax(-1)
    code = one_hot(index, log_q.shape[-1], dtype=log_q.dtype)
    log_likelihood = _log_likelihood(vae, code, x)
    log_guide = each.gather(-1, index.unsqueeze(-1)).sum((-2, -1))
    kl_latent = normalised_kl(log_q, log_p)
    if num_particles == 1:
        log_likelihood, log_guide = log_likelihood[None], log_guide[None]
    return Run(log_likelihood, log_guide, kl_latent)


def _log_q(vae: DiscreteVAE, x: Tensor) -> Tensor | None:
    if type(vae.posterior_family) is MeanFieldGuide:
        logits = vae.encode(x)
        return logits - logits.logsumexp(-1, keepdim=True)  # half of log_softmax's time for few K
    return code_logits(vae.posterior(x))


def _log_p(vae: DiscreteVAE, labels: list[Tensor]) -> Tensor | None:
    if type(vae.prior) in (UniformPrior, LearnedPrior) and not labels:
        return cast(Tensor, vae.prior.logits).log_softmax(-1)
    return code_logits(vae.prior_codes(*labels))


def _log_likelihood(vae: DiscreteVAE, code: Tensor, x: Tensor) -> Tensor:
    """`vae.decode(code).log_prob(x)`, without the distribution where it only reshapes."""
    params, likelihood = vae.decoder(code), cast(Any, vae.likelihood)
    lead = code.shape[:-2]
    rest = params.shape[len(lead) :]
    own = type(likelihood).forward in (Likelihood.forward, Bernoulli.forward)
    if not own or likelihood.num_params > 1 or rest != x.shape[1:]:
        event_dim = len(rest) - (likelihood.num_params > 1)
        return cast(Tensor, likelihood(params, event_dim).log_prob(x))
    flat = params.reshape(*lead, -1)
    return cast(Tensor, likelihood.log_prob(flat, x.reshape(x.shape[0], -1).to(flat.dtype)))
